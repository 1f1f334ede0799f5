"""Feedback: a verdict on a memory that was shown moves its importance, is audited and can be taken back.

Invariant: importance stays within 1 to 5; one caller moves one memory by one verdict at most once in FEEDBACK_HOURS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import telemetry
from app.cold import wake
from app.database import Database, Transaction, sql
from app.errors import NotFound
from app.guard import Caller
from app.kinds import KINDS
from app.memory import as_json
from app.remember.shelf import visible

FEEDBACK_HOURS: Final = 24
LEAST_IMPORTANCE: Final = 1.0
MOST_IMPORTANCE: Final = 5.0
STEPS: Final = MappingProxyType({"useful": 0.5, "outdated": -1.0, "wrong": -1.0})
"""What a verdict adds. One complaint outweighs two commendations: what misleads costs more than what helps gains."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """What became of a verdict: its id, whether it changed anything now, importance before and after, the memory."""

    feedback_id: UUID
    verdict: str
    applied: bool
    before: float
    after: float
    memory: dict[str, Any]


def moved(importance: float, step: float) -> float:
    """The importance (1 to 5) after a step, kept within its bounds."""
    return round(min(MOST_IMPORTANCE, max(LEAST_IMPORTANCE, importance + step)), 4)


async def give_feedback(
    database: Database, caller: Caller, memory_id: UUID, verdict: str, *, now: datetime
) -> Feedback:
    """Judge a memory; it stays retrievable whatever is said. The same verdict again answers the first one, unapplied.

    Raises NotFound.
    """
    async with database.write(caller.tenant_id) as transaction:
        names, importance, due = await _hold(transaction, caller, memory_id, now)
        feedback_id = await transaction.fetch_value(
            _STANDING, **names, actor=caller.actor, verdict=verdict, since=now - timedelta(hours=FEEDBACK_HOURS)
        )
        applied, after = feedback_id is None, importance
        if applied:
            after = moved(importance, STEPS[verdict])
            detail = {"verdict": verdict, "before": importance, "after": after}
            feedback_id = await _move(transaction, caller, names, "feedback", detail, due, now)
        memory = as_json(await visible(transaction, caller, memory_id))
        if memory["embedding"] == "cold":
            await wake(transaction, caller.tenant_id, [memory_id], now=now)
    if applied:
        telemetry.FEEDBACK.labels(verdict).inc()
    return Feedback(feedback_id, verdict, applied, importance, after, memory)


async def undo_feedback(
    database: Database, caller: Caller, memory_id: UUID, feedback_id: UUID, *, now: datetime
) -> Feedback:
    """Take back what a verdict moved, and leave what others moved since; a second time nothing changes.

    Raises NotFound, also for a feedback on another memory.
    """
    async with database.write(caller.tenant_id) as transaction:
        names, importance, due = await _hold(transaction, caller, memory_id, now)
        given = await transaction.fetch_row(_GIVEN, **names, feedback_id=feedback_id)
        if given is None:
            raise NotFound
        after = importance
        if not given["undone"]:
            after = moved(importance, given["detail"]["before"] - given["detail"]["after"])
            detail = {"feedback_id": str(feedback_id), "before": importance, "after": after}
            await _move(transaction, caller, names, "feedback_undone", detail, due, now)
        memory = as_json(await visible(transaction, caller, memory_id))
    return Feedback(feedback_id, given["detail"]["verdict"], not given["undone"], importance, after, memory)


Due = Callable[[float], datetime]
"""When a memory used now is forgotten, by its importance."""


async def _hold(
    transaction: Transaction, caller: Caller, memory_id: UUID, now: datetime
) -> tuple[dict[str, UUID], float, Due]:
    """Lock a memory against other verdicts; return what names it, its importance, and when it would be forgotten."""
    row = await visible(transaction, caller, memory_id, to_change=True)
    names = {"tenant_id": caller.tenant_id, "subject_id": row["subject_id"], "memory_id": memory_id}
    importance = await transaction.fetch_value(_HOLD, **names)
    if importance is None:
        raise NotFound  # archived in this very moment
    return names, round(importance, 4), lambda weight: KINDS[row["kind"]].forget_at(weight, row["access_count"], now)


async def _move(
    transaction: Transaction, caller: Caller, names: dict[str, UUID], action: str, detail: dict[str, Any], due: Due,
    now: datetime,
) -> UUID:  # fmt: skip
    event_id = uuid7()
    await transaction.execute(
        _MOVE, **names, importance=detail["after"], event_id=event_id, action=action, actor=caller.actor,
        detail=detail, forget_at=due(detail["after"]), later=detail["after"] > detail["before"], now=now,
    )  # fmt: skip
    return event_id


_HOLD = sql("""
    SELECT importance FROM memories
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id AND status <> 'archived'
    FOR NO KEY UPDATE
""")
_UNDONE = """
    EXISTS (
        SELECT FROM memory_events u
        WHERE u.tenant_id = e.tenant_id AND u.subject_id = e.subject_id AND u.memory_id = e.memory_id
          AND u.action = 'feedback_undone' AND u.detail ->> 'feedback_id' = cast(e.event_id AS text)
    )
"""
_STANDING = sql(f"""
    SELECT e.event_id FROM memory_events e
    WHERE e.tenant_id = :tenant_id AND e.subject_id = :subject_id AND e.memory_id = :memory_id
      AND e.action = 'feedback' AND e.actor = :actor AND e.detail ->> 'verdict' = :verdict AND e.created_at > :since
      AND NOT {_UNDONE}
""")
_GIVEN = sql(f"""
    SELECT e.detail, {_UNDONE} AS undone FROM memory_events e
    WHERE e.tenant_id = :tenant_id AND e.subject_id = :subject_id AND e.event_id = :feedback_id
      AND e.memory_id = :memory_id AND e.action = 'feedback'
""")
_MOVE = sql("""
    WITH moved AS (
        UPDATE memories SET importance = :importance, version = version + 1, updated_at = :now
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id
        RETURNING tenant_id, subject_id, memory_id, version
    ), dated AS (
        UPDATE memory_usage u
        SET forget_at = CASE WHEN :later THEN greatest(u.forget_at, cast(:forget_at AS timestamptz))
                        ELSE least(u.forget_at, cast(:forget_at AS timestamptz)) END
        FROM moved m
        WHERE u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
          AND u.forget_at IS NOT NULL
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, :event_id, memory_id, :action, :actor, version, :detail, :now FROM moved
""")
