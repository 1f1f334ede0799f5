"""Tiers: what nobody used for long is made cold, in batches like the sweep; how much each holds, and the way back.

Invariant: what matters stays warm: a memory of importance 3 and more, pinned, with a key or under a legal hold is never
made cold. Nothing of what a memory says is lost, and a dry errand finds what a real one finds.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app import work_metrics
from app.cold import wake
from app.database import Database, sql
from app.embed import active_generation_id
from app.errand import Change, Errand
from app.forget.policy import GROUP, ForgetConfig, policy_of
from app.forget.sweep import ALONG_THE_INDEX, HELD
from app.wire import halfvec

COOLED: Final = "cooled"
BATCH: Final = 200
BATCH_SECONDS: Final = 60.0
REPORT_SECONDS: Final = 600.0
HOT_DAYS: Final = 7


@dataclass(frozen=True, slots=True)
class Centre:
    """What all vectors of a generation have in common (shape (dimension,)): signs are those of the rest."""

    generation_id: int
    vector: NDArray[np.float32]


async def cool(
    database: Database, config: ForgetConfig, centre: Callable[[], Awaitable[Centre]], errand: Errand
) -> int:
    """Take vector and keywords from what was not used for `cold_days`; returns how many (of a dry errand: would be).

    `centre` is asked only once there is something to cool, since it needs the model.
    """
    generation_id = await active_generation_id(database)
    async with database.work() as transaction:
        tenants = await transaction.fetch(_TENANTS, tenant_id=errand.tenant_id, settings=GROUP)
    for tenant in tenants:
        days = policy_of(tenant["own"] or {}, config).cold_days
        errand.stands_at = str(tenant["tenant_id"])
        if days and generation_id is not None:
            await _cool(database, tenant["tenant_id"], generation_id, centre, errand, days)
    return errand.counts[COOLED]


async def _cool(
    database: Database, tenant_id: UUID, generation_id: int, centre: Callable[[], Awaitable[Centre]],
    errand: Errand, days: float,
) -> None:  # fmt: skip
    before = errand.now - timedelta(days=days)
    after = datetime.min.replace(year=2, tzinfo=before.tzinfo), UUID(int=0)
    while not errand.is_over:
        async with database.read(tenant_id) as transaction:
            await transaction.allow(BATCH_SECONDS)
            await transaction.execute(ALONG_THE_INDEX)
            rows = await transaction.fetch(
                _UNUSED, tenant_id=tenant_id, before=before, after_at=after[0], after_id=after[1],
                generation_id=generation_id, limit=BATCH,
            )  # fmt: skip
        gone = {row["memory_id"] for row in rows}
        if rows and not errand.dry_run:
            gone = await _take(database, tenant_id, await centre(), errand, rows, before)
        for row in rows:
            if row["memory_id"] in gone:
                reason = f"not used for {days:g} days"
                errand.note(Change(tenant_id, row["memory_id"], COOLED, reason, "warm", "cold"))
        await errand.pause()
        if len(rows) < BATCH:
            return
        after = rows[-1]["updated_at"], rows[-1]["memory_id"]


async def _take(
    database: Database, tenant_id: UUID, centre: Centre, errand: Errand, rows: Sequence[Any], before: datetime
) -> set[UUID]:
    """Cool rows that nobody used, changed or locked meanwhile; returns which."""
    async with database.write(tenant_id) as transaction:
        await transaction.allow(BATCH_SECONDS)
        cooled = await transaction.fetch(
            _COOL,
            tenant_id=tenant_id,
            subjects=[row["subject_id"] for row in rows],
            memories=[row["memory_id"] for row in rows],
            centre=halfvec(centre.vector),
            generation_id=centre.generation_id,
            before=before,
            run_id=errand.run_id,
        )
    work_metrics.MEMORIES_COOLED.inc(len(cooled))
    return {row["memory_id"] for row in cooled}


async def undo_cooling(database: Database, tenant_id: UUID, run_id: UUID, *, now: datetime) -> int:
    """Queue what a run made cold for its vector, as if it had been used now; returns how many memories."""
    queued, after = 0, UUID(int=0)
    while True:
        async with database.write(tenant_id) as transaction:
            rows = await transaction.fetch(
                _COOLED_BY, tenant_id=tenant_id, run_id=run_id, after=after, limit=BATCH
            )  # fmt: skip
            queued += await wake(transaction, tenant_id, [row["memory_id"] for row in rows], now=now)
        if len(rows) < BATCH:
            return queued
        after = rows[-1]["memory_id"]


async def report_tiers(
    database: Database, config: ForgetConfig, tenant_id: UUID, *, now: datetime
) -> list[dict[str, Any]]:  # fmt: skip
    """Of each tier that a tenant has, hottest first: memories and bytes, and what the next run would move and save.

    Bytes are those of the rows, of further windows and of postings, without indexes.
    """
    async with database.work() as transaction:
        (tenant,) = await transaction.fetch(_TENANTS, tenant_id=tenant_id, settings=GROUP)
    days = policy_of(tenant["own"] or {}, config).cold_days
    async with database.read(tenant_id) as transaction:
        await transaction.allow(REPORT_SECONDS)
        rows = await transaction.fetch(
            _REPORT, tenant_id=tenant_id, hot=now - timedelta(days=HOT_DAYS), cold=days > 0,
            before=now - timedelta(days=days),
        )  # fmt: skip
    return [dict(row) for row in rows]


_TENANTS = sql("""
    SELECT tenant_id, settings -> cast(:settings AS text) AS own FROM tenants
    WHERE cast(:tenant_id AS uuid) IS NULL OR tenant_id = :tenant_id ORDER BY tenant_id
""")
_MAY_BE_COLD: Final = f"""
    m.status = 'active' AND NOT m.pinned AND m.importance < 3 AND m.key IS NULL AND m.cooled_by IS NULL
    AND m.embedding IS NOT NULL AND m.updated_at < :before
    AND (u.last_accessed_at IS NULL OR u.last_accessed_at < :before) AND NOT {HELD}
"""
_UNUSED = sql(f"""
    SELECT m.subject_id, m.memory_id, m.updated_at
    FROM memories m
    JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
    WHERE m.tenant_id = :tenant_id AND {_MAY_BE_COLD} AND m.generation_id = cast(:generation_id AS smallint)
      AND (m.updated_at, m.memory_id) > (cast(:after_at AS timestamptz), cast(:after_id AS uuid))
    ORDER BY m.updated_at, m.memory_id LIMIT :limit
""")
_COOL = sql(f"""
    WITH seen AS (
        SELECT m.tenant_id, m.subject_id, m.memory_id
        FROM unnest(cast(:subjects AS uuid[]), cast(:memories AS uuid[])) AS named (subject_id, memory_id)
        JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = named.subject_id
             AND m.memory_id = named.memory_id
        JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
        WHERE {_MAY_BE_COLD} AND m.generation_id = cast(:generation_id AS smallint)
        FOR UPDATE OF m SKIP LOCKED
    ), windows AS (
        DELETE FROM memory_windows w USING seen s
        WHERE w.tenant_id = s.tenant_id AND w.subject_id = s.subject_id AND w.memory_id = s.memory_id
    ), others AS (
        DELETE FROM other_windows w USING seen s
        WHERE w.tenant_id = s.tenant_id AND w.subject_id = s.subject_id AND w.memory_id = s.memory_id
    ), terms AS (
        DELETE FROM memory_terms t USING seen s
        WHERE t.tenant_id = s.tenant_id AND t.subject_id = s.subject_id AND t.memory_id = s.memory_id
    )
    UPDATE memories m SET cooled_by = :run_id, signs = binary_quantize(m.embedding - cast(:centre AS halfvec)),
           signs_generation_id = m.generation_id, embedding = NULL, generation_id = NULL, window_count = 1,
           other_embedding = NULL, other_generation_id = NULL, other_window_count = 1,
           keywords = '{{}}/1000000000', ann = false
    FROM seen s
    WHERE m.tenant_id = s.tenant_id AND m.subject_id = s.subject_id AND m.memory_id = s.memory_id
    RETURNING m.memory_id
""")
_COOLED_BY = sql("""
    SELECT memory_id FROM memories
    WHERE tenant_id = :tenant_id AND cooled_by = cast(:run_id AS uuid) AND memory_id > :after
    ORDER BY memory_id LIMIT :limit
""")
# A row that is cold has the signs, an eighth of a byte each, whose they are, by which run, and an empty list of words.
_REPORT = sql(f"""
    WITH sized AS (
        SELECT CASE WHEN m.cooled_by IS NOT NULL THEN 'cold' WHEN u.last_accessed_at >= :hot THEN 'hot'
               ELSE 'warm' END AS tier,
               pg_column_size(m.*) AS row_bytes, octet_length(m.content) AS text_bytes,
               coalesce(pg_column_size(m.embedding), 0) AS vector_bytes, pg_column_size(m.keywords) AS keyword_bytes,
               coalesce((
                   SELECT sum(pg_column_size(w.*)) FROM memory_windows w
                   WHERE w.tenant_id = m.tenant_id AND w.subject_id = m.subject_id AND w.memory_id = m.memory_id
               ), 0) + CASE WHEN m.ann THEN coalesce((
                   SELECT sum(pg_column_size(t.*)) FROM memory_terms t
                   WHERE t.tenant_id = m.tenant_id AND t.subject_id = m.subject_id AND t.memory_id = m.memory_id
               ), 0) ELSE 0 END AS besides_bytes,
               coalesce(vector_dims(m.embedding), 0) / 8 + 31 AS cold_bytes,
               cast(:cold AS bool) AND {_MAY_BE_COLD} AS moves, m.ann
        FROM memories m
        JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
        WHERE m.tenant_id = :tenant_id AND m.status = 'active'
    )
    SELECT tier, count(*) AS memories, cast(sum(row_bytes + besides_bytes) AS bigint) AS bytes,
           cast(sum(text_bytes) AS bigint) AS text_bytes, cast(sum(vector_bytes) AS bigint) AS vector_bytes,
           cast(sum(keyword_bytes) AS bigint) AS keyword_bytes, count(*) FILTER (WHERE moves) AS would_move,
           cast(coalesce(sum(vector_bytes + keyword_bytes + besides_bytes - cold_bytes) FILTER (WHERE moves), 0)
                AS bigint) AS would_save
    FROM sized GROUP BY tier ORDER BY array_position(ARRAY['hot', 'warm', 'cold'], tier)
""")
