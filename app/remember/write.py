"""remember(): the write use case, for one memory or a batch, the same rules on every path.

Invariant: vectors are made before the transaction opens; row, vector, keywords, usage, links, audit event and the
idempotent answer commit together or not at all. Writes of one subject take turns, so no verdict is overtaken.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from app import telemetry
from app.database import Database, subject_lock
from app.embed import Embedder, Generation
from app.errors import EmbeddingUnavailable
from app.guard import Caller
from app.idempotency import Answer, Idempotency, keep_answer, only_once, stored_answer
from app.remember.judge import judge
from app.remember.memory import Draft, NewMemory, RememberConfig, Written
from app.remember.served import SERVED, without_served
from app.remember.store import store


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
        with only_once(caller.tenant_id, idempotency):
            if idempotency is not None and (stored := await self._replay(caller, idempotency)):
                return stored
            drafts = [_draft(item, caller.actor, now) for item in items]
            kept = [draft for draft in drafts if draft.outcome != "filtered"]
            await self._embed(kept)
            locks = sorted({subject_lock(caller.tenant_id, item.user_id) for item in items})
            async with self.database.write(caller.tenant_id, *locks) as transaction:
                if idempotency is not None and (stored := await stored_answer(transaction, caller, idempotency)):
                    return stored
                if kept:
                    await judge(transaction, caller.tenant_id, kept, self.generation, self.config)
                written = iter(await store(transaction, caller.tenant_id, kept, self.generation.generation_id))
                result = answer(
                    [
                        Written("filtered", None, reason=draft.reason)
                        if draft.outcome == "filtered"
                        else replace(next(written), reason=draft.reason)
                        for draft in drafts
                    ]
                )
                if idempotency is not None:
                    await keep_answer(transaction, caller, idempotency, result, now=now)
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
            return await stored_answer(transaction, caller, idempotency)


def _draft(item: NewMemory, actor: str, now: datetime) -> Draft:
    said = without_served(item.content)
    draft = Draft(item if said == item.content else replace(item, content=said), actor, now)
    draft.reason = None if said == item.content else SERVED
    draft.outcome = "created" if said else "filtered"
    return draft
