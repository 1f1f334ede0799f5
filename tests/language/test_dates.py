"""Days named in a query, in both languages, absolute and relative."""

from datetime import UTC, date, datetime

import numpy as np
import pytest

from app.language import named_days

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
