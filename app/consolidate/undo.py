"""Undoing a run of consolidation: what it merged or overruled is active again, what it summarised is put away.

Invariant: nothing comes back beside an active memory of the same text or slot. What came back is guarded from then on,
and what was told in a summary that somebody put away is not told again.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import telemetry
from app.consolidate.visits import FIRST, Visit, turn
from app.database import Database, Transaction, sql
from app.forget import Undone
from app.kinds import KINDS
from app.remember import make_active

PAGE: Final = 200


async def undo_consolidation(
    database: Database, tenant_id: UUID, run_id: UUID, *, actor: str, now: datetime
) -> Undone:  # fmt: skip
    """Take back what a run did to memories of this tenant that nobody has changed since; twice is once."""
    restored = left = 0
    after = FIRST
    while True:
        async with database.read(tenant_id) as transaction:
            rows = await transaction.fetch(_OF_RUN, tenant_id=tenant_id, run_id=run_id, after=after, limit=PAGE)
        by_visit: dict[Visit, list[Any]] = {}
        for row in rows:
            visit = Visit(tenant_id, row["subject_id"], row["user_id"], 0, None, None)
            by_visit.setdefault(visit, []).append(row)
        for visit, changed in by_visit.items():
            async with turn(database, visit, dry_run=False) as transaction:
                back = await _take_back(transaction, visit, changed, run_id, actor, now)
            restored, left = restored + len(back), left + len(changed) - len(back)
            for became, memory_id in back:
                telemetry.MEMORIES_RESTORED.labels(became).inc()
                telemetry.log().info("memory_restored", run_id=str(run_id), memory_id=str(memory_id), was=became)
        if len(rows) < PAGE:
            return Undone(restored, left)
        after = rows[-1]["memory_id"]


async def _take_back(
    transaction: Transaction, visit: Visit, rows: Sequence[Any], run_id: UUID, actor: str, now: datetime
) -> list[tuple[str, UUID]]:
    """One by one, so that of two with the same text only the first comes back."""
    done = []
    for row in rows:
        names = visit.names | {"memory_id": row["memory_id"]}
        by: dict[str, Any] = {"actor": actor, "now": now, "detail": {"run_id": str(run_id)}}
        if row["became"] == "summary":
            changed = await transaction.execute(_PUT_AWAY, **names, **by, event_id=uuid7()) == 1
        else:
            due = None if row["pinned"] else KINDS[row["kind"]].forget_at(row["importance"], row["access_count"], now)
            changed = await make_active(transaction, names, row["became"], due, **by)
        if changed and row["became"] == "duplicate":
            way = row["detail"]
            await transaction.execute(
                _AS_BEFORE, **visit.names, kept_id=row["other_id"], uses=way["uses"], importance=way["importance"],
                raised_to=way["raised_to"], now=now,
            )  # fmt: skip
        if changed:
            await transaction.execute(_DONE, **visit.names, memory_id=row["memory_id"], run_id=run_id)
            done.append((row["became"], row["memory_id"]))
    return done


_OF_RUN = sql("""
    SELECT c.subject_id, s.user_id, c.memory_id, c.became, c.other_id, c.detail, m.kind, m.importance, m.pinned,
           u.access_count
    FROM consolidations c
    JOIN memories m ON m.tenant_id = c.tenant_id AND m.subject_id = c.subject_id AND m.memory_id = c.memory_id
    JOIN memory_usage u ON u.tenant_id = c.tenant_id AND u.subject_id = c.subject_id AND u.memory_id = c.memory_id
    JOIN subjects s ON s.tenant_id = c.tenant_id AND s.subject_id = c.subject_id
    WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.memory_id > :after
    ORDER BY c.memory_id LIMIT :limit
""")
_PUT_AWAY = sql("""
    WITH archived AS (
        UPDATE memories m SET status = 'archived', updated_at = :now, version = m.version + 1
        WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = :memory_id
          AND m.status = 'active'
        RETURNING m.tenant_id, m.subject_id, m.memory_id, m.version
    ), kept AS (
        INSERT INTO memory_archive (tenant_id, subject_id, memory_id, was, rule, archived_at)
        SELECT tenant_id, subject_id, memory_id, 'active', 'undone', cast(:now AS timestamptz) FROM archived
    ), undated AS (
        UPDATE memory_usage u SET forget_at = NULL FROM archived a
        WHERE u.tenant_id = a.tenant_id AND u.subject_id = a.subject_id AND u.memory_id = a.memory_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, cast(:event_id AS uuid), memory_id, 'archived', cast(:actor AS text), version,
           cast(:detail AS jsonb), cast(:now AS timestamptz)
    FROM archived
""")
_AS_BEFORE = sql("""
    WITH counted AS (
        UPDATE memory_usage SET access_count = greatest(access_count - cast(:uses AS bigint), 0)
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :kept_id
    )
    UPDATE memories SET importance = cast(:importance AS real), updated_at = :now, version = version + 1
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :kept_id
      AND importance = cast(:raised_to AS real) AND importance > cast(:importance AS real)
""")
_DONE = sql("""
    DELETE FROM consolidations
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id AND run_id = :run_id
""")
