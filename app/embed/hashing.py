"""An embedder without weights, for tests and for measuring everything but the model: similar texts, similar vectors.

Invariant: deterministic on every machine and in every process (CRC-32, not Python's salted hash).
"""

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
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
Gram = str | tuple[str, str]


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
    of_piece, of_pair = _entries(dimension)
    found: list[bytes] = []
    sizes: list[int] = []
    for text in texts:
        pieces = _pieces(text) or [text]
        found += map(of_piece, pieces)
        found += map(of_pair, pairwise(pieces))
        sizes.append(2 * len(pieces) - 1)
    entries = np.frombuffer(b"".join(found), np.uint16).astype(np.intp)
    if len(texts) > 1:
        starts = np.arange(0, 2 * dimension * len(texts), 2 * dimension)
        entries += np.repeat(starts, np.array(sizes) * ENTRIES_PER_GRAM)
    return np.bincount(entries, minlength=2 * dimension * len(texts)).reshape(len(texts), 2 * dimension)


class _Entries(dict[Gram, bytes]):
    """Positions of a gram's entries in [0, 2 · dimension) as uint16; the upper half stands for -1.

    Remembered while there is room: a look-up takes a tenth of the time.
    """

    __slots__ = ("dimension",)

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension

    def __missing__(self, gram: Gram) -> bytes:
        data = (gram if isinstance(gram, str) else "\0".join(gram)).encode("utf-8", "surrogatepass")
        positions = [crc32(data, seed) % (2 * self.dimension) for seed in range(ENTRIES_PER_GRAM)]
        entries = struct.pack(f"={ENTRIES_PER_GRAM}H", *positions)
        if len(self) < REMEMBERED_GRAMS:
            self[gram] = entries
        return entries


@lru_cache
def _entries(dimension: int) -> tuple[Callable[[str], bytes], Callable[[tuple[str, str]], bytes]]:
    """The entries of a piece and of a pair of pieces."""
    return _Entries(dimension).__getitem__, _Entries(dimension).__getitem__
