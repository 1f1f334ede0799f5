"""Which backups stay: the last good one of each day, week and month, and always one that is good."""

from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.backup.catalog import Entry, chosen, expendable, name_of
from app.backup.config import BackupConfig
from app.errors import Invalid

NOW = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
State = Literal["verified", "unverified", "failed", "incomplete"]


def entry(moment: datetime, state: State = "verified") -> Entry:
    return Entry(name_of(moment, "abc123"), moment, state)


def nights(count: int, *, until: datetime = NOW) -> list[Entry]:
    return [entry(until - timedelta(days=day)) for day in reversed(range(count))]


def kept(known: list[Entry], **keep: int) -> list[str]:
    gone = {one.backup for one in expendable(known, BackupConfig.model_validate(keep), NOW)}
    return [f"{one.made_at:%m-%d}" for one in known if one.backup not in gone]


CASES: list[tuple[str, list[Entry], dict[str, int], list[str]]] = [
    ("seven days by default", nights(10), {}, ["11-24", "11-25", "11-26", "11-27", "11-28", "11-29", "11-30"]),
    ("as many days as asked", nights(10), {"keep_daily": 2}, ["11-29", "11-30"]),
    (
        "the last of each day",
        [entry(NOW - timedelta(hours=hours)) for hours in (30, 29, 2, 1)],
        {"keep_daily": 1},
        ["11-30"],
    ),
    (
        "days without a backup do not count",
        [entry(NOW - timedelta(days=days)) for days in (40, 20, 1)],
        {"keep_daily": 2},
        ["11-10", "11-29"],
    ),
    ("weeks end on Sunday", nights(20), {"keep_daily": 1, "keep_weekly": 3}, ["11-22", "11-29", "11-30"]),
    ("months", nights(95), {"keep_daily": 1, "keep_monthly": 3}, ["09-30", "10-31", "11-30"]),
    (
        "what is not verified pushes nothing out",
        [*nights(2, until=NOW - timedelta(days=3)), *(entry(one.made_at, "unverified") for one in nights(3))],
        {"keep_daily": 1},
        ["11-27", "11-28", "11-29", "11-30"],
    ),
    ("without a good one everything stays", [entry(one.made_at, "failed") for one in nights(9)], {}, [
        f"11-{day}" for day in range(22, 31)
    ]),
    (
        "a failed one goes when a newer one is good",
        [entry(NOW - timedelta(days=2), "failed"), entry(NOW - timedelta(days=1)), entry(NOW, "failed")],
        {},
        ["11-29", "11-30"],
    ),
    (
        "what was broken off goes after a day",
        [entry(NOW - timedelta(hours=25), "incomplete"), entry(NOW - timedelta(hours=23), "incomplete")],
        {},
        ["11-29"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("known", "keep", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_stays(known: list[Entry], keep: dict[str, int], expected: list[str]) -> None:
    assert kept(known, **keep) == expected


ENTRIES = st.lists(
    st.tuples(st.integers(0, 24 * 400), st.sampled_from(get_args(State))), max_size=60, unique_by=lambda one: one[0]
).map(lambda drawn: [entry(NOW - timedelta(hours=hours), state) for hours, state in sorted(drawn, reverse=True)])


@given(ENTRIES, st.integers(1, 9), st.integers(0, 6), st.integers(0, 12))
def test_the_newest_good_one_always_stays_and_a_second_run_removes_nothing(
    known: list[Entry], daily: int, weekly: int, monthly: int
) -> None:
    config = BackupConfig(keep_daily=daily, keep_weekly=weekly, keep_monthly=monthly)
    gone = expendable(known, config, NOW)
    good = [one for one in known if one.state == "verified"]
    assert not good or good[-1] not in gone
    if not good:
        assert all(one.state == "incomplete" for one in gone)
    left = [one for one in known if one not in gone]
    assert expendable(left, config, NOW) == []
    assert sum(one.state == "verified" for one in left) <= daily + weekly + monthly
    assert all(one in left for one in known if good and one.state != "incomplete" and one.made_at > good[-1].made_at)


def test_latest_is_the_newest_that_is_proved_good() -> None:
    known = [*nights(2, until=NOW - timedelta(days=1)), entry(NOW, "unverified")]
    assert chosen(known, "latest") == known[1].backup
    assert chosen(known[2:], "latest") == known[2].backup
    assert chosen(known, known[0].backup) == known[0].backup
    for asked, there in (("latest", [entry(NOW, "failed")]), ("latest", []), ("20200101T000000.000Z-000000", known)):
        with pytest.raises(Invalid):
            chosen(there, asked)


def test_names_are_in_order_of_time_whatever_the_zone() -> None:
    moments = [NOW, NOW.astimezone(tz=None) + timedelta(milliseconds=1)]
    assert name_of(NOW, "ff") == "20261130T030000.000Z-ff"
    assert [name_of(moment, "ff") for moment in moments] == sorted(name_of(moment, "ff") for moment in moments)
