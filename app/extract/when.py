"""When that happened of which a sentence speaks, counted from the message's time in its zone and never from now; pure.

Invariant: a moment comes only from words of the sentence; without them, or where they may mean several days, there is
none. The words stay as they are, and the day they mean is put behind them.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final

from app.language import DayMention, NamedDays, day_mentions

NEAR_DAYS: Final = 92
"""A day without a year is the nearest one, unless that is further off: then it could as well be another year's."""

NOON: Final = time(12)
"""A day without a time of day: at noon it is the same day in UTC for nearly every zone, as searches by day count."""

_ANY_DAY: Final = date(2000, 1, 3)
_EVERY_YEAR = re.compile(r"每年|生日|纪念日|birthday|anniversary|every year|each year", re.IGNORECASE)
_EARLY = "凌晨|早上|早晨|清晨|上午|早"
_LATE = "下午|傍晚|晚上|夜里|晚"
_TIME = re.compile(
    rf"\s*(?:的)?\s*(?P<part>{_EARLY}|中午|{_LATE})?\s*(?P<hour>\d{{1,2}}|[一二两三四五六七八九十]{{1,2}})\s*"
    r"(?:点(?:钟)?(?:(?P<half>半)|(?P<minutes>\d{1,2})分?)?|[:：](?P<colon>\d{2}))"
    r"|\s*,?\s*(?:in the (?:morning|afternoon|evening)\s*)?(?:at|around|by)?\s*"
    r"(?P<en_hour>\d{1,2})(?::(?P<en_minutes>\d{2}))?\s*(?P<half_day>a\.?m\.?|p\.?m\.?)"
    r"|\s*,?\s*at\s*(?P<at_hour>\d{1,2}):(?P<at_minutes>\d{2})",
    re.IGNORECASE,
)
_RANGE_TO = re.compile(
    r"\d{1,2}(?:st|nd|rd|th)?[日号]?\s*(?:to|until|till|through|and|[-–—~]|到|至)\s*(?:the\s+)?$", re.IGNORECASE
)
_RANGE_FROM = re.compile(r"\s*(?:to|until|till|through|[-–—~]|到|至)\s*(?:the\s+)?(?:\d|[A-Z][a-z]|周|星期|下|明|月底)")
"""What makes of a day the end or the beginning of several."""
_DIGITS = {digit: number for number, digit in enumerate("一二三四五六七八九十", 1)} | {"两": 2, "十一": 11, "十二": 12}
_HAN = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True, slots=True)
class Told:
    """A sentence with the days that its words mean, and its moment (aware, UTC) if it names exactly one day."""

    text: str
    event_at: datetime | None


def dated(text: str, at: datetime | None, zone: tzinfo) -> Told:
    """Resolve the days of one sentence said `at` (None: unknown, then only full dates count) by somebody in `zone`."""
    said_on = None if at is None else at.astimezone(zone).date()
    mentions = [
        (mention, _span(mention, said_on, text))
        for mention in day_mentions(text, said_on)
        if not _of_several(text, mention)
    ]
    days = {span[0] for _, span in mentions if span is not None and span[0] == span[1]}
    moment = None
    if len(days) == 1:
        day = days.pop()
        mention = next(m for m, span in mentions if span == (day, day))
        moment = _moment(day, text[mention.start : mention.end], text[mention.end :], zone)
    return Told(_annotated(text, mentions), moment)


def _of_several(text: str, mention: DayMention) -> bool:
    """Whether a day is one end of several days: 12 to 19 December, 3月5日到8日."""
    before, after = text[max(0, mention.start - 16) : mention.start], text[mention.end :]
    return bool(_RANGE_TO.search(before) or _RANGE_FROM.match(after))


def days_of(text: str, at: datetime | None, zone: tzinfo) -> frozenset[date]:
    """The single days that a sentence names."""
    said_on = None if at is None else at.astimezone(zone).date()
    spans = [_span(mention, said_on, text) for mention in day_mentions(text, said_on)]
    return frozenset(span[0] for span in spans if span is not None and span[0] == span[1])


def names_days(text: str) -> bool:
    """Whether a sentence names days at all, also if nobody knows which."""
    return bool(day_mentions(text, _ANY_DAY))


def _span(mention: DayMention, said_on: date | None, text: str) -> tuple[date, date] | None:
    days: NamedDays = mention.days
    if days.first is not None and days.last is not None:
        return days.first, days.last
    if said_on is None or days.month is None or days.day is None or _EVERY_YEAR.search(text):
        return None
    near = []
    for year in (said_on.year - 1, said_on.year, said_on.year + 1):
        try:
            near.append(date(year, days.month, days.day))
        except ValueError:  # 29 February, or beyond the calendar
            continue
    nearest = min(near, key=lambda day: abs(day - said_on), default=None)
    if nearest is None or abs(nearest - said_on).days > NEAR_DAYS:
        return None
    return nearest, nearest


def _annotated(text: str, mentions: list[tuple[DayMention, tuple[date, date] | None]]) -> str:
    chinese = bool(_HAN.search(text))
    for mention, span in reversed(mentions):
        if span is None or not (mention.relative or mention.days.month):
            continue
        first, last = span
        if first == last:
            shown = first.isoformat()
        elif (first.day, (last + timedelta(1)).day) == (1, 1):
            shown = str(first.year) if last - first > timedelta(31) else first.isoformat()[:7]
        else:
            shown = f"{first.isoformat()}{'至' if chinese else ' to '}{last.isoformat()}"
        shown = f"（{shown}）" if chinese else f" ({shown})"
        text = text[: mention.end] + shown + text[mention.end :]
    return text


def _moment(day: date, words: str, after: str, zone: tzinfo) -> datetime | None:
    clock = NOON
    if (match := _TIME.match(after)) is not None:
        clock = _clock(match, words) or NOON
    try:
        return datetime.combine(day, clock, zone).astimezone(UTC)
    except OverflowError:
        return None


def _clock(match: re.Match[str], words: str) -> time | None:
    hour = match["hour"] or match["en_hour"] or match["at_hour"]
    number = int(hour) if hour.isdecimal() else _DIGITS.get(hour, 24)
    minute = (
        30
        if match["half"]
        else int(match["minutes"] or match["colon"] or match["en_minutes"] or match["at_minutes"] or 0)
    )
    half = (match["half_day"] or "").lower()
    part = (match["part"] or "") + words
    if number < 12 and (half.startswith("p") or re.search(rf"{_LATE}|night", part)):
        number += 12
    if number == 12 and half.startswith("a"):
        number = 0
    return time(number, minute) if number < 24 and minute < 60 else None
