"""The desk: where operations are asked for, looked up, waited for, cancelled and asked for again.

Invariant: an answer is given after the commit; an operation that the caller may not see answers like one that does not
exist.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from app import work_metrics
from app.database import Database, Statement, Transaction, sql, subject_lock
from app.errors import Conflict, NotFound
from app.guard import Caller
from app.idempotency import Answer, Idempotency, keep_answer, key_lock, only_once, stored_answer
from app.operations.operator import Operator
from app.operations.queue import Claim, OperationConfig, operation_finished
from app.webhooks import Subscriptions, tell

LOOK_SECONDS: Final = (0.05, 0.5)  # shortest and longest pause between two looks at an operation that is waited for
ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for, and about whom. `prepare` gives the input in the transaction that stores it, and may raise."""

    kind: str
    user_id: str | None
    agent_id: str | None
    prepare: Callable[[Transaction], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which operations to list: conditions that are None do not apply; `before` continues after that one."""

    user_id: str | None = None
    kind: str | None = None
    state: str | None = None
    session_id: str | None = None
    before: UUID | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Desk:
    """The operations of one process's callers. Those that are waited for are worked off here, at once."""

    database: Database
    operator: Operator
    subscriptions: Subscriptions
    config: OperationConfig

    async def submit(
        self, caller: Caller, order: Order, *, now: datetime, wait: bool = False, idempotency: Idempotency | None = None
    ) -> tuple[dict[str, Any], bool]:
        """Store an order; return it as an operation, and whether it was stored before by the same Idempotency-Key.

        With `wait` it is begun here and now, and returned when it has ended or the longest wait is over; whoever breaks
        off, it goes on. Raises what `prepare` raises, IdempotencyInProgress and IdempotencyReused.
        """
        new: Any = None
        with only_once(caller.tenant_id, idempotency):
            locks = {subject_lock(caller.tenant_id, order.user_id)}
            if idempotency is not None:
                locks.add(key_lock(caller.tenant_id, idempotency))
            async with self.database.write(caller.tenant_id, *sorted(locks)) as transaction:
                stored = None if idempotency is None else await stored_answer(transaction, caller, idempotency)
                if stored is not None:
                    operation_id = UUID(orjson.loads(stored.body)["operation_id"])
                else:
                    new = await self.accept(transaction, caller, order, now=now, claimed=wait)
                    operation_id = new["operation_id"]
                    if idempotency is not None:
                        body = orjson.dumps({"operation_id": str(operation_id)})
                        await keep_answer(transaction, caller, idempotency, Answer(202, body), now=now)
        if new is None:
            return await self.get(caller, operation_id, wait=wait), True
        if not wait:
            return _shown(new), False
        claim = _claim(caller.tenant_id, new)
        await asyncio.wait((self.operator.begin(claim),), timeout=self.config.wait_seconds)
        return await self.get(caller, operation_id), False

    async def accept(
        self, transaction: Transaction, caller: Caller, order: Order, *, now: datetime, claimed: bool = False
    ) -> Any:
        """Store an order as part of a transaction that holds the subject's lock, and return its row; `claimed`: for
        this process alone."""
        row = await transaction.fetch_row(
            _STORE,
            tenant_id=caller.tenant_id,
            operation_id=uuid7(),
            new_id=uuid7(),
            user_id=order.user_id,
            agent_id=order.agent_id,
            actor=caller.actor,
            kind=order.kind,
            request={**await order.prepare(transaction), "trust": caller.trust},
            claimed=claimed,
            lease=self.operator.queue.lease,
            now=now,
        )
        work_metrics.OPERATIONS_SUBMITTED.labels(order.kind).inc()
        return row

    async def get(self, caller: Caller, operation_id: UUID, *, wait: bool = False) -> dict[str, Any]:
        """An operation; with `wait` when it has ended or the longest wait is over. Raises NotFound."""
        until = time.monotonic() + (self.config.wait_seconds if wait else 0)
        pause = LOOK_SECONDS[0]
        while True:
            async with self.database.read(caller.tenant_id) as transaction:
                row = await _visible(transaction, caller, operation_id, caller.may_read)
            if row["state"] in ENDED or time.monotonic() + pause > until:
                return _shown(row)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS[1])

    async def browse(self, caller: Caller, wanted: Wanted) -> list[dict[str, Any]]:
        """Operations, the newest first, at most `wanted.limit`; of a bound caller those that it may see."""
        values = {
            "user_id": wanted.user_id,
            "bound_agent_id": caller.agent_id,
            "kind": wanted.kind,
            "state": wanted.state,
            "session_id": wanted.session_id,
            "before": wanted.before,
        }
        conditions = [condition for name, condition in _CONDITIONS.items() if values[name] is not None]
        statement = _listing(tuple(conditions))
        async with self.database.read(caller.tenant_id) as transaction:
            rows = await transaction.fetch(statement, tenant_id=caller.tenant_id, limit=wanted.limit, **values)
        return [_shown(row) for row in rows]

    async def cancel(self, caller: Caller, operation_id: UUID, *, now: datetime) -> dict[str, Any]:
        """Stop an operation that has not ended: what it was about to write is not written.

        Raises NotFound, and Conflict when it has ended otherwise.
        """
        heard = await self.subscriptions.hears(caller.tenant_id)
        async with self.database.write(caller.tenant_id) as transaction:
            row = await _visible(transaction, caller, operation_id, caller.may_change)
            if row["state"] == "cancelled":
                return _shown(row)
            changed = await transaction.execute(_CANCEL, tenant_id=caller.tenant_id, operation_id=operation_id, now=now)
            if not changed:
                raise Conflict(f"it has {row['state']}")
            if heard:
                ended = _claim(caller.tenant_id, row)
                await tell(transaction, caller.tenant_id, [operation_finished(ended, "cancelled", None, now)])
            return _shown(await _visible(transaction, caller, operation_id, caller.may_change))

    async def retry(self, caller: Caller, operation_id: UUID, *, now: datetime) -> dict[str, Any]:
        """Queue an operation that failed or was cancelled once more, with the input it had.

        Raises NotFound, and Conflict in any other state.
        """
        async with self.database.write(caller.tenant_id) as transaction:
            row = await _visible(transaction, caller, operation_id, caller.may_change)
            if not await transaction.execute(_RETRY, tenant_id=caller.tenant_id, operation_id=operation_id, now=now):
                raise Conflict(f"it is {row['state']}: only what failed or was cancelled can be tried again")
            return _shown(await _visible(transaction, caller, operation_id, caller.may_change))


async def _visible(
    transaction: Transaction, caller: Caller, operation_id: UUID, may: Callable[[str | None, str | None], bool]
) -> Any:
    row = await transaction.fetch_row(_GET, tenant_id=caller.tenant_id, operation_id=operation_id)
    if row is None or not may(row["user_id"], row["agent_id"]):
        raise NotFound
    return row


def _claim(tenant_id: UUID, row: Any) -> Claim:
    names = ("operation_id", "subject_id", "user_id", "agent_id", "actor", "kind", "request", "attempts")
    return Claim(tenant_id, **{name: row[name] for name in names})


def _shown(row: Any) -> dict[str, Any]:
    error = None if row["error"] is None else {"code": row["error"], "detail": row["detail"]}
    return {
        "id": row["operation_id"],
        "kind": row["kind"],
        "state": row["state"],
        "user_id": row["user_id"],
        "agent_id": row["agent_id"],
        "progress": {"done": row["done"], "total": row["total"]},
        "attempts": row["attempts"],
        "result": row["result"],
        "error": error,
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "finished_at": row["finished_at"],
    }


_CONDITIONS = {
    "user_id": "user_id = :user_id",
    "bound_agent_id": "(agent_id IS NULL OR agent_id = :bound_agent_id)",
    "kind": "kind = :kind",
    "state": "state = :state",
    "session_id": "request ->> 'session_id' = :session_id",
    "before": "operation_id < :before",
}
_COLUMNS = """
    operation_id, coalesce(subject_id, tenant_id) AS subject_id, kind, state, user_id, agent_id, actor, done, total,
    attempts, result, error, detail, created_at, updated_at, finished_at
"""
_STORE = sql(f"""
    WITH made AS (
        INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
        SELECT :tenant_id, CASE WHEN cast(:user_id AS text) IS NULL THEN cast(:tenant_id AS uuid) ELSE :new_id END,
               :user_id, :now
        WHERE NOT EXISTS (
            SELECT FROM subjects WHERE tenant_id = :tenant_id AND user_id IS NOT DISTINCT FROM cast(:user_id AS text)
        )
        RETURNING subject_id
    )
    INSERT INTO operations (
        tenant_id, operation_id, subject_id, user_id, agent_id, actor, kind, state, request, attempts, due_at,
        created_at, updated_at
    )
    SELECT :tenant_id, :operation_id, coalesce(
               (SELECT subject_id FROM made),
               (SELECT subject_id FROM subjects
                WHERE tenant_id = :tenant_id AND user_id IS NOT DISTINCT FROM cast(:user_id AS text))
           ),
           :user_id, :agent_id, :actor, :kind, CASE WHEN :claimed THEN 'running' ELSE 'queued' END, :request,
           CASE WHEN :claimed THEN 1 ELSE 0 END,
           clock_timestamp() + CASE WHEN :claimed THEN cast(:lease AS interval) ELSE interval '0' END, :now, :now
    RETURNING {_COLUMNS}, request
""")
_GET = sql(f"""
    SELECT {_COLUMNS}, '{{}}'::jsonb AS request FROM operations
    WHERE tenant_id = :tenant_id AND operation_id = :operation_id
""")


@lru_cache(maxsize=1 << len(_CONDITIONS))
def _listing(conditions: tuple[str, ...]) -> Statement:
    where = " AND ".join(("tenant_id = :tenant_id", *conditions))
    return sql(f"SELECT {_COLUMNS} FROM operations WHERE {where} ORDER BY operation_id DESC LIMIT :limit")


_CANCEL = sql("""
    UPDATE operations SET state = 'cancelled', error = NULL, detail = NULL, updated_at = :now, finished_at = :now
    WHERE tenant_id = :tenant_id AND operation_id = :operation_id AND state IN ('queued', 'running')
""")
_RETRY = sql("""
    UPDATE operations SET state = 'queued', attempts = 0, error = NULL, detail = NULL, due_at = clock_timestamp(),
           updated_at = :now, finished_at = NULL
    WHERE tenant_id = :tenant_id AND operation_id = :operation_id AND state IN ('failed', 'cancelled')
""")
