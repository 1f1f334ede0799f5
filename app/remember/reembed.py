"""A store on its way to another model: every memory gets its vector of it beside the one that is served.

Invariant: texts are embedded outside of any transaction and written under their subject's lock, only as they were when
they were read; nothing is noted but the vectors themselves, so that whoever is killed is followed by anybody.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, Literal
from uuid import UUID

from app import work_metrics
from app.database import Database, Statement, sql, subject_lock
from app.embed import (
    ACTIVE,
    OTHER,
    Columns,
    Embedder,
    Known,
    drop_generation_indexes,
    known_generations,
    note_lacking,
    note_purged,
    retire_generation,
)
from app.errand import Errand
from app.errors import DeadlineExceeded, EmbeddingUnavailable
from app.wire import halfvec

BATCH: Final = 32
PURGE_BATCH: Final = 200
BATCH_SECONDS: Final = 60.0
Which = Literal["all", "used", "new"]
"""used: active memories that were hit, are pinned, or came since the move began; new: only the last."""

_FIRST: Final = (UUID(int=0), UUID(int=0))


@dataclass(frozen=True, slots=True)
class Refill:
    """What memories lack of one generation; `rest`: also those that the move leaves out."""

    database: Database
    generation: Known
    rest: bool = False

    async def lacking(self) -> int:
        """How many memories lack it, over all tenants; what waits in the embedding queue is not counted."""
        count = 0
        statement = _count(self._columns, self.generation.generation_id, self._which)
        for tenant_id in await _tenants(self.database):
            async with self.database.read(tenant_id) as transaction:
                await transaction.allow(BATCH_SECONDS)
                count += await transaction.fetch_value(
                    statement, tenant_id=tenant_id, after_subject=_FIRST[0], after=_FIRST[1], since=self._since
                )
        return count

    async def run(self, embedder: Embedder, errand: Errand) -> int:
        """Give them to all that lack them, one batch after the other; returns how many did not get theirs.

        At most `generation.rate` texts a second, if that is set; else it pauses as the errand says. Texts that the
        model did not take, or that were changed meanwhile, are passed over.
        """
        left = 0
        for tenant_id in await _tenants(self.database):
            async for rows in self._pages(tenant_id):
                errand.stands_at = str(tenant_id)
                started = time.monotonic()
                done, failed = await self._embed(embedder, tenant_id, rows)
                errand.counts += Counter(embedded=done, failed=failed)  # which keeps no zeros
                left += len(rows) - done
                if self.generation.rate is None:
                    await errand.pause()
                else:
                    await asyncio.sleep(max(0.0, len(rows) / self.generation.rate - (time.monotonic() - started)))
                if errand.is_over:
                    return left
        return left

    @property
    def _columns(self) -> Columns:
        return ACTIVE if self.generation.state == "active" else OTHER

    @property
    def _which(self) -> Which:
        if self.rest or not self.generation.only_used:
            return "all"
        return "used" if self.generation.state == "building" else "new"

    @property
    def _since(self) -> UUID:
        """The least id of a memory that came since the move began: the first 48 bits of an id are its milliseconds."""
        return UUID(int=int(self.generation.created_at.timestamp() * 1000) << 80)

    async def _pages(self, tenant_id: UUID) -> AsyncIterator[list[Any]]:
        statement = _lacking(self._columns, self.generation.generation_id, self._which)
        after = _FIRST
        while True:
            async with self.database.read(tenant_id) as transaction:
                await transaction.allow(BATCH_SECONDS)
                rows = await transaction.fetch(
                    statement, tenant_id=tenant_id, after_subject=after[0], after=after[1], since=self._since,
                    limit=BATCH,
                )  # fmt: skip
            if rows:
                yield rows
                after = rows[-1]["subject_id"], rows[-1]["memory_id"]
            if len(rows) < BATCH:
                return

    async def _embed(self, embedder: Embedder, tenant_id: UUID, rows: Sequence[Any]) -> tuple[int, int]:
        """Returns how many got their vectors, and how many the model refused."""
        try:
            vectors: list[Any] = list(await embedder.embed_documents([row["content"] for row in rows]))
        except EmbeddingUnavailable:  # one text may be the reason: the others need not wait for it
            vectors = [await self._alone(embedder, row["content"]) for row in rows]
        done = 0
        for user_id, group in groupby(zip(rows, vectors, strict=True), key=lambda pair: pair[0]["user_id"]):
            there = [(row, windows) for row, windows in group if windows is not None]
            if there:
                done += await self._write(tenant_id, user_id, there)
        failed = sum(windows is None for windows in vectors)
        work_metrics.REEMBEDDED.labels("ok").inc(done)
        work_metrics.REEMBEDDED.labels("failed").inc(failed)
        work_metrics.REEMBEDDED.labels("changed").inc(len(rows) - done - failed)
        return done, failed

    async def _alone(self, embedder: Embedder, content: str) -> Any:
        try:
            return (await embedder.embed_documents([content]))[0]
        except EmbeddingUnavailable:
            return None

    async def _write(self, tenant_id: UUID, user_id: str | None, pairs: Sequence[tuple[Any, Any]]) -> int:
        """Write vectors of memories of one subject that nobody changed meanwhile; returns how many."""
        subject_id = pairs[0][0]["subject_id"]
        async with self.database.write(tenant_id, subject_lock(tenant_id, user_id)) as transaction:
            written = await transaction.fetch(
                _write(self._columns),
                tenant_id=tenant_id,
                subject_id=subject_id,
                generation_id=self.generation.generation_id,
                memories=[row["memory_id"] for row, _ in pairs],
                versions=[row["version"] for row, _ in pairs],
                embeddings=[halfvec(windows[0]) for _, windows in pairs],
                window_counts=[len(windows) for _, windows in pairs],
            )
            ids = {row["memory_id"] for row in written}
            further = [
                (row["memory_id"], number, halfvec(windows[number - 1]))
                for row, windows in pairs
                if row["memory_id"] in ids
                for number in range(2, len(windows) + 1)
            ]
            await transaction.execute(
                _forget_windows(self._columns), tenant_id=tenant_id, subject_id=subject_id, memories=list(ids)
            )
            if further:
                await transaction.execute(
                    _write_windows(self._columns),
                    tenant_id=tenant_id,
                    subject_id=subject_id,
                    memories=[memory_id for memory_id, _, _ in further],
                    numbers=[number for _, number, _ in further],
                    embeddings=[embedding for _, _, embedding in further],
                )
        return len(ids)


async def keep_up(
    database: Database,
    model_of: Callable[[Known], Awaitable[Embedder]],
    keep_previous_days: float,
    errand: Errand,
    *,
    rest: bool = False,
) -> int:
    """Do what a move leaves to do: vectors that memories lack, and letting go of a model that was left long ago.

    `rest`: also what was never hit and is left out until then. A model is asked for only when something lacks its
    vectors. Returns how many memories were changed.
    """
    known = await known_generations(database)
    other = next((one for one in known if one.state in ("building", "previous")), None)
    left_at = None if other is None or other.state == "building" else other.switched_at
    if other is not None and left_at is not None and left_at + timedelta(days=keep_previous_days) <= errand.now:
        await retire_generation(database, other.generation_id)
        known, other = await known_generations(database), None
    for one in known:
        if one.state == "retired" and one.purged_at is None:
            await _purge(database, one.generation_id, errand)
        elif one.state != "retired" and (other is not None or one.only_used):
            refill = Refill(database, one, rest)
            lacking = await refill.lacking()
            if lacking:
                await note_lacking(database, one.generation_id, lacking, only_used=one.only_used)
                lacking = await refill.run(await model_of(one), errand)
            left_out = one.only_used and (lacking > 0 or not rest)
            await note_lacking(database, one.generation_id, lacking, only_used=left_out)
    return errand.counts["embedded"] + errand.counts["purged"]


async def _purge(database: Database, generation_id: int, errand: Errand) -> None:
    """Let go of the vectors of a retired generation."""
    with suppress(DeadlineExceeded):  # a busy table keeps the indexes of what is not there until the next time
        await drop_generation_indexes(database, generation_id)
    for tenant_id in await _tenants(database):
        after = _FIRST
        while True:
            if errand.is_over:
                return
            async with database.read(tenant_id) as transaction:
                await transaction.allow(BATCH_SECONDS)
                rows = await transaction.fetch(
                    _HAVING, tenant_id=tenant_id, generation_id=generation_id, after_subject=after[0], after=after[1],
                    limit=PURGE_BATCH,
                )  # fmt: skip
            for user_id, group in groupby(rows, key=lambda row: row["user_id"]):
                of_subject = list(group)
                names = {"tenant_id": tenant_id, "subject_id": of_subject[0]["subject_id"]}
                async with database.write(tenant_id, subject_lock(tenant_id, user_id)) as transaction:
                    gone = await transaction.fetch(
                        _LET_GO, **names, memories=[row["memory_id"] for row in of_subject], generation_id=generation_id
                    )
                    ids = [row["memory_id"] for row in gone]
                    await transaction.execute(_forget_windows(OTHER), **names, memories=ids)
                errand.counts["purged"] += len(ids)
            await errand.pause()
            if len(rows) < PURGE_BATCH:
                break
            after = rows[-1]["subject_id"], rows[-1]["memory_id"]
    await drop_generation_indexes(database, generation_id)
    await note_purged(database, generation_id, errand.now)


async def _tenants(database: Database) -> list[UUID]:
    async with database.work() as transaction:
        return [row["tenant_id"] for row in await transaction.fetch(_TENANTS)]


_WHICH: Final[dict[Which, str]] = {
    "all": "cast(:since AS uuid) IS NOT NULL",
    "new": "m.memory_id >= cast(:since AS uuid)",
    "used": """
        m.status = 'active' AND (m.pinned OR m.memory_id >= cast(:since AS uuid) OR EXISTS (
            SELECT FROM memory_usage u WHERE u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id
              AND u.memory_id = m.memory_id AND u.access_count > 0
        ))
    """,
}


def _where(columns: Columns, generation_id: int, which: Which) -> str:
    # The number is a literal, so that the planner can prove that the index of what lacks it applies. What waits in the
    # queue is judged before it has a vector of the active generation. What is cold gets one when it is used.
    return f"""
        m.tenant_id = :tenant_id AND m.{columns.generation_id} IS DISTINCT FROM {generation_id}
        AND m.cooled_by IS NULL AND (m.subject_id, m.memory_id) > (cast(:after_subject AS uuid), cast(:after AS uuid))
        AND NOT EXISTS (
            SELECT FROM embedding_queue q WHERE q.tenant_id = m.tenant_id AND q.subject_id = m.subject_id
              AND q.memory_id = m.memory_id
        )
        AND {_WHICH[which]}
    """


@lru_cache(maxsize=16)
def _lacking(columns: Columns, generation_id: int, which: Which) -> Statement:
    return sql(f"""
        SELECT m.subject_id, s.user_id, m.memory_id, m.content, m.version
        FROM memories m JOIN subjects s ON s.tenant_id = m.tenant_id AND s.subject_id = m.subject_id
        WHERE {_where(columns, generation_id, which)}
        ORDER BY m.subject_id, m.memory_id LIMIT :limit
    """)


@lru_cache(maxsize=16)
def _count(columns: Columns, generation_id: int, which: Which) -> Statement:
    return sql(f"SELECT count(*) FROM memories m WHERE {_where(columns, generation_id, which)}")


@lru_cache(maxsize=2)
def _write(columns: Columns) -> Statement:
    # A switch that came in between has swapped the names: then the vectors would stand in the wrong place.
    return sql(f"""
        UPDATE memories m SET {columns.embedding} = item.embedding, {columns.window_count} = item.window_count,
                              {columns.generation_id} = cast(:generation_id AS smallint)
        FROM unnest(
            cast(:memories AS uuid[]), cast(:versions AS int[]), cast(:embeddings AS halfvec[]),
            cast(:window_counts AS smallint[])
        ) AS item (memory_id, version, embedding, window_count)
        WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = item.memory_id
          AND m.version = item.version AND EXISTS (
              SELECT FROM embedding_generations g WHERE g.generation_id = cast(:generation_id AS smallint)
                AND {"g.state = 'active'" if columns == ACTIVE else "g.state IN ('building', 'previous')"}
          )
        RETURNING m.memory_id
    """)


@lru_cache(maxsize=2)
def _forget_windows(columns: Columns) -> Statement:
    return sql(f"""
        DELETE FROM {columns.windows}
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = ANY (cast(:memories AS uuid[]))
    """)


@lru_cache(maxsize=2)
def _write_windows(columns: Columns) -> Statement:
    return sql(f"""
        INSERT INTO {columns.windows} (tenant_id, subject_id, memory_id, window_number, embedding)
        SELECT :tenant_id, :subject_id, item.* FROM unnest(
            cast(:memories AS uuid[]), cast(:numbers AS smallint[]), cast(:embeddings AS halfvec[])
        ) AS item
    """)


_TENANTS = sql("SELECT tenant_id FROM tenants ORDER BY tenant_id")
_HAVING = sql("""
    SELECT m.subject_id, s.user_id, m.memory_id
    FROM memories m JOIN subjects s ON s.tenant_id = m.tenant_id AND s.subject_id = m.subject_id
    WHERE m.tenant_id = :tenant_id AND m.other_generation_id = cast(:generation_id AS smallint)
      AND (m.subject_id, m.memory_id) > (cast(:after_subject AS uuid), cast(:after AS uuid))
    ORDER BY m.subject_id, m.memory_id LIMIT :limit
""")
_LET_GO = sql("""
    UPDATE memories SET other_embedding = NULL, other_generation_id = NULL, other_window_count = 1
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = ANY (cast(:memories AS uuid[]))
      AND other_generation_id = cast(:generation_id AS smallint)
    RETURNING memory_id
""")
