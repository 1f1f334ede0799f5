"""Idempotency-Key: a stored answer is given again, and a key is bound to the request that it came with first.

Invariant: the answer is stored in the transaction of the work that it reports, so both are there or neither.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app import telemetry
from app.database import Database, Transaction, sql
from app.errors import IdempotencyInProgress, IdempotencyReused
from app.guard import Caller


@dataclass(frozen=True, slots=True)
class Answer:
    """The HTTP answer of a write, stored with it when the request carries an Idempotency-Key."""

    status: int
    body: bytes
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Idempotency:
    """An Idempotency-Key: unique in the caller's scope, bound to a fingerprint of the request."""

    scope: str
    key: str
    fingerprint: bytes


_in_progress: set[tuple[UUID, str, str]] = set()


@contextmanager
def only_once(tenant_id: UUID, idempotency: Idempotency | None) -> Iterator[None]:
    """Refuse a second request with the same key while the first is still being answered by this process.

    Between processes a lock that both take (of the subject) makes the second wait and then find the stored answer.
    Raises IdempotencyInProgress.
    """
    if idempotency is None:
        yield
        return
    entry = (tenant_id, idempotency.scope, idempotency.key)
    if entry in _in_progress:
        raise IdempotencyInProgress
    _in_progress.add(entry)
    try:
        yield
    finally:
        _in_progress.discard(entry)


async def stored_answer(transaction: Transaction, caller: Caller, idempotency: Idempotency) -> Answer | None:
    """The answer that a request with this key got before; raises IdempotencyReused if it was another request."""
    row = await transaction.fetch_row(
        _STORED_ANSWER, tenant_id=caller.tenant_id, scope=idempotency.scope, key=idempotency.key
    )
    if row is None:
        return None
    if row["fingerprint"] != idempotency.fingerprint:
        raise IdempotencyReused
    telemetry.IDEMPOTENCY_REPLAYS.inc()
    return Answer(row["status"], row["response"], replayed=True)


async def keep_answer(
    transaction: Transaction, caller: Caller, idempotency: Idempotency, answer: Answer, *, now: datetime
) -> None:
    """Store the answer of this request."""
    await transaction.execute(
        _KEEP_ANSWER,
        tenant_id=caller.tenant_id,
        scope=idempotency.scope,
        key=idempotency.key,
        fingerprint=idempotency.fingerprint,
        status=answer.status,
        response=answer.body,
        now=now,
    )


async def expire_idempotency(database: Database, hours: float, *, now: datetime, limit: int = 1000) -> int:
    """Forget stored answers older than `hours`, at most `limit`; returns how many."""
    async with database.work() as transaction:
        return await transaction.execute(_EXPIRE_ANSWERS, before=now - timedelta(hours=hours), limit=limit)


_STORED_ANSWER = sql("""
    SELECT fingerprint, status, response FROM idempotency_keys
    WHERE tenant_id = :tenant_id AND scope = :scope AND key = :key
""")
_KEEP_ANSWER = sql("""
    INSERT INTO idempotency_keys (tenant_id, scope, key, fingerprint, status, response, created_at)
    VALUES (:tenant_id, :scope, :key, :fingerprint, :status, :response, :now)
""")
_EXPIRE_ANSWERS = sql("""
    DELETE FROM idempotency_keys WHERE (tenant_id, scope, key) IN (
        SELECT tenant_id, scope, key FROM idempotency_keys WHERE created_at < :before LIMIT :limit
        FOR UPDATE SKIP LOCKED
    )
""")
