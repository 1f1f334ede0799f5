"""Of two that say the same one goes: a table of which, and of all that must not be lost with it (R08)."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from app.consolidate.pairs import Merge, SaysAll, decide, decide_by

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
LESS, MORE = "我养了一只猫", "我养了一只橘色的猫"


def row(number: int, content: str, **fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "memory_id": UUID(int=number), "content": content, "agent_id": None, "content_type": "text", "kind": "profile",
        "key": None, "importance": 3.0, "pinned": False, "guarded": False, "event_at": None, "valid_from": None,
        "valid_to": None, "expires_at": None, "created_at": NOON + timedelta(hours=number), "access_count": 0,
    }  # fmt: skip
    return known | fields


def kept(verdict: Merge | str) -> int | str:
    return verdict if isinstance(verdict, str) else verdict.kept["memory_id"].int


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (LESS, MORE, 2), (MORE, LESS, 1), ("Emma has a cat", "Emma has a black cat", 2),
        ("I like window seats", "The user prefers window seats", 1), ("我喜欢喝咖啡", "我喜欢喝绿茶", "unsure"),
        ("I take the bus", "I take the bus unless it rains", "unsure"),
        ("Amy eats meat", "Amy never eats meat", "apart"),
        ("会议改到周三下午3点", "会议改到周三下午4点", "apart"), ("张伟把车借给了李娜", "李娜把车借给了张伟", "apart"),
    ],
)  # fmt: skip
def test_what_says_more_stays_whichever_is_older(one: str, other: str, verdict: int | str) -> None:
    assert kept(decide(row(1, one), row(2, other))) == verdict


EARLY, LATE = NOON + timedelta(days=1), NOON + timedelta(days=9)


@pytest.mark.parametrize(
    ("less", "more", "verdict"),
    [
        ({}, {}, 2),
        ({"guarded": True}, {}, "stay"),
        ({"key": "profile.pet"}, {}, "stay"),
        ({"kind": "summary"}, {}, "stay"),
        ({}, {"kind": "summary"}, "stay"),
        ({"agent_id": "a"}, {}, "stay"),
        ({"content_type": "image"}, {}, "stay"),
        ({"valid_from": EARLY}, {}, "stay"),
        ({"valid_to": EARLY}, {"valid_to": LATE}, "stay"),
        ({"event_at": EARLY}, {}, "stay"),
        ({"event_at": EARLY}, {"event_at": LATE}, "stay"),
        ({"event_at": EARLY}, {"event_at": EARLY}, 2),
        ({}, {"event_at": EARLY}, 2),
        ({}, {"expires_at": LATE}, "stay"),
        ({"expires_at": LATE}, {"expires_at": EARLY}, "stay"),
        ({"expires_at": EARLY}, {"expires_at": LATE}, 2),
        ({"expires_at": EARLY}, {}, 2),
        ({}, {"guarded": True, "key": "profile.pet"}, 2),
        ({"importance": 5.0, "access_count": 9}, {}, 2),
    ],
)
def test_nothing_but_the_text_may_be_lost(less: dict[str, Any], more: dict[str, Any], verdict: int | str) -> None:
    assert kept(decide(row(1, LESS, **less), row(2, MORE, **more))) == verdict


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        ({}, {}, 1), ({}, {"importance": 4.0}, 2), ({}, {"access_count": 1}, 2), ({}, {"key": "k"}, 2),
        ({"importance": 5.0}, {"pinned": True, "guarded": True}, 2), ({"guarded": True}, {"importance": 5.0}, 1),
    ],
)  # fmt: skip
def test_of_equals_the_one_that_matters_or_the_older_stays(
    first: dict[str, Any], second: dict[str, Any], stays: int
) -> None:
    assert (
        kept(decide(row(1, "I like window seats", **first), row(2, "The user prefers window seats", **second))) == stays
    )


@pytest.mark.parametrize(("answer", "verdict"), [("first", 1), ("second", 2), ("both", 1), ("neither", "apart")])
def test_what_a_model_said_goes_by_the_same_limits(answer: Any, verdict: int | str) -> None:
    a, b = row(1, "I take the bus"), row(2, "By bus is how I go to work")
    assert kept(decide_by(SaysAll(answer=answer), a, b)) == verdict
    if answer != "neither":
        held = decide_by(SaysAll(answer=answer), a | {"guarded": True}, b | {"guarded": True})
        assert held == "stay"
