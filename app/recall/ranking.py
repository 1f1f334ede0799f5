"""From measured candidates to hits: weigh the signals, keep what has evidence, sort. Pure.

Invariant: a hit has evidence (a match of meaning or of words) and passes the threshold; scores lie in [0, 1], higher is
better; a missing vector lowers no row below what its keywords say and never gives NaN.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.recall.query import Candidates, Query
from app.recall.signals import SIGNALS, Circumstances, Floats, calibrated

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


def rank(candidates: Candidates, query: Query, circumstances: Circumstances, *, explain: bool = True) -> list[Ranked]:
    """The hits of a query, best first and newest first among equals, at most query.top_k.

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
        score += weights[name] * np.where(np.isnan(value), 0.0, value)
    # What is NaN is not above anything, so it is no evidence and passes no threshold.
    evidence = (weights["similarity"] * plain > 0) | (weights["keyword"] * values["keyword"] > 0)
    if asked["similarity"] + asked["keyword"] == 0:
        evidence[:] = True
    passes = np.where(np.isnan(plain), values["keyword"] > 0, plain >= query.similarity_threshold)
    rows = np.flatnonzero(candidates.matching & evidence & passes)
    best = rows[np.lexsort((-rows, -score[rows]))][: query.top_k]
    scores = np.minimum(score[best], 1.0).tolist()
    parts = [_explain(row, values, weights, plain) if explain else None for row in best.tolist()]
    return [Ranked(*hit) for hit in zip(best.tolist(), scores, parts, strict=True)]


def _asked(query: Query) -> dict[str, float]:
    """The weights of the request within its fusion, scaled to sum 1; similarity alone if none of those weighs."""
    asked = query.weights or {name: signal.weight for name, signal in SIGNALS.items()}
    fused = {name: asked.get(name, 0.0) if name in _FUSED[query.fusion] else 0.0 for name in SIGNALS}
    total = sum(fused.values())
    return {name: weight / total if total > 0 else float(name == "similarity") for name, weight in fused.items()}


def _weigh(asked: Mapping[str, float], values: Mapping[str, Floats]) -> dict[str, Floats]:
    """The weight of each signal for each row.

    Similarity and keyword are two witnesses of one thing, relevance: where one cannot be said (no vector; no words in
    the query), its weight goes to the other, so that time and importance never grow by an outage.
    """
    weights = {name: np.full(len(values[name]), weight) for name, weight in asked.items()}
    for missing, other in (("similarity", "keyword"), ("keyword", "similarity")):
        unsaid = np.isnan(values[missing])
        weights[other] = np.where(unsaid, weights[other] + weights[missing], weights[other])
        weights[missing] = np.where(unsaid, 0.0, weights[missing])
    return weights


def _explain(
    row: int, values: Mapping[str, Floats], weights: Mapping[str, Floats], plain: Floats
) -> dict[str, dict[str, Any]]:
    """Value (null: cannot be said), weight, contribution and arm of each signal; contributions sum to the score.

    `calibrated` is what a similarity threshold is compared with; in the mix the value of similarity may differ.
    """
    explained: dict[str, dict[str, Any]] = {}
    for name, signal in SIGNALS.items():
        value, weight = float(values[name][row]), float(weights[name][row])
        known = None if np.isnan(value) else value
        explained[name] = {"value": known, "weight": weight, "contribution": (known or 0.0) * weight, "arm": signal.arm}
    explained["similarity"]["calibrated"] = None if np.isnan(plain[row]) else float(plain[row])
    return explained
