"""What belongs together and what is told of it: pure, bounded, and never more than was said."""

from datetime import UTC, datetime
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.consolidate import ConsolidateConfig
from app.consolidate.clusters import LONGEST_TEXT, MOST_CHARACTERS, clusters, extract, headed, invented

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.floats(0, 1), st.integers(2, 5), st.integers(5, 8))
def test_groups_are_disjoint_alike_and_of_the_right_size(
    seed: int, rows: int, least: float, fewest: int, most: int
) -> None:
    vectors = np.random.default_rng(seed).random((rows, 3))
    similarity = vectors @ vectors.T / 3
    groups = clusters(similarity, least, fewest, most)
    members = list(chain.from_iterable(groups))
    assert len(members) == len(set(members))
    for group in groups:
        assert fewest <= len(group) <= most
        assert group == sorted(group)
        assert any(all(one == other or similarity[one, other] >= least for other in group) for one in group)
    assert groups == clusters(similarity, least, fewest, most)


def test_two_topics_are_two_groups_and_a_loner_is_in_none() -> None:
    near = np.full((7, 7), 0.1)
    near[:3, :3] = near[3:6, 3:6] = 0.9
    assert clusters(near, 0.5, 3, 10) == [[0, 1, 2], [3, 4, 5]]
    assert clusters(near, 0.5, 4, 10) == []


def test_an_extract_holds_whole_texts_in_their_order_and_the_one_in_the_middle() -> None:
    texts = ["Went to Rome.", "Saw the museum", "Lin's 生日聚会"]
    near = np.array([[1.0, 0.8, 0.1], [0.8, 1.0, 0.1], [0.1, 0.1, 1.0]])
    assert extract(texts, near) == "Went to Rome; Saw the museum; Lin's 生日聚会"
    assert extract(["去了罗马。", "看了博物馆"], near[:2, :2]) == "去了罗马；看了博物馆"


@given(st.lists(st.text(min_size=1, max_size=500), min_size=1, max_size=12))
def test_an_extract_is_bounded(texts: list[str]) -> None:
    made = extract(texts, np.eye(len(texts)))
    assert len(made) <= max(MOST_CHARACTERS, LONGEST_TEXT) + 2 * 5


def test_a_heading_names_days_and_number() -> None:
    later = NOON.replace(day=1, month=12)
    assert headed("x", 4, NOON, later, chinese=True) == "摘要（2026-11-30 至 2026-12-01，4 条）：x"
    assert headed("x", 4, NOON, NOON, chinese=False) == "Summary (2026-11-30, 4 memories): x"


def test_the_most_is_not_below_the_least() -> None:
    with pytest.raises(ValidationError, match="summary_most"):
        ConsolidateConfig(summary_least=9, summary_most=8)


@pytest.mark.parametrize(
    ("summary", "made_up"),
    [
        ("Lin went to Rome in May and paid 300 euros", []),
        ("Lin went to Paris", ["Paris"]),
        ("They paid 301 euros", ["301"]),
        ("Order A-1024 came late", ["A-1024"]),
        ("她五月去了罗马，花了300欧元", []),
        ("她花了3000欧元", ["3000"]),
        ("Nothing new. Lin went away", []),
        ("It cost 30 euros. Nobody saw Max", ["30", "Max"]),
    ],
)
def test_what_nobody_said_is_found(summary: str, made_up: list[str]) -> None:
    assert invented(summary, ["Lin went to Rome in May", "The trip cost 300 euros", "她五月去了罗马"]) == made_up
