"""Diversity: near-equal candidates and those of one source give way, nothing else changes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.recall.diversity import SHORTLIST, Sources, choose, most_per_source, redundancy, shortlist
from app.recall.signals import Floats

WINDOW = (0.85, 1.0)
SEEDS, COUNTS, TOP_K = st.integers(0, 9_999), st.integers(0, 40), st.integers(1, 12)
SHARES = st.floats(0, 1)


def candidates(seed: int, count: int) -> tuple[Floats, Floats, Sources]:
    """Scores that fall, redundancy of vectors in a few clusters, and sources (0: none)."""
    draw = np.random.default_rng(seed)
    scores = np.sort(draw.uniform(0.1, 1, count))[::-1]
    vectors = np.eye(4, 32)[draw.integers(0, 4, count)] + draw.normal(0, draw.choice([0, 0.02, 0.5]), (count, 32))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return scores, redundancy(vectors.astype(np.float32), WINDOW), draw.integers(0, 4, count)


@given(seed=SEEDS, count=COUNTS, top_k=TOP_K, diversity=SHARES)
def test_as_many_as_without_none_twice_in_order_and_the_best_always(
    seed: int, count: int, top_k: int, diversity: float
) -> None:
    scores, same, _ = candidates(seed, count)
    chosen = choose(scores, top_k, same=same, diversity=diversity)
    assert len(chosen) == min(top_k, count)
    assert chosen == sorted(set(chosen))
    assert chosen[:1] == list(range(count))[:1]
    assert choose(scores, top_k, same=same, diversity=0.0) == list(range(min(top_k, count)))


@given(seed=SEEDS, count=COUNTS, top_k=TOP_K, diversity=SHARES)
def test_what_is_clearly_different_keeps_its_place(seed: int, count: int, top_k: int, diversity: float) -> None:
    scores, same, _ = candidates(seed, count)
    chosen = choose(scores, top_k, same=same, diversity=diversity)
    for gone in set(range(min(top_k, count))) - set(chosen):
        assert same[gone, chosen].max() > 0


@given(seed=SEEDS, count=COUNTS, top_k=TOP_K, diversity=SHARES, share=st.floats(0.01, 1))
def test_no_source_has_more_than_its_share_and_places_stay_empty_only_for_want_of_others(
    seed: int, count: int, top_k: int, diversity: float, share: float
) -> None:
    scores, same, sources = candidates(seed, count)
    most = most_per_source(share, top_k)
    assert most == 1 or most <= share * top_k + 1e-6
    rows = shortlist(np.arange(count), sources, SHORTLIST * top_k, most)
    chosen = choose(
        scores[rows], top_k, same=same[np.ix_(rows, rows)], diversity=diversity, sources=sources[rows], most=most
    )
    taken = Counter(int(sources[rows[position]]) for position in chosen)
    assert all(number <= most for source, number in taken.items() if source)
    there = Counter(sources.tolist())
    possible = there.pop(0, 0) + sum(min(number, most) for number in there.values())
    assert len(chosen) == min(top_k, possible)


def test_a_repetition_gives_way_to_what_scores_nearly_as_much_and_only_to_that() -> None:
    same = np.zeros((4, 4))
    same[0, 1] = same[1, 0] = 1.0
    near, far = np.array([0.9, 0.89, 0.8, 0.1]), np.array([0.9, 0.89, 0.2, 0.1])
    assert choose(near, 2, same=same, diversity=0.2) == [0, 2]
    assert choose(far, 2, same=same, diversity=0.2) == [0, 1]
    assert choose(far, 2, same=same, diversity=1.0) == [0, 2]


@pytest.mark.parametrize(
    ("cosine", "expected"), [(0.0, 0.0), (0.9, 0.0), (0.96, 0.0), (1.0, 1.0)], ids=["other", "near", "nearer", "equal"]
)
def test_redundancy_is_only_for_near_equal_vectors(cosine: float, expected: float) -> None:
    vectors = np.array([[1, 0], [cosine, np.sqrt(1 - cosine**2)], [0, 0]], dtype=np.float32)
    same = redundancy(vectors, WINDOW)
    assert same[0, 1] == same[1, 0] == pytest.approx(expected, abs=1e-5)
    assert not same[2].any()  # no vector: nothing can be said
    assert not same.diagonal().any()
