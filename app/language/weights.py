"""Keyword weights as sparse vectors: what a memory stores, what a query asks, and how the answer is read.

Invariant: one inner product of a stored vector with a query code is an integer below 2^24 (exact in the float4 of
pgvector) from which the frequency of every query term in that memory can be read back.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from app.language.tokens import (
    Lexicon,
    comes_again,
    is_function_pair,
    is_function_word,
    read,
    terms,
    terms_of_run,
)

DIMENSIONS = 1_000_000_000  # the most a pgvector sparsevec can have
TERM_FREQUENCY_CAP = 3  # two bits a word; BM25 saturates, so a fourth mention adds under 5 %
WORDS_PER_CODE = 12  # 4^12 = 2^24
GRAMS_PER_CODE = 24  # 2^24
QUERY_WORDS_MAX = 48
QUERY_GRAMS_MAX = 96
STORED_WORDS_MAX = 8_000  # together below the 16,000 entries that a sparsevec can hold
STORED_GRAMS_MAX = 7_900
REMEMBERED_TERMS = 100_000
_COUNT_BITS, _ROW_BITS = 2, 32  # of a number for a term of one of many texts


class KeywordVector(NamedTuple):
    """What a memory stores: ids ascending in [1, DIMENSIONS), a count in 1..3 each, and the number of its words."""

    ids: tuple[int, ...]
    counts: tuple[int, ...]
    word_count: int


class KeywordArrays(NamedTuple):
    """The same as arrays."""

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    word_count: int


@dataclass(frozen=True, slots=True)
class QueryCode:
    """One sparse query vector: ids ascending, powers of 4 (words) or of 2 (grams) that keep the terms apart."""

    ids: tuple[int, ...]
    powers: tuple[int, ...]


@dataclass(frozen=True)
class KeywordQuery:
    """The distinct terms of a query with their ids; `words[i]` has the id `word_ids[i]`.

    A query of function words only has no terms and no codes.
    """

    words: tuple[str, ...]
    word_ids: tuple[int, ...]
    grams: tuple[str, ...]
    gram_ids: tuple[int, ...]

    @cached_property
    def codes(self) -> tuple[QueryCode, ...]:
        """What stored vectors are multiplied with: the codes of words, then those of grams."""
        return (*_codes(self.word_ids, WORDS_PER_CODE, 4), *_codes(self.gram_ids, GRAMS_PER_CODE, 2))

    def decode(self, products: NDArray[np.floating]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Read inner products (rows, codes) as word frequencies 0..3 (rows, words) and gram presence 0/1 (rows, grams).

        The products are positive: pgvector's `<#>` gives their negatives.
        """
        codes = products.astype(np.int32)  # they have 24 bits
        split = -(-len(self.words) // WORDS_PER_CODE)
        words = _digits(codes[:, :split], WORDS_PER_CODE, 2)[:, : len(self.words)]
        grams = _digits(codes[:, split:], GRAMS_PER_CODE, 1)[:, : len(self.grams)]
        return words, grams


class _Ids(dict[str, int]):
    """The ids of one namespace by term, remembered while there is room: four times faster than hashing again."""

    __slots__ = ("seed",)

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def __missing__(self, term: str) -> int:
        identifier = crc32(term.encode(), self.seed) % (DIMENSIONS - 1) + 1
        if comes_again(term) and len(self) < REMEMBERED_TERMS:
            self[term] = identifier
        return identifier


_WORD_ID = _Ids(0).__getitem__
_GRAM_ID = _Ids(0x67726D73).__getitem__


class _Kept(dict[str, int]):
    """The ids of Chinese words or pairs by term, 0 for those that are left out; remembered like all ids."""

    __slots__ = ("identify", "left_out")

    def __init__(self, identify: Callable[[str], int], left_out: Callable[[str], bool]) -> None:
        super().__init__()
        self.identify, self.left_out = identify, left_out

    def __missing__(self, term: str) -> int:
        identifier = 0 if self.left_out(term) else self.identify(term)
        if len(self) < REMEMBERED_TERMS:
            self[term] = identifier
        return identifier


class _Runs(dict[str, tuple[tuple[int, ...], tuple[int, ...]]]):
    """The ids of the words and grams of a run of letters, digits and connectors; remembered like all ids."""

    __slots__ = ()

    def __missing__(self, run: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        found_words, found_grams = terms_of_run(run)
        found = tuple(map(_WORD_ID, found_words)), tuple(map(_GRAM_ID, found_grams))
        if comes_again(run) and len(self) < REMEMBERED_TERMS:
            self[run] = found
        return found


_NUMBERED = Lexicon(
    _Kept(_WORD_ID, is_function_word).__getitem__, _Kept(_GRAM_ID, is_function_pair).__getitem__, _Runs().__getitem__
)


def term_id(term: str, *, gram: bool = False) -> int:
    """The dimension of a term in [1, DIMENSIONS): a hash; words and grams live in two namespaces."""
    return _GRAM_ID(term) if gram else _WORD_ID(term)


def keyword_vector(text: str) -> KeywordVector:
    """The sparse vector of a memory's text: words with their capped frequency, grams with 1."""
    found_words, found_grams = read(text, _NUMBERED)
    counted = dict.fromkeys(found_words, 1)
    if len(counted) < len(found_words):
        counted = dict(Counter(found_words))
    grams = dict.fromkeys(found_grams, 1)
    if len(counted) > STORED_WORDS_MAX or len(grams) > STORED_GRAMS_MAX:
        counted = dict(Counter(counted).most_common(STORED_WORDS_MAX))
        grams = dict.fromkeys(list(grams)[:STORED_GRAMS_MAX], 1)
    grams.update(counted)
    if len(found_words) - len(counted) >= TERM_FREQUENCY_CAP:
        grams.update((word, TERM_FREQUENCY_CAP) for word, count in counted.items() if count > TERM_FREQUENCY_CAP)
    ids = sorted(grams)
    return KeywordVector(tuple(ids), tuple(map(grams.__getitem__, ids)), len(found_words))


def keyword_arrays(texts: Sequence[str]) -> list[KeywordArrays]:
    """The same for many texts at once: sorted and counted together, which takes half of the time of each by itself."""
    found_words: list[int] = []
    found_grams: list[int] = []
    often: list[int] = []
    sizes: list[int] = []
    for text in texts:
        of_words, of_grams = read(text, _NUMBERED)
        found_words += of_words
        found_grams += of_grams
        often.append(len(of_words))
        sizes.append(len(of_grams))
    if max(often) > STORED_WORDS_MAX or max(sizes) > STORED_GRAMS_MAX:  # perhaps something is left out
        return [
            KeywordArrays(np.array(one.ids, np.int64), np.array(one.counts, np.int64), one.word_count)
            for one in map(keyword_vector, texts)
        ]
    # A number for each term: its text, its id, and what its count lacks of TERM_FREQUENCY_CAP; a gram that is a word,
    # too, comes behind it.
    rows = np.arange(len(texts) + 1) << _ROW_BITS
    words, counts = np.unique(
        (np.array(found_words, np.int64) << _COUNT_BITS) + np.repeat(rows[:-1], often), return_counts=True
    )
    words += TERM_FREQUENCY_CAP - np.minimum(counts, TERM_FREQUENCY_CAP)
    grams = (np.array(found_grams, np.int64) << _COUNT_BITS) + np.repeat(rows[:-1], sizes) + TERM_FREQUENCY_CAP
    terms = np.sort(np.concatenate((words, grams)))
    new = np.ones(len(terms), np.bool_)
    new[1:] = (terms[1:] >> _COUNT_BITS) != (terms[:-1] >> _COUNT_BITS)
    terms = terms[new]
    ends = np.searchsorted(terms, rows).tolist()
    ids = (terms & ((1 << _ROW_BITS) - 1)) >> _COUNT_BITS
    weights = np.maximum(TERM_FREQUENCY_CAP - (terms & ((1 << _COUNT_BITS) - 1)), 1)
    return [
        KeywordArrays(ids[start:end], weights[start:end], count)
        for start, end, count in zip(ends, ends[1:], often, strict=False)
    ]


def word_ids(text: str) -> list[int]:
    """The distinct ids of a text's words, without its grams: what the postings of a large subject hold."""
    return sorted({term_id(word) for word in terms(text)[0]})


def keyword_query(text: str) -> KeywordQuery:
    """The terms and codes of a query; of a very long one its longest (so likely its rarest) terms."""
    found_words, found_grams = terms(text)
    words = _distinct(found_words, QUERY_WORDS_MAX, gram=False)
    grams = _distinct(found_grams, QUERY_GRAMS_MAX, gram=True)
    return KeywordQuery(tuple(words.values()), tuple(words), tuple(grams.values()), tuple(grams))


def _distinct(found: Sequence[str], most: int, *, gram: bool) -> dict[int, str]:
    """Id -> term in order of appearance, each id once, cut to the longest terms."""
    distinct = {term_id(term, gram=gram): term for term in found}
    if len(distinct) > most:
        kept = set(sorted(distinct, key=lambda i: -len(distinct[i]))[:most])
        distinct = {i: term for i, term in distinct.items() if i in kept}
    return distinct


def _codes(ids: Sequence[int], size: int, base: int) -> list[QueryCode]:
    """Codes of `size` terms each, the i-th term of a code with the power base^i."""
    groups = [ids[start : start + size] for start in range(0, len(ids), size)]
    pairs = [sorted((term, base**place) for place, term in enumerate(group)) for group in groups]
    return [QueryCode(tuple(i for i, _ in pair), tuple(p for _, p in pair)) for pair in pairs]


def _digits(codes: NDArray[np.int32], places: int, bits: int) -> NDArray[np.float32]:
    """The base-2^bits digits of codes (rows, groups) as (rows, groups * places), lowest place first."""
    shifts = np.arange(0, places * bits, bits, dtype=np.int32)
    digits = (codes[:, :, None] >> shifts) & ((1 << bits) - 1)
    return digits.reshape(len(codes), codes.shape[1] * places).astype(np.float32)
