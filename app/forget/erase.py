"""Erasure: everything of one user goes, at once and for good, whatever is pinned or held; ids of what was stay.

Invariant: one transaction, one statement a table, within tenant and subject; without a user nothing is erased (R01).
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

import orjson
from uuid_utils.compat import uuid7

from app import telemetry, work_metrics
from app.database import Database, sql, subject_lock
from app.guard import Caller

LONGEST_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Erased:
    """What there was: memories of any status, conversations, operations with what was said in them, events that waited
    to be told, stored answers in which the user is named, and legal holds that the erasure went before.

    `exported` memories were once moved to the archive outside the database: the job `erasures` removes what lies there.
    """

    memories: int = 0
    sessions: int = 0
    operations: int = 0
    events: int = 0
    answers: int = 0
    holds: int = 0
    exported: int = 0


async def erase_subject(database: Database, caller: Caller, user_id: str, *, now: datetime) -> Erased:
    """Erase a user of the caller's tenant; of one that nobody knows there is nothing.

    What stays: events of the audit trail (ids and actions, no text), and a line in `erasures`, by which an erasure can
    be repeated on a restored backup.
    """
    async with database.write(caller.tenant_id, subject_lock(caller.tenant_id, user_id)) as transaction:
        await transaction.allow(LONGEST_SECONDS)
        subject_id = await transaction.fetch_value(_SUBJECT, tenant_id=caller.tenant_id, user_id=user_id)
        named = b'"user_id":' + orjson.dumps(user_id)
        answers = await transaction.execute(_ANSWERS, tenant_id=caller.tenant_id, named=named)
        if subject_id is None:
            return Erased(answers=answers)
        of_user = {"tenant_id": caller.tenant_id, "subject_id": subject_id}
        holds = await transaction.execute(_HOLDS, **of_user)
        erased = Erased(
            memories=await transaction.execute(_MEMORIES, **of_user, actor=caller.actor, now=now),
            sessions=await transaction.execute(_SESSIONS, **of_user),
            operations=await transaction.execute(_OPERATIONS, **of_user),
            events=await transaction.execute(_EVENTS, **of_user),
            answers=answers,
            holds=holds,
            exported=await transaction.fetch_value(_EXPORTED, **of_user),
        )
        await transaction.execute(_REINFORCEMENTS, **of_user)
        await transaction.execute(_GONE, **of_user)  # last: whoever counts a use of its memories holds its row
        await transaction.execute(
            _NOTE, **of_user, erasure_id=uuid7(), actor=caller.actor, counts=asdict(erased), now=now
        )
    work_metrics.SUBJECTS_ERASED.inc()
    telemetry.log().info(
        "subject_erased", tenant_id=str(caller.tenant_id), subject_id=str(subject_id), **asdict(erased)
    )
    return erased


_SUBJECT = sql("SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id")
_MEMORIES = sql("""
    WITH gone AS (
        DELETE FROM memories WHERE tenant_id = :tenant_id AND subject_id = :subject_id RETURNING memory_id, version
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT :tenant_id, :subject_id, gen_random_uuid(), memory_id, 'erased', :actor, version, '{}', :now FROM gone
""")
_EXPORTED = sql("""
    SELECT count(DISTINCT memory_id) FROM memory_events
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND action = 'exported'
""")
_SESSIONS = sql("DELETE FROM session_windows WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
_OPERATIONS = sql("DELETE FROM operations WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
_EVENTS = sql("DELETE FROM outbox WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
_HOLDS = sql("DELETE FROM legal_holds WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
_REINFORCEMENTS = sql("DELETE FROM reinforcement_queue WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
_GONE = sql("DELETE FROM subjects WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
_ANSWERS = sql("""
    DELETE FROM idempotency_keys
    WHERE tenant_id = :tenant_id AND position(cast(:named AS bytea) IN response) > 0
""")
_NOTE = sql("""
    INSERT INTO erasures (tenant_id, subject_id, erasure_id, actor, counts, created_at)
    VALUES (:tenant_id, :subject_id, :erasure_id, :actor, :counts, :now)
""")
