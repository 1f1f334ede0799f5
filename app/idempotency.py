"""Idempotency-Key: a stored answer is given again, and a key is bound to the request that it came with first.

Invariant: the answer is stored in the transaction of the work that it reports, so both are there or neither.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
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


def key_lock(tenant_id: UUID, idempotency: Idempotency) -> int:
    """The int64 of the advisory lock under which the requests with one key take turns."""
    name = f"{idempotency.scope}\0{idempotency.key}".encode()
    digest = blake2b(tenant_id.bytes + name, digest_size=8, person=b"idempotent").digest()
    return int.from_bytes(digest, "big", signed=True)


async def stored_answers(
    transaction: Transaction, tenant_id: UUID, asked: Sequence[Idempotency]
) -> dict[Idempotency, Answer | IdempotencyReused]:
    """The answers that requests with these keys got before; IdempotencyReused where it was another request."""
    rows = await transaction.fetch(
        _STORED_ANSWERS,
        tenant_id=tenant_id,
        scopes=[each.scope for each in asked],
        keys=[each.key for each in asked],
    )
    found: dict[Idempotency, Answer | IdempotencyReused] = {}
    for row in rows:
        each = asked[row["number"] - 1]
        if row["fingerprint"] == each.fingerprint:
            telemetry.IDEMPOTENCY_REPLAYS.inc()
            found[each] = Answer(row["status"], row["response"], replayed=True)
        else:
            found[each] = IdempotencyReused()
    return found


async def stored_answer(transaction: Transaction, caller: Caller, idempotency: Idempotency) -> Answer | None:
    """The answer that a request with this key got before; raises IdempotencyReused if it was another request."""
    stored = (await stored_answers(transaction, caller.tenant_id, [idempotency])).get(idempotency)
    if isinstance(stored, IdempotencyReused):
        raise stored
    return stored


async def keep_answers(
    transaction: Transaction, tenant_id: UUID, answers: Sequence[tuple[Idempotency, Answer, datetime]]
) -> None:
    """Store the answers of these requests, each with its own time."""
    await transaction.execute(
        _KEEP_ANSWERS,
        tenant_id=tenant_id,
        scopes=[idempotency.scope for idempotency, _, _ in answers],
        keys=[idempotency.key for idempotency, _, _ in answers],
        fingerprints=[idempotency.fingerprint for idempotency, _, _ in answers],
        statuses=[answer.status for _, answer, _ in answers],
        responses=[answer.body for _, answer, _ in answers],
        moments=[moment for _, _, moment in answers],
    )


async def keep_answer(
    transaction: Transaction, caller: Caller, idempotency: Idempotency, answer: Answer, *, now: datetime
) -> None:
    """Store the answer of this request."""
    await keep_answers(transaction, caller.tenant_id, [(idempotency, answer, now)])


async def expire_idempotency(database: Database, hours: float, *, now: datetime, limit: int = 1000) -> int:
    """Forget stored answers older than `hours`, at most `limit`; returns how many."""
    async with database.work() as transaction:
        return await transaction.execute(_EXPIRE_ANSWERS, before=now - timedelta(hours=hours), limit=limit)


_STORED_ANSWERS = sql("""
    SELECT asked.number, i.fingerprint, i.status, i.response
    FROM unnest(cast(:scopes AS text[]), cast(:keys AS text[])) WITH ORDINALITY AS asked (scope, key, number)
    JOIN idempotency_keys i ON i.tenant_id = :tenant_id AND i.scope = asked.scope AND i.key = asked.key
""")
_KEEP_ANSWERS = sql("""
    INSERT INTO idempotency_keys (tenant_id, scope, key, fingerprint, status, response, created_at)
    SELECT :tenant_id, item.* FROM unnest(
        cast(:scopes AS text[]), cast(:keys AS text[]), cast(:fingerprints AS bytea[]), cast(:statuses AS smallint[]),
        cast(:responses AS bytea[]), cast(:moments AS timestamptz[])
    ) AS item
""")
_EXPIRE_ANSWERS = sql("""
    DELETE FROM idempotency_keys WHERE (tenant_id, scope, key) IN (
        SELECT tenant_id, scope, key FROM idempotency_keys WHERE created_at < :before LIMIT :limit
        FOR UPDATE SKIP LOCKED
    )
""")
