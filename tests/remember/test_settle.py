"""What a new memory keeps before it is stored: small talk, importance by rule, the life of the unimportant."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.remember import NewMemory, RememberConfig
from app.remember.settle import settled

NOW = datetime(2026, 3, 1, tzinfo=UTC)
WEEK = NOW + timedelta(days=7)
CONFIG = RememberConfig()


def settle(content: str, **fields: Any) -> NewMemory:
    return settled(NewMemory(user_id="amy", content=content, kind="interaction_history", **fields), CONFIG, NOW)


@pytest.mark.parametrize("content", ["谢谢您！", "Thanks a lot!"])
def test_small_talk_is_left_out_with_its_reason(content: str) -> None:
    assert (settle(content).content, settle(content).left_out) == ("", "thanks")
    assert settle(content, importance=1.5).content == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"pinned": True},
        {"key": "profile.motto"},
        {"importance": 2.0},
        {"content_type": "audio"},
        {"if_trivial": "keep"},
    ],
)
def test_what_its_writer_wants_kept_is_kept(fields: dict[str, Any]) -> None:
    kept = settle("谢谢您！", **fields)
    assert (kept.content, kept.left_out, kept.expires_at) == ("谢谢您！", None, None)


def test_small_talk_that_may_stay_is_unimportant_and_expires() -> None:
    kept = settle("谢谢您！", if_trivial="expire")
    assert (kept.content, kept.importance, kept.expires_at) == ("谢谢您！", 1.0, WEEK)
    kept = settle("谢谢您！", if_trivial="keep")
    assert (kept.content, kept.importance, kept.expires_at) == ("谢谢您！", 2.0, None)


@pytest.mark.parametrize(
    ("fields", "expires_at"),
    [
        ({"importance": 1.0}, WEEK),
        ({"importance": 1.01}, None),
        ({}, None),
        ({"importance": 1.0, "pinned": True}, None),
        ({"importance": 1.0, "if_trivial": "keep"}, None),
        ({"importance": 1.0, "expires_at": NOW + timedelta(days=90)}, NOW + timedelta(days=90)),
    ],
)
def test_what_is_kept_at_importance_one_expires(fields: dict[str, Any], expires_at: datetime | None) -> None:
    kept = settle("今天天气真好，中午吃了黄焖鸡米饭", **fields)
    assert (kept.content, kept.expires_at) == ("今天天气真好，中午吃了黄焖鸡米饭", expires_at)


def test_the_writers_importance_stands_and_the_rule_fills_it_in() -> None:
    assert settle("我对芒果过敏", importance=1.7).importance == 1.7
    assert settle("我对芒果过敏").importance == 2.25


def test_what_was_served_goes_first_and_names_the_reason() -> None:
    served = "<memory>\n[2026-02-01 10:00+08:00 | profile | 0123abcd] likes tea\n</memory>\n"
    assert (settle(served).content, settle(served).left_out) == ("", "served_memory")
    assert (settle(f"{served}谢谢").content, settle(f"{served}谢谢").left_out) == ("", "served_memory")
    assert (settle(f"{served}我住在杭州").content, settle(f"{served}我住在杭州").left_out) == (
        "我住在杭州",
        "served_memory",
    )
