"""The documented rule: base by kind, +2 for orders and requests, at most +½ for what it speaks of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extract.importance import ADDITIONS_MAX, SUBJECTS_OF_WEIGHT, importance_of
from app.remember import KINDS

BASE = {name: kind.default_importance for name, kind in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_plain_words_have_the_importance_of_their_kind(kind: str) -> None:
    assert importance_of(kind, "我喜欢喝茶") == importance_of(kind, "I like tea") == BASE[kind]


@pytest.mark.parametrize(
    "text",
    [
        "请记住我的公司名称是云启科技", "记一下：周三例会", "别忘了带合同", "以后都用英文回答我", "务必先打电话",
        "Remember that I like tea",
        "Don't forget the milk", "From now on answer in French", "please note my new desk", "Always use metric units",
    ],
)  # fmt: skip
def test_orders_and_requests_weigh_two_more(text: str) -> None:
    topics = importance_of("summary", text, requested=False) - BASE["summary"]
    assert importance_of("interaction_history", text) == min(5.0, BASE["interaction_history"] + 2 + topics)


@pytest.mark.parametrize(
    "text", ["我记得你", "I remember my first day", "忘记带伞了", "a note from school", "I always use soap"][:4]
)
def test_remembering_is_not_asking_to_remember(text: str) -> None:
    assert importance_of("interaction_history", text) == BASE["interaction_history"]


TOPICS = {
    "money": ["退款还没到账", "花了300元", "The refund has not arrived", "it cost $40"],
    "date": ["2024-05-01 之前", "10月2日去北京", "the deadline is near", "on March 3 we meet"],
    "health and safety": ["我对芒果过敏", "她有糖尿病", "I have asthma", "an emergency exit"],
    "contract": ["合同签了", "仍在保修期", "the warranty is over", "sign the NDA"],
}


@pytest.mark.parametrize(("topic", "text"), [(topic, text) for topic, texts in TOPICS.items() for text in texts])
def test_a_weighty_topic_adds_a_quarter(topic: str, text: str) -> None:
    assert set(TOPICS) == set(SUBJECTS_OF_WEIGHT)
    assert importance_of("summary", text) == BASE["summary"] + 0.25


def test_topics_add_half_a_step_at_most_and_five_is_the_end() -> None:
    everything = "合同约定2024-05-01前退款500元，过敏者注意安全"
    assert importance_of("interaction_history", everything) == BASE["interaction_history"] + ADDITIONS_MAX
    assert importance_of("profile", f"请记住：{everything}") == 5.0


@given(st.sampled_from(sorted(KINDS)), st.text(max_size=80))
def test_it_is_always_between_one_and_five_and_never_below_its_kind(kind: str, text: str) -> None:
    assert BASE[kind] <= importance_of(kind, text) <= 5.0
