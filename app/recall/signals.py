"""The signals of recall: what each says about a candidate, in [0, 1], and its weight unless the request gives one.

Invariant: pure functions of the measured candidates; NaN means "cannot be said" and only similarity and keyword may
say it. Constants were chosen on ten public sets (`mneme eval`); docs/decisions/0005 tells what each one brings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from app.language import KeywordQuery, keyword_query, named_days, questions
from app.recall.query import Candidates, Query

Floats = NDArray[np.float64]

TERM_SATURATION = 0.6  # k1 of BM25: the first mention says most, memories are short
LENGTH_PENALTY = 0.15  # b of BM25: a long memory is rarely a worse one
GRAM_SHARE = 0.6  # characters beside words: they catch what the segmenter or the stemmer cut differently
BEFORE_SHARE = 0.3  # an answer often leaves out the words of the question just before it
DATE_SHARE = 0.7  # a day that the query names is nearly as good as its words
HEADROOM = 1.18  # of the window: in the mix, likeness beyond "the same" of thresholds still orders
COMMONNESS_SHARE = 0.85  # small talk resembles every question; what is common to it is taken off
CONTRAST = 1.6  # exponent: near-certain likeness outweighs words, vague likeness does not
QUESTION_SHARE = 0.6  # of several questions in one query, the best-matched one counts beside the whole


@dataclass(frozen=True, slots=True)
class Statistics:
    """Document frequencies over more memories than the candidates at hand: for subjects too large to read whole."""

    memories: int
    words: Floats
    grams: Floats
    mean_word_count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a signal may look at besides query and candidates: calibration window of the model, seconds since 1970."""

    window: tuple[float, float]
    now: float
    statistics: Statistics | None = None


Measure = Callable[[Candidates, Query, Circumstances], Floats]


@dataclass(frozen=True, slots=True)
class Signal:
    """One row of SIGNALS; `arm` says what kind of evidence it is: a match of meaning, of words, or none (prior)."""

    weight: float
    arm: Literal["dense", "keyword", "prior"]
    measure: Measure
    reason: str


def calibrated(cosine: Floats, window: tuple[float, float]) -> Floats:
    """Cosine on the scale of thresholds: 0 at the window's start (unrelated), 1 at its end (same); NaN stays."""
    low, high = window
    return _within_0_and_1((cosine - low) / (high - low))


def _within_0_and_1(value: Floats) -> Floats:
    # np.clip does the same through three functions in Python; with a few hundred rows these are what takes the time.
    return np.maximum(np.minimum(value, 1.0, out=value), 0.0, out=value)


def similarity(candidates: Candidates, query: Query, circumstances: Circumstances) -> Floats:  # noqa: ARG001
    """Calibrated cosine for mixing: commonness above the candidates' mean taken off, contrast raised; NaN: no vector.

    The correction fades as the likeness nears 1 (square root), so the same text is the same text, however common.
    """
    low, high = circumstances.window
    width = HEADROOM * (high - low)
    excess: Floats | float = 0.0
    if candidates.commonness is not None:
        unsaid = np.isnan(candidates.commonness)
        common = np.where(unsaid, 0.0, candidates.commonness)
        mean = common.sum() / max(len(common) - np.count_nonzero(unsaid), 1)
        excess = np.where(unsaid, 0.0, common - mean) * (COMMONNESS_SHARE / width)

    def distinct(cosine: Floats) -> Floats:
        plain = calibrated(cosine, (low, low + width))
        return _within_0_and_1(plain - excess * np.sqrt(1 - plain)) ** CONTRAST

    asked = candidates.question_cosine
    parts = [] if asked is None else [distinct(asked[:, column]) for column in range(asked.shape[1])]
    return _best_question(distinct(candidates.cosine), parts)


def time(candidates: Candidates, query: Query, circumstances: Circumstances) -> Floats:
    """exp(-decay · hours) by the clock of the query's TimeDecay, 1 for what is of this moment (or of the future)."""
    clocks = {"event": candidates.happened_at, "accessed": candidates.accessed_at}
    at = clocks.get(query.time_decay.clock)
    seconds = np.maximum(circumstances.now - (candidates.created_at if at is None else at), 0.0)
    return np.exp(seconds * (-query.time_decay.per_hour / 3600))


def importance(candidates: Candidates, query: Query, circumstances: Circumstances) -> Floats:  # noqa: ARG001
    """Importance 1..5 as 0..1."""
    return _within_0_and_1((candidates.importance - 1) / 4)


def keyword(candidates: Candidates, query: Query, circumstances: Circumstances) -> Floats:
    """How much of what the query names is in the memory: words, characters, days; 1 = all; NaN if it names nothing.

    The share s of the query's BM25 mass counts as 1 - (1 - s)²: that lifts partial matches to the scale of calibrated
    similarity (half of the mass is strong evidence), so that fixed weights mix the two. A named day of the memory's
    event adds as an independent witness would, the less the more candidates are of that day.
    """
    share = _share_of_columns(candidates, circumstances.statistics)
    if share is None:
        value = np.full(len(candidates), np.nan)
    else:
        value = _best_question(share(None), [share(columns) for columns in _columns_of_questions(query.text)])
    days = _days(query.text, datetime.fromtimestamp(circumstances.now, UTC).date())
    if days and len(candidates):
        named = np.logical_or.reduce([day.include(candidates.happened_at) for day in days])
        value = 1 - (1 - np.nan_to_num(value)) * (1 - DATE_SHARE * (1 - named.mean()) * named)
    return value


_days = lru_cache(maxsize=256)(named_days)


def early(query: Query, keywords: KeywordQuery, at: datetime) -> tuple[Callable[[], object], ...]:
    """What is made of a query alone and remembered for a moment, to be made while something is waited for."""
    return lambda: keywords.codes, lambda: _days(query.text, at.astimezone(UTC).date())


def _columns_of_questions(text: str) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """For each of several questions in a text, its columns: those of words, and those of grams."""
    asked = questions(text)
    if not asked:
        return []
    whole = keyword_query(text)
    places = [{term: place for place, term in enumerate(terms)} for terms in (whole.words, whole.grams)]

    def columns(question: KeywordQuery) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        words, grams = (
            np.array([place[term] for term in terms if term in place], dtype=np.intp)
            for terms, place in zip((question.words, question.grams), places, strict=True)
        )
        return words, grams + len(whole.words)

    return [columns(keyword_query(question)) for question in asked]


Share = Callable[[tuple[NDArray[np.intp], NDArray[np.intp]] | None], Floats]


def _share_of_columns(candidates: Candidates, known: Statistics | None) -> Share | None:
    """A function from columns (words, grams; None: all) to 1 - (1 - share of their idf mass)², or None without terms.

    BM25 after Robertson and Zaragoza 2009, scaled so that one mention in a memory of mean length is a full match; idf
    as in Lucene, log(1 + (n - df + ½) / (df + ½)): positive also when every memory has the term.
    """
    frequency, count, split = candidates.frequency, len(candidates), candidates.words
    if not frequency.shape[1]:
        return None
    mean = known.mean_word_count if known else float(candidates.word_count.sum()) / max(count, 1)
    length = candidates.word_count / mean if mean else np.ones(count)
    norm = (length * (TERM_SATURATION * LENGTH_PENALTY) + TERM_SATURATION * (1 - LENGTH_PENALTY))[:, None]
    heard = frequency
    if count and (candidates.before < count).any():
        kind, of_kind = _kinds(split, frequency.shape[1])
        own = frequency @ of_kind > 0  # a neighbour strengthens a match, it never makes one
        padded = np.concatenate((frequency * BEFORE_SHARE, np.zeros((1, len(kind)))))
        heard = frequency + padded.take(candidates.before, axis=0) * own.take(kind, axis=1)
    saturation = heard / (heard + norm)
    counted = np.concatenate((known.words, known.grams)) if known else np.count_nonzero(frequency, axis=0)
    idf = _idf(counted, known.memories if known else count)
    every: tuple[Any, Any] = slice(0, split), slice(split, None)

    def share(columns: tuple[NDArray[np.intp], NDArray[np.intp]] | None) -> Floats:
        weights, witnesses = np.zeros(len(idf)), 0.0
        for weight, chosen in zip((1 - GRAM_SHARE, GRAM_SHARE), columns or every, strict=True):
            mass = idf[chosen].sum()
            if mass > 0:
                weights[chosen] = idf[chosen] * (weight / mass)
                witnesses += weight
        left = 1 - np.minimum(saturation @ (weights * ((TERM_SATURATION + 1) / (witnesses or 1.0))), 1.0)
        return np.asarray(1 - left * left)

    return share


def _idf(counted: NDArray[Any], memories: int) -> Floats:
    """log(1 + (n - df + ½) / (df + ½)) per term."""
    return np.asarray(np.log1p((np.maximum(memories - counted, 0) + 0.5) / (counted + 0.5)))


@lru_cache(maxsize=1_024)
def _kinds(words: int, terms: int) -> tuple[NDArray[np.intp], Floats]:
    """Of each term its kind, 0 for words and 1 for grams; and the same as columns of 0 and 1, shape (terms, 2)."""
    kind = (np.arange(terms) >= words).astype(np.intp)
    return kind, np.eye(2)[kind]


def _best_question(whole: Floats, parts: Sequence[Floats]) -> Floats:
    """The value of a query mixed with that of its best-matched question, each on the scale of its own best row."""
    tops = [np.nanmax(part, initial=0.0) for part in parts]
    scaled = [part / top for part, top in zip(parts, tops, strict=True) if top > 0]
    if not scaled:
        return whole
    best: Floats = np.nanmax(whole, initial=0.0) * np.maximum.reduce(scaled)
    return (1 - QUESTION_SHARE) * whole + QUESTION_SHARE * best


SIGNALS = MappingProxyType(
    {
        "similarity": Signal(0.4, "dense", similarity, "means the same, in other words"),
        "time": Signal(0.2, "prior", time, "what was said lately still holds and is still going on"),
        "importance": Signal(0.2, "prior", importance, "allergies before small talk"),
        "keyword": Signal(0.2, "keyword", keyword, "names, numbers, codes and days that vectors blur"),
    }
)
