"""Access counts of what was recalled, gathered in memory and written in one statement about once a second.

Invariant: a request never writes; what is waiting is written at shutdown; what cannot be kept or written is counted.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from app import telemetry
from app.database import Database, sql
from app.errors import MnemeError
from app.recall.query import RecallConfig

Place = tuple[UUID, UUID, UUID]
"""Tenant, subject and memory."""
Hits = tuple[int, datetime]
"""How many, and the last."""
Written = Mapping[Place, Hits]


class UsageBuffer:
    """Hits of this process that are not yet in memory_usage."""

    def __init__(self, database: Database, config: RecallConfig, written: Callable[[Written], None]) -> None:
        self._database, self._config, self._written = database, config, written
        self._waiting: dict[Place, Hits] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, places: Iterable[Place], now: datetime) -> None:
        """Note one hit for each place."""
        for place in places:
            seen = self._waiting.get(place)
            if seen is None and len(self._waiting) >= self._config.usage_buffer_size:
                telemetry.USAGE_HITS.labels("dropped").inc()
            else:
                self._waiting[place] = (1 if seen is None else seen[0] + 1), now

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop the background task and write what is waiting."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self.flush()

    async def flush(self) -> None:
        """Write all waiting counts; on a database failure they wait for the next time."""
        taken, self._waiting = self._waiting, {}
        if not taken:
            return
        try:
            async with self._database.work() as transaction:
                await transaction.execute(
                    _FLUSH,
                    tenants=[place[0] for place in taken],
                    subjects=[place[1] for place in taken],
                    memories=[place[2] for place in taken],
                    counts=[count for count, _ in taken.values()],
                    times=[time for _, time in taken.values()],
                )
        except MnemeError:
            for place, (count, time) in self._waiting.items():
                taken[place] = (count + taken[place][0] if place in taken else count), time
            self._waiting = taken
        else:
            self._written(taken)
            telemetry.USAGE_HITS.labels("flushed").inc(sum(count for count, _ in taken.values()))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._config.usage_flush_seconds)
            await asyncio.shield(self.flush())


# Ordered, so that two processes that flush the same rows lock them in the same order.
_FLUSH = sql("""
    WITH hit AS (
        SELECT * FROM unnest(
            cast(:tenants AS uuid[]), cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:counts AS bigint[]),
            cast(:times AS timestamptz[])
        ) AS hit (tenant_id, subject_id, memory_id, hits, hit_at)
    ), locked AS (
        SELECT u.tenant_id, u.subject_id, u.memory_id, hit.hits, hit.hit_at
        FROM hit JOIN memory_usage u USING (tenant_id, subject_id, memory_id)
        ORDER BY u.tenant_id, u.subject_id, u.memory_id FOR NO KEY UPDATE OF u
    )
    UPDATE memory_usage u
    SET access_count = u.access_count + l.hits, last_accessed_at = greatest(u.last_accessed_at, l.hit_at)
    FROM locked l
    WHERE u.tenant_id = l.tenant_id AND u.subject_id = l.subject_id AND u.memory_id = l.memory_id
""")
