"""When jobs are due: slots that all replicas agree on, also on the days when clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.schedule import Cron, Every, delay

MOMENTS = st.datetimes(
    timezones=st.just(UTC),
    min_value=datetime(1971, 1, 1),  # noqa: DTZ001 - the strategy adds the zone
    max_value=datetime(2100, 1, 1),  # noqa: DTZ001
)
DAY = timedelta(days=1)
YEAR = [datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(hours=6 * step) for step in range(4 * 365 + 1)]


@given(MOMENTS, st.sampled_from([1, 2, 60, 3600, 86400]))
def test_a_slot_holds_its_moment_and_is_its_own(moment: datetime, seconds: int) -> None:
    every = Every(seconds)
    slot = every.slot(moment)
    assert slot <= moment < slot + timedelta(seconds=seconds)
    assert every.slot(slot) == slot
    assert every.following(moment) == slot + timedelta(seconds=seconds)


@given(MOMENTS)
def test_a_nights_slot_begins_at_three_in_shanghai(moment: datetime) -> None:
    cron = Cron("0 3 * * *", "Asia/Shanghai")
    slot = cron.slot(moment)
    assert slot.astimezone(ZoneInfo("Asia/Shanghai")).hour in {3, 4}  # Shanghai had summer time until 1991
    assert timedelta(0) <= moment - slot < timedelta(hours=25)
    assert cron.slot(slot) == slot
    assert cron.following(moment) > moment - timedelta(hours=1)


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/New_York", "Europe/Berlin", "America/Havana"])
@pytest.mark.parametrize("expression", ["0 0 * * *", "30 1 * * *", "30 2 * * *"])
def test_every_day_of_a_year_has_one_slot_whatever_the_clocks_do(zone: str, expression: str) -> None:
    """R37. The scheduling library itself would leave one out in spring, or have two in autumn."""
    cron = Cron(expression, zone)
    clock = ZoneInfo(zone)
    changes = [one for one in YEAR if one.astimezone(clock).utcoffset() != (one + DAY).astimezone(clock).utcoffset()]
    near = {one + timedelta(minutes=20 * step) for one in changes for step in range(108)}
    slots = sorted({cron.slot(moment) for moment in near.union(YEAR)})
    assert len(slots) == 366
    assert all(timedelta(hours=22) < later - slot < timedelta(hours=26) for slot, later in pairwise(slots))


@pytest.mark.parametrize(
    ("expression", "slot"),
    [
        ("*/15 * * * *", datetime(2026, 11, 30, 8, 15, tzinfo=UTC)),
        ("0 3 * * sun", datetime(2026, 11, 28, 19, tzinfo=UTC)),
        ("0 3 1 * *", datetime(2026, 10, 31, 19, tzinfo=UTC)),
        ("0 3 29 2 *", datetime(2024, 2, 28, 19, tzinfo=UTC)),
    ],
)
def test_expressions_of_all_lengths(expression: str, slot: datetime) -> None:
    assert Cron(expression, "Asia/Shanghai").slot(datetime(2026, 11, 30, 8, 20, tzinfo=UTC)) == slot


@pytest.mark.parametrize("expression", ["", "3 o'clock", "0 25 * * *", "0 3 * *"])
def test_a_wrong_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Cron(expression, "UTC")


def test_a_moment_that_never_comes_is_refused() -> None:
    cron = Cron("0 3 31 2 *", "UTC")
    with pytest.raises(ValueError, match="never"):
        cron.following(datetime(2026, 11, 30, tzinfo=UTC))
    with pytest.raises(ValueError, match="never"):
        cron.slot(datetime(2026, 11, 30, tzinfo=UTC))


@given(st.text(max_size=20), MOMENTS, st.floats(0, 3600))
def test_the_delay_is_within_its_bound_and_the_same_for_all(job: str, slot: datetime, most: float) -> None:
    assert timedelta(0) <= delay(job, slot, most) <= timedelta(seconds=most)
    assert delay(job, slot, most) == delay(job, slot, most)


def test_jobs_of_one_time_do_not_all_begin_at_once() -> None:
    slot = datetime(2026, 11, 30, 19, tzinfo=UTC)
    assert len({delay(f"job {number}", slot, 300) for number in range(20)}) == 20
