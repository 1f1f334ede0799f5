"""Ranking: evidence, threshold, fusion, order, explanation, and what happens when a vector is missing."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.recall.query import Candidates, Fusion
from app.recall.ranking import ROUNDING, judge
from app.recall.signals import SIGNALS
from tests.recall.candidates import HERE, NOW, asking, candidates_for, rank

TEXTS = ["我对芒果过敏", "年糕是一只猫", "国庆去杭州开会", "今天天气真好", "芒果很贵"]
ASKED = "芒果过敏"
FUSIONS: list[Fusion] = ["weighted", "similarity", "similarity_time", "similarity_importance"]
WEIGHTS = st.fixed_dictionaries({name: st.floats(0, 1) for name in SIGNALS}).filter(lambda w: sum(w.values()) > 0)


def varied(seed: int) -> Candidates:
    draw = np.random.default_rng(seed)
    count = len(TEXTS)
    return replace(
        candidates_for(TEXTS, ASKED, cosine=np.where(draw.random(count) < 0.3, math.nan, draw.uniform(0.6, 1, count))),
        importance=draw.integers(1, 6, count).astype(float),
        created_at=NOW - draw.uniform(0, 1e6, count),
        commonness=draw.uniform(0.7, 0.9, count),
        matching=draw.random(count) < 0.9,
    )


def order(candidates: Candidates, **fields: object) -> list[int]:
    return [one.row for one in rank(candidates, asking(ASKED, **fields), HERE)]


@given(seed=st.integers(0, 999), weights=WEIGHTS, fusion=st.sampled_from(FUSIONS), top_k=st.integers(1, 100))
def test_scores_are_shares_that_add_up_and_fall(
    seed: int, weights: dict[str, float], fusion: Fusion, top_k: int
) -> None:
    candidates = varied(seed)
    ranked = rank(candidates, asking(ASKED, weights=weights, fusion=fusion, top_k=top_k), HERE)
    assert len(ranked) <= min(top_k, len(TEXTS))
    assert all(candidates.matching[one.row] for one in ranked)
    scores = [one.score for one in ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    for one in ranked:
        assert one.signals is not None
        assert math.isclose(sum(s["contribution"] for s in one.signals.values()), one.score, abs_tol=1e-9)
        assert math.isclose(sum(s["weight"] for s in one.signals.values()), 1.0, abs_tol=1e-9)


@given(seed=st.integers(0, 999), low=st.floats(0, 1), high=st.floats(0, 1))
def test_raising_the_threshold_never_adds_a_hit(seed: int, low: float, high: float) -> None:
    low, high = sorted((low, high))
    candidates = varied(seed)
    strict = order(candidates, similarity_threshold=high)
    assert set(strict) <= set(order(candidates, similarity_threshold=low))
    for row in strict:
        known = candidates.cosine[row]
        assert math.isnan(known) or min(max((known - 0.75) / 0.17, 0), 1) >= high - ROUNDING


def test_the_same_text_passes_a_threshold_of_nine_tenths_and_a_stranger_does_not() -> None:
    candidates = candidates_for(TEXTS, ASKED, cosine=np.array([0.96, 0.84, 0.82, 0.8, 0.9]))
    assert order(candidates, similarity_threshold=0.9) == [0]
    assert order(candidates, similarity_threshold=1.0) == [0]


def test_fewer_hits_rather_than_padding() -> None:
    candidates = candidates_for(TEXTS, ASKED, cosine=np.full(5, 0.7))
    assert set(order(candidates)) == {0, 4}
    assert order(candidates, fusion="similarity") == []
    assert rank(candidates_for(TEXTS, "的了", cosine=np.full(5, 0.7)), asking("的了"), HERE) == []


def test_a_weight_of_zero_switches_an_arm_off() -> None:
    candidates = candidates_for(TEXTS, ASKED, cosine=np.array([0.7, 0.95, 0.7, 0.7, 0.7]))
    assert order(candidates, weights={"similarity": 1.0, "keyword": 0.0}) == [1]
    assert order(candidates, weights={"similarity": 0.0, "keyword": 1.0}) == [0, 4]
    assert len(order(candidates, weights={"time": 1.0})) == len(TEXTS)


def test_a_rare_word_in_a_stray_row_does_not_beat_a_strong_likeness() -> None:
    texts = ["芒果", "我不能吃某种热带水果，会起疹子", "天气", "会议"]
    asked = "我对哪些水果过敏，比如芒果之类的，吃了会怎样"
    candidates = candidates_for(texts, asked, cosine=np.array([0.8, 0.93, 0.78, 0.78]))
    assert rank(candidates, asking(asked), HERE)[0].row == 1


@pytest.mark.parametrize("fusion", FUSIONS)
def test_without_any_vector_words_answer(fusion: Fusion) -> None:
    candidates = candidates_for(TEXTS, ASKED, cosine=np.full(5, math.nan))
    ranked = rank(candidates, asking(ASKED, fusion=fusion, similarity_threshold=0.9), HERE)
    assert [one.row for one in ranked] == [0, 4]
    assert ranked[0].signals is not None
    assert ranked[0].signals["similarity"]["value"] is None
    assert ranked[0].signals["similarity"]["calibrated"] is None


def test_a_pending_row_is_judged_by_its_words_not_by_being_new() -> None:
    cosine = np.array([math.nan, 0.9, 0.8, math.nan, 0.8])
    ranked = rank(candidates_for(TEXTS, ASKED, cosine=cosine), asking(ASKED), HERE)
    rows = [one.row for one in ranked]
    assert rows[0] == 0
    assert 3 not in rows  # no vector, no word: no evidence
    assert ranked[0].signals is not None
    assert ranked[0].signals["keyword"]["weight"] == pytest.approx(0.6)


def test_without_words_in_the_query_likeness_has_their_weight() -> None:
    ranked = rank(candidates_for(TEXTS, "的了", cosine=np.full(5, 0.9)), asking("的了"), HERE)
    assert ranked[0].signals is not None
    assert ranked[0].signals["similarity"]["weight"] == pytest.approx(0.6)
    assert ranked[0].signals["keyword"] == {"value": None, "weight": 0.0, "contribution": 0.0, "arm": "keyword"}


def test_time_and_importance_move_equals_in_their_direction() -> None:
    alike = candidates_for(["芒果", "芒果", "芒果"], ASKED, cosine=np.full(3, 0.9))
    assert order(alike) == [2, 1, 0]  # newest first among equals
    assert order(replace(alike, importance=np.array([5.0, 1, 1]))) == [0, 2, 1]
    older = replace(alike, created_at=NOW - np.array([0, 0, 1e6]))
    assert order(older) == [1, 0, 2]
    assert order(older, fusion="similarity") == [2, 1, 0]
    assert order(older, fusion="similarity_time") == [1, 0, 2]
    assert order(older, fusion="similarity_importance") == [2, 1, 0]


def test_alone_similarity_is_the_plain_calibrated_cosine() -> None:
    candidates = replace(
        candidates_for(TEXTS[:2], ASKED, cosine=np.array([0.8605, 0.852])), commonness=np.array([0.95, 0.75])
    )
    assert order(candidates, fusion="similarity") == [0, 1]
    alone = rank(candidates, asking(ASKED, fusion="similarity"), HERE)
    assert [one.score for one in alone] == pytest.approx([0.65, 0.6])
    assert order(candidates, weights={"similarity": 1.0}) == [0, 1]
    pending = replace(candidates, cosine=np.array([0.8605, math.nan]))
    assert rank(pending, asking(ASKED, fusion="similarity"), HERE)[0].score == pytest.approx(0.65)


def test_only_rows_that_pass_the_filters_are_hits_but_all_count_for_rarity() -> None:
    candidates = candidates_for(TEXTS, ASKED)
    filtered = replace(candidates, matching=np.array([True, False, False, False, False]))
    (only,) = rank(filtered, asking(ASKED), HERE)
    everyone = {one.row: one.score for one in rank(candidates, asking(ASKED), HERE)}
    assert only.score == everyone[0]


def test_unexplained_hits_carry_no_signals() -> None:
    assert {one.signals for one in rank(candidates_for(TEXTS, ASKED), asking(ASKED), HERE, explain=False)} == {None}


def test_no_candidates() -> None:
    assert rank(candidates_for([], ASKED), asking(ASKED), HERE) == []


def test_what_leads_is_as_relevant_as_the_best_whatever_its_time_and_importance() -> None:
    """Otherwise what use made important would gain by being important: a hit may be first and not lead."""
    candidates = candidates_for(
        ["芒果过敏", "芒果过敏", "天气", "会议"], ASKED, cosine=np.array([0.92, 0.92, 0.85, 0.8])
    )
    candidates = replace(candidates, importance=np.array([1.0, 2, 5, 5]), created_at=NOW - np.array([1e7, 0, 0, 0]))
    plain = judge(candidates, asking(ASKED), HERE)
    by_importance = judge(
        candidates, asking(ASKED, weights={"importance": 0.7, "similarity": 0.1, "keyword": 0.1}), HERE
    )
    assert [judged.order[0] for judged in (plain, by_importance)] == [1, 2]
    for judged in (plain, by_importance):
        leads = dict(zip(judged.order.tolist(), judged.leading(judged.order.tolist()), strict=True))
        assert leads == {0: True, 1: True, 2: False, 3: False}
    of_time_only = judge(candidates, asking(ASKED, weights={"time": 1.0}), HERE)
    assert len(of_time_only.order) == 4
    assert not any(of_time_only.leading(of_time_only.order.tolist()))
    assert of_time_only.leading([]) == []


def test_without_a_vector_words_say_what_leads() -> None:
    candidates = candidates_for(TEXTS, ASKED, cosine=np.array([math.nan, 0.7, 0.7, 0.7, math.nan]))
    judged = judge(candidates, asking(ASKED), HERE)
    assert judged.leading([0, 4, 1]) == [True, False, False]
