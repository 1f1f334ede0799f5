"""When a job is due: every so many seconds, or by a cron expression on the clock of a place.

Invariant: slots are moments in UTC that all replicas agree on; a day on which clocks are changed has as many as any
other day.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

_SPANS: Final = tuple(timedelta(days=days) for days in (0.002, 0.1, 1.1, 8, 33, 370, 4 * 370))


@dataclass(frozen=True, slots=True)
class Every:
    """Slots are the multiples of `seconds` since 1970."""

    seconds: float

    def slot(self, moment: datetime) -> datetime:
        """The start of the slot that `moment` falls into."""
        return datetime.fromtimestamp(moment.timestamp() // self.seconds * self.seconds, UTC)

    def following(self, moment: datetime) -> datetime:
        return self.slot(moment) + timedelta(seconds=self.seconds)

    def __str__(self) -> str:
        return f"every {self.seconds:g} s"


class Cron:
    """Slots begin at the times of a five-field cron expression. Raises ValueError for a wrong one."""

    def __init__(self, expression: str, zone: str) -> None:
        # The library would skip midnight, or run twice, when clocks change: it is asked about the hands of the clock
        # only, as if they were UTC's.
        self._trigger, self._zone = CronTrigger.from_crontab(expression, timezone=UTC), ZoneInfo(zone)
        self._expression = expression

    def slot(self, moment: datetime) -> datetime:
        """The start of the slot that `moment` falls into; of an hour that comes twice the first one counts."""
        hands = moment.astimezone(self._zone).replace(tzinfo=UTC)
        for span in _SPANS:
            fire = self._next(hands - span)
            if fire is not None and fire <= hands:
                while (later := self._next(fire + timedelta(seconds=1))) is not None and later <= hands:
                    fire = later
                return self._real(fire)
        raise ValueError(f"{self._expression} is never")

    def following(self, moment: datetime) -> datetime:
        hands = moment.astimezone(self._zone).replace(tzinfo=UTC)
        fire = self._next(hands + timedelta(seconds=1))
        if fire is None:
            raise ValueError(f"{self._expression} is never again")
        return self._real(fire)

    def _next(self, hands: datetime) -> datetime | None:
        fire: datetime | None = self._trigger.get_next_fire_time(None, hands)
        return fire

    def _real(self, hands: datetime) -> datetime:
        return hands.replace(tzinfo=self._zone, fold=0).astimezone(UTC)

    def __str__(self) -> str:
        return f"{self._expression} ({self._zone.key})"


Schedule = Every | Cron


def delay(job: str, slot: datetime, most_seconds: float) -> timedelta:
    """From 0 to `most_seconds`, the same for all replicas: jobs of one time do not all begin at once."""
    digest = blake2b(f"{job} {slot.timestamp()}".encode(), digest_size=8).digest()
    return timedelta(seconds=most_seconds * int.from_bytes(digest, "big") / 2**64)
