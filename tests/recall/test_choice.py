"""Maximal marginal relevance by its definition; and choices that no further candidate can change."""

import numpy as np
import pytest

from app.recall.diversity import choose, settled
from app.recall.signals import Floats


def by_definition(scores: Floats, top_k: int, same: Floats, diversity: float) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < min(top_k, len(scores)):
        left = [position for position in range(len(scores)) if position not in chosen]
        repeated = {one: max((float(same[one, other]) for other in chosen), default=0.0) for one in left}
        chosen.append(max(left, key=lambda one: ((1 - diversity) * scores[one] - diversity * repeated[one], -one)))
    return sorted(chosen)


@pytest.mark.parametrize("density", [0.02, 0.1, 0.3])
def test_the_choice_is_the_best_by_definition_and_stands_where_it_is_settled(density: float) -> None:
    random, stood = np.random.default_rng(1), 0
    for _ in range(300):
        count, top_k = int(random.integers(1, 40)), int(random.integers(1, 15))
        scores = np.sort(random.random(count).round(2))[::-1]
        half = np.triu(np.where(random.random((count, count)) < density, random.random((count, count)), 0.0), 1)
        same, diversity = half + half.T, float(random.choice([0.0, 0.2, 1.0]))
        expected = by_definition(scores, top_k, same, diversity)
        assert choose(scores, top_k, same=same, diversity=diversity) == expected
        near = min(count, top_k + int(random.integers(0, 8)))
        chosen = choose(scores[:near], top_k, same=same[:near, :near], diversity=diversity)
        if len(chosen) == top_k and settled(chosen, same[:near, :near], None):
            stood += 1
            assert chosen == expected
    assert stood > 10
