"""Which old memories belong together, and what is told of them in short without a model: pure and deterministic."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_TOLD: Final = 5
"""Texts of which an extract is made."""
MOST_CHARACTERS: Final = 600
"""Of an extract; about what an embedding model reads at once."""
LONGEST_TEXT: Final = 200
"""Characters of one text in an extract."""
NOVELTY: Final = 0.7
"""Weight of standing for the others; the rest is for not repeating what was told already."""
_HAN: Final = re.compile("[\u3400-\u9fff]")
_END_OF_SENTENCE: Final = re.compile(r"[。！？!?；;]|\.(?=\s)")
_FIGURE: Final = re.compile(r"[A-Za-z0-9_-]*\d[\w.:/-]*", re.ASCII)
_NAME: Final = re.compile(r"(?<![.!?] )(?<!^)\b[A-Z][a-z]+\b")
"""In English; a word that begins a sentence may be any."""
_WORD: Final = re.compile(r"[A-Za-z]+")


def clusters(similarity: NDArray[np.float64], least: float, fewest: int, most: int) -> list[list[int]]:
    """Groups of rows that are all similar to one of them: `similarity` is (n, n) and calibrated.

    The row with the most similar ones gathers them first; no row is in two groups, and a group has `fewest` to `most`.
    """
    near = similarity >= least
    np.fill_diagonal(near, val=True)
    free = np.ones(len(near), np.bool_)
    found: list[list[int]] = []
    while free.any():
        counts = np.where(free, (near & free).sum(axis=1), 0)
        seed = int(np.argmax(counts))
        if counts[seed] < fewest:
            break
        members = np.flatnonzero(near[seed] & free)
        nearest = members[np.argsort(-similarity[seed, members], kind="stable")]
        chosen = sorted({seed, *nearest[:most].tolist()})[:most]
        free[chosen] = False
        found.append(chosen)
    return sorted(found)


def extract(texts: Sequence[str], similarity: NDArray[np.float64]) -> str:
    """The texts that stand best for all, one after the other as they come: `similarity` is (n, n)."""
    central = similarity.mean(axis=1)
    chosen: list[int] = []
    length = 0
    while len(chosen) < min(MOST_TOLD, len(texts)):
        told = similarity[:, chosen].max(axis=1) if chosen else np.zeros(len(texts))
        worth = NOVELTY * central - (1 - NOVELTY) * told
        worth[chosen] = -np.inf
        best = int(np.argmax(worth))
        length += len(_shortened(texts[best]))
        if chosen and length > MOST_CHARACTERS:
            break
        chosen.append(best)
    told_texts = [_shortened(texts[place]) for place in sorted(chosen)]
    return ("；" if is_chinese(texts) else "; ").join(told_texts)


def headed(text: str, count: int, begin: datetime, end: datetime, *, chinese: bool) -> str:
    """A summary under a heading that says what it is: no statement of a user begins so."""
    days = (f"{begin:%Y-%m-%d}", f"{end:%Y-%m-%d}")
    if chinese:
        when = days[0] if days[0] == days[1] else f"{days[0]} 至 {days[1]}"
        return f"摘要（{when}，{count} 条）：{text}"
    when = days[0] if days[0] == days[1] else f"{days[0]} to {days[1]}"
    return f"Summary ({when}, {count} memories): {text}"


def is_chinese(texts: Sequence[str]) -> bool:
    """Whether most of the texts hold Chinese characters."""
    return 2 * sum(bool(_HAN.search(text)) for text in texts) > len(texts)


def invented(summary: str, texts: Sequence[str]) -> list[str]:
    """Figures, codes and English names of a summary that none of the texts holds: nobody said them."""
    said = " ".join(texts).casefold()
    known = set(_figures(said)) | set(_WORD.findall(said))
    return [word for word in (*_figures(summary), *_NAME.findall(summary)) if word.casefold() not in known]


def _figures(text: str) -> list[str]:
    return [figure.strip(".:/-_") for figure in _FIGURE.findall(text)]


def _shortened(text: str) -> str:
    """A text without its full stop, and at most LONGEST_TEXT long, cut where a sentence ends if one does."""
    text = " ".join(text.split()).rstrip("。.；; ")
    if len(text) <= LONGEST_TEXT:
        return text
    ends = [match.start() for match in _END_OF_SENTENCE.finditer(text, 0, LONGEST_TEXT)]
    return text[: ends[-1]] if ends else text[: LONGEST_TEXT - 1] + "…"
