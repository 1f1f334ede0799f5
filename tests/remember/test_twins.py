"""R08: near is not same. The verdict is a table; each row is a pair that a cosine alone would merge, or should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.remember.twins import say_the_same

DIFFERENT = [
    ("Deadline is 15 October", "Deadline is 16 October"),
    ("API v2.3 is live", "API v2.4 is live"),
    ("Amy eats meat", "Amy does not eat meat"),
    ("Amy eats meat", "Amy never eats meat"),
    ("Chen is CEO", "Kim is CTO"),
    ("I met Chen in Paris", "I met Chen in Rome"),
    ("会议改到周三下午3点", "会议改到周三下午4点"),
    ("会议改到周三下午三点", "会议改到周四下午三点"),
    ("他同意了", "他没同意"),
    ("我住在上海", "我住在杭州"),
    ("张伟负责这个项目", "李娜负责这个项目"),
    ("我喜欢吃辣", "我讨厌吃辣"),
    ("会议在上午", "会议在下午"),
    ("预算是两万元", "预算是三万元"),
    ("The order number is A-1024", "The order number is A-1025"),
    ("The meeting moved to last week", "The meeting moved to next week"),
    ("My father is a doctor", "My mother is a doctor"),
    ("The server costs $100", "The server costs $1000"),
    ("电话是13912345678", "电话是13912345679"),
    ("Evan appreciates Sam's support", "Sam appreciates Evan's support"),
    ("张伟把车借给了李娜", "李娜把车借给了张伟"),
    (
        "Phase one of the project covers interviews with customers, a review of rules and a first prototype",
        "Phase one of the project covers hiring of engineers, a contract with the agency and a budget",
    ),
]
SAME = [
    ("Amy is allergic to peanuts.", " amy is allergic to PEANUTS "),
    ("我今年三岁", "我今年3岁"),
    ("我对芒果过敏，不能吃芒果", "我不能吃芒果，因为对芒果过敏"),
    ("Amy prefers aisle seats on flights", "On flights, Amy likes aisle seats"),
    ("用户喜欢靠窗的座位", "用户偏好靠窗座位"),
    ("我對芒果過敏", "我对芒果过敏"),
]


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_facts_that_differ_are_kept_apart(left: str, right: str) -> None:
    assert not say_the_same(left, right)
    assert not say_the_same(right, left)


@pytest.mark.parametrize(("left", "right"), SAME)
def test_one_fact_in_other_words_is_the_same(left: str, right: str) -> None:
    assert say_the_same(left, right)
    assert say_the_same(right, left)


@given(st.text(max_size=60))
def test_every_text_says_the_same_as_itself(text: str) -> None:
    assert say_the_same(text, text)


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_verdict_is_symmetric(left: str, right: str) -> None:
    assert say_the_same(left, right) == say_the_same(right, left)
