"""Legal holds: a memory, or all that a user has and will have, which no rule and no purge may touch until released.

Invariant: what is held has no due date; only the erasure of the user goes before a hold.
"""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import telemetry
from app.database import Database, Transaction, sql
from app.errors import NotFound
from app.forget.sweep import HELD
from app.guard import Caller
from app.kinds import KINDS

BATCH: Final = 1_000


async def place_hold(
    database: Database, caller: Caller, *, user_id: str | None, memory_id: UUID | None, reason: str, now: datetime
) -> dict[str, Any]:
    """Hold one memory, or without `memory_id` all of a user (None: the shared ones), and return the hold.

    Raises NotFound for an unknown memory or user.
    """
    hold_id = uuid7()
    async with database.write(caller.tenant_id) as transaction:
        placed = await transaction.fetch_row(
            _PLACE, tenant_id=caller.tenant_id, user_id=user_id, memory_id=memory_id, hold_id=hold_id, reason=reason,
            actor=caller.actor, event_id=uuid7(), now=now,
        )  # fmt: skip
        if placed is None:
            raise NotFound
        await transaction.execute(
            _UNDATE, tenant_id=caller.tenant_id, subject_id=placed["subject_id"], memory_id=memory_id
        )
    telemetry.log().info("hold_placed", hold_id=str(hold_id), actor=caller.actor)
    return next(hold for hold in await list_holds(database, caller) if hold["id"] == hold_id)


async def list_holds(database: Database, caller: Caller) -> list[dict[str, Any]]:
    """Every hold of the tenant, oldest first."""
    async with database.read(caller.tenant_id) as transaction:
        return [dict(row) for row in await transaction.fetch(_LIST, tenant_id=caller.tenant_id)]


async def release_hold(database: Database, caller: Caller, hold_id: UUID, *, now: datetime) -> None:
    """End a hold: what no other hold keeps is due again as if it had never been held. Raises NotFound."""
    async with database.write(caller.tenant_id) as transaction:
        released = await transaction.fetch_row(
            _RELEASE, tenant_id=caller.tenant_id, hold_id=hold_id, actor=caller.actor, event_id=uuid7(), now=now
        )
        if released is None:
            raise NotFound
        await _date(transaction, caller.tenant_id, released["subject_id"], released["memory_id"])
    telemetry.log().info("hold_released", hold_id=str(hold_id), actor=caller.actor)


async def _date(transaction: Transaction, tenant_id: UUID, subject_id: UUID, memory_id: UUID | None) -> None:
    after: UUID | None = UUID(int=0)
    while after is not None:
        rows = await transaction.fetch(
            _UNDATED, tenant_id=tenant_id, subject_id=subject_id, memory_id=memory_id, after=after, limit=BATCH
        )
        dues = [KINDS[row["kind"]].forget_at(row["importance"], row["access_count"], row["since"]) for row in rows]
        await transaction.execute(
            _DATE, tenant_id=tenant_id, subject_id=subject_id, memories=[row["memory_id"] for row in rows], dues=dues
        )
        after = rows[-1]["memory_id"] if len(rows) == BATCH else None


_PLACE = sql("""
    WITH held AS (
        SELECT s.subject_id, m.memory_id, m.version
        FROM subjects s
        LEFT JOIN memories m ON m.tenant_id = s.tenant_id AND m.subject_id = s.subject_id AND m.memory_id = :memory_id
        WHERE s.tenant_id = :tenant_id AND CASE
            WHEN cast(:memory_id AS uuid) IS NOT NULL THEN m.memory_id IS NOT NULL
            WHEN cast(:user_id AS text) IS NULL THEN s.subject_id = :tenant_id
            ELSE s.user_id = :user_id END
    ), noted AS (
        INSERT INTO memory_events (
            tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at
        )
        SELECT :tenant_id, subject_id, :event_id, memory_id, 'held', :actor, version,
               jsonb_build_object('hold_id', cast(:hold_id AS uuid)), :now
        FROM held WHERE memory_id IS NOT NULL
    )
    INSERT INTO legal_holds (tenant_id, subject_id, hold_id, memory_id, reason, actor, created_at)
    SELECT :tenant_id, subject_id, :hold_id, memory_id, :reason, :actor, :now FROM held
    RETURNING subject_id
""")
_UNDATE = sql("""
    UPDATE memory_usage SET forget_at = NULL
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND forget_at IS NOT NULL
      AND (cast(:memory_id AS uuid) IS NULL OR memory_id = :memory_id)
""")
_LIST = sql("""
    SELECT h.hold_id AS id, s.user_id, h.memory_id, h.reason, h.actor AS placed_by, h.created_at
    FROM legal_holds h JOIN subjects s ON s.tenant_id = h.tenant_id AND s.subject_id = h.subject_id
    WHERE h.tenant_id = :tenant_id ORDER BY h.hold_id
""")
_RELEASE = sql("""
    WITH released AS (
        DELETE FROM legal_holds WHERE tenant_id = :tenant_id AND hold_id = :hold_id RETURNING subject_id, memory_id
    ), noted AS (
        INSERT INTO memory_events (
            tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at
        )
        SELECT m.tenant_id, m.subject_id, :event_id, m.memory_id, 'released', :actor, m.version,
               jsonb_build_object('hold_id', cast(:hold_id AS uuid)), :now
        FROM released r JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = r.subject_id
             AND m.memory_id = r.memory_id
    )
    SELECT subject_id, memory_id FROM released
""")
_UNDATED = sql(f"""
    SELECT m.memory_id, m.kind, m.importance, u.access_count, greatest(m.updated_at, u.last_accessed_at) AS since
    FROM memories m
    JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
    WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id > :after AND m.status = 'active'
      AND NOT m.pinned AND (cast(:memory_id AS uuid) IS NULL OR m.memory_id = :memory_id) AND NOT {HELD}
    ORDER BY m.memory_id LIMIT :limit
""")
_DATE = sql("""
    UPDATE memory_usage u SET forget_at = item.due
    FROM unnest(cast(:memories AS uuid[]), cast(:dues AS timestamptz[])) AS item (memory_id, due)
    WHERE u.tenant_id = :tenant_id AND u.subject_id = :subject_id AND u.memory_id = item.memory_id
""")
