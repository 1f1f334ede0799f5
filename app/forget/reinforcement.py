"""Reinforcement: what search finds again and again matters more, within a bound, and is forgotten later.

Invariant: by use alone a memory gains at most MOST_GAIN, at most GAIN a day; every gain has its event.
"""

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import work_metrics
from app.database import Database, sql
from app.errand import Change, Errand
from app.kinds import KINDS

GAIN: Final = 0.25
"""A quarter of a step: four rows of hits weigh as much as one reader's two commendations."""
MOST_GAIN: Final = 1.0
MOST_IMPORTANCE: Final = 5.0
PAUSE: Final = timedelta(hours=24)
BATCH: Final = 200
REINFORCED: Final = "reinforced"


async def reinforce(database: Database, errand: Errand) -> int:
    """Strengthen memories that had a row of hits, as noted with these; returns how many were looked at."""
    async with database.work() as transaction:
        tenants = [row["tenant_id"] for row in await transaction.fetch(_TENANTS, tenant_id=errand.tenant_id)]
    done = 0
    for tenant_id in tenants:
        while not errand.is_over:
            taken = await _strengthen(database, tenant_id, errand)
            done += taken
            if taken < BATCH:
                break
    return done


async def _strengthen(database: Database, tenant_id: UUID, errand: Errand) -> int:
    async with database.write(tenant_id) as transaction:
        rows = await transaction.fetch(_TAKE, tenant_id=tenant_id, limit=BATCH)
        there = [row for row in rows if row["kind"] is not None]
        gains = [gain(row, errand) for row in there]
        after = [round(row["importance"] + more, 4) for row, more in zip(there, gains, strict=True)]
        await transaction.execute(
            _STRENGTHEN,
            tenant_id=tenant_id,
            subjects=[row["subject_id"] for row in there],
            memories=[row["memory_id"] for row in there],
            gains=gains,
            dues=[
                KINDS[row["kind"]].forget_at(importance, row["access_count"], errand.now)
                for row, importance in zip(there, after, strict=True)
            ],
            events=[uuid7() for _ in there],
            details=[
                {"before": round(row["importance"], 4), "after": importance, "hits_in_a_row": row["hit_streak"]}
                for row, importance in zip(there, after, strict=True)
            ],
            now=errand.now,
        )
    for row, more, importance in zip(there, gains, after, strict=True):
        if more:
            work_metrics.MEMORIES_REINFORCED.inc()
            reason = f"{row['hit_streak']} hits in a row"
            before = f"importance {row['importance']:g}"
            errand.note(Change(tenant_id, row["memory_id"], REINFORCED, reason, before, f"importance {importance:g}"))
    return len(rows)


def gain(row: Any, errand: Errand) -> float:
    """What importance is added: 0 within a day of the last gain, or when the bound is reached."""
    if row["gained_at"] is not None and errand.now - row["gained_at"] < PAUSE:
        return 0.0
    return float(max(0.0, min(GAIN, MOST_GAIN - row["gained"], MOST_IMPORTANCE - row["importance"])))


_TENANTS = sql("""
    SELECT DISTINCT tenant_id FROM reinforcement_queue
    WHERE cast(:tenant_id AS uuid) IS NULL OR tenant_id = :tenant_id ORDER BY tenant_id
""")
# Also of what is no longer there or active, which thereby leaves the queue (kind null).
_TAKE = sql("""
    WITH taken AS (
        DELETE FROM reinforcement_queue q USING (
            SELECT tenant_id, subject_id, memory_id FROM reinforcement_queue
            WHERE tenant_id = :tenant_id ORDER BY subject_id, memory_id LIMIT :limit FOR UPDATE SKIP LOCKED
        ) AS due
        WHERE q.tenant_id = due.tenant_id AND q.subject_id = due.subject_id AND q.memory_id = due.memory_id
        RETURNING q.subject_id, q.memory_id
    )
    SELECT t.subject_id, t.memory_id, m.kind, m.importance, u.access_count, u.hit_streak, u.gained, u.gained_at
    FROM taken t
    LEFT JOIN (
        memories m
        JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
    ) ON m.tenant_id = :tenant_id AND m.subject_id = t.subject_id AND m.memory_id = t.memory_id
         AND m.status = 'active'
""")
_STRENGTHEN = sql("""
    WITH item AS (
        SELECT * FROM unnest(
            cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:gains AS real[]), cast(:dues AS timestamptz[]),
            cast(:events AS uuid[]), cast(:details AS jsonb[])
        ) AS item (subject_id, memory_id, gain, due, event_id, detail)
    ), counted AS (
        UPDATE memory_usage u
        SET hit_streak = 0, gained = u.gained + i.gain,
            gained_at = CASE WHEN i.gain > 0 THEN :now ELSE u.gained_at END,
            forget_at = CASE WHEN u.forget_at IS NULL THEN NULL ELSE greatest(u.forget_at, i.due) END
        FROM item i
        WHERE u.tenant_id = :tenant_id AND u.subject_id = i.subject_id AND u.memory_id = i.memory_id
    ), gained AS (
        UPDATE memories m SET importance = least(5, m.importance + i.gain), version = m.version + 1, updated_at = :now
        FROM item i
        WHERE m.tenant_id = :tenant_id AND m.subject_id = i.subject_id AND m.memory_id = i.memory_id
          AND i.gain > 0 AND m.status = 'active'
        RETURNING m.subject_id, m.memory_id, m.version, i.event_id, i.detail
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT :tenant_id, subject_id, event_id, memory_id, 'reinforced', 'worker', version, detail, :now FROM gained
""")
