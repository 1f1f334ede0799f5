"""The queue of operations in PostgreSQL: claims with a lease, and every change of state as one statement.

Invariant: `attempts` is the number of claims, and only the latest claim may renew, finish or put back. Leases are
measured by the database's clock, the only one that all processes share.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from app.database import Database, Transaction, sql
from app.guard import FULL_TRUST, Caller
from app.webhooks import Event, Subscriptions, tell


class OperationConfig(BaseModel, extra="forbid"):
    """How operations are worked off, and how long they are remembered."""

    wait_seconds: float = Field(20.0, gt=0, le=300, description="Longest wait of a request with `wait=true`.")
    lease_seconds: float = Field(60.0, ge=1, description="Without a heartbeat for so long it may be taken over.")
    concurrency: int = Field(8, ge=1, le=256, description="Most operations that a worker has in hand.")
    keep_days: float = Field(7.0, gt=0, description="How long a finished operation can be asked for, and retried.")


class OperationLost(Exception):
    """Another process has taken it over, or it was cancelled: nothing of this claim may be written."""


@dataclass(slots=True)
class Claim:
    """An operation in this process's hands. Its work says how far it is in `done` and `total`."""

    tenant_id: UUID
    operation_id: UUID
    subject_id: UUID
    user_id: str | None
    agent_id: str | None
    actor: str
    kind: str
    request: Mapping[str, Any]
    attempts: int
    done: int = 0
    total: int | None = None
    heard: bool = field(default=False)  # whether its end is to be told

    @property
    def caller(self) -> Caller:
        """Whoever asked for it, without rights of its own."""
        key_id = UUID(self.actor.removeprefix("key:")) if self.actor.startswith("key:") else None
        trust = self.request.get("trust", FULL_TRUST)
        return Caller(self.tenant_id, key_id, self.agent_id, self.user_id, frozenset(), trust)

    @property
    def names(self) -> dict[str, Any]:
        return {"tenant_id": self.tenant_id, "operation_id": self.operation_id, "attempts": self.attempts}

    async def succeed(self, transaction: Transaction, result: Mapping[str, Any], *, now: datetime) -> None:
        """Finish it in the transaction of what it wrote; its input is dropped. Raises OperationLost."""
        changed = await transaction.execute(_SUCCEED, **self.names, result=result, done=self.done, now=now)
        if not changed:
            raise OperationLost
        await self._tell(transaction, "succeeded", None, now)

    async def fail(self, transaction: Transaction, code: str, detail: str, *, now: datetime) -> None:
        """Finish it with a reason; its input stays, for a retry. Raises OperationLost."""
        if not await transaction.execute(_FAIL, **self.names, error=code, detail=detail, now=now):
            raise OperationLost
        await self._tell(transaction, "failed", code, now)

    async def _tell(self, transaction: Transaction, state: str, error: str | None, now: datetime) -> None:
        if self.heard:
            await tell(transaction, self.tenant_id, [operation_finished(self, state, error, now)])


def operation_finished(claim: Claim, state: str, error: str | None, at: datetime) -> Event:
    """The event that an operation has reached its end."""
    data = {"operation_id": str(claim.operation_id), "kind": claim.kind, "user_id": claim.user_id, "state": state}
    return Event("operation.finished", claim.subject_id, data | {"error": error}, at)


@dataclass(frozen=True, slots=True)
class Queue:
    """Claims, leases and endings for one process."""

    database: Database
    subscriptions: Subscriptions
    config: OperationConfig

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.config.lease_seconds)

    async def claim(self, *, now: datetime, limit: int) -> list[Claim]:
        """Take operations that are due, also those whose holder died: of the tenant that has the fewest running first,
        and of each tenant the longest due."""
        async with self.database.work() as transaction:
            rows = await transaction.fetch(_CLAIM, now=now, lease=self.lease, limit=limit)
        return [Claim(**row) for row in rows]

    async def renew(self, claim: Claim, *, now: datetime) -> bool:
        """Move the end of the lease and write down the progress; tells whether the claim still stands."""
        async with self.database.work() as transaction:
            renewed = await transaction.execute(
                _RENEW, **claim.names, lease=self.lease, done=claim.done, total=claim.total, now=now
            )
        return bool(renewed)

    async def put_back(
        self, claim: Claim, wait: timedelta, *, now: datetime, error: str | None = None, detail: str | None = None
    ) -> None:
        """Queue it again after a wait; without an error as if it had not been claimed (this process ends)."""
        async with self.database.work() as transaction:
            await transaction.execute(
                _PUT_BACK, **claim.names, wait=wait, error=error, detail=detail, now=now, spent=error is not None
            )

    async def succeed(self, claim: Claim, result: Mapping[str, Any], *, now: datetime) -> None:
        """Finish what wrote nothing. Raises OperationLost."""
        claim.heard = await self.subscriptions.hears(claim.tenant_id)
        async with self.database.write(claim.tenant_id) as transaction:
            await claim.succeed(transaction, result, now=now)

    async def fail(self, claim: Claim, code: str, detail: str, *, now: datetime) -> None:
        """Finish it with a reason. Raises OperationLost."""
        claim.heard = await self.subscriptions.hears(claim.tenant_id)
        async with self.database.write(claim.tenant_id) as transaction:
            await claim.fail(transaction, code, detail, now=now)


async def expire_operations(database: Database, config: OperationConfig, *, now: datetime, limit: int = 1000) -> int:
    """Forget operations that ended longer ago than configured; returns how many (short: none are left)."""
    async with database.work() as transaction:
        return await transaction.execute(_EXPIRE, before=now - timedelta(days=config.keep_days), limit=limit)


async def waiting(database: Database, *, now: datetime) -> tuple[int, int, float]:
    """How many operations are queued and running, and for how many seconds the oldest of the queued has waited."""
    async with database.work() as transaction:
        row = await transaction.fetch_row(_WAITING)
    assert row is not None
    age = max(0.0, (now - row["oldest"]).total_seconds()) if row["oldest"] else 0.0
    return row["queued"], row["running"], age


_MINE = """
    tenant_id = :tenant_id AND operation_id = :operation_id AND state = 'running' AND attempts = :attempts
"""
# Tenants take turns: whoever queued ten thousand waits behind the first of everybody else. The tenants that have
# something due are found one by one in the index, whatever the length of their queues.
_CLAIM = sql("""
    WITH RECURSIVE tenant AS (
        (SELECT tenant_id FROM operations WHERE state IN ('queued', 'running') AND due_at <= clock_timestamp()
         ORDER BY tenant_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT o.tenant_id FROM operations o
            WHERE o.state IN ('queued', 'running') AND o.due_at <= clock_timestamp() AND o.tenant_id > t.tenant_id
            ORDER BY o.tenant_id LIMIT 1
        ) FROM tenant t WHERE t.tenant_id IS NOT NULL
    ), waiting AS (
        SELECT t.tenant_id, busy.running, first.due_at
        FROM tenant t
        CROSS JOIN LATERAL (
            SELECT count(*) AS running FROM operations o
            WHERE o.tenant_id = t.tenant_id AND o.state = 'running' AND o.due_at > clock_timestamp()
        ) AS busy
        CROSS JOIN LATERAL (
            SELECT o.due_at FROM operations o
            WHERE o.tenant_id = t.tenant_id AND o.state IN ('queued', 'running')
            ORDER BY o.due_at LIMIT 1
        ) AS first
        WHERE t.tenant_id IS NOT NULL
        ORDER BY busy.running, first.due_at LIMIT :limit
    ), candidate AS (
        SELECT w.tenant_id, due.operation_id, due.due_at,
               w.running + row_number() OVER (PARTITION BY w.tenant_id ORDER BY due.due_at) AS turn
        FROM waiting w CROSS JOIN LATERAL (
            SELECT o.operation_id, o.due_at FROM operations o
            WHERE o.tenant_id = w.tenant_id AND o.state IN ('queued', 'running') AND o.due_at <= clock_timestamp()
            ORDER BY o.due_at LIMIT :limit FOR UPDATE SKIP LOCKED
        ) AS due
    )
    UPDATE operations o SET state = 'running', attempts = o.attempts + 1, updated_at = :now,
           due_at = clock_timestamp() + cast(:lease AS interval)
    FROM (SELECT * FROM candidate ORDER BY turn, due_at LIMIT :limit) AS due
    WHERE o.tenant_id = due.tenant_id AND o.operation_id = due.operation_id
    RETURNING o.tenant_id, o.operation_id, coalesce(o.subject_id, o.tenant_id) AS subject_id, o.user_id, o.agent_id,
              o.actor, o.kind, o.request, o.attempts
""")
_RENEW = sql(f"""
    UPDATE operations SET due_at = clock_timestamp() + cast(:lease AS interval), done = :done, total = :total,
           updated_at = :now
    WHERE {_MINE}
""")
_SUCCEED = sql(f"""
    UPDATE operations SET state = 'succeeded', result = :result, request = request - 'messages', error = NULL,
           detail = NULL, done = :done, total = :done, updated_at = :now, finished_at = :now
    WHERE {_MINE}
""")
_FAIL = sql(f"""
    UPDATE operations SET state = 'failed', error = :error, detail = :detail, updated_at = :now, finished_at = :now
    WHERE {_MINE}
""")
_PUT_BACK = sql(f"""
    UPDATE operations SET state = 'queued', due_at = clock_timestamp() + cast(:wait AS interval), error = :error,
           detail = :detail, attempts = attempts - CASE WHEN :spent THEN 0 ELSE 1 END, updated_at = :now
    WHERE {_MINE}
""")
_EXPIRE = sql("""
    DELETE FROM operations WHERE (tenant_id, operation_id) IN (
        SELECT tenant_id, operation_id FROM operations
        WHERE state IN ('succeeded', 'failed', 'cancelled') AND finished_at < :before LIMIT :limit
        FOR UPDATE SKIP LOCKED
    )
""")
_WAITING = sql("""
    SELECT count(*) FILTER (WHERE state = 'queued') AS queued, count(*) FILTER (WHERE state = 'running') AS running,
           min(created_at) FILTER (WHERE state = 'queued') AS oldest
    FROM operations WHERE state IN ('queued', 'running')
""")
