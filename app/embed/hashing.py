"""An embedder without weights, for tests and for measuring everything but the model: similar texts, similar vectors.

Invariant: deterministic on every machine and in every process (CRC-32, not Python's salted hash).
"""

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import getitem
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from app.embed.embedder import Kind, Vectors
from app.embed.models import ModelSpec

_PIECES: Final = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]")
_ASCII_PIECES: Final = re.compile(r"[a-z0-9]+")  # the same rule, twice as fast
ENTRIES_PER_GRAM: Final = 4
REMEMBERED_GRAMS: Final = 1 << 16


class HashingEngine:
    """Sum of sparse signed random vectors of words, characters and character pairs, damped by the root of counts."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to free."""

    def count_tokens(self, text: str) -> int:
        """Words and single Chinese characters."""
        return len(_pieces(text))

    async def encode(self, texts: Sequence[str], kind: Kind) -> list[Vectors]:
        """Return one window for each text; computed in place, a thread would cost more."""
        prompt = self.spec.query_prompt if kind == "query" else self.spec.document_prompt
        return list(self._vectors([prompt + text for text in texts])[:, np.newaxis])

    def _vectors(self, texts: Sequence[str]) -> Vectors:
        sums = _sums(texts, self.spec.dimension)
        signed = (sums[:, : self.spec.dimension] - sums[:, self.spec.dimension :]).astype(np.float32)
        vectors: Vectors = np.copysign(np.sqrt(np.abs(signed)), signed)
        found = np.logical_or.reduce(signed, axis=1)
        vectors[~found, 0] = 1.0  # opposite entries met; vanishingly rare, but never a zero vector
        return vectors


def _pieces(text: str) -> list[str]:
    text = text.lower()
    return (_ASCII_PIECES if text.isascii() else _PIECES).findall(text)


def _sums(texts: Sequence[str], dimension: int) -> NDArray[np.intp]:
    """(texts, 2 · dimension): how often each entry occurs in the grams of each text, counted for all at once."""
    of_piece, before = _entries(dimension)
    found: list[bytes] = []
    sizes: list[int] = []
    for text in texts:
        pieces = _pieces(text) or [text]
        found += map(of_piece, pieces)
        found += map(getitem, map(before, pieces[:-1]), pieces[1:])
        sizes.append(2 * len(pieces) - 1)
    entries = np.frombuffer(b"".join(found), np.uint16).astype(np.intp)
    if len(texts) > 1:
        starts = np.arange(0, 2 * dimension * len(texts), 2 * dimension)
        entries += np.repeat(starts, np.array(sizes) * ENTRIES_PER_GRAM)
    return np.bincount(entries, minlength=2 * dimension * len(texts)).reshape(len(texts), 2 * dimension)


class _Entries(dict[str, bytes]):
    """Positions of a gram's entries in [0, 2 · dimension) as uint16; the upper half stands for -1.

    Of pieces by themselves, or, if all have `first` before them, of pairs. Remembered while there is `room`: a look-up
    takes a tenth of the time.
    """

    __slots__ = ("dimension", "first", "room")

    def __init__(self, dimension: int, room: "_Room", first: str = "") -> None:
        super().__init__()
        self.dimension, self.room, self.first = dimension, room, first

    def __missing__(self, piece: str) -> bytes:
        data = (self.first + piece).encode("utf-8", "surrogatepass")
        positions = [crc32(data, seed) % (2 * self.dimension) for seed in range(ENTRIES_PER_GRAM)]
        entries = struct.pack(f"={ENTRIES_PER_GRAM}H", *positions)
        if self.room.left > 0:
            self.room.left -= 1
            self[piece] = entries
        return entries


class _Pairs(dict[str, _Entries]):
    """What is remembered of the pairs that begin with a piece: two look-ups of strings take half of one of a pair."""

    __slots__ = ("dimension", "room")

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension, self.room = dimension, _Room()

    def __missing__(self, piece: str) -> _Entries:
        entries = _Entries(self.dimension, self.room, f"{piece}\0")
        if self.room.left > 0:
            self[piece] = entries
        return entries


class _Room:
    """For how many grams more there is room."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = REMEMBERED_GRAMS


@lru_cache
def _entries(dimension: int) -> tuple[Callable[[str], bytes], Callable[[str], _Entries]]:
    """The entries of a piece, and those of the pairs that begin with it."""
    return _Entries(dimension, _Room()).__getitem__, _Pairs(dimension).__getitem__
