"""Signals: every row of the table keeps its range, never gives NaN out of place, and says what its name says."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.language import keyword_query
from app.recall.query import row_before
from app.recall.signals import SIGNALS, Circumstances, Statistics, calibrated, keyword, similarity, time
from tests.recall.candidates import HERE, NOW, asking, candidates_for

TEXTS = [
    "我对芒果过敏，不能吃芒果",
    "2024年国庆我要去杭州参加AI开发者大会",
    "域名是 demo-9.example",
    "今天天气真好",
    "The deadline is 15 October",
]
ASKED = [
    "芒果过敏",
    "国庆去杭州要注意什么？",
    "demo-9.example",
    "的了",
    "What is the deadline? 我对什么过敏？",
    "10月1号",
    "zzz",
]


@pytest.mark.parametrize("name", SIGNALS)
@given(asked=st.sampled_from(ASKED), seed=st.integers(0, 99), pending=st.booleans())
def test_every_signal_stays_in_its_range(name: str, asked: str, seed: int, pending: bool) -> None:
    draw = np.random.default_rng(seed)
    candidates = replace(
        candidates_for(TEXTS, asked, cosine=draw.uniform(-1, 1, len(TEXTS))),
        importance=draw.integers(1, 6, len(TEXTS)).astype(float),
        created_at=NOW + draw.uniform(-1e9, 1e5, len(TEXTS)),
        commonness=draw.uniform(-1, 1, len(TEXTS)),
        question_cosine=draw.uniform(-1, 1, (len(TEXTS), 2)),
        before=row_before(draw.integers(0, 3, len(TEXTS))),
    )
    if pending:
        candidates.cosine[2] = math.nan
    value = SIGNALS[name].measure(candidates, asking(asked), HERE)
    unsaid = np.isnan(value)
    assert ((value[~unsaid] >= 0) & (value[~unsaid] <= 1)).all()
    if name == "similarity":
        assert unsaid.tolist() == np.isnan(candidates.cosine).tolist()
    elif name == "keyword":
        assert unsaid.all() if asked == "的了" else not unsaid.any()
    else:
        assert not unsaid.any()


def test_default_weights_sum_to_one() -> None:
    assert math.isclose(sum(signal.weight for signal in SIGNALS.values()), 1.0)


def test_calibration_is_the_window() -> None:
    cosine = np.array([0.5, 0.75, 0.85, 0.95, 1.0, math.nan])
    np.testing.assert_allclose(calibrated(cosine, (0.75, 0.95)), [0, 0, 0.5, 1, 1, math.nan])


def test_time_halves_in_69_hours_and_the_future_is_now() -> None:
    candidates = replace(
        candidates_for(TEXTS[:3], "x"), created_at=NOW - np.array([0.0, 100 * 3600 * math.log(2), -9e9])
    )
    np.testing.assert_allclose(time(candidates, asking("x"), HERE), [1, 0.5, 1])


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_tiny_store_matches_its_words(count: int) -> None:
    texts = ["项目用 PostgreSQL", "数据库是 PostgreSQL 18", "天气不错", "中午吃面"][:count]
    value = keyword(candidates_for(texts, "PostgreSQL"), asking("PostgreSQL"), HERE)
    assert (value[:2] > 0.2).all()
    assert (value[2:] == 0).all()


@pytest.mark.parametrize(
    "asked", ["数据库迁移", "域名", "demo-9.example", "PostgreSQL 迁移", "数據庫", "ＤＥＭＯ-9.example"]
)
def test_chinese_codes_and_mixed_text_are_found_by_words(asked: str) -> None:
    texts = [f"第{n}号笔记：我们在讨论{topic}的安排" for n, topic in enumerate(["会议", "预算", "旅行", "午餐"] * 8)]
    texts[17] = "项目数据库从 MySQL 迁到了 PostgreSQL，域名是 demo-9.example"
    value = keyword(candidates_for(texts, asked), asking(asked), HERE)
    assert int(np.argmax(value)) == 17
    assert value[17] > 0


def test_every_word_matched_is_one() -> None:
    value = keyword(candidates_for(["demo-9.example", "天气"], "demo-9.example"), asking("demo-9.example"), HERE)
    assert value[0] == pytest.approx(1.0, abs=0.02)


def test_more_of_the_query_scores_higher_and_a_rare_word_more_than_a_common_one() -> None:
    texts = ["张伟 电话", "张伟 生日", "张伟 上海", "李娜 电话"]
    value = keyword(candidates_for(texts, "张伟的生日"), asking("张伟的生日"), HERE)
    assert value[1] > value[0] == value[2] > value[3] == 0


def test_a_matching_row_hears_the_turn_before_in_its_session_only() -> None:
    texts = ["你喜欢什么水果", "我喜欢芒果", "芒果", "今天天气真好"]
    asked = "喜欢水果 芒果"
    apart = keyword(candidates_for(texts, asked), asking(asked), HERE)
    together = replace(candidates_for(texts, asked), before=row_before(np.array([7, 7, 0, 7])))
    heard = keyword(together, asking(asked), HERE)
    assert heard[1] > apart[1]
    assert heard[[0, 2, 3]].tolist() == apart[[0, 2, 3]].tolist()  # first turn; no session; no match of its own


def test_a_named_day_counts_unless_all_candidates_are_of_it() -> None:
    asked = "4月27号我做了什么"
    candidates = candidates_for(["跑步", "做饭", "看书"], asked)
    april, may = 1_682_553_600.0, 1_683_158_400.0  # 2023-04-27, 2023-05-04
    some = keyword(replace(candidates, happened_at=np.array([april, may, may])), asking(asked), HERE)
    every = keyword(replace(candidates, happened_at=np.full(3, april)), asking(asked), HERE)
    assert some[0] > 0.3 > some[1] == some[2]
    assert every.max() < 0.3


def test_in_the_mix_likeness_orders_beyond_what_thresholds_call_the_same() -> None:
    low, high = HERE.window
    cosine = np.array([low, (low + high) / 2, high, high + 0.01, high + 0.02, 1.0])
    candidates = candidates_for(["a", "b", "c", "d", "e", "f"], "x", cosine=cosine)
    mixed = similarity(candidates, asking("x"), HERE)
    assert (np.diff(mixed) > 0).all()
    assert mixed[0] == 0
    assert mixed[-1] == 1


def test_what_is_common_to_small_talk_is_taken_off_unless_it_is_the_same_text() -> None:
    candidates = candidates_for(["好的谢谢", "我对芒果过敏", "好的谢谢"], "x", cosine=np.array([0.88, 0.88, 0.96]))
    mixed = similarity(replace(candidates, commonness=np.array([0.95, 0.85, 0.95])), asking("x"), HERE)
    assert mixed[1] > mixed[0]
    assert mixed[2] == 1.0
    unknown = similarity(replace(candidates, commonness=np.full(3, math.nan)), asking("x"), HERE)
    assert unknown.tolist() == similarity(candidates, asking("x"), HERE).tolist()


def test_each_of_several_questions_finds_its_memory() -> None:
    asked = "张伟的生日是什么时候？另外，李娜的电话是多少？"
    texts = ["张伟的生日是5月1日", "李娜的电话是123", "张伟的同事", "李娜的同事", "天气"]
    value = keyword(candidates_for(texts, asked), asking(asked), HERE)
    assert set(np.argsort(-value)[:2]) == {0, 1}
    cosine = np.array([0.84, 0.84, 0.86, 0.86, 0.8])
    asked_each = np.array([[0.95, 0.8], [0.8, 0.95], [0.86, 0.8], [0.8, 0.86], [0.8, 0.8]])
    mixed = similarity(
        replace(candidates_for(texts, asked, cosine=cosine), question_cosine=asked_each), asking(asked), HERE
    )
    assert set(np.argsort(-mixed)[:2]) == {0, 1}


def test_statistics_of_a_large_subject_replace_those_of_the_rows() -> None:
    texts = ["杭州 西湖", "杭州 酒店"]
    candidates = candidates_for(texts, "杭州 西湖")
    query = keyword_query("杭州 西湖")
    counted = Statistics(
        memories=2,
        words=np.array([sum(w in t for t in texts) for w in query.words], dtype=float),
        grams=np.array([sum(g in t for t in texts) for g in query.grams], dtype=float),
        mean_word_count=float(candidates.word_count.mean()),
    )
    here = keyword(candidates, asking("杭州 西湖"), HERE)
    same = keyword(candidates, asking("杭州 西湖"), replace(HERE, statistics=counted))
    np.testing.assert_allclose(here, same)
    rare = replace(counted, memories=10_000, words=np.where(np.array(query.words) == "杭州", 1.0, 9000.0))
    other = keyword(candidates, asking("杭州 西湖"), replace(HERE, statistics=rare))
    assert other[1] > same[1]


def test_no_candidates_give_no_values() -> None:
    empty = candidates_for([], "芒果？芒果呢？4月5号")
    for signal in SIGNALS.values():
        assert signal.measure(empty, asking("芒果？芒果呢？4月5号"), Circumstances(window=(0, 1), now=NOW)).shape == (
            0,
        )
