"""An errand: one run of a job as the rooms see it: of which moment, for whom, dry or not, and whom it tells.

Invariant: a dry errand goes the way of a real one and changes nothing; what it tells holds ids and states, never text.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from math import inf
from typing import Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import telemetry

LONGEST_REST_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one memory, by which rule and why."""

    tenant_id: UUID
    memory_id: UUID
    rule: str
    reason: str
    before: str
    after: str


@dataclass(slots=True)
class Errand:
    """`tenant_id`: of this tenant only; `budget_seconds`: how long it may take before it leaves the rest for next time;
    `rest`: how long it pauses after a batch, as a share of the time that the batch took.

    `counts` says what was done so far, by name; `stands_at` what it is at.
    """

    now: datetime
    run_id: UUID = field(default_factory=uuid7)
    tenant_id: UUID | None = None
    dry_run: bool = False
    budget_seconds: float = inf
    rest: float = 0.0
    tell: Callable[["Errand", Change], None] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    stands_at: str = ""
    _started: float = field(default_factory=time.monotonic)
    _resumed: float = field(default_factory=time.monotonic)

    def note(self, change: Change) -> None:
        """Count a change and tell it: as a line of the log, unless the errand says otherwise."""
        self.counts[change.rule] += 1
        (self.tell or log_change)(self, change)

    async def pause(self) -> None:
        """Let others have the database for a while; called after each batch."""
        took = time.monotonic() - self._resumed
        if self.rest:
            await asyncio.sleep(min(took * self.rest, LONGEST_REST_SECONDS))
        self._resumed = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the time is up; asked between two batches. What is left is counted as `unfinished`."""
        if time.monotonic() - self._started < self.budget_seconds:
            return False
        self.counts["unfinished"] = 1
        return True


def log_change(errand: Errand, change: Change) -> None:
    """One line of the log for one memory."""
    fields = {name: value if isinstance(value, str) else str(value) for name, value in asdict(change).items()}
    telemetry.log().info("memory_changed", run_id=str(errand.run_id), dry_run=errand.dry_run, **fields)
