"""Days named in a query, in both languages, absolute and relative."""

from datetime import UTC, date, datetime

import numpy as np
import pytest

from app.language import day_mentions, named_days

TODAY = date(2026, 11, 29)  # a Sunday


def seconds(*days: str) -> np.ndarray:
    return np.array([datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() for day in days])


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("在4月27号这天，我跑了多久？", "2023-04-27", "2023-04-28"),
        ("四月二十七日我說了什麼", "2025-04-27T23:59:59", "2025-04-28"),
        ("On April 27th, how long did I run?", "2024-04-27", "2024-04-26"),
        ("the 3rd of July, 2023", "2023-07-03T12:00:00", "2024-07-03"),
        ("What happened in May 2023?", "2023-05-31T23:00:00", "2023-06-01"),
        ("in August", "2022-08-15", "2022-09-15"),
        ("2023年5月4日买的", "2023-05-04", "2024-05-04"),
        ("2023年12月的会", "2023-12-31", "2024-01-01"),
        ("去年4月27号", "2025-04-27", "2023-04-27"),
        ("2024年国庆去哪", "2024-10-01", "2023-10-01"),
        ("2024-10-15 的订单", "2024-10-15", "2024-10-16"),
        ("昨天说的", "2026-11-28T10:00:00", "2026-11-29"),
        ("yesterday", "2026-11-28", "2026-11-27T23:59:59"),
        ("3天前", "2026-11-26", "2026-11-27"),
        ("two days ago", "2026-11-27", "2026-11-26"),
        ("上周五的会", "2026-11-20", "2026-11-27"),
        ("上星期天", "2026-11-22", "2026-11-23"),
        ("last week", "2026-11-16", "2026-11-23"),
        ("last Friday", "2026-11-27", "2026-11-20"),
        ("last Sunday", "2026-11-22", "2026-11-29"),
        ("上个月", "2026-10-31", "2026-11-01"),
        ("this month", "2026-11-01", "2026-10-31"),
        ("Feb 29", "2024-02-29", "2024-02-28"),
    ],
)
def test_named_days(text: str, inside: str, outside: str) -> None:
    (days,) = named_days(text, TODAY)
    assert days.include(seconds(inside, outside)).tolist() == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "6个月的合同",
        "2月30日",
        "I may go",
        "版本 v2.3.1",
        "A-1024",
        "订单 20241015",
        "13月5日",
        "他们天天见面",
        "Augustus",
    ],
)
def test_what_is_no_date_names_no_day(text: str) -> None:
    assert named_days(text, TODAY) == ()


def test_several_days_and_each_once() -> None:
    assert len(named_days("4月27号和4月28号，还有4月27日", TODAY)) == 2


def test_days_before_1970_have_a_calendar_too() -> None:
    (days,) = named_days("1969年12月31日", TODAY)
    assert days.include(np.array([-1.0, 0.0])).tolist() == [True, False]


SAID_ON = date(2024, 2, 29)  # a Thursday


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "昨天我去看了牙医，下周三复诊",
            [("昨天", "2024-02-28", "2024-02-28"), ("下周三", "2024-03-06", "2024-03-06")],
        ),
        ("I saw the dentist last Friday", [("last Friday", "2024-02-23", "2024-02-23")]),
        ("Two weeks ago we moved", [("Two weeks ago", "2024-02-15", "2024-02-15")]),
        ("两周前，再过几天", [("两周前", "2024-02-15", "2024-02-15")]),
        ("上上周三", [("上上周三", "2024-02-14", "2024-02-14")]),
        ("上周一直下雨，上周一没下", [("上周", "2024-02-19", "2024-02-25"), ("上周一", "2024-02-19", "2024-02-19")]),
        ("大前天和大後天", [("大前天", "2024-02-26", "2024-02-26"), ("大後天", "2024-03-03", "2024-03-03")]),
        ("the day after tomorrow", [("day after tomorrow", "2024-03-02", "2024-03-02")]),
        (
            "next Monday or in 3 days",
            [("next Monday", "2024-03-04", "2024-03-04"), ("in 3 days", "2024-03-03", "2024-03-03")],
        ),
        ("去年5月4日", [("去年5月4日", "2023-05-04", "2023-05-04")]),
        ("明年三月", [("明年三月", "2025-03-01", "2025-03-31")]),
        ("下个月", [("下个月", "2024-03-01", "2024-03-31")]),
        ("ﬁve days, ① 明天", [("明天", "2024-03-01", "2024-03-01")]),
        ("2024-03-15 and not 2024-02-30", [("2024-03-15", "2024-03-15", "2024-03-15")]),
        ("nothing is named here", []),
    ],
)
def test_a_statement_names_days_where_they_stand_ahead_too(text: str, named: list[tuple[str, str, str]]) -> None:
    found = [(text[m.start : m.end], str(m.days.first), str(m.days.last)) for m in day_mentions(text, SAID_ON)]
    assert found == named


def test_without_the_day_it_was_said_only_full_dates_count() -> None:
    found = day_mentions("昨天说，2024年3月15日和5月4日见，下周再谈", None)
    assert [(m.days.first, m.days.month, m.days.day, m.relative) for m in found] == [
        (date(2024, 3, 15), None, None, False),
        (None, 5, 4, False),
    ]


@pytest.mark.parametrize("today", [date.min, date.max])
def test_days_beyond_the_calendar_are_not_named(today: date) -> None:
    beyond = day_mentions("三天前 3天后 last Friday next week 去年 明年 下个月 上个月", today)
    assert all(m.days.first is not None for m in beyond)
