"""Keyword vectors: what a query reads back equals what the text holds, for any text and any query."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.language import (
    DIMENSIONS,
    KeywordQuery,
    grams,
    keyword_arrays,
    keyword_query,
    keyword_vector,
    term_id,
    words,
)
from app.language.weights import _NUMBERED, _WORD_ID, QUERY_GRAMS_MAX, QUERY_WORDS_MAX, STORED_WORDS_MAX

MIXED = st.text(st.sampled_from("数据库迁移域名芒果过敏 的了abcde12.-@ 國慶"), max_size=60)


def products(query: KeywordQuery, text: str) -> np.ndarray:
    """The inner products as pgvector computes them: float4 throughout."""
    vector = keyword_vector(text)
    stored = dict(zip(vector.ids, vector.counts, strict=True))
    rows = [
        sum((np.float32(stored.get(i, 0)) * np.float32(p) for i, p in zip(c.ids, c.powers, strict=True)), np.float32(0))
        for c in query.codes
    ]
    return np.array([rows], dtype=np.float32)


@given(MIXED, MIXED)
def test_a_query_reads_back_exactly_what_a_text_holds(text: str, asked: str) -> None:
    query = keyword_query(asked)
    frequency, presence = query.decode(products(query, text))
    in_words, in_grams = Counter(words(text)), set(grams(text))
    assert frequency.tolist() == [[min(3, in_words[w]) for w in query.words]]
    assert presence.tolist() == [[float(g in in_grams) for g in query.grams]]


@given(MIXED)
def test_a_stored_vector_is_sorted_within_bounds_and_counts_its_words(text: str) -> None:
    vector = keyword_vector(text)
    assert list(vector.ids) == sorted(set(vector.ids))
    assert all(1 <= i < DIMENSIONS for i in vector.ids)
    assert set(vector.counts) <= {1, 2, 3}
    assert vector.word_count == len(words(text))


def test_words_and_grams_live_in_two_namespaces() -> None:
    assert term_id("国庆") != term_id("国庆", gram=True)


def test_a_long_query_keeps_its_longest_terms_and_stays_exact() -> None:
    asked = " ".join(f"{'x' * (i % 9 + 1)}{i:03d}" for i in range(200))
    query = keyword_query(asked)
    assert len(query.words) == QUERY_WORDS_MAX
    assert len(query.grams) == QUERY_GRAMS_MAX
    assert min(map(len, query.words)) > 9
    frequency, presence = query.decode(products(query, asked + " " + asked))
    assert frequency.min() >= 2
    assert presence.min() == 1


@pytest.mark.parametrize("length", [100, 200_000])
def test_a_long_text_fits_a_sparsevec(length: int) -> None:
    vector = keyword_vector("".join(chr(0x4E00 + i * 7919 % 20_000) + f"w{i} " for i in range(length // 4)))
    assert len(vector.ids) < 16_000


def test_a_text_without_terms_has_no_codes() -> None:
    query = keyword_query("的了")
    assert (query.words, query.grams, query.codes) == ((), (), ())
    frequency, presence = query.decode(np.zeros((5, 0), dtype=np.float32))
    assert frequency.shape == presence.shape == (5, 0)
    assert keyword_vector("的了").ids == ()


@given(st.lists(MIXED, min_size=1, max_size=8))
def test_many_texts_at_once_are_weighed_as_each_by_itself(texts: list[str]) -> None:
    found = [(tuple(one.ids.tolist()), tuple(one.counts.tolist()), one.word_count) for one in keyword_arrays(texts)]
    assert found == [tuple(keyword_vector(text)) for text in texts]


def test_a_text_too_long_to_be_kept_whole_is_cut_among_others_as_by_itself() -> None:
    texts = ["w1 w1 w2", " ".join(f"w{i}" for i in range(STORED_WORDS_MAX + 5)), "的了"]
    assert [tuple(one.ids.tolist()) for one in keyword_arrays(texts)] == [keyword_vector(text).ids for text in texts]


def test_order_numbers_take_no_room_that_words_need() -> None:
    caches: list[Any] = [_WORD_ID, *_NUMBERED]

    def kept() -> list[int]:
        return [len(each.__self__) for each in caches]

    keyword_vector("parcel 包裹 4711")
    before = kept()
    for number in range(10**8, 10**8 + 500):
        keyword_vector(f"parcel 包裹 order-{number} {number}")
    grown = [after - then for after, then in zip(kept(), before, strict=True)]
    assert max(grown) <= 1  # `order`
    keyword_vector("the raspberry 覆盆子")
    assert kept() > before
