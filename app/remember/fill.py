"""Finish what was accepted without a vector: claim, embed outside of any transaction, judge and write.

Invariant: a claim is a lease on the queue row (SKIP LOCKED), so any number of workers may run; a text that fails
returns to the queue with a later due time and takes no other with it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from app import work_metrics
from app.database import Database, Transaction, sql, subject_lock
from app.embed import Embedder, Generation
from app.errors import EmbeddingUnavailable, MnemeError
from app.language import TOKENIZER_VERSION, keyword_vector, word_ids
from app.remember.judge import count_conflicts, judge
from app.remember.memory import Draft, NewMemory, RememberConfig
from app.remember.news import overruled
from app.remember.store import retire
from app.webhooks import tell
from app.wire import halfvec, sparsevec

ACTOR = "worker"
LEASE_SECONDS = 120
LONGEST_WAIT_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Filler:
    """The worker's side of the write path."""

    database: Database
    embedder: Embedder
    generation: Generation
    config: RememberConfig

    async def fill_pending(self, *, now: datetime, limit: int = 32) -> int:
        """Embed up to `limit` pending memories that are due and return how many were claimed (short: none are left)."""
        claimed = await claim(self.database, now=now, limit=limit)
        try:
            for tenant_id in {row["tenant_id"] for row in claimed}:
                await self._fill(tenant_id, [row for row in claimed if row["tenant_id"] == tenant_id], now)
        except (asyncio.CancelledError, MnemeError):  # this process ends, or the database undid it: nobody shall wait
            with suppress(MnemeError):
                await _give_back(self.database, claimed, now)
            raise
        return len(claimed)

    async def _fill(self, tenant_id: UUID, claims: Sequence[Any], now: datetime) -> None:
        attempts = {row["memory_id"]: row["attempts"] for row in claims}
        async with self.database.read(tenant_id) as transaction:
            rows = await transaction.fetch(_TEXTS, tenant_id=tenant_id, **_named(claims))
        for row in rows:
            new = NewMemory(
                user_id=row["user_id"], agent_id=row["agent_id"], content=row["content"], kind=row["kind"],
                key=row["key"], event_at=row["event_at"],
            )  # fmt: skip
            draft = Draft(new, ACTOR, now)
            draft.memory_id, draft.subject_id, draft.stated_at = row["memory_id"], row["subject_id"], row["created_at"]
            draft.woken = row["cold"]
            try:
                draft.windows = (await self.embedder.embed_documents([row["content"]]))[0]
            except EmbeddingUnavailable as error:
                await self._put_back(tenant_id, draft, attempts[draft.memory_id], error.code, now)
                continue
            async with self.database.write(tenant_id, subject_lock(tenant_id, row["user_id"])) as transaction:
                finished = await self._finish(transaction, tenant_id, draft, row, now)
            if finished:
                count_conflicts(draft)
                work_metrics.MEMORIES_WARMED.inc(row["cold"])
        gone = attempts.keys() - {row["memory_id"] for row in rows}
        if gone:  # deleted, or edited and embedded, while they waited
            async with self.database.write(tenant_id) as transaction:
                await transaction.execute(_UNQUEUE, tenant_id=tenant_id, memories=list(gone))

    async def _finish(self, transaction: Transaction, tenant_id: UUID, draft: Draft, row: Any, now: datetime) -> bool:
        """Judge and write what has its vector now; False: it was changed meanwhile and stays in the queue.

        What comes back from the cold is judged like news of the day it was written: what was said since counts.
        """
        if draft.new.kind != "summary":  # which says again what its sources say, and overrules nothing
            await judge(transaction, tenant_id, [draft], self.generation, self.config, stored=True)
        changed = await transaction.execute(
            _FINISH,
            tenant_id=tenant_id,
            subject_id=draft.subject_id,
            memory_id=draft.memory_id,
            version=row["version"],
            status=draft.status,
            embedding=halfvec(draft.windows[0]),
            generation_id=self.generation.generation_id,
            window_count=len(draft.windows),
            window_numbers=list(range(2, len(draft.windows) + 1)),
            window_embeddings=[halfvec(window) for window in draft.windows[1:]],
            twin_id=draft.twin_id,
            links=[link.memory_id for link in draft.links],
            relations=[link.relation for link in draft.links],
            others=[link.other_id for link in draft.links],
            action=draft.status if draft.status != "active" else "warmed" if row["cold"] else "embedded",
            detail=_detail(draft),
            event_id=uuid7(),
            actor=ACTOR,
            now=now,
        )
        if changed and row["cold"]:
            await self._warm(transaction, tenant_id, draft)
        if changed:
            await retire(transaction, tenant_id, [draft])
            await tell(transaction, tenant_id, overruled(draft, draft.retired))
            await transaction.execute(_UNQUEUE, tenant_id=tenant_id, memories=[draft.memory_id])
        return bool(changed)

    async def _warm(self, transaction: Transaction, tenant_id: UUID, draft: Draft) -> None:
        keywords = keyword_vector(draft.new.content)
        await transaction.execute(
            _WARM, tenant_id=tenant_id, subject_id=draft.subject_id, memory_id=draft.memory_id,
            keywords=sparsevec(keywords.ids, keywords.counts), word_count=keywords.word_count,
            tokenizer_version=TOKENIZER_VERSION, term_ids=word_ids(draft.new.content),
        )  # fmt: skip

    async def _put_back(self, tenant_id: UUID, draft: Draft, attempts: int, reason: str, now: datetime) -> None:
        wait_seconds = min(LONGEST_WAIT_SECONDS, 2.0 ** min(attempts, 12))
        async with self.database.write(tenant_id) as transaction:
            await transaction.execute(
                _PUT_BACK, tenant_id=tenant_id, memory_id=draft.memory_id, reason=reason,
                due_at=now + timedelta(seconds=wait_seconds),
            )  # fmt: skip


async def claim(database: Database, *, now: datetime, limit: int) -> list[Any]:
    """Lease due rows of the embedding queue, over all tenants."""
    async with database.work() as transaction:
        return await transaction.fetch(_CLAIM, now=now, until=now + timedelta(seconds=LEASE_SECONDS), limit=limit)


async def _give_back(database: Database, claimed: Sequence[Any], now: datetime) -> None:
    """Undo claims of this moment, of whatever has not left the queue or been put back by itself."""
    async with database.work() as transaction:
        await transaction.execute(
            _GIVE_BACK, tenants=[row["tenant_id"] for row in claimed], **_named(claimed), now=now,
            until=now + timedelta(seconds=LEASE_SECONDS),
        )  # fmt: skip


async def backlog(database: Database, *, now: datetime) -> tuple[int, float]:
    """How many memories wait for a vector, and for how many seconds the oldest has waited."""
    async with database.work() as transaction:
        row = await transaction.fetch_row(_BACKLOG)
    assert row is not None
    return row["waiting"], max(0.0, (now - row["oldest"]).total_seconds()) if row["oldest"] else 0.0


def _detail(draft: Draft) -> dict[str, Any]:
    """What the audit trail says of a memory that was judged when it got its vector."""
    if draft.outdated_by is not None:
        return {"reason": draft.outdated_by[1], "by": str(draft.outdated_by[0])}
    return {"review": draft.review} if draft.in_review else {}


def _named(rows: Sequence[Any]) -> dict[str, list[UUID]]:
    return {"subjects": [row["subject_id"] for row in rows], "memories": [row["memory_id"] for row in rows]}


_CLAIM = sql("""
    UPDATE embedding_queue q SET due_at = :until, attempts = least(q.attempts + 1, 30000)
    FROM (
        SELECT tenant_id, subject_id, memory_id FROM embedding_queue
        WHERE due_at <= :now ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED
    ) AS due
    WHERE q.tenant_id = due.tenant_id AND q.subject_id = due.subject_id AND q.memory_id = due.memory_id
    RETURNING q.tenant_id, q.subject_id, q.memory_id, q.attempts
""")
_GIVE_BACK = sql("""
    UPDATE embedding_queue q SET due_at = :now, attempts = q.attempts - 1
    FROM unnest(cast(:tenants AS uuid[]), cast(:subjects AS uuid[]), cast(:memories AS uuid[]))
         AS named (tenant_id, subject_id, memory_id)
    WHERE q.tenant_id = named.tenant_id AND q.subject_id = named.subject_id AND q.memory_id = named.memory_id
      AND q.due_at = :until
""")
_TEXTS = sql("""
    SELECT m.subject_id, m.memory_id, s.user_id, m.agent_id, m.content, m.kind, m.key, m.version, m.event_at,
           m.created_at, m.cooled_by IS NOT NULL AS cold
    FROM unnest(cast(:subjects AS uuid[]), cast(:memories AS uuid[])) AS named (subject_id, memory_id)
    JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = named.subject_id AND m.memory_id = named.memory_id
    JOIN subjects s ON s.tenant_id = m.tenant_id AND s.subject_id = m.subject_id
    WHERE m.embedding IS NULL AND m.status = 'active'
""")
_FINISH = sql("""
    WITH finished AS (
        UPDATE memories SET embedding = :embedding, generation_id = :generation_id, window_count = :window_count,
                            status = cast(:status AS text),
                            deprecated_at = CASE WHEN cast(:status AS text) = 'deprecated'
                                            THEN cast(:now AS timestamptz) END
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id
          AND version = :version AND status = 'active'
        RETURNING tenant_id, subject_id, memory_id, version
    ), windows AS (
        INSERT INTO memory_windows (tenant_id, subject_id, memory_id, window_number, embedding)
        SELECT f.tenant_id, f.subject_id, f.memory_id, w.window_number, w.embedding
        FROM finished f, unnest(cast(:window_numbers AS smallint[]), cast(:window_embeddings AS halfvec[]))
             AS w (window_number, embedding)
        ON CONFLICT (tenant_id, subject_id, memory_id, window_number) DO UPDATE SET embedding = excluded.embedding
    ), linked AS (
        INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
        SELECT f.tenant_id, f.subject_id, link.memory_id, link.relation, link.other_id, cast(:now AS timestamptz)
        FROM finished f, unnest(cast(:links AS uuid[]), cast(:relations AS text[]), cast(:others AS uuid[]))
             AS link (memory_id, relation, other_id)
        ON CONFLICT DO NOTHING
    ), counted AS (
        UPDATE memory_usage u SET access_count = u.access_count + 1, last_accessed_at = :now
        FROM finished f
        WHERE u.tenant_id = f.tenant_id AND u.subject_id = f.subject_id AND u.memory_id = :twin_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, :event_id, memory_id, cast(:action AS text), cast(:actor AS text), version,
           cast(:detail AS jsonb), :now
    FROM finished
""")
_WARM = sql("""
    WITH large AS (
        SELECT ann FROM subjects WHERE tenant_id = :tenant_id AND subject_id = :subject_id
    ), noted AS (
        INSERT INTO memory_terms (tenant_id, subject_id, memory_id, term_id)
        SELECT :tenant_id, :subject_id, cast(:memory_id AS uuid), term_id
        FROM large, unnest(cast(:term_ids AS int[])) AS term_id WHERE large.ann
        ON CONFLICT DO NOTHING
    )
    UPDATE memories m SET cooled_by = NULL, signs = NULL, signs_generation_id = NULL, keywords = :keywords,
           word_count = :word_count, tokenizer_version = :tokenizer_version, ann = large.ann
    FROM large
    WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = :memory_id
""")
_UNQUEUE = sql("DELETE FROM embedding_queue WHERE tenant_id = :tenant_id AND memory_id = ANY(:memories)")
_PUT_BACK = sql("""
    UPDATE embedding_queue SET due_at = :due_at, last_error = :reason
    WHERE tenant_id = :tenant_id AND memory_id = :memory_id
""")
_BACKLOG = sql("SELECT count(*) AS waiting, min(created_at) AS oldest FROM embedding_queue")
