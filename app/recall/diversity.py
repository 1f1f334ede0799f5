"""Which of the best candidates become hits: near-equal ones and those of one source give way to others. Pure.

Invariant: the first candidate is always chosen, none twice, and as many as without wherever the rules allow so many.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.recall.signals import Floats, calibrated

SHORTLIST = 3  # candidates considered for each hit asked for
NEAR_EQUAL_FROM = 0.9  # calibrated likeness of two memories below which they say clearly different things

Sources = NDArray[np.int64]
"""A number for each source; 0 for none, which is no source that could have too large a share."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Candidates that were considered, and of these the chosen ones, as rows, best first; and what decided.

    `same` is the redundancy between the considered (None: it played no part), `most` the limit for one source;
    `reranked` says whether the considered stand in the order of a reranker.
    """

    considered: Sequence[int]
    chosen: Sequence[int]
    same: Floats | None
    most: int
    reranked: bool = False


def most_per_source(share: float, top_k: int) -> int:
    """How many of top_k hits may come from one source: never more than the share, but one at least."""
    return max(1, int(share * top_k + 1e-9))


def shortlist(order: NDArray[np.intp], sources: Sources | None, count: int, most: int) -> list[int]:
    """The rows to choose from: the first `count` of `order`, of one source at most SHORTLIST · most."""
    rows: list[int] = order[:count].tolist() if sources is None else []
    if sources is not None:
        taken: Counter[int] = Counter()
        for row, source in zip(order.tolist(), sources[order].tolist(), strict=True):
            if source == 0 or taken[source] < SHORTLIST * most:
                taken[source] += 1
                rows.append(row)
                if len(rows) == count:
                    break
    return rows


def redundancy(vectors: NDArray[np.float32], pair_window: tuple[float, float]) -> Floats:
    """How much each two memories say the same: 0 if clearly different or without a vector (zeros), 1 if equal.

    Shape (n, n) for unit vectors (n, dimension); the diagonal is 0.
    """
    alike = calibrated((vectors @ vectors.T).astype(np.float64), pair_window)
    same = np.clip((alike - NEAR_EQUAL_FROM) / (1 - NEAR_EQUAL_FROM), 0.0, 1.0)
    np.fill_diagonal(same, 0.0)
    return np.asarray(same)


def choose(
    scores: Floats,
    top_k: int,
    *,
    same: Floats | None = None,
    diversity: float = 0.0,
    sources: Sources | None = None,
    most: int = 0,
) -> list[int]:
    """Positions of at most top_k of the candidates, whose `scores` fall; in their order.

    Maximal marginal relevance (Carbonell and Goldstein 1998): again and again the one with the greatest
    (1 - diversity) · score - diversity · greatest redundancy with those already chosen. Of one of `sources` at most
    `most`. With diversity 0 and no sources: the first top_k.
    """
    if sources is None and (same is None or not same[:top_k, :top_k].any()):
        return list(range(min(top_k, len(scores))))
    # Each turn looks at few of them, and few repeat anything: lists are several times faster here than arrays.
    worth = ((1 - diversity) * scores).tolist()
    repeats: Any = [False] * len(worth) if same is None else same.any(axis=1)
    lost, repeated = np.zeros(len(worth)), [0.0] * len(worth)
    left, chosen = list(range(len(worth))), list[int]()
    taken: Counter[int] = Counter()
    while len(chosen) < top_k and left:
        best, most_worth = -1, -np.inf
        for position in left:
            if worth[position] <= most_worth:
                break  # nor is any after it better
            if worth[position] - repeated[position] > most_worth:
                best, most_worth = position, worth[position] - repeated[position]
        chosen.append(best)
        left.remove(best)
        if same is not None and repeats[best]:
            lost = np.maximum(lost, diversity * same[best])
            repeated = lost.tolist()
        if sources is not None and (source := int(sources[best])):
            taken[source] += 1
            if taken[source] == most:
                left = [position for position in left if sources[position] != source]
    return sorted(chosen)


def settled(chosen: Sequence[int], same: Floats, sources: Sources | None) -> bool:
    """Whether as many as wanted, chosen from the first candidates, stay chosen whatever candidates follow these.

    So it is if none of them gave way to another, and if one was left that repeats none of the chosen: it is better.
    """
    alike: NDArray[np.bool_] = same[:, chosen] > 0
    if not alike[chosen].any():
        return True
    repeats = set(np.flatnonzero(alike.any(axis=1)).tolist())
    free = range(len(same)) if sources is None else np.flatnonzero(sources == 0).tolist()
    return not repeats.union(chosen).issuperset(free)


def most_alike(position: int, chosen: Sequence[int], same: Floats) -> int:
    """Of the chosen positions the one that says most of what `position` says."""
    return max(chosen, key=lambda other: float(same[position, other]))
