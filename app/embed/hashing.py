"""An embedder without weights, for tests and for measuring everything but the model: similar texts, similar vectors.

Invariant: deterministic on every machine and in every process (CRC-32, not Python's salted hash).
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from app.embed.embedder import Kind, Vectors
from app.embed.models import ModelSpec

_PIECES: Final = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]")
ENTRIES_PER_GRAM: Final = 4


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
        return len(_PIECES.findall(text.lower()))

    async def encode(self, texts: Sequence[str], kind: Kind) -> list[Vectors]:
        """Return one window for each text; computed in place, a thread would cost more."""
        prompt = self.spec.query_prompt if kind == "query" else self.spec.document_prompt
        return list(self._vectors([prompt + text for text in texts])[:, np.newaxis])

    def _vectors(self, texts: Sequence[str]) -> Vectors:
        sums = np.array([_sums(text, self.spec.dimension) for text in texts])
        signed = sums[:, : self.spec.dimension] - sums[:, self.spec.dimension :]
        vectors: Vectors = np.copysign(np.sqrt(np.abs(signed)), signed).astype(np.float32)
        found = np.logical_or.reduce(signed, axis=1)
        vectors[~found, 0] = 1.0  # opposite entries met; vanishingly rare, but never a zero vector
        return vectors


def _sums(text: str, dimension: int) -> NDArray[np.intp]:
    """How often each entry, in [0, 2 · dimension), occurs in the grams of a text."""
    pieces = _PIECES.findall(text.lower()) or [text]
    grams = pieces + [first + "\0" + second for first, second in pairwise(pieces)]
    entries = np.frombuffer(b"".join([_entries(gram, dimension) for gram in grams]), np.uint16)
    return np.bincount(entries, minlength=2 * dimension)


@lru_cache(maxsize=1 << 17)
def _entries(gram: str, dimension: int) -> bytes:
    """Positions of a gram's entries in [0, 2 · dimension) as uint16; the upper half stands for -1."""
    data = gram.encode("utf-8", "surrogatepass")
    return np.array([crc32(data, seed) % (2 * dimension) for seed in range(ENTRIES_PER_GRAM)], np.uint16).tobytes()
