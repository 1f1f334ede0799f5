"""Small talk is recognised, and nothing else is: the tables in both languages, and what stands close to them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extract.triviality import GLUE, LONGEST, PHRASES, trivial

TRIVIAL = {
    "greeting": ["你好", "您好！", "早上好呀", "Hello你在吗", "在吗？", "Hi there!", "heyyyy",
    "Good morning, everyone", "好久不见"],
    "thanks": ["谢谢", "谢谢您，辛苦了", "太感谢了！！", "Thanks a lot!", "thank you so much 🙏", "thx",
    "ＴＨＡＮＫＳ", "謝謝你"],
    "pleasantry": ["再见", "不客气的哦", "请问还有其他可以帮到您的吗?", "打扰一下", "See you tomorrow. Bye!",
    "You're welcome", "no worries"],
    "filler": ["嗯嗯", "好的好的", "哈哈哈哈哈哈", "好的，我知道了", "👍", "……", "okkk", "got it!", "hahaha lol",
    "Sounds good.", "hmm"],
    "calculation": ["128 + 64 = 192", "所以 3*4=12", "so 12 × 3 = 36", "Step 2: 50% * 200 = 100", "3+5等于8"],
}  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), [(text, reason) for reason, texts in TRIVIAL.items() for text in texts])
def test_small_talk_is_trivial(text: str, reason: str) -> None:
    assert trivial(text) == reason


@pytest.mark.parametrize(
    "text",
    [
        "今天天气真好，中午吃了黄焖鸡米饭", "我对芒果过敏", "谢谢，我的订单号是A-1024", "好的，那就周三下午三点",
        "你好，我叫林涛", "不要了",
        "no", "Jon", "Hey Jon! Good to see you.", "Thanks, Anna", "hello world", "Sure, blue", "5", "2024-11-30",
        "138-0013-8000",
        "x = 5", "A-1024", "3 kg", "¥128 + ¥64", "好的 98 折", "谢谢 @ops-team", "晚安曲", "你好可爱", "再见二丁目",
        "OK镜", "thanks to my wife",
    ],
)  # fmt: skip
def test_what_says_anything_is_kept(text: str) -> None:
    assert trivial(text) is None


@pytest.mark.parametrize("reason", PHRASES)
def test_every_phrase_of_the_tables_is_trivial_by_itself(reason: str) -> None:
    chinese, *english = PHRASES[reason].split("|")  # type: ignore[index]
    assert not [phrase for phrase in (*chinese.split(), *english) if phrase.strip() and trivial(phrase) is None]


def test_glue_alone_is_not_recognised_as_small_talk() -> None:
    chinese, *english = GLUE.split("|")
    alone = [
        phrase for phrase in (*chinese.split(), *english) if trivial(phrase) in {"greeting", "thanks", "pleasantry"}
    ]
    assert alone == []


@given(st.lists(st.sampled_from([text for texts in TRIVIAL.values() for text in texts[:3]]), min_size=2, max_size=4))
def test_a_name_beside_any_small_talk_makes_it_worth_keeping(texts: list[str]) -> None:
    assert trivial(f"{'，'.join(texts)}，欧阳倩") is None


def test_a_long_text_is_never_trivial() -> None:
    assert trivial("哈" * LONGEST) == "filler"
    assert trivial("哈" * (LONGEST + 1)) is None
