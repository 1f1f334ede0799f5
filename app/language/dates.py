"""Days that a text names: 「4月27号」, "in May 2023", 「上周五」, "three days ago"; pure, `today` is a parameter.

Invariant: only what is written as a date counts; a day without a year means that day of any year. The days of a query
are UTC days; those of a statement are days where it was made, and what looks ahead (「下周三」) is read only there.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from app.language.tokens import fold, fold_aligned

_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True)
class NamedDays:
    """A range of days, both ends included; or, without one, a month (and day) of any year."""

    first: date | None = None
    last: date | None = None
    month: int | None = None
    day: int | None = None

    def include(self, seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which moments (seconds since 1970) lie in these days."""
        days = np.floor(seconds / _SECONDS_PER_DAY).astype("int64").astype("datetime64[D]")
        if self.first is not None and self.last is not None:
            return (days >= np.datetime64(self.first)) & (days <= np.datetime64(self.last))
        months = days.astype("datetime64[M]")
        matching: NDArray[np.bool_] = months.astype("int64") % 12 + 1 == self.month
        if self.day is not None:
            matching &= (days - months).astype("int64") + 1 == self.day
        return matching


@dataclass(frozen=True, slots=True)
class DayMention:
    """Where a text names days (`text[start:end]`), and which; `relative`: they depend on the day it was said."""

    start: int
    end: int
    days: NamedDays
    relative: bool


def day_mentions(text: str, today: date | None) -> tuple[DayMention, ...]:
    """The days that a statement names, in order; relative ones only if the day on which it was made is known."""
    folded, origin = fold_aligned(text)
    if not (_HINT.search(folded) or _HINT_AHEAD.search(folded)):
        return ()
    found = []
    steps = (
        [(_ABSOLUTE, False)]
        if today is None
        else [(_YEARS, True), (_ABSOLUTE, False), (_AHEAD, True), (_RELATIVE, True)]
    )
    for rules, depends in steps:
        for pattern, read in rules:
            for match in pattern.finditer(folded):
                groups = match.groups("") if pattern.groups > 1 else match.group(1)
                with suppress(OverflowError):  # beyond the calendar
                    if days := read(groups, today or date.min):
                        found.append(DayMention(origin[match.start()], origin[match.end() - 1] + 1, days, depends))
            folded = pattern.sub(lambda match: " " * len(match[0]), folded)
    return tuple(sorted(found, key=lambda mention: mention.start))


def named_days(text: str, today: date) -> tuple[NamedDays, ...]:
    """The days a text names, relative ones counted from `today`; empty if it names none."""
    text = fold(text).replace("去年", f"{today.year - 1}年").replace("今年", f"{today.year}年")
    if not _HINT.search(text):
        return ()
    found = []
    for pattern, read in _RULES:
        if matches := pattern.findall(text):
            found += [days for match in matches if (days := read(match, today))]
            text = pattern.sub(" ", text)  # 「2023年5月4日」 is not also 「5月4日」
    return tuple(dict.fromkeys(found))


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = (
    r"\b(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_WEEKDAY = r"(mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
# 「上周一直」 is all week and not Monday.
_WEEK_ZH = r"个?(?:周|星期|礼拜)(一(?![直起般些同共下])|[二三四五六日天]|)"
_DIGITS = "一二三四五六七八九十"
_CHINESE = {c: i + 1 for i, c in enumerate(_DIGITS)} | {
    f"{'' if tens == 1 else _DIGITS[tens - 1]}十{_DIGITS[ones - 1] if ones else ''}": tens * 10 + ones
    for tens in (1, 2, 3)
    for ones in range(10)
}
_NUMBER = rf"(\d{{1,3}}|[{_DIGITS}两]{{1,3}}|an?|one|two|three|four|five|six|seven|eight|nine|ten)"
_ENGLISH = {
    word: i
    for i, word in enumerate(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"])
} | {"a": 1, "an": 1, "两": 2}

Read = Callable[[Sequence[str], date], NamedDays | None]


def _number(text: str) -> int:
    return int(text) if text.isdigit() else _CHINESE.get(text) or _ENGLISH.get(text, 0)


def _days(year: str, month: str, day: str) -> NamedDays | None:
    """A day, month or year; None if there is no such day."""
    number = _MONTHS.index(month[:3]) + 1 if month[:3] in _MONTHS else _number(month) if month else 0
    dom = _number(day) if day else 0
    try:
        if not year:
            date(2024, number, dom or 1)  # a leap year: February has 29 days
            return NamedDays(month=number, day=dom or None)
        first = date(int(year), number or 1, dom or 1)
    except ValueError:
        return None
    if dom:
        return NamedDays(first, first)
    after = date(first.year + (number in {0, 12}), number % 12 + 1 if number else 1, 1)
    return NamedDays(first, after - timedelta(days=1))


def _span(today: date, start: int, length: int = 1) -> NamedDays:
    first = today + timedelta(days=start)
    return NamedDays(first, first + timedelta(days=length - 1))


def _week(today: date, weeks: int, weekday: str = "") -> NamedDays:
    monday = -today.weekday() + 7 * weeks
    if not weekday:
        return _span(today, monday, 7)
    return _span(today, monday + "一二三四五六日".index(weekday.replace("天", "日")))


def _month(today: date, months: int) -> NamedDays | None:
    index = today.year * 12 + today.month - 1 + months
    return _days(str(index // 12), str(index % 12 + 1), "")


def _last_weekday(today: date, weekday: str) -> NamedDays:
    back = (today.weekday() - _DAYS.index(weekday[:3])) % 7 or 7
    return _span(today, -back)


# Most queries name no day: one look instead of twenty.
_HINT = re.compile(
    r"\d{4}|[月天日周晚早]|星期|礼拜|\b(?:"
    + "|".join(_MONTHS)
    + r"|last|this|days? ago|yester|day before|to(?:day|night))"
)

# In order: a rule takes its text away from those after it.
_ABSOLUTE: list[tuple[re.Pattern[str], Read]] = [
    (re.compile(pattern), read)
    for pattern, read in [
        (r"\b(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})\b", lambda m, _: _days(m[0], m[1], m[2])),
        (r"(\d{4})年(\d{1,2})月(?:(\d{1,2})[日号])?", lambda m, _: _days(m[0], m[1], m[2])),
        (rf"(?<![\d{_DIGITS}个])(\d{{1,2}}|[{_DIGITS}]{{1,2}})月份?(?:(\d{{1,2}}|[{_DIGITS}]{{1,3}})[日号])?",
         lambda m, _: _days("", m[0], m[1])),
        (rf"{_MONTH}\s+(\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s+(\d{{4}})\b)?", lambda m, _: _days(m[2], m[0], m[1])),
        (rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}(?:,?\s+(\d{{4}})\b)?",
         lambda m, _: _days(m[2], m[1], m[0])),
        (rf"{_MONTH},?\s+(?:of\s+)?(\d{{4}})\b", lambda m, _: _days(m[1], m[0], "")),
        (rf"\b(?:in|during|since|until|of|this|last)\s+{_MONTH}", lambda m, _: _days("", m, "")),
        (r"(\d{4})年", lambda m, _: _days(m, "", "")),
        (r"\b(?:in|during|since)\s+(\d{4})\b", lambda m, _: _days(m, "", "")),
    ]
]  # fmt: skip
_RELATIVE: list[tuple[re.Pattern[str], Read]] = [
    (re.compile(pattern), read)
    for pattern, read in [
        (rf"{_NUMBER}\s*(?:天前|days? ago)", lambda m, today: _span(today, -_number(m)) if _number(m) else None),
        (r"(前天|day before yesterday)", lambda _, today: _span(today, -2)),
        (r"(昨[天日晚]|yesterday|last night)", lambda _, today: _span(today, -1)),
        (r"(今[天日早晚]|\btoday\b|\btonight\b)", lambda _, today: _span(today, 0)),
        (rf"上{_WEEK_ZH}", lambda m, today: _week(today, -1, m)),
        (rf"(?:这|本){_WEEK_ZH}", lambda m, today: _week(today, 0, m)),
        (rf"\blast\s+{_WEEKDAY}", lambda m, today: _last_weekday(today, m)),
        (r"\blast (week)\b", lambda _, today: _week(today, -1)),
        (r"\bthis (week)\b", lambda _, today: _week(today, 0)),
        (r"(上个?月|\blast month\b)", lambda _, today: _month(today, -1)),
        (r"(这个?月|本月|\bthis month\b)", lambda _, today: _month(today, 0)),
        (r"(\blast year\b)", lambda _, today: _days(str(today.year - 1), "", "")),
        (r"(\bthis year\b)", lambda _, today: _days(str(today.year), "", "")),
    ]
]  # fmt: skip
_RULES = [*_ABSOLUTE, *_RELATIVE]


def _shifted(match: Sequence[str] | str, today: date, days: int) -> NamedDays | None:
    number = _number(str(match))
    return _span(today, number * days) if number else None


_HINT_AHEAD = re.compile(r"[年明后前]|\b(?:next|tomorrow|weeks? ago|(?:in|within) |after tomorrow)")
# What a statement may name besides; first, because 「上上周三」 holds 「上周三」.
_AHEAD: list[tuple[re.Pattern[str], Read]] = [
    (re.compile(pattern), read)
    for pattern, read in [
        (rf"{_NUMBER}\s*(?:天后|天之后|天以后)", lambda m, today: _shifted(m, today, 1)),
        (rf"\bin {_NUMBER} days?\b", lambda m, today: _shifted(m, today, 1)),
        (rf"{_NUMBER}\s*(?:个?星期前|周前|个?礼拜前|weeks? ago)", lambda m, today: _shifted(m, today, -7)),
        (rf"{_NUMBER}\s*(?:个?星期后|周后|个?礼拜后|周之后|周以后)", lambda m, today: _shifted(m, today, 7)),
        (rf"\bin {_NUMBER} weeks?\b", lambda m, today: _shifted(m, today, 7)),
        (rf"上上{_WEEK_ZH}", lambda m, today: _week(today, -2, str(m))),
        (rf"下下{_WEEK_ZH}", lambda m, today: _week(today, 2, str(m))),
        (rf"下{_WEEK_ZH}", lambda m, today: _week(today, 1, str(m))),
        (rf"\bnext\s+{_WEEKDAY}", lambda m, today: _span(today, 7 - today.weekday() + _DAYS.index(m[:3]))),
        (rf"\bthis\s+(?:coming\s+)?{_WEEKDAY}", lambda m, today: _span(today, _DAYS.index(m[:3]) - today.weekday())),
        (r"(大前天)", lambda _, today: _span(today, -3)),
        (r"(大后天)", lambda _, today: _span(today, 3)),
        (r"(后天|day after tomorrow)", lambda _, today: _span(today, 2)),
        (r"(明[天日早晚]|\btomorrow\b)", lambda _, today: _span(today, 1)),
        (r"\bnext (week)\b", lambda _, today: _week(today, 1)),
        (r"(下个?月|\bnext month\b)", lambda _, today: _month(today, 1)),
        (r"(\bnext year\b)", lambda _, today: _days(str(today.year + 1), "", "")),
    ]
]  # fmt: skip
_YEAR_WORDS = {"前年": -2, "去年": -1, "今年": 0, "明年": 1, "后年": 2}
_YEARS: list[tuple[re.Pattern[str], Read]] = [
    (
        re.compile(
            rf"({'|'.join(_YEAR_WORDS)})的?(?:(\d{{1,2}}|[{_DIGITS}]{{1,2}})月份?(?:(\d{{1,2}}|[{_DIGITS}]{{1,3}})[日号])?)?"
        ),
        lambda m, today: _days(str(today.year + _YEAR_WORDS[m[0]]), m[1], m[2]),
    )
]
