"""The tokenizer: one spelling, whole codes and their parts, nothing from function words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.language import grams, normalise, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("域名是 demo-9.example", {"域名", "demo-9.example", "demo", "9", "exampl"}),
        ("型号A-1024到货", {"a-1024", "1024", "型号", "到货"}),
        ("API v2.3 is live", {"api", "v2.3", "v2", "2", "3", "live"}),
        ("2024-10-15", {"2024-10-15", "2024", "10", "15"}),
        ("写信给wu.demo@example.com谢谢", {"wu.demo@example.com", "wu.demo", "example.com", "写信", "谢谢"}),
        ("iPhone15", {"iphone15", "iphon", "15"}),
        ("花费1,234,567元", {"1234567", "花费"}),
        ("数据库迁移", {"数据", "数据库", "迁移"}),
        ("Jon's dogs were running; she doesn't care", {"jon", "dog", "run", "care"}),
        ("Café Müller", {"cafe", "muller"}),
        ("カタカナ", {"カタ", "タカ", "カナ"}),
    ],
)
def test_words(text: str, expected: set[str]) -> None:
    assert expected <= set(words(text))


@pytest.mark.parametrize("text", ["", "的了", "什么？", "the of and", "don't", "…！", "你是谁"])
def test_function_words_and_punctuation_give_no_terms(text: str) -> None:
    assert words(text) == [] == grams(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("項目數據庫遷移到 PostgreSQL", "项目数据库迁移到 ＰｏｓｔｇｒｅＳＱＬ"),
        ("我對芒果過敏", "我对芒果过敏"),
        ("café 1,000", "Cafe 1000"),
        ("It’s Jon’s", "it's jon"),
    ],
)
def test_spellings_of_one_thing_give_the_same_terms(one: str, other: str) -> None:
    assert words(one) == words(other)
    assert grams(one) == grams(other)


@given(st.text(max_size=80))
def test_any_text_is_tokenised_the_same_after_normalising(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
    assert all(term and not term.isspace() for term in words(text) + grams(text))


@given(st.text(st.characters(max_codepoint=127), max_size=80))
def test_ascii_takes_the_fast_road_to_the_same_terms(text: str) -> None:
    slow = words(text + " 芒果")
    assert slow[: len(slow) - 1] == words(text)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("（我對芒果過敏。）", "我对芒果过敏", True),
        ("Hello   World!!", "hello world", True),
        ("我住在上海\n", " 我住在上海。", True),
        ("会议改到下午3点", "会议改到下午4点", False),
        ("他同意了", "他没同意", False),
        ("他同意了？", "他同意了。", False),
        ("气温 -5 度", "气温 5 度", False),
        ("-5", "5", False),
        ("API v2.3", "API v23", False),
        ("resume", "résumé", False),
        ("！", "。", False),
    ],
)
def test_normal_form_is_equal_only_for_the_same_statement(one: str, other: str, same: bool) -> None:
    assert (normalise(one) == normalise(other)) is same
