"""The shelf: fetch, list, amend, erase and tell the history of memories by the owner's own hand.

Invariant: an edit changes text, vector, keywords and hash together and keeps the old version; an id that the caller may
not see answers like one that does not exist.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
from uuid_utils.compat import uuid7

from app.database import Database, Statement, Transaction, sql, subject_lock
from app.embed import Embedder, Generation
from app.errors import DuplicateContent, EmbeddingUnavailable, Invalid, KeyTaken, NotFound, VersionConflict
from app.extract import NOTHING_SAID, without_served
from app.guard import Caller
from app.kinds import KINDS
from app.language import TOKENIZER_VERSION, keyword_vector, word_ids
from app.memory import MEMORY_COLUMNS, MEMORY_SOURCE, as_json
from app.remember.memory import RememberConfig, content_hash
from app.wire import halfvec, sparsevec

AMENDABLE = (
    "content", "kind", "key", "importance", "tags", "metadata", "source", "event_at", "valid_from", "valid_to",
    "expires_at", "pinned",
)  # fmt: skip
ATTEMPTS = 3  # of an edit without If-Match that others overtake


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What to list: conditions that are None do not apply; `before` continues after the memory with that id."""

    user_id: str | None = None
    shared_only: bool = False
    agent_id: str | None = None
    kind: str | None = None
    key: str | None = None
    tag: str | None = None
    session_id: str | None = None
    status: str = "active"
    created_from: datetime | None = None
    created_to: datetime | None = None
    before: UUID | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Shelf:
    """Memories by id and by list, for one process."""

    database: Database
    embedder: Embedder
    generation: Generation
    config: RememberConfig

    async def get(self, caller: Caller, memory_id: UUID, *, with_vector: bool = False) -> dict[str, Any]:
        """One memory in its JSON shape, of any status but archived. Raises NotFound."""
        async with self.database.read(caller.tenant_id) as transaction:
            row = await visible(transaction, caller, memory_id)
            memory = as_json(row)
            if with_vector:
                vector = await transaction.fetch_value(
                    _VECTOR, tenant_id=caller.tenant_id, subject_id=row["subject_id"], memory_id=memory_id
                )
                memory["vector"] = None if vector is None else vector.tolist()
            return memory

    async def browse(self, caller: Caller, listing: Listing) -> list[dict[str, Any]]:
        """Memories, newest first, at most `listing.limit`."""
        values = {
            "user_id": listing.user_id,
            "bound_agent_id": caller.agent_id,
            "agent_id": listing.agent_id,
            "kind": listing.kind,
            "key": listing.key,
            "tag": listing.tag,
            "session_id": listing.session_id,
            "created_from": listing.created_from,
            "created_to": listing.created_to,
            "before": listing.before,
        }
        conditions = [condition for name, condition in _CONDITIONS.items() if values[name] is not None]
        if listing.shared_only:
            conditions.append("m.subject_id = :tenant_id")
        statement = _listing(tuple(conditions))
        async with self.database.read(caller.tenant_id) as transaction:
            rows = await transaction.fetch(
                statement, tenant_id=caller.tenant_id, status=listing.status, limit=listing.limit, **values
            )
        return [as_json(row) for row in rows]

    async def history(self, caller: Caller, memory_id: UUID) -> list[dict[str, Any]]:
        """Everything that happened to a memory, oldest first, with the text of each replaced version; also when erased.

        Raises NotFound.
        """
        async with self.database.read(caller.tenant_id) as transaction:
            row = await visible(transaction, caller, memory_id, archived=True)
            events = await transaction.fetch(
                _HISTORY, tenant_id=caller.tenant_id, subject_id=row["subject_id"], memory_id=memory_id
            )
        return [dict(event) for event in events]

    async def amend(
        self, caller: Caller, memory_id: UUID, changes: Mapping[str, Any], *, now: datetime,
        version: int | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Change fields of an active memory and return it.

        `changes` maps names of AMENDABLE to values; `version` is the one the caller has seen, None: the newest. Raises
        NotFound, VersionConflict, DuplicateContent (another active memory says the new text), KeyTaken, Invalid. What
        Mneme itself put into a prompt is taken out of the new text.
        """
        if "content" in changes:
            changes = {**changes, "content": without_served(changes["content"])}
            if not changes["content"]:
                raise Invalid(errors=[NOTHING_SAID])
        for attempt in range(1, ATTEMPTS + 1):
            async with self.database.read(caller.tenant_id) as transaction:
                seen = await visible(transaction, caller, memory_id, to_change=True)
            if version is not None and seen["version"] != version:
                raise VersionConflict
            new = {name: seen[name] for name in AMENDABLE} | dict(changes)
            # Whoever changes what is cold has used it, so it is made whole.
            remake = new["content"] != seen["content"] or seen["embedding"] == "cold"
            windows = await self._windows(new["content"]) if remake else None
            lock = subject_lock(caller.tenant_id, seen["user_id"])
            try:
                async with self.database.write(caller.tenant_id, lock) as transaction:
                    amended = await self._amend(transaction, caller, seen, new, windows, now)
            except asyncpg.UniqueViolationError as error:
                raise (KeyTaken if error.constraint_name == "memories_slot_key" else DuplicateContent) from error
            if amended is not None:
                return as_json(amended)
            if version is not None or attempt == ATTEMPTS:
                break
        raise VersionConflict

    async def erase(self, caller: Caller, memory_id: UUID, *, now: datetime, version: int | None = None) -> None:
        """Archive a memory: gone from every answer, restorable for the grace time. Raises NotFound, VersionConflict."""
        async with self.database.write(caller.tenant_id) as transaction:
            row = await visible(transaction, caller, memory_id, to_change=True)
            if version is not None and row["version"] != version:
                raise VersionConflict
            changed = await transaction.execute(
                _ARCHIVE, tenant_id=caller.tenant_id, subject_id=row["subject_id"], memory_id=memory_id,
                version=row["version"], event_id=uuid7(), actor=caller.actor, now=now,
            )  # fmt: skip
            if not changed:
                raise VersionConflict

    async def _windows(self, content: str) -> Any:
        """Vectors of the new text, or an empty list while the embedder is away: the worker completes it."""
        try:
            async with asyncio.timeout(self.config.embedding_deadline_seconds):
                return (await self.embedder.embed_documents([content]))[0]
        except (EmbeddingUnavailable, TimeoutError):
            return []

    async def _amend(
        self, transaction: Transaction, caller: Caller, seen: Mapping[str, Any], new: Mapping[str, Any], windows: Any,
        now: datetime,
    ) -> Any:  # fmt: skip
        names = {"tenant_id": caller.tenant_id, "subject_id": seen["subject_id"], "memory_id": seen["id"]}
        changed = sorted(name for name in AMENDABLE if new[name] != seen[name])
        if not changed:
            return seen
        # Whoever words it anew stands for it; whoever changes something about it makes it no more credible.
        trust = caller.trust if "content" in changed else min(seen["trust"], caller.trust)
        done = await transaction.execute(
            _AMEND,
            **names,
            **{name: list(value) if name == "tags" else value for name, value in new.items()},
            version=seen["version"],
            snapshot={name: _plain(seen[name]) for name in (*AMENDABLE, "trust")},
            trust=trust,
            event_id=uuid7(),
            actor=caller.actor,
            detail={"changed": changed},
            forget_at=None
            if new["pinned"]
            else KINDS[new["kind"]].forget_at(new["importance"], seen["access_count"], now),
            now=now,
        )
        if not done:
            return None
        if windows is not None:
            keywords = keyword_vector(new["content"])
            await transaction.execute(
                _AMEND_TEXT,
                **names,
                content_hash=content_hash(new["content"]),
                keywords=sparsevec(keywords.ids, keywords.counts),
                word_count=keywords.word_count,
                term_ids=word_ids(new["content"]),
                tokenizer_version=TOKENIZER_VERSION,
                embedding=halfvec(windows[0]) if len(windows) else None,
                generation_id=self.generation.generation_id if len(windows) else None,
                window_count=max(1, len(windows)),
                now=now,
            )
            if len(windows) > 1:
                await transaction.execute(
                    _AMEND_WINDOWS,
                    **names,
                    numbers=list(range(2, len(windows) + 1)),
                    embeddings=[halfvec(window) for window in windows[1:]],
                )
        return await transaction.fetch_row(_BY_ID, tenant_id=caller.tenant_id, memory_id=seen["id"])


async def visible(
    transaction: Transaction, caller: Caller, memory_id: UUID, *, archived: bool = False, to_change: bool = False
) -> Any:
    """The row of MEMORY_COLUMNS and subject_id of a memory that the caller may see or change. Raises NotFound."""
    may = caller.may_change if to_change else caller.may_read
    row = await transaction.fetch_row(_BY_ID, tenant_id=caller.tenant_id, memory_id=memory_id)
    if row is None or (row["status"] == "archived" and not archived) or not may(row["user_id"], row["agent_id"]):
        raise NotFound
    return row


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


_CONDITIONS = {
    "user_id": "m.subject_id = (SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id)",
    "bound_agent_id": "(m.agent_id IS NULL OR m.agent_id = :bound_agent_id)",
    "agent_id": "m.agent_id = :agent_id",
    "kind": "m.kind = :kind",
    "key": "m.key = :key",
    "tag": "m.tags @> ARRAY[cast(:tag AS text)]",
    "session_id": "m.session_id = :session_id",
    "created_from": "m.created_at >= :created_from",
    "created_to": "m.created_at < :created_to",
    "before": "m.memory_id < :before AND u.memory_id < :before",  # both, or all usage above is read for every page
}
_listings: dict[tuple[str, ...], Statement] = {}


def _listing(conditions: tuple[str, ...]) -> Statement:
    if conditions not in _listings:  # one statement for each set of conditions in use, of 2^11 possible ones
        where = " AND ".join(("m.tenant_id = :tenant_id", "m.status = :status", *conditions))
        _listings[conditions] = sql(
            f"SELECT {MEMORY_COLUMNS} FROM {MEMORY_SOURCE} WHERE {where} ORDER BY m.memory_id DESC LIMIT :limit"
        )
    return _listings[conditions]


_BY_ID = sql(f"""
    SELECT {MEMORY_COLUMNS}, m.subject_id FROM {MEMORY_SOURCE}
    WHERE m.tenant_id = :tenant_id AND m.memory_id = :memory_id
""")
_VECTOR = sql("""
    SELECT embedding FROM memories WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id
""")
_HISTORY = sql("""
    SELECT e.version, e.action, e.actor, e.created_at AS at, e.detail, v.snapshot AS replaced
    FROM memory_events e
    LEFT JOIN memory_versions v ON v.tenant_id = e.tenant_id AND v.subject_id = e.subject_id
         AND v.memory_id = e.memory_id AND e.action = 'amended' AND v.version = e.version - 1
    WHERE e.tenant_id = :tenant_id AND e.subject_id = :subject_id AND e.memory_id = :memory_id
    ORDER BY e.created_at, e.event_id
""")
_AMEND = sql("""
    WITH amended AS (
        UPDATE memories SET content = :content, kind = :kind, key = :key, importance = :importance, tags = :tags,
               metadata = :metadata, source = :source, event_at = :event_at, valid_from = :valid_from,
               valid_to = :valid_to, expires_at = :expires_at, pinned = :pinned, trust = :trust,
               version = version + 1, updated_at = :now
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id
          AND version = :version AND status = 'active'
        RETURNING tenant_id, subject_id, memory_id, version
    ), kept AS (
        INSERT INTO memory_versions (tenant_id, subject_id, memory_id, version, snapshot, replaced_at)
        SELECT tenant_id, subject_id, memory_id, version - 1, :snapshot, :now FROM amended
    ), dated AS (
        UPDATE memory_usage u SET forget_at = :forget_at FROM amended a
        WHERE u.tenant_id = a.tenant_id AND u.subject_id = a.subject_id AND u.memory_id = a.memory_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, :event_id, memory_id, 'amended', :actor, version, :detail, :now FROM amended
""")
_AMEND_TEXT = sql("""
    WITH cleared AS (
        DELETE FROM memory_windows
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id
    ), also_cleared AS (
        DELETE FROM other_windows
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id
    ), forgotten AS (
        DELETE FROM memory_terms
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id
          AND term_id <> ALL (cast(:term_ids AS int[]))
    ), noted AS (
        INSERT INTO memory_terms (tenant_id, subject_id, memory_id, term_id)
        SELECT s.tenant_id, s.subject_id, cast(:memory_id AS uuid), term_id
        FROM subjects s, unnest(cast(:term_ids AS int[])) AS term_id
        WHERE s.tenant_id = :tenant_id AND s.subject_id = :subject_id AND s.ann
        ON CONFLICT DO NOTHING
    ), queued AS (
        INSERT INTO embedding_queue (tenant_id, subject_id, memory_id, due_at, created_at)
        SELECT :tenant_id, :subject_id, :memory_id, :now, :now WHERE cast(:embedding AS halfvec) IS NULL
        ON CONFLICT (tenant_id, subject_id, memory_id) DO UPDATE SET due_at = excluded.due_at, attempts = 0
    )
    UPDATE memories m SET content_hash = :content_hash, keywords = :keywords, word_count = :word_count,
           tokenizer_version = :tokenizer_version, embedding = :embedding, generation_id = :generation_id,
           window_count = :window_count, cooled_by = NULL, signs = NULL, signs_generation_id = NULL, ann = s.ann,
           other_embedding = NULL, other_generation_id = NULL, other_window_count = 1
    FROM subjects s
    WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = :memory_id
      AND s.tenant_id = m.tenant_id AND s.subject_id = m.subject_id
""")
_AMEND_WINDOWS = sql("""
    INSERT INTO memory_windows (tenant_id, subject_id, memory_id, window_number, embedding)
    SELECT :tenant_id, :subject_id, :memory_id, item.*
    FROM unnest(cast(:numbers AS smallint[]), cast(:embeddings AS halfvec[])) AS item
""")
_ARCHIVE = sql("""
    WITH before AS (
        SELECT tenant_id, subject_id, memory_id, status, deprecated_at FROM memories
        WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = :memory_id AND version = :version
          AND status <> 'archived'
        FOR UPDATE
    ), archived AS (
        UPDATE memories m SET status = 'archived', deprecated_at = NULL, updated_at = :now, version = version + 1
        FROM before b
        WHERE m.tenant_id = b.tenant_id AND m.subject_id = b.subject_id AND m.memory_id = b.memory_id
        RETURNING m.tenant_id, m.subject_id, m.memory_id, m.version, b.status, b.deprecated_at
    ), kept AS (
        INSERT INTO memory_archive (tenant_id, subject_id, memory_id, was, deprecated_at, rule, archived_at)
        SELECT tenant_id, subject_id, memory_id, status, deprecated_at, 'asked', :now FROM archived
    ), undated AS (
        UPDATE memory_usage u SET forget_at = NULL FROM archived a
        WHERE u.tenant_id = a.tenant_id AND u.subject_id = a.subject_id AND u.memory_id = a.memory_id
    ), unqueued AS (
        DELETE FROM embedding_queue q USING archived a
        WHERE q.tenant_id = a.tenant_id AND q.subject_id = a.subject_id AND q.memory_id = a.memory_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, :event_id, memory_id, 'archived', :actor, version, '{}', :now FROM archived
""")
