"""Reviews: what a memory would have overruled, if it had not been pinned or too much at once. Somebody decides.

Invariant: a review is open while both memories are active; a decision is one transaction with its event, and what it
retires comes back by restore(). The same decision again changes nothing and answers the same.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from uuid_utils.compat import uuid7

from app import telemetry
from app.database import Database, Transaction, sql, subject_lock
from app.errors import NotFound, ReviewDecided
from app.guard import Caller
from app.memory import MEMORY_COLUMNS, MEMORY_SOURCE, as_json
from app.remember.news import deprecated
from app.remember.shelf import visible
from app.webhooks import tell


class Pair(NamedTuple):
    """The memory that would overrule, and the one that would be overruled."""

    newer_id: UUID
    older_id: UUID


@dataclass(frozen=True, slots=True)
class Review:
    """Two active memories of one user of which the newer would have overruled the older, why, and since when."""

    newer: dict[str, Any]
    older: dict[str, Any]
    reason: str | None
    at: datetime

    @property
    def pair(self) -> Pair:
        return Pair(self.newer["id"], self.older["id"])


async def open_reviews(
    database: Database, caller: Caller, user_id: str | None, *, before: Pair | None = None, limit: int = 50
) -> list[Review]:
    """Open reviews of a user (None: of all that the caller may read), the newest memories first, from `before` on."""
    async with database.read(caller.tenant_id) as transaction:
        rows = await transaction.fetch(
            _OPEN, tenant_id=caller.tenant_id, user_id=user_id, agent_id=caller.agent_id, limit=limit,
            before=before and before.newer_id, before_older=before and before.older_id,
        )  # fmt: skip
        ids = [row[name] for row in rows for name in ("newer_id", "older_id")]
        found = await transaction.fetch(_MEMORIES, tenant_id=caller.tenant_id, memories=ids)
    memories = {row["id"]: as_json(row) for row in found}
    return [Review(memories[row["newer_id"]], memories[row["older_id"]], row["reason"], row["at"]) for row in rows]


async def accept_review(database: Database, caller: Caller, pair: Pair, *, now: datetime) -> dict[str, Any]:
    """Retire the older memory for the newer one, also if it is pinned, and return it.

    Raises NotFound: there is no such review; ReviewDecided: it was rejected.
    """
    return await _decide(database, caller, pair, "accepted", now)


async def reject_review(database: Database, caller: Caller, pair: Pair, *, now: datetime) -> dict[str, Any]:
    """Keep both: no job retires the older one by itself any more. Returns it.

    Raises NotFound: there is no such review; ReviewDecided: it was accepted.
    """
    return await _decide(database, caller, pair, "rejected", now)


async def _decide(database: Database, caller: Caller, pair: Pair, verdict: str, now: datetime) -> dict[str, Any]:
    async with database.read(caller.tenant_id) as transaction:
        seen = await visible(transaction, caller, pair.older_id, to_change=True)
    async with database.write(caller.tenant_id, subject_lock(caller.tenant_id, seen["user_id"])) as transaction:
        row = await visible(transaction, caller, pair.older_id, to_change=True)
        await visible(transaction, caller, pair.newer_id, to_change=True)
        reason = await _close(transaction, caller, row["subject_id"], pair, verdict, now)
        if reason is None:
            await _check_decided(transaction, caller, row["subject_id"], pair, verdict)
        elif verdict == "accepted":
            scope = row["user_id"], row["agent_id"]
            end = deprecated(row["subject_id"], pair.older_id, pair.newer_id, scope, now)
            await tell(transaction, caller.tenant_id, [end])
        memory = as_json(await visible(transaction, caller, pair.older_id))
    if reason is not None:
        telemetry.CONFLICTS.labels(reason, verdict).inc()
    return memory


async def _check_decided(transaction: Transaction, caller: Caller, subject_id: UUID, pair: Pair, verdict: str) -> None:
    """Raise unless the last decision of this review is this verdict, and was not undone since."""
    decided = await transaction.fetch_row(
        _DECIDED, tenant_id=caller.tenant_id, subject_id=subject_id, older_id=pair.older_id, newer_id=str(pair.newer_id)
    )
    if decided is None:
        raise NotFound("no such review is open")
    if decided["verdict"] != verdict:
        raise ReviewDecided(f"this review was {decided['verdict']} before")


async def _close(
    transaction: Transaction, caller: Caller, subject_id: UUID, pair: Pair, verdict: str, now: datetime
) -> str | None:
    """Take the review away, and say why it was opened; None: it is not open."""
    names = {"tenant_id": caller.tenant_id, "subject_id": subject_id} | pair._asdict()
    closed = await transaction.fetch_row(_CLOSE, **names)
    if closed is None:
        return None
    reason: str = closed["reason"] or "review"  # of before its reason was kept
    event = {"event_id": uuid7(), "actor": caller.actor, "now": now}
    if verdict == "accepted":
        detail = {"reason": reason, "by": str(pair.newer_id), "review": verdict}
        await transaction.execute(_RETIRE, **names, **event, detail=detail)
    else:
        await transaction.execute(_KEEP, **names, **event, detail={"reason": reason, "against": str(pair.newer_id)})
    return reason


_REASON = """(
    SELECT e.detail -> 'review' ->> cast(l.other_id AS text) FROM memory_events e
    WHERE e.tenant_id = l.tenant_id AND e.subject_id = l.subject_id AND e.memory_id = l.memory_id
      AND e.detail -> 'review' ? cast(l.other_id AS text)
    ORDER BY e.event_id DESC LIMIT 1
)"""
_BOTH_ACTIVE = """
    JOIN memories n ON n.tenant_id = l.tenant_id AND n.subject_id = l.subject_id AND n.memory_id = l.memory_id
     AND n.status = 'active'
    JOIN memories o ON o.tenant_id = l.tenant_id AND o.subject_id = l.subject_id AND o.memory_id = l.other_id
     AND o.status = 'active'
"""
_OPEN = sql(f"""
    SELECT l.memory_id AS newer_id, l.other_id AS older_id, l.created_at AS at, {_REASON} AS reason
    FROM memory_links l {_BOTH_ACTIVE}
    WHERE l.tenant_id = :tenant_id AND l.relation = 'review'
      AND (cast(:user_id AS text) IS NULL OR l.subject_id = (
          SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id
      ))
      AND (cast(:agent_id AS text) IS NULL OR n.agent_id IS NULL OR n.agent_id = :agent_id)
      AND (cast(:before AS uuid) IS NULL
           OR (l.memory_id, l.other_id) < (cast(:before AS uuid), cast(:before_older AS uuid)))
    ORDER BY l.memory_id DESC, l.other_id DESC LIMIT :limit
""")
_MEMORIES = sql(f"""
    SELECT {MEMORY_COLUMNS} FROM {MEMORY_SOURCE}
    WHERE m.tenant_id = :tenant_id AND m.memory_id = ANY (cast(:memories AS uuid[]))
""")
_CLOSE = sql(f"""
    WITH open AS (
        SELECT l.*, {_REASON} AS reason FROM memory_links l {_BOTH_ACTIVE}
        WHERE l.tenant_id = :tenant_id AND l.subject_id = :subject_id AND l.memory_id = :newer_id
          AND l.relation = 'review' AND l.other_id = :older_id
    )
    DELETE FROM memory_links l USING open
    WHERE l.tenant_id = open.tenant_id AND l.subject_id = open.subject_id AND l.memory_id = open.memory_id
      AND l.relation = open.relation AND l.other_id = open.other_id
    RETURNING open.reason
""")
_RETIRE = sql("""
    WITH retired AS (
        UPDATE memories SET status = 'deprecated', deprecated_at = :now, updated_at = :now
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :older_id
        RETURNING tenant_id, subject_id, memory_id, version
    ), linked AS (
        INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
        SELECT tenant_id, subject_id, cast(:newer_id AS uuid), 'supersedes', memory_id, cast(:now AS timestamptz)
        FROM retired
        ON CONFLICT DO NOTHING
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, :event_id, memory_id, 'deprecated', :actor, version, :detail, :now FROM retired
""")
# An event of its own: `kept` is what the jobs of the night look for.
_KEEP = sql("""
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, :event_id, memory_id, 'kept', :actor, version, :detail, :now FROM memories
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :older_id
""")
# An acceptance holds until the older memory is active again.
_DECIDED = sql("""
    SELECT CASE e.action WHEN 'kept' THEN 'rejected' ELSE 'accepted' END AS verdict
    FROM memory_events e
    JOIN memories o ON o.tenant_id = e.tenant_id AND o.subject_id = e.subject_id AND o.memory_id = e.memory_id
    WHERE e.tenant_id = :tenant_id AND e.subject_id = :subject_id AND e.memory_id = :older_id
      AND (e.action = 'kept' AND e.detail ->> 'against' = :newer_id
           OR e.action = 'deprecated' AND e.detail ->> 'review' = 'accepted' AND e.detail ->> 'by' = :newer_id
              AND o.status <> 'active')
    ORDER BY e.event_id DESC LIMIT 1
""")
