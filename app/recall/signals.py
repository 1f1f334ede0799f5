"""The signals of recall: what each says about a candidate, in [0, 1], and its weight unless the request gives one.

Invariant: pure functions of the measured candidates; NaN means "cannot be said" and only similarity and keyword may
say it. Constants were chosen on ten public retrieval sets (`mneme eval`), see docs/decisions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.recall.query import Candidates

Floats = NDArray[np.float64]

TIME_DECAY_PER_HOUR = 0.01
TERM_SATURATION = 0.9  # k1 of BM25: the first mention says most, memories are short
LENGTH_PENALTY = 0.3  # b of BM25: a long memory is rarely a worse one
GRAM_SHARE = 0.35  # characters beside words: they catch what the segmenter or the stemmer cut differently
NEIGHBOUR_SHARE = 0.15  # an answer often leaves out the words of the question just before it


@dataclass(frozen=True, slots=True)
class Statistics:
    """Document frequencies over more memories than the candidates at hand: for subjects too large to read whole."""

    memories: int
    words: Floats
    grams: Floats
    mean_word_count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a signal may look at besides the candidates: calibration window of the model, seconds since 1970, decay."""

    window: tuple[float, float]
    now: float
    decay_per_hour: float = TIME_DECAY_PER_HOUR
    statistics: Statistics | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """One row of SIGNALS; `arm` says what kind of evidence it is: a match of meaning, of words, or none (prior)."""

    weight: float
    arm: Literal["dense", "keyword", "prior"]
    measure: Callable[[Candidates, Circumstances], Floats]
    reason: str


def similarity(candidates: Candidates, circumstances: Circumstances) -> Floats:
    """Calibrated cosine: 0 at the window's start (unrelated), 1 at its end (same); NaN without a vector."""
    low, high = circumstances.window
    return np.clip((candidates.cosine - low) / (high - low), 0.0, 1.0)


def time(candidates: Candidates, circumstances: Circumstances) -> Floats:
    """exp(-decay · hours since creation), 1 for what was just written (or lies in the future)."""
    hours = np.maximum(circumstances.now - candidates.created_at, 0.0) / 3600
    return np.exp(-circumstances.decay_per_hour * hours)


def importance(candidates: Candidates, circumstances: Circumstances) -> Floats:  # noqa: ARG001
    """Importance 1..5 as 0..1."""
    return np.clip((candidates.importance - 1) / 4, 0.0, 1.0)


def keyword(candidates: Candidates, circumstances: Circumstances) -> Floats:
    """How much of what the query names is in the memory: 1 - (1 - share)², share = BM25 / idf mass of the query.

    1 = every term matched; NaN if the query has no terms. The square lifts partial matches to the scale of calibrated
    similarity (half of the mass is strong evidence), so that fixed weights mix the two. BM25 after Robertson and
    Zaragoza 2009; idf as in Lucene, log(1 + (n - df + ½) / (df + ½)): positive also when every memory has the term.
    """
    known = circumstances.statistics
    parts = [
        (1 - GRAM_SHARE, candidates.words, known.words if known else None),
        (GRAM_SHARE, candidates.grams, known.grams if known else None),
    ]
    parts = [part for part in parts if part[1].shape[1]]
    if not parts:
        return np.full(len(candidates), np.nan)
    mean = known.mean_word_count if known else float(candidates.word_count.mean()) if len(candidates) else 0.0
    length = candidates.word_count / mean if mean else np.ones(len(candidates))
    norm = TERM_SATURATION * (1 - LENGTH_PENALTY + LENGTH_PENALTY * length)[:, None]
    before, after = _neighbours(candidates.session)
    share = np.zeros(len(candidates))
    for weight, frequency, df in parts:
        idf = _idf(frequency, df, known.memories if known else len(candidates))
        own = frequency.any(axis=1)  # neighbours strengthen a match, they never make one
        padded = np.vstack([frequency, np.zeros((1, frequency.shape[1]), dtype=frequency.dtype)])
        heard = frequency + NEIGHBOUR_SHARE * np.maximum(padded[before], padded[after])
        share += weight * own * ((heard / (heard + norm)) @ (idf / idf.sum()))
    share *= (TERM_SATURATION + 1) / sum(weight for weight, _, _ in parts)
    return 1 - (1 - np.minimum(share, 1.0)) ** 2


def _idf(frequency: NDArray[np.float32], df: Floats | None, memories: int) -> Floats:
    """log(1 + (n - df + ½) / (df + ½)) per term; df is counted from the rows unless it is given."""
    counted = np.count_nonzero(frequency, axis=0) if df is None else df
    return np.log1p((np.maximum(memories - counted, 0) + 0.5) / (counted + 0.5))


def _neighbours(session: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row of the memory before and after in the same session; the number of rows, one past the last, if there is none.

    Rows come in order of time; session 0 means none.
    """
    rows = len(session)
    order = np.argsort(session, kind="stable")
    before = np.full(rows, rows)
    after = np.full(rows, rows)
    same = (session[order][1:] == session[order][:-1]) & (session[order][1:] != 0)
    before[order[1:][same]] = order[:-1][same]
    after[order[:-1][same]] = order[1:][same]
    return before, after


SIGNALS = MappingProxyType(
    {
        "similarity": Signal(0.4, "dense", similarity, "means the same, in other words"),
        "time": Signal(0.2, "prior", time, "what was said lately still holds and is still going on"),
        "importance": Signal(0.2, "prior", importance, "allergies before small talk"),
        "keyword": Signal(0.2, "keyword", keyword, "names, numbers and codes that vectors blur"),
    }
)
