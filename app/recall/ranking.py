"""From measured candidates to hits: weigh the signals, keep what has evidence, sort. Pure.

Invariant: a hit has evidence (a match of meaning or of words) and passes the threshold; scores lie in [0, 1], higher is
better; a missing vector lowers no row below what its keywords say and never gives NaN.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.recall.query import Candidates, Query
from app.recall.signals import SIGNALS, Circumstances, Floats, calibrated

LEADING = 0.9
"""Share of the best hit's relevance from which a hit leads: the same in other words does, what fills up does not."""
ROUNDING = 1e-6  # SQL and numpy sum the products of two vectors in another order: so much is no difference
_FUSED = {
    "weighted": frozenset(SIGNALS),
    "similarity": frozenset({"similarity"}),
    "similarity_time": frozenset({"similarity", "time"}),
    "similarity_importance": frozenset({"similarity", "importance"}),
}


@dataclass(frozen=True, slots=True)
class Ranked:
    """One hit: its row among the candidates, its score, and (explained) each signal's value, weight, share and arm."""

    row: int
    score: float
    signals: Mapping[str, Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on every candidate; `order` has the rows of all hits, best first, however many were asked for.

    `score` lies in [0, 1]; `evidence` tells of every row whether anything in it matches; `similarity` is what a
    threshold is compared with (NaN: no vector). `values` and `weights` are those of each signal;
    a weight that is the same for all rows is one number.
    """

    score: Floats
    order: NDArray[np.intp]
    evidence: NDArray[np.bool_]
    similarity: Floats
    values: Mapping[str, Floats]
    weights: Mapping[str, Floats | float]

    def ranked(self, rows: Sequence[int], *, explain: bool = True) -> list[Ranked]:
        """The given rows with their scores, and what these are made of."""
        scores = self.score[rows].tolist()
        parts = [_explain(row, self) if explain else None for row in rows]
        return [Ranked(*one) for one in zip(rows, scores, parts, strict=True)]

    def leading(self, rows: Sequence[int]) -> list[bool]:
        """Which of the given rows lead by what was asked, whatever their time and importance: use strengthens these.

        None does if nothing was asked: similarity and keyword weigh nothing.
        """
        relevance = np.zeros(len(rows))
        for name, signal in SIGNALS.items():
            if signal.arm != "prior":
                weight = self.weights[name]
                value = _said(self.values[name][rows])
                relevance += value * (weight if isinstance(weight, float) else weight[rows])
        return leading(relevance)


def leading(relevance: Floats) -> list[bool]:
    """Which hits are about as relevant as the best; none if there is nothing relevant."""
    best = relevance.max(initial=0.0)
    leads: list[bool] = ((relevance >= LEADING * best) & (relevance > 0)).tolist()
    return leads


def judge(candidates: Candidates, query: Query, circumstances: Circumstances) -> Judged:
    """Score all candidates, and say which are hits: best first, among equals the more alike and then the newer.

    A row is a hit if it passes the filters, has evidence, and its similarity is not below query.similarity_threshold
    (in calibrated units). Evidence is a similarity or a keyword signal above 0 among those that weigh; if neither
    weighs, every row counts. A row without a vector cannot be below the threshold: it stays on a keyword match alone.
    """
    plain = calibrated(candidates.cosine, circumstances.window)
    values = {name: signal.measure(candidates, query, circumstances) for name, signal in SIGNALS.items()}
    asked = _asked(query)
    if asked["similarity"] == 1:
        values["similarity"] = plain  # alone it is asked for as such; corrections belong to the mix
    weights = _weigh(asked, values)
    score = np.zeros(len(candidates))
    for name, value in values.items():
        weight = weights[name]  # one number only if the signal is said of all
        score += weight * (value if isinstance(weight, float) else _said(value))
    # What is NaN is not above anything, so it is no evidence and passes no threshold.
    evidence = (weights["similarity"] * plain > ROUNDING) | (weights["keyword"] * values["keyword"] > ROUNDING)
    if asked["similarity"] + asked["keyword"] == 0:
        evidence[:] = True
    passes = (plain >= query.similarity_threshold - ROUNDING) | (np.isnan(plain) & (values["keyword"] > 0))
    rows = np.flatnonzero(candidates.matching & evidence & passes)
    return Judged(np.minimum(score, 1.0), _best(rows, score, candidates.cosine), evidence, plain, values, weights)


def _best(rows: NDArray[np.intp], score: Floats, cosine: Floats) -> NDArray[np.intp]:
    """The rows, best first: among equal scores the more alike, and then the newer."""
    worst = -score[rows]
    order = np.argsort(worst)
    sorted_ = worst[order]
    if (sorted_[1:] == sorted_[:-1]).any():
        order = np.lexsort((-rows, -_said(cosine[rows]), worst))  # calibration ends at 1, likeness goes on
    return rows[order]


def _asked(query: Query) -> dict[str, float]:
    """The weights of the request within its fusion, scaled to sum 1; similarity alone if none of those weighs."""
    asked = query.weights or {name: signal.weight for name, signal in SIGNALS.items()}
    fused = {name: asked.get(name, 0.0) if name in _FUSED[query.fusion] else 0.0 for name in SIGNALS}
    total = sum(fused.values())
    return {name: weight / total if total > 0 else float(name == "similarity") for name, weight in fused.items()}


def _weigh(asked: Mapping[str, float], values: Mapping[str, Floats]) -> dict[str, Floats | float]:
    """The weight of each signal: one number, or where something cannot be said one for each row.

    Similarity and keyword are two witnesses of one thing, relevance: where one cannot be said (no vector; no words in
    the query), its weight goes to the other, so that time and importance never grow by an outage.
    """
    weights: dict[str, Floats | float] = dict(asked)
    for missing, other in (("similarity", "keyword"), ("keyword", "similarity")):
        unsaid = np.isnan(values[missing])
        if unsaid.any():
            weights[other] = np.where(unsaid, weights[other] + weights[missing], weights[other])
            weights[missing] = np.where(unsaid, 0.0, weights[missing])
    return weights


def _said(value: Floats) -> Floats:
    """The value, 0 where it cannot be said."""
    unsaid = np.isnan(value)
    return np.where(unsaid, 0.0, value) if unsaid.any() else value


def _explain(row: int, judged: Judged) -> dict[str, dict[str, Any]]:
    """Value (null: cannot be said), weight, contribution and arm of each signal; contributions sum to the score.

    `calibrated` is what a similarity threshold is compared with; in the mix the value of similarity may differ.
    """
    explained: dict[str, dict[str, Any]] = {}
    for name, signal in SIGNALS.items():
        value, weight = float(judged.values[name][row]), judged.weights[name]
        weight = weight if isinstance(weight, float) else float(weight[row])
        known = None if np.isnan(value) else value
        explained[name] = {"value": known, "weight": weight, "contribution": (known or 0.0) * weight, "arm": signal.arm}
    plain = float(judged.similarity[row])
    explained["similarity"]["calibrated"] = None if np.isnan(plain) else plain
    return explained
