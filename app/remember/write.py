"""remember(): the write use case, for one memory or a batch, the same rules on every path.

Invariant: vectors are made before the transaction opens; row, vector, keywords, usage, links, audit event and the
idempotent answer commit together or not at all. Writes of one subject take turns, so no verdict is overtaken.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from uuid import UUID

from app import telemetry
from app.database import Database, Transaction, subject_lock
from app.embed import Embedder, Generation
from app.errors import EmbeddingUnavailable, MnemeError
from app.guard import Caller
from app.idempotency import Answer, Idempotency, keep_answers, key_lock, only_once, stored_answer, stored_answers
from app.remember.group import LIGHT, Groups
from app.remember.judge import count_conflicts, look, looks_far
from app.remember.memory import Draft, NewMemory, RememberConfig, Written, weigh
from app.remember.news import news_of
from app.remember.opinion import Opinion, consult
from app.remember.settle import settled
from app.remember.store import ROWS_AT_ONCE, Early, store
from app.webhooks import Subscriptions, tell

Within = Callable[[Transaction, Sequence[Written]], Awaitable[None]]
"""What else is written in the transaction of a request, told what became of its memories."""


@dataclass(slots=True, eq=False)
class Request:
    """One call of remember(): whose it is, what it brings, and what it wants to know afterwards."""

    caller: Caller
    items: Sequence[NewMemory]
    answer: Callable[[list[Written]], Answer]
    now: datetime
    idempotency: Idempotency | None
    drafts: list[Draft]
    within: Within | None = None
    degraded: tuple[str, ...] = ()  # what could not be asked about conflicts
    heard: bool = False  # whether somebody wants to be told
    judged: bool = False

    @staticmethod
    def of(
        caller: Caller,
        items: Sequence[NewMemory],
        answer: Callable[[list[Written]], Answer],
        now: datetime,
        idempotency: Idempotency | None,
    ) -> "Request":
        drafts = [_draft(item, caller, now) for item in items]
        return Request(caller, items, answer, now, idempotency, drafts)

    @property
    def kept(self) -> list[Draft]:
        """Those that say something of their own."""
        return [draft for draft in self.drafts if draft.outcome != "filtered"]

    @property
    def locks(self) -> frozenset[int]:
        tenant_id = self.caller.tenant_id
        locks = {subject_lock(tenant_id, user_id) for user_id in {item.user_id for item in self.items}}
        if self.idempotency is not None:
            locks.add(key_lock(tenant_id, self.idempotency))
        return frozenset(locks)

    @property
    def slots(self) -> frozenset[tuple[str | None, str | None, str]]:
        """Two values of a slot never meet in one group: each is active once, and its end an event of its own."""
        return frozenset((item.user_id, item.agent_id, item.key) for item in self.items if item.key is not None)

    def begin(self) -> None:
        """Before the verdict: if there was one before, in a transaction that failed, it is forgotten."""
        if self.judged:
            before = self.drafts
            self.drafts = [_draft(item, self.caller, self.now) for item in self.items]
            for draft, known in zip(self.drafts, before, strict=True):
                draft.windows, draft.opinions = known.windows, known.opinions
        self.judged = True

    def conclude(self, stored: Iterator[Written]) -> tuple[Answer | MnemeError, list[Written]]:
        """The answer and what became of each; raises what it refuses with, unless nothing was stored anyway."""
        written = [
            Written("filtered", None, reason=draft.reason)
            if draft.outcome == "filtered"
            else self._told(draft, next(stored))
            for draft in self.drafts
        ]
        try:
            return self.answer(written), written
        except MnemeError as refusal:
            if self.kept:
                raise
            return refusal, written

    def _told(self, draft: Draft, written: Written) -> Written:
        if draft.reason is None and not self.degraded:
            return written
        return replace(written, reason=draft.reason, degraded=self.degraded)


@dataclass(frozen=True, slots=True)
class Rememberer:
    """The write path of one process: where memories go and what makes their vectors."""

    database: Database
    embedder: Embedder
    generation: Generation
    config: RememberConfig
    opinions: Sequence[Opinion] = ()
    subscriptions: Subscriptions = field(init=False, repr=False, compare=False)
    _groups: Groups[Request, Answer] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subscriptions", Subscriptions(self.database))
        object.__setattr__(self, "_groups", Groups(self.database, self._store, _early))

    async def remember(
        self,
        caller: Caller,
        items: Sequence[NewMemory],
        answer: Callable[[list[Written]], Answer],
        *,
        now: datetime,
        idempotency: Idempotency | None = None,
        within: Within | None = None,
    ) -> Answer:
        """Store memories in one transaction and return `answer` of what became of each, in order.

        `within` writes more in the same transaction, which then serves no other request; what it raises undoes all.
        What Mneme itself put into a prompt is taken out of a text; one that says nothing else, or only small talk, is
        `filtered`.
        An embedder that is down or slower than the deadline leaves them `pending` for the worker; a model for conflicts
        that is down leaves the rules alone to judge, `degraded`. Raises
        IdempotencyInProgress, IdempotencyReused, DatabaseUnavailable, PoolExhausted, DeadlineExceeded, StorageFull.
        """
        with only_once(caller.tenant_id, idempotency):
            if idempotency is not None and (stored := await self._replay(caller, idempotency)):
                return stored
            settled_items = [settled(item, self.config, now) for item in items]
            request = Request.of(caller, settled_items, answer, now, idempotency)
            request.within = within
            await self._embed(request.kept)
            if self.opinions and (known := [draft for draft in request.kept if draft.windows is not None]):
                request.degraded = await consult(self.database, caller.tenant_id, known, self.generation, self.opinions)
            request.heard = await self.subscriptions.hears(caller.tenant_id)
            weight = len(items) if within is None else LIGHT + len(items)
            result = await self._groups.commit(
                caller.tenant_id, request, locks=request.locks, unlike=request.slots, weight=weight
            )
        if not result.replayed:
            for outcome, count in Counter(draft.outcome for draft in request.drafts).items():
                telemetry.MEMORY_WRITES.labels(outcome).inc(count)
            for draft in request.drafts:
                count_conflicts(draft)
        return result

    async def _store(self, transaction: Transaction, requests: Sequence[Request]) -> list[Answer | MnemeError]:
        """Judge and store the drafts of requests of one tenant, in their order, as if they were one batch."""
        tenant_id = requests[0].caller.tenant_id
        keyed = [request.idempotency for request in requests if request.idempotency is not None]
        known = await stored_answers(transaction, tenant_id, keyed) if keyed else {}
        answers: dict[Request, Answer | MnemeError] = {
            request: known[request.idempotency] for request in requests if request.idempotency in known
        }
        new = [request for request in requests if request not in answers]
        for request in new:
            request.begin()
        drafts = [draft for request in new for draft in request.kept]
        concluded: dict[Request, tuple[Answer | MnemeError, list[Written]]] = {}

        def conclude(written: list[Written]) -> None:
            if not concluded:  # else it was made early
                stored = iter(written)
                concluded.update({request: request.conclude(stored) for request in new})

        conclude(await self._judge_and_store(transaction, tenant_id, drafts, conclude) if drafts else [])
        keep: list[tuple[Idempotency, Answer, datetime]] = []
        besides: list[tuple[Within, list[Written]]] = []
        for request in new:
            answer, written = concluded[request]
            answers[request] = answer
            if request.within is not None:
                besides.append((request.within, written))
            if request.idempotency is not None and isinstance(answer, Answer):
                keep.append((request.idempotency, answer, request.now))
        if keep:
            await keep_answers(transaction, tenant_id, keep)
        if any(request.heard for request in new):
            await tell(transaction, tenant_id, news_of(drafts))
        for within, written in besides:
            await within(transaction, written)
        return [answers[request] for request in requests]

    async def _judge_and_store(
        self, transaction: Transaction, tenant_id: UUID, drafts: Sequence[Draft],
        told: Callable[[list[Written]], object],
    ) -> list[Written]:  # fmt: skip
        early = Early(drafts, self.generation.generation_id)
        transaction.meanwhile(early.pieces(0))  # done while the database looks for neighbours
        judging = await look(transaction, tenant_id, drafts, self.generation, self.config)
        return await store(
            transaction, tenant_id, drafts, self.generation.generation_id, judged=judging.until, early=early, told=told
        )

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


def _early(requests: Sequence[Request]) -> Iterator[Callable[[], object]]:
    """What is asked of each text first of all is kept with the text."""
    drafts = [draft for request in requests for draft in request.kept]
    yield from (partial(looks_far, draft) for draft in drafts)
    yield from (partial(weigh, drafts[start : start + ROWS_AT_ONCE]) for start in range(0, len(drafts), ROWS_AT_ONCE))


def _draft(item: NewMemory, caller: Caller, now: datetime) -> Draft:
    draft = Draft(item, caller.actor, now, caller.trust)
    draft.reason = item.left_out
    draft.outcome = "created" if item.content else "filtered"
    return draft
