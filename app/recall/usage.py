"""Access counts of what was recalled, gathered in memory and written in one statement once a second, or less often.

Invariant: a request never writes; what is waiting is written at shutdown; what cannot be kept or written is counted.
Writing touches no index: what hits change in memory_usage stands in none.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Final
from uuid import UUID

from app import telemetry
from app.cold import wake
from app.database import Database, sql
from app.errors import MnemeError
from app.recall.query import Hit, RecallConfig

Place = tuple[UUID, UUID]
"""Tenant and subject."""
Shelf = tuple[Place, str]
"""A subject and a kind: memories of one kind, of which a search finds some and leaves others."""
Written = Mapping[Place, Mapping[UUID, tuple[int, datetime]]]
"""Of each subject's memories: how many hits, and the last."""

MOST_IN_A_ROW: Final = 5
"""A memory hit in more searches in a row than these is noted, to be reinforced."""
NOTED_EVERY: Final = timedelta(hours=24)
SHARE: Final = 10  # times as long as a writing took hits wait for the next one
LONGEST_PAUSE_SECONDS: Final = 5.0


@dataclass(slots=True)
class Hits:
    """Hits of one memory: how many, the last, and of how many searches in a row up to number `number` of its shelf.

    Only hits that lead make a row: answers are filled up to the number asked for, and what fills up was of no use.
    """

    shelf: Shelf
    count: int
    last: datetime
    row: int
    number: int


@dataclass(slots=True)
class Waiting:
    """What is not written yet: hits of memories by subject, and of each shelf the number of searches and the last."""

    hits: dict[Place, dict[UUID, Hits]] = field(default_factory=dict)
    searches: dict[Shelf, tuple[int, datetime]] = field(default_factory=dict)
    count: int = 0

    def add(self, tenant_id: UUID, hits: Iterable[Hit], now: datetime, most: int) -> int:
        """Note one search; returns how many hits found no room."""
        dropped, places = 0, dict[UUID, tuple[dict[UUID, Hits], dict[str, tuple[Shelf, int]]]]()
        for hit in hits:
            memory, subject_id = hit.memory, hit.subject_id
            if (place := places.get(subject_id)) is None:
                place = places[subject_id] = self.hits.setdefault((tenant_id, subject_id), {}), {}
            known, shelves = place
            memory_id, kind = memory["id"], memory["kind"]
            if (entry := shelves.get(kind)) is None:
                shelf = (tenant_id, subject_id), kind
                entry = shelves[kind] = shelf, self.searches.get(shelf, (0, now))[0] + 1
                self.searches[shelf] = entry[1], now
            shelf, number = entry
            if (seen := known.get(memory_id)) is None:
                if self.count >= most:
                    dropped += 1
                else:
                    known[memory_id] = Hits(shelf, 1, now, int(hit.leads), number)
                    self.count += 1
            elif seen.number < number:
                seen.row = hit.leads * (seen.row + 1 if seen.number == number - 1 else 1)
                seen.count, seen.last, seen.number = seen.count + 1, now, number
        return dropped

    def followed_by(self, later: "Waiting") -> None:
        """Add what came after."""
        for place, memories in later.hits.items():
            known = self.hits.setdefault(place, {})
            for memory_id, hits in memories.items():
                before = self.searches.get(hits.shelf, (0, hits.last))[0]
                if (seen := known.get(memory_id)) is not None:
                    if hits.row == hits.number and seen.number == before:
                        hits.row += seen.row
                    hits.count += seen.count
                else:
                    self.count += 1
                hits.number += before
                known[memory_id] = hits
        for shelf, (number, last) in later.searches.items():
            self.searches[shelf] = self.searches.get(shelf, (0, last))[0] + number, last


class UsageBuffer:
    """Hits of this process that are not yet in memory_usage."""

    def __init__(self, database: Database, config: RecallConfig, written: Callable[[Written], None]) -> None:
        self._database, self._config, self._written = database, config, written
        self._waiting = Waiting()
        self._cold: dict[UUID, dict[UUID, datetime]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, tenant_id: UUID, hits: Iterable[Hit], now: datetime) -> None:
        """Note the hits of one search."""
        if dropped := self._waiting.add(tenant_id, hits, now, self._config.usage_buffer_size):
            telemetry.USAGE_HITS.labels("dropped").inc(dropped)

    def wake(self, tenant_id: UUID, memories: Iterable[Mapping[str, Any]], now: datetime) -> None:
        """Note that memories (in their JSON shape) were seen, so that those that are cold become warm again."""
        for memory in memories:
            if memory["embedding"] == "cold":
                self._cold.setdefault(tenant_id, {})[memory["id"]] = now

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
        """Write all that is waiting; what cannot be written, whatever the reason, waits for the next time."""
        await self._flush_cold()
        taken, self._waiting = self._waiting, Waiting()
        if not taken.count:
            return
        try:
            async with self._database.work() as transaction:
                await transaction.execute(_FLUSH, **_columns(taken))
        except Exception as error:
            taken.followed_by(self._waiting)
            self._waiting = taken
            if not isinstance(error, MnemeError):  # nobody else hears of it: a task that raised would only be gone
                telemetry.log().error("usage_not_written", **telemetry.frames(error))
        else:
            counts = {
                place: {memory_id: (hits.count, hits.last) for memory_id, hits in memories.items()}
                for place, memories in taken.hits.items()
            }
            self._written(counts)
            hits = sum(count for memories in counts.values() for count, _ in memories.values())
            telemetry.USAGE_HITS.labels("flushed").inc(hits)

    async def _flush_cold(self) -> None:
        taken, self._cold = self._cold, {}
        for tenant_id, seen in taken.items():
            try:
                async with self._database.write(tenant_id) as transaction:
                    await wake(transaction, tenant_id, seen, now=max(seen.values()))
            except MnemeError:
                self._cold[tenant_id] = seen | self._cold.get(tenant_id, {})

    async def _run(self) -> None:
        pause = self._config.usage_flush_seconds
        while True:
            await asyncio.sleep(pause)
            started = monotonic()
            await asyncio.shield(self.flush())
            # Of many searches a second hardly any memory is hit once only: the longer hits wait, the fewer rows change.
            pause = max(self._config.usage_flush_seconds, min(SHARE * (monotonic() - started), LONGEST_PAUSE_SECONDS))


def _columns(waiting: Waiting) -> dict[str, object]:
    each = [(place, *found) for place, memories in waiting.hits.items() for found in memories.items()]
    hits = [one for _, _, one in each]
    totals = [waiting.searches[one.shelf][0] for one in hits]
    return {
        "tenants": [place[0] for place, _, _ in each],
        "subjects": [place[1] for place, _, _ in each],
        "memories": [memory_id for _, memory_id, _ in each],
        "kinds": [one.shelf[1] for one in hits],
        "counts": [one.count for one in hits],
        "times": [one.last for one in hits],
        # In a row up to the last search; and whether the row began before the first of these searches.
        "rows": [one.row if one.number == total else 0 for one, total in zip(hits, totals, strict=True)],
        "wholes": [one.row == total for one, total in zip(hits, totals, strict=True)],
        "searched": [waiting.searches[one.shelf][1] for one in hits],
        "most": MOST_IN_A_ROW,
        "every": NOTED_EVERY,
    }


# Ordered, so that two processes that flush the same rows lock them in the same order. A row of hits goes on if the
# memory was hit when memories of its kind were last searched.
_FLUSH = sql("""
    WITH hit AS (
        SELECT * FROM unnest(
            cast(:tenants AS uuid[]), cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:kinds AS text[]),
            cast(:counts AS bigint[]), cast(:times AS timestamptz[]), cast(:rows AS int[]), cast(:wholes AS bool[]),
            cast(:searched AS timestamptz[])
        ) AS hit (tenant_id, subject_id, memory_id, kind, hits, hit_at, in_row, whole, searched_at)
    ), locked AS (
        SELECT hit.*
        FROM hit JOIN memory_usage u USING (tenant_id, subject_id, memory_id)
        ORDER BY u.tenant_id, u.subject_id, u.memory_id FOR NO KEY UPDATE OF u
    ), used AS (
        UPDATE memory_usage u
        SET access_count = u.access_count + l.hits, last_accessed_at = greatest(u.last_accessed_at, l.hit_at),
            hit_streak = l.in_row + CASE WHEN l.whole AND u.last_accessed_at >= before.searched_at
                                    THEN u.hit_streak ELSE 0 END
        FROM locked l
        LEFT JOIN kind_searches before ON before.tenant_id = l.tenant_id AND before.subject_id = l.subject_id
             AND before.kind = l.kind
        WHERE u.tenant_id = l.tenant_id AND u.subject_id = l.subject_id AND u.memory_id = l.memory_id
        RETURNING u.tenant_id, u.subject_id, u.memory_id, u.hit_streak, u.gained_at, l.hit_at
    ), searched AS (
        INSERT INTO kind_searches AS k (tenant_id, subject_id, kind, searched_at)
        SELECT tenant_id, subject_id, kind, max(searched_at) FROM locked
        GROUP BY tenant_id, subject_id, kind ORDER BY tenant_id, subject_id, kind
        ON CONFLICT (tenant_id, subject_id, kind) DO UPDATE
        SET searched_at = greatest(k.searched_at, excluded.searched_at)
    )
    INSERT INTO reinforcement_queue (tenant_id, subject_id, memory_id, created_at)
    SELECT tenant_id, subject_id, memory_id, hit_at FROM used
    WHERE hit_streak > :most AND (gained_at IS NULL OR gained_at < hit_at - cast(:every AS interval))
    ON CONFLICT DO NOTHING
""")
