"""Where a memory comes from and what became of it, and bringing back what was overruled, merged or archived.

Invariant: texts are never changed here; a restore is one transaction, has its event, and leaves at most one active
memory in a slot and one of a text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import telemetry
from app.database import Database, Transaction, sql, subject_lock
from app.errors import DuplicateContent, NotFound, NotRestorable
from app.guard import Caller
from app.kinds import KINDS
from app.memory import MEMORY_COLUMNS, MEMORY_SOURCE, as_json
from app.remember.news import deprecated
from app.remember.shelf import visible
from app.webhooks import tell

MOST_STEPS: Final = 8
MOST_MEMORIES: Final = 200
RESTORABLE: Final = ("deprecated", "duplicate", "archived")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Memories that are linked with one, directly or over others, the links among them, and the messages behind them.

    `truncated`: there are more than are shown.
    """

    memories: list[dict[str, Any]]
    links: list[dict[str, Any]]
    sources: list[dict[str, Any]]
    truncated: bool


async def lineage_of(database: Database, caller: Caller, memory_id: UUID, *, steps: int = MOST_STEPS) -> Lineage:
    """Walk the links of a memory both ways, at most `steps` far and to MOST_MEMORIES; archived ones are not shown.

    Raises NotFound.
    """
    async with database.read(caller.tenant_id) as transaction:
        start = await visible(transaction, caller, memory_id)
        names = {"tenant_id": caller.tenant_id, "subject_id": start["subject_id"]}
        known, frontier = {memory_id}, [memory_id]
        links: dict[tuple[UUID, str, UUID], Any] = {}
        truncated = False
        for _ in range(steps):
            rows = await transaction.fetch(_LINKS, **names, frontier=frontier, limit=MOST_MEMORIES + 1)
            links |= {(row["memory_id"], row["relation"], row["other_id"]): row["created_at"] for row in rows}
            ends = dict.fromkeys(end for row in rows for end in (row["memory_id"], row["other_id"]))
            frontier = [end for end in ends if end not in known][: MOST_MEMORIES - len(known)]
            truncated |= len(rows) > MOST_MEMORIES
            known.update(frontier)
            if not frontier:
                break
        truncated |= any(end not in known for link in links for end in (link[0], link[2]))
        rows = await transaction.fetch(_MEMORIES, **names, memories=list(known))
        shown = {row["id"]: as_json(row) for row in rows if caller.may_read(row["user_id"], row["agent_id"])}
        sources = await transaction.fetch(_SOURCES, **names, memories=list(shown), limit=MOST_MEMORIES)
    return Lineage(
        list(shown.values()),
        [
            {"from": one, "relation": relation, "to": other, "at": at}
            for (one, relation, other), at in sorted(links.items(), key=lambda link: link[1])
            if one in shown and other in shown
        ],
        [dict(source) for source in sources],
        truncated,
    )


@dataclass(frozen=True, slots=True)
class Restored:
    """A memory that is active (again), what it was, and the memory that had to leave its slot."""

    memory: dict[str, Any]
    was: str
    deprecated: tuple[UUID, ...]


async def restore(database: Database, caller: Caller, memory_id: UUID, *, now: datetime) -> Restored:
    """Make a deprecated, duplicate or archived memory active again; one that is active stays as it is.

    What it was overruled by or merged into stays, too, unless both hold one slot: then that one is deprecated. The
    links that said so are taken away and named in the event. Archived memories are brought back by `admin` only.

    Raises NotFound, DuplicateContent (an active memory says the same), NotRestorable (it is quarantined).
    """
    async with database.read(caller.tenant_id) as transaction:
        seen = await visible(transaction, caller, memory_id, archived=True, to_change=True)
    async with database.write(caller.tenant_id, subject_lock(caller.tenant_id, seen["user_id"])) as transaction:
        row = await visible(transaction, caller, memory_id, archived=True, to_change=True)
        was = row["status"]
        if was == "archived" and "admin" not in caller.scopes:
            raise NotFound
        if was != "active" and was not in RESTORABLE:
            raise NotRestorable
        names = {"tenant_id": caller.tenant_id, "subject_id": row["subject_id"], "memory_id": memory_id}
        due = None if row["pinned"] else KINDS[row["kind"]].forget_at(row["importance"], row["access_count"], now)
        left = await _restore(transaction, caller, names, was, due, now) if was != "active" else ()
        scope = row["user_id"], row["agent_id"]
        ends = [deprecated(row["subject_id"], rival, memory_id, scope, now) for rival in left]
        await tell(transaction, caller.tenant_id, ends)
        memory = as_json(await visible(transaction, caller, memory_id))
    if was != "active":
        telemetry.MEMORIES_RESTORED.labels(was).inc()
    return Restored(memory, was, tuple(left))


async def _restore(
    transaction: Transaction, caller: Caller, names: dict[str, UUID], was: str, due: datetime | None, now: datetime
) -> Sequence[UUID]:
    rivals = await transaction.fetch(_RIVALS, **names)
    if any(rival["same_text"] for rival in rivals):
        raise DuplicateContent
    by: dict[str, Any] = {"actor": caller.actor, "now": now}
    left = [rival["memory_id"] for rival in rivals]
    if left:
        detail = {"reason": "restored", "by": str(names["memory_id"])}
        await transaction.execute(
            _LEAVE, **names, left=left, events=[uuid7() for _ in left], detail=detail, **by
        )  # fmt: skip
    await make_active(transaction, names, was, due, detail={"deprecated": [str(rival) for rival in left]}, **by)
    return left


async def make_active(
    transaction: Transaction, names: Mapping[str, UUID], was: str, due: datetime | None, *, detail: Mapping[str, Any],
    actor: str, now: datetime,
) -> bool:  # fmt: skip
    """Make what still is `was` active again, without the links that said what became of it; says whether it could be.

    It stays where it is beside an active memory of its text or slot. `names`: tenant, subject and memory; `due`: when
    it is forgotten (None: never).
    """
    changed = await transaction.execute(
        _MAKE_ACTIVE, **names, was=was, due=due, detail=detail, actor=actor, now=now, event_id=uuid7()
    )
    return changed == 1


_LINKS = sql("""
    SELECT memory_id, relation, other_id, created_at FROM memory_links
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id
      AND (memory_id = ANY(cast(:frontier AS uuid[])) OR other_id = ANY(cast(:frontier AS uuid[])))
    ORDER BY created_at, memory_id, other_id
    LIMIT :limit
""")
_MEMORIES = sql(f"""
    SELECT {MEMORY_COLUMNS} FROM {MEMORY_SOURCE}
    WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = ANY(cast(:memories AS uuid[]))
      AND m.status <> 'archived'
    ORDER BY m.memory_id
""")
_SOURCES = sql("""
    SELECT memory_id, operation_id, session_id, number, reference, role, content, said_at FROM memory_sources
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = ANY(cast(:memories AS uuid[]))
    ORDER BY memory_id, number
    LIMIT :limit
""")
_RIVALS = sql("""
    SELECT r.memory_id, r.content_hash = m.content_hash AS same_text
    FROM memories m JOIN memories r
      ON r.tenant_id = m.tenant_id AND r.subject_id = m.subject_id AND r.agent_id IS NOT DISTINCT FROM m.agent_id
     AND r.status = 'active' AND (r.content_hash = m.content_hash OR r.key = m.key)
    WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = :memory_id
""")
_LEAVE = sql("""
    WITH left_behind AS (
        UPDATE memories m SET status = 'deprecated', deprecated_at = :now, updated_at = :now
        FROM unnest(cast(:left AS uuid[]), cast(:events AS uuid[])) AS named (memory_id, event_id)
        WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = named.memory_id
          AND m.status = 'active'
        RETURNING m.memory_id, m.version, named.event_id
    ), linked AS (
        INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
        SELECT :tenant_id, :subject_id, cast(:memory_id AS uuid), 'supersedes', memory_id, cast(:now AS timestamptz)
        FROM left_behind
        ON CONFLICT DO NOTHING
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT :tenant_id, :subject_id, event_id, memory_id, 'deprecated', :actor, version, :detail, :now FROM left_behind
""")
_MAKE_ACTIVE = sql("""
    WITH restored AS (
        UPDATE memories m
        SET status = 'active', deprecated_at = NULL, updated_at = :now, version = m.version + 1,
            expires_at = CASE WHEN m.expires_at > :now THEN m.expires_at END
        WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = :memory_id
          AND m.status = cast(:was AS text) AND NOT EXISTS (
              SELECT FROM memories r
              WHERE r.tenant_id = m.tenant_id AND r.subject_id = m.subject_id AND r.status = 'active'
                AND r.agent_id IS NOT DISTINCT FROM m.agent_id
                AND (r.content_hash = m.content_hash OR r.key = m.key)
          )
        RETURNING m.tenant_id, m.subject_id, m.memory_id, m.version, m.embedding IS NULL AS pending
    ), queued AS (
        INSERT INTO embedding_queue (tenant_id, subject_id, memory_id, due_at, created_at)
        SELECT tenant_id, subject_id, memory_id, cast(:now AS timestamptz), cast(:now AS timestamptz)
        FROM restored WHERE pending
        ON CONFLICT DO NOTHING
    ), taken_out AS (
        DELETE FROM memory_archive a USING restored r
        WHERE a.tenant_id = r.tenant_id AND a.subject_id = r.subject_id AND a.memory_id = r.memory_id
    ), dated AS (
        UPDATE memory_usage u SET forget_at = :due FROM restored r
        WHERE u.tenant_id = r.tenant_id AND u.subject_id = r.subject_id AND u.memory_id = r.memory_id
    ), unlinked AS (
        DELETE FROM memory_links l USING restored r
        WHERE l.tenant_id = r.tenant_id AND l.subject_id = r.subject_id
          AND ((l.relation = 'supersedes' AND l.other_id = r.memory_id)
               OR (l.relation = 'duplicate_of' AND l.memory_id = r.memory_id))
        RETURNING l.relation, CASE WHEN l.relation = 'supersedes' THEN l.memory_id ELSE l.other_id END AS other_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, cast(:event_id AS uuid), memory_id, 'restored', cast(:actor AS text), version,
           cast(:detail AS jsonb) || jsonb_build_object(
               'was', cast(:was AS text),
               'unlinked', coalesce((SELECT jsonb_object_agg(other_id, relation) FROM unlinked), '{}')
           ), cast(:now AS timestamptz)
    FROM restored
""")
