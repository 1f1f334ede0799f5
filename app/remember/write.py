"""remember(): the write use case, for one memory or a batch, the same rules on every path.

Invariant: vectors are made before the transaction opens; row, vector, keywords, usage, links, audit event and the
idempotent answer commit together or not at all. Writes of one subject take turns, so no verdict is overtaken.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from app import telemetry
from app.database import Database, Transaction, sql, subject_lock
from app.embed import Embedder, Generation
from app.errors import EmbeddingUnavailable, IdempotencyInProgress, IdempotencyReused
from app.guard import Caller
from app.remember.judge import judge
from app.remember.memory import Draft, NewMemory, RememberConfig, Written
from app.remember.served import SERVED, without_served
from app.remember.store import store


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


@dataclass(frozen=True, slots=True)
class Rememberer:
    """The write path of one process: where memories go and what makes their vectors."""

    database: Database
    embedder: Embedder
    generation: Generation
    config: RememberConfig

    async def remember(
        self,
        caller: Caller,
        items: Sequence[NewMemory],
        answer: Callable[[list[Written]], Answer],
        *,
        now: datetime,
        idempotency: Idempotency | None = None,
    ) -> Answer:
        """Store memories in one transaction and return `answer` of what became of each, in order.

        What Mneme itself put into a prompt is taken out of a text; one that says nothing else is `filtered`.
        An embedder that is down or slower than the deadline leaves them `pending` for the worker. Raises
        IdempotencyInProgress, IdempotencyReused, DatabaseUnavailable, PoolExhausted, DeadlineExceeded, StorageFull.
        """
        with _only_once(caller.tenant_id, idempotency):
            if idempotency is not None and (stored := await self._replay(caller, idempotency)):
                return stored
            drafts = [_draft(item) for item in items]
            kept = [draft for draft in drafts if draft.outcome != "filtered"]
            await self._embed(kept)
            locks = sorted({subject_lock(caller.tenant_id, item.user_id) for item in items})
            async with self.database.write(caller.tenant_id, *locks) as transaction:
                if idempotency is not None and (stored := await _stored(transaction, caller, idempotency)):
                    return stored
                if kept:
                    await judge(transaction, caller.tenant_id, kept, self.generation, self.config)
                written = iter(await store(transaction, caller, kept, self.generation.generation_id, now=now))
                result = answer(
                    [
                        Written("filtered", None, reason=draft.reason)
                        if draft.outcome == "filtered"
                        else replace(next(written), reason=draft.reason)
                        for draft in drafts
                    ]
                )
                if idempotency is not None:
                    await _keep(transaction, caller, idempotency, result, now)
        for draft in drafts:
            telemetry.MEMORY_WRITES.labels(draft.outcome).inc()
        return result

    async def _embed(self, drafts: Sequence[Draft]) -> None:
        try:
            async with asyncio.timeout(self.config.embedding_deadline_seconds):
                for draft, windows in zip(
                    drafts, await self.embedder.embed_documents([draft.new.content for draft in drafts]), strict=True
                ):
                    draft.windows = windows
        except (EmbeddingUnavailable, TimeoutError):
            telemetry.EMBEDDING_DEFERRED.inc(len(drafts))

    async def _replay(self, caller: Caller, idempotency: Idempotency) -> Answer | None:
        async with self.database.read(caller.tenant_id) as transaction:
            return await _stored(transaction, caller, idempotency)


def _draft(item: NewMemory) -> Draft:
    said = without_served(item.content)
    draft = Draft(item if said == item.content else replace(item, content=said))
    draft.reason = None if said == item.content else SERVED
    draft.outcome = "created" if said else "filtered"
    return draft


_in_progress: set[tuple[UUID, str, str]] = set()


class _only_once:  # noqa: N801 - reads as a phrase at its one place of use
    """Refuse a second request with the same key while the first is still being answered by this process.

    Between processes the subject's lock makes the second wait and then find the stored answer.
    """

    def __init__(self, tenant_id: UUID, idempotency: Idempotency | None) -> None:
        self._entry = None if idempotency is None else (tenant_id, idempotency.scope, idempotency.key)

    def __enter__(self) -> None:
        if self._entry is not None:
            if self._entry in _in_progress:
                self._entry = None
                raise IdempotencyInProgress
            _in_progress.add(self._entry)

    def __exit__(self, *_: object) -> None:
        if self._entry is not None:
            _in_progress.discard(self._entry)


async def _stored(transaction: Transaction, caller: Caller, idempotency: Idempotency) -> Answer | None:
    row = await transaction.fetch_row(
        _STORED_ANSWER, tenant_id=caller.tenant_id, scope=idempotency.scope, key=idempotency.key
    )
    if row is None:
        return None
    if row["fingerprint"] != idempotency.fingerprint:
        raise IdempotencyReused
    telemetry.IDEMPOTENCY_REPLAYS.inc()
    return Answer(row["status"], row["response"], replayed=True)


async def _keep(
    transaction: Transaction, caller: Caller, idempotency: Idempotency, answer: Answer, now: datetime
) -> None:
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


async def expire_idempotency(database: Database, config: RememberConfig, *, now: datetime, limit: int = 1000) -> int:
    """Forget stored answers older than the configured hours, at most `limit`; returns how many."""
    async with database.work() as transaction:
        return await transaction.execute(
            _EXPIRE_ANSWERS, before=now - timedelta(hours=config.idempotency_hours), limit=limit
        )


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
