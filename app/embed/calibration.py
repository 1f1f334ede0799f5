"""Calibration: which raw cosines of a model mean "unrelated" and "the same", found with sentences of our own.

Invariant: only the scale of thresholds comes from here; vectors and what they may be compared with stay as they are. A
language that the model does not understand takes no part.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.embed.embedder import Embedder, Vectors
from app.embed.models import ModelSpec, Window
from app.errors import StartupRefused

Floats = NDArray[np.float64]
Language = Literal["zh", "en"]
PAIRS: Final = Path(__file__).with_name("calibration_pairs.json")
LIKE_ITSELF: Final = 0.95
"""Least calibrated similarity of nearly every text with itself, whose query and memory prompts may differ."""

NEARLY_ALL: Final = 95.0
"""In percent."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Cosines of one language, by what the two texts of a pair have to do with each other.

    Query–memory: `unrelated`, `related` (same subject, another fact), `answer`, `same` (the memory in other words) and
    `itself` (the memory's own text). Memory–memory: `unrelated_memory`, `related_memory`, `same_memory`.
    """

    unrelated: Floats
    related: Floats
    answer: Floats
    same: Floats
    itself: Floats
    unrelated_memory: Floats
    related_memory: Floats
    same_memory: Floats

    @property
    def understood(self) -> bool:
        """Whether most answers are nearer to their question than nearly all unrelated memories."""
        return bool(np.median(self.answer) > np.percentile(self.unrelated, NEARLY_ALL))


@dataclass(frozen=True, slots=True)
class Calibration:
    """The windows found, and what they rest on, by language."""

    query_window: Window
    pair_window: Window
    measured: Mapping[Language, Measured]

    def applied(self, spec: ModelSpec) -> ModelSpec:
        """`spec` with these windows, except for those that the settings state."""
        return replace(
            spec,
            query_window=spec.query_window if "query_window" in spec.stated else self.query_window,
            pair_window=spec.pair_window if "pair_window" in spec.stated else self.pair_window,
        )


async def calibrate(embedder: Embedder) -> Calibration:
    """Measure the shipped pairs with a started embedder and fit both windows.

    Query window: 0 is the median of unrelated pairs, in the language where it is lowest, or answers of that language
    would count as nothing; 1 is the median of restatements, mean over the languages, but never so high that texts are
    not LIKE_ITSELF. Pair window: 0 is the median of unrelated memories, mean over the languages; 1 is equality, because
    a wrong duplicate costs more than a missed one. Raises EmbeddingUnavailable, and StartupRefused when the model
    understands none of the languages.
    """
    measured = {language: await _measure(embedder, language) for language in _pairs()}
    understood = [each for each in measured.values() if each.understood]
    if not understood:
        raise StartupRefused("this embedding model tells answers from unrelated memories in no language of the pairs")
    low = min(float(np.median(each.unrelated)) for each in understood)
    high = _mean([np.median(each.same) for each in understood])
    itself = min(float(np.percentile(each.itself, 100 - NEARLY_ALL)) for each in understood)
    high = min(high, low + (itself - low) / LIKE_ITSELF)
    apart = _mean([np.median(each.unrelated_memory) for each in understood])
    return Calibration((round(low, 4), round(high, 4)), (round(apart, 4), 1.0), measured)


async def _measure(embedder: Embedder, language: Language) -> Measured:
    asked, memories, restated, others = zip(*_pairs()[language], strict=True)
    questions, same, itself = [await _queries(embedder, texts) for texts in (asked, restated, memories)]
    told, retold, other = [await _documents(embedder, texts) for texts in (memories, restated, others)]
    return Measured(
        unrelated=_across(questions, told),
        related=_along(questions, other),
        answer=_along(questions, told),
        same=_along(same, told),
        itself=_along(itself, told),
        unrelated_memory=_across(told, retold),
        related_memory=_along(told, other),
        same_memory=_along(told, retold),
    )


@cache
def _pairs() -> dict[Language, list[tuple[str, str, str, str]]]:
    """By language: a question, the memory that answers it, the same in other words, another fact of that subject."""
    columns: dict[str, list[tuple[str, str, str, str]]] = json.loads(PAIRS.read_text(encoding="utf-8"))
    return {"zh": columns["zh"], "en": columns["en"]}


async def _queries(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    return np.array([await embedder.embed_query(text) for text in texts])


async def _documents(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    return np.array([windows[0] for windows in await embedder.embed_documents(texts)])


def _along(left: Vectors, right: Vectors) -> Floats:
    return np.asarray((left * right).sum(axis=1), dtype=np.float64)


def _across(left: Vectors, right: Vectors) -> Floats:
    """All pairs of different rows: every subject of the pairs is another one."""
    return np.asarray((left @ right.T)[~np.eye(len(left), dtype=np.bool_)], dtype=np.float64)


def _mean(values: Sequence[np.floating]) -> float:
    return float(np.mean(values))
