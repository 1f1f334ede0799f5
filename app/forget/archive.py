"""The archive: what a run of forgetting put away, bringing all of it back, and at the end of the grace time the purge.

Invariant: what comes back is what it was; nothing comes back into a slot or beside a text that is taken by now. What is
under a legal hold is never purged, and a purged memory leaves its events, without text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import telemetry, work_metrics
from app.database import Database, sql, subject_lock
from app.errand import Change, Errand
from app.forget.policy import GROUP, ForgetConfig, policy_of
from app.forget.sweep import ALONG_THE_INDEX, HELD
from app.kinds import KINDS

BATCH: Final = 200
BATCH_SECONDS: Final = 60.0
PURGED: Final = "purged"


@dataclass(frozen=True, slots=True)
class Undone:
    """How many memories of a run came back, and how many could not: something else stands in their place."""

    restored: int
    left: int


async def undo_run(database: Database, tenant_id: UUID, run_id: UUID, *, actor: str, now: datetime) -> Undone:
    """Bring back what a run archived in this tenant. What a rule still points at goes again the next night."""
    restored = left = 0
    after = UUID(int=0)
    while True:
        async with database.read(tenant_id) as transaction:
            rows = await transaction.fetch(_OF_RUN, tenant_id=tenant_id, run_id=run_id, after=after, limit=BATCH)
        by_user: dict[str | None, list[UUID]] = {}
        for row in rows:
            by_user.setdefault(row["user_id"], []).append(row["memory_id"])
        for user_id, memories in by_user.items():
            back = await _bring_back(database, tenant_id, user_id, memories, run_id, actor, now)
            restored, left = restored + back, left + len(memories) - back
        if len(rows) < BATCH:
            return Undone(restored, left)
        after = rows[-1]["memory_id"]


async def _bring_back(
    database: Database, tenant_id: UUID, user_id: str | None, memories: Sequence[UUID], run_id: UUID, actor: str,
    now: datetime,
) -> int:  # fmt: skip
    async with database.write(tenant_id, subject_lock(tenant_id, user_id)) as transaction:
        rows = await transaction.fetch(_ARCHIVED, tenant_id=tenant_id, memories=memories, run_id=run_id)
        dues = [
            KINDS[row["kind"]].forget_at(row["importance"], row["access_count"], now)
            if row["was"] == "active" and not row["pinned"]
            else None
            for row in rows
        ]
        restored = await transaction.fetch(
            _BRING_BACK,
            tenant_id=tenant_id,
            subjects=[row["subject_id"] for row in rows],
            memories=[row["memory_id"] for row in rows],
            events=[uuid7() for _ in rows],
            dues=dues,
            actor=actor,
            now=now,
        )
    for row in restored:
        telemetry.MEMORIES_RESTORED.labels("archived").inc()
        telemetry.log().info("memory_restored", run_id=str(run_id), memory_id=str(row["memory_id"]), status=row["was"])
    return len(restored)


async def purge(database: Database, config: ForgetConfig, errand: Errand) -> int:
    """Delete for good what was archived before the grace time of its tenant; returns how many (or: would be)."""
    async with database.work() as transaction:
        tenants = await transaction.fetch(_TENANTS, tenant_id=errand.tenant_id, settings=GROUP)
    for tenant in tenants:
        grace_days = policy_of(tenant["own"] or {}, config).grace_days
        errand.stands_at = str(tenant["tenant_id"])
        await _purge(database, tenant["tenant_id"], errand, errand.now - timedelta(days=grace_days))
    return errand.counts[PURGED]


async def _purge(database: Database, tenant_id: UUID, errand: Errand, before: datetime) -> None:
    after = datetime.min.replace(year=2, tzinfo=before.tzinfo), UUID(int=0)
    while not errand.is_over:
        async with database.read(tenant_id) as transaction:
            await transaction.execute(ALONG_THE_INDEX)
            rows = await transaction.fetch(
                _DUE, tenant_id=tenant_id, before=before, after_at=after[0], after_id=after[1], limit=BATCH
            )
        gone = {row["memory_id"] for row in rows}
        if rows and not errand.dry_run:
            async with database.write(tenant_id) as transaction:
                await transaction.allow(BATCH_SECONDS)
                done = await transaction.fetch(
                    _PURGE,
                    tenant_id=tenant_id,
                    subjects=[row["subject_id"] for row in rows],
                    memories=[row["memory_id"] for row in rows],
                    events=[uuid7() for _ in rows],
                    run_id=str(errand.run_id),
                    now=errand.now,
                )
            gone = {row["memory_id"] for row in done}
            work_metrics.MEMORIES_PURGED.inc(len(gone))
        for row in rows:
            if row["memory_id"] in gone:
                reason = f"archived by {row['rule']} on {row['archived_at']:%Y-%m-%d}"
                errand.note(Change(tenant_id, row["memory_id"], PURGED, reason, "archived", "deleted"))
        await errand.pause()
        if len(rows) < BATCH:
            return
        after = rows[-1]["archived_at"], rows[-1]["memory_id"]


_TENANTS = sql("""
    SELECT tenant_id, settings -> cast(:settings AS text) AS own FROM tenants
    WHERE cast(:tenant_id AS uuid) IS NULL OR tenant_id = :tenant_id ORDER BY tenant_id
""")
_OF_RUN = sql("""
    SELECT a.memory_id, s.user_id
    FROM memory_archive a
    JOIN subjects s ON s.tenant_id = a.tenant_id AND s.subject_id = a.subject_id
    WHERE a.tenant_id = :tenant_id AND a.run_id = :run_id AND a.memory_id > :after
    ORDER BY a.memory_id LIMIT :limit
""")
_ARCHIVED = sql("""
    SELECT m.subject_id, m.memory_id, m.kind, m.importance, m.pinned, a.was, u.access_count
    FROM memory_archive a
    JOIN memories m ON m.tenant_id = a.tenant_id AND m.subject_id = a.subject_id AND m.memory_id = a.memory_id
    JOIN memory_usage u ON u.tenant_id = a.tenant_id AND u.subject_id = a.subject_id AND u.memory_id = a.memory_id
    WHERE a.tenant_id = :tenant_id AND a.run_id = :run_id AND a.memory_id = ANY (cast(:memories AS uuid[]))
""")
# A memory whose text or slot another has by now stays where it is; so does one that was brought back meanwhile.
_BRING_BACK = sql("""
    WITH named AS (
        SELECT a.tenant_id, a.subject_id, a.memory_id, a.was, a.deprecated_at, a.rule, item.event_id, item.due
        FROM unnest(
            cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:events AS uuid[]), cast(:dues AS timestamptz[])
        ) AS item (subject_id, memory_id, event_id, due)
        JOIN memory_archive a ON a.tenant_id = :tenant_id AND a.subject_id = item.subject_id
             AND a.memory_id = item.memory_id
        JOIN memories m ON m.tenant_id = a.tenant_id AND m.subject_id = a.subject_id AND m.memory_id = a.memory_id
        WHERE m.status = 'archived' AND (a.was <> 'active' OR NOT EXISTS (
            SELECT FROM memories r
            WHERE r.tenant_id = m.tenant_id AND r.subject_id = m.subject_id AND r.status = 'active'
              AND r.agent_id IS NOT DISTINCT FROM m.agent_id
              AND (r.content_hash = m.content_hash OR r.key = m.key)
        ))
        FOR UPDATE OF m
    ), restored AS (
        UPDATE memories m SET status = n.was, deprecated_at = n.deprecated_at, updated_at = :now,
               version = m.version + 1, expires_at = CASE WHEN m.expires_at > :now THEN m.expires_at END
        FROM named n
        WHERE m.tenant_id = n.tenant_id AND m.subject_id = n.subject_id AND m.memory_id = n.memory_id
        RETURNING m.tenant_id, m.subject_id, m.memory_id, m.version, m.status, m.embedding IS NULL AS pending,
                  n.event_id, n.due, n.rule
    ), queued AS (
        INSERT INTO embedding_queue (tenant_id, subject_id, memory_id, due_at, created_at)
        SELECT tenant_id, subject_id, memory_id, cast(:now AS timestamptz), cast(:now AS timestamptz)
        FROM restored WHERE pending AND status = 'active'
        ON CONFLICT DO NOTHING
    ), taken_out AS (
        DELETE FROM memory_archive a USING restored r
        WHERE a.tenant_id = r.tenant_id AND a.subject_id = r.subject_id AND a.memory_id = r.memory_id
    ), dated AS (
        UPDATE memory_usage u SET forget_at = r.due FROM restored r
        WHERE u.tenant_id = r.tenant_id AND u.subject_id = r.subject_id AND u.memory_id = r.memory_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, event_id, memory_id, 'restored', :actor, version,
           jsonb_build_object('was', 'archived', 'rule', rule), :now
    FROM restored
    RETURNING memory_id, (SELECT r.status FROM restored r WHERE r.memory_id = memory_events.memory_id) AS was
""")
_DUE = sql(f"""
    SELECT a.subject_id, a.memory_id, a.rule, a.archived_at
    FROM memory_archive a
    JOIN memories m ON m.tenant_id = a.tenant_id AND m.subject_id = a.subject_id AND m.memory_id = a.memory_id
    WHERE a.tenant_id = :tenant_id AND a.archived_at < :before AND m.status = 'archived' AND NOT {HELD}
      AND (a.archived_at, a.memory_id) > (cast(:after_at AS timestamptz), cast(:after_id AS uuid))
    ORDER BY a.archived_at, a.memory_id LIMIT :limit
""")
_PURGE = sql(f"""
    WITH due AS (
        SELECT m.tenant_id, m.subject_id, m.memory_id, m.version, item.event_id
        FROM unnest(cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:events AS uuid[]))
             AS item (subject_id, memory_id, event_id)
        JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = item.subject_id AND m.memory_id = item.memory_id
        WHERE m.status = 'archived' AND NOT {HELD}
        FOR UPDATE OF m SKIP LOCKED
    ), gone AS (
        DELETE FROM memories m USING due d
        WHERE m.tenant_id = d.tenant_id AND m.subject_id = d.subject_id AND m.memory_id = d.memory_id
        RETURNING m.memory_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, event_id, memory_id, 'purged', 'purge', version,
           jsonb_build_object('run_id', cast(:run_id AS text)), :now
    FROM due
    RETURNING memory_id
""")
