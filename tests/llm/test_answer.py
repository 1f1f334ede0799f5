"""What models write around, into and instead of the JSON that they were asked for (R05)."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from app.llm.answer import CHARACTERS, Unreadable, read


class Item(BaseModel):
    text: str
    tags: list[str] = []


class Found(BaseModel):
    items: list[Item]


WELL = '{"items": [{"text": "我在杭州云栖科技做后端", "tags": []}, {"text": "likes tea"}]}'
TEXTS = ["我在杭州云栖科技做后端", "likes tea"]

READ = {
    "bare": (WELL, False),
    "bare with blanks": (f"\n  {WELL}\n", False),
    "in a fence": (f"```json\n{WELL}\n```", True),
    "in a fence without a name": (f"Here you are:\n```\n{WELL}\n```\nAnything else?", True),
    "braces in the prose before": (f"Notes {{draft}}: {WELL}", True),
    "prose after": (f"{WELL}\nI hope this helps {{really}}!", True),
    "a thought before": (f'<think>Maybe {{"items": []}}?</think>{WELL}', True),
    "a bare list": (WELL.removeprefix('{"items": ').removesuffix("}"), False),
    "a comma too many": (WELL.replace("]}", "],}").replace("}]", "},]"), True),
    "another object first": ('{"thought": "two facts"}\n' + WELL, True),
    "escaped Chinese": (json.dumps(json.loads(WELL), ensure_ascii=True), False),
}


@pytest.mark.parametrize(("text", "wrapped"), READ.values(), ids=READ.keys())
def test_r05_what_can_be_read_is_read(text: str, wrapped: bool) -> None:
    found, was_wrapped = read(text, Found)
    assert ([item.text for item in found.items], was_wrapped) == (TEXTS, wrapped)


def test_r05_escapes_that_json_does_not_know_are_the_characters_themselves() -> None:
    found, wrapped = read(r'{"items": [{"text": "路径 C:\数据\d, \u4e"}, {"text": "a\nb \u4e2d \"q\""}]}', Found)
    assert [item.text for item in found.items] == ["路径 C:\\数据\\d, \\u4e", 'a\nb 中 "q"']
    assert wrapped


UNREADABLE = {
    "nothing": ("", "empty"),
    "blanks": (" \n", "empty"),
    "only a thought": ("<think>hm", "empty"),
    "prose": ("I found nothing to remember.", "not_json"),
    "null": ("null", "not_json"),
    "cut within a string": (WELL[:30], "cut_off"),
    "cut after the first item": (WELL[: WELL.index("likes") - 10], "cut_off"),
    "cut within a list that looks like no items": ('{"items": [{"text": "x", "tags": []', "cut_off"),
    "cut within a fence": (f"```json\n{WELL[:60]}", "cut_off"),
    "without the key": ('{"result": []}', "wrong_shape"),
    "an item of another shape": ('{"items": ["likes tea"]}', "wrong_shape"),
    "a lone surrogate": (r'{"items": [{"text": "\ud83d"}]}', "wrong_shape"),
    "NUL": (r'{"items": [{"text": "a\u0000b"}]}', "wrong_shape"),
    "a number": ("42", "wrong_shape"),
    "brackets without end": ("[" * 50_000, "cut_off"),
    "deep": ("[" * 50_000 + "]" * 50_000, "not_json"),
    "too long": (f'{{"items": [], "x": "{"y" * CHARACTERS}"}}', "not_json"),
}


@pytest.mark.parametrize(("text", "fault"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_r05_what_cannot_be_read_is_never_an_empty_list(text: str, fault: str) -> None:
    with pytest.raises(Unreadable) as error:
        read(text, Found)
    assert error.value.fault == fault


def test_a_limit_that_ended_the_answer_makes_it_cut_off_unless_all_of_it_is_there() -> None:
    assert len(read(WELL, Found, cut_off=True)[0].items) == 2
    with pytest.raises(Unreadable, match="cut off"):
        read(f"Notes: {WELL} and so", Found, cut_off=True)


def test_the_hint_names_places_and_not_what_stood_there() -> None:
    with pytest.raises(Unreadable) as error:
        read('{"items": [{"text": 7, "tags": "secret"}]}', Found)
    assert "items.0.text" in error.value.hint
    assert "secret" not in str(error.value)


@given(st.text(alphabet='{}[]":,\\ntrue0中x` ', max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(Unreadable):
        assert isinstance(read(text, Found)[0], Found)
