"""Putting judged drafts into the tables: overruled rows, new rows with all that belongs to them, and repeats.

Invariant: everything here runs inside the writing transaction; one statement writes a memory's row, vector, keywords,
usage, links, queue entry and audit event.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from app.cold import wake
from app.database import Statement, Transaction, sql
from app.language import TOKENIZER_VERSION, word_ids
from app.memory import MEMORY_COLUMNS, MEMORY_SOURCE, as_json, importance_score
from app.remember.memory import Draft, Written
from app.wire import halfvec, new_id, sparsevec


async def store(
    transaction: Transaction, tenant_id: UUID, drafts: Sequence[Draft], generation_id: int
) -> list[Written]:
    """Write judged drafts: overruled rows first (they free the key slot), then all new rows in one statement."""
    await retire(transaction, tenant_id, drafts)
    repeats = [draft for draft in drafts if draft.twin_id is not None]
    new = [draft for draft in drafts if draft.outcome != "duplicate" or draft.status == "duplicate"]
    if new:
        columns = _columns(new, tenant_id, generation_id)
        statement = _insert(tuple(name for name in _OPTIONAL if columns[name]))
        await transaction.execute(statement, **columns)
    twins = await _repeat(transaction, tenant_id, repeats) if repeats else {}
    rendered = {draft.memory_id: _render(draft) for draft in new}
    twins |= {memory_id: row for memory_id, row in rendered.items() if memory_id not in twins}
    return [_written(draft, twins) for draft in drafts]


async def retire(transaction: Transaction, tenant_id: UUID, drafts: Sequence[Draft]) -> None:
    """Deprecate what judged drafts overrule, with the reason in the audit trail."""
    retired = [(draft, memory_id, reason) for draft in drafts for memory_id, reason in draft.retired.items()]
    if retired:
        await transaction.execute(
            _RETIRE,
            tenant_id=tenant_id,
            subjects=[draft.subject_id for draft, _, _ in retired],
            memories=[memory_id for _, memory_id, _ in retired],
            details=[{"reason": reason, "by": str(draft.memory_id)} for draft, _, reason in retired],
            events=[new_id() for _ in retired],
            **_signed([draft for draft, _, _ in retired]),
        )


def _written(draft: Draft, memories: dict[UUID, Any]) -> Written:
    if draft.twin_id is None:
        related = tuple(
            (link.other_id, link.relation) if link.memory_id == draft.memory_id else (link.memory_id, "superseded_by")
            for link in draft.links
        )
        return Written(draft.outcome, memories[draft.memory_id], related)
    kept = ((draft.memory_id, "duplicate"),) if draft.status == "duplicate" else ()
    return Written("duplicate", memories[draft.twin_id], kept)


def _signed(drafts: Sequence[Draft]) -> dict[str, list[Any]]:
    """Who and when, draft by draft: those of several requests may be stored together."""
    return {"actors": [draft.actor for draft in drafts], "moments": [draft.now for draft in drafts]}


async def _repeat(transaction: Transaction, tenant_id: UUID, drafts: Sequence[Draft]) -> dict[UUID, Any]:
    """Count repeats on their twins and fetch these."""
    rows = await transaction.fetch(
        _REPEAT,
        tenant_id=tenant_id,
        subjects=[draft.subject_id for draft in drafts],
        twins=[draft.twin_id for draft in drafts],
        kept=[draft.memory_id if draft.status == "duplicate" else None for draft in drafts],
        events=[new_id() for _ in drafts],
        trusts=[draft.trust for draft in drafts],
        **_signed(drafts),
    )
    await wake(
        transaction, tenant_id, [row["id"] for row in rows if row["embedding"] == "cold"],
        now=max(draft.now for draft in drafts),
    )  # fmt: skip
    more = {row["id"]: row["most_trust"] for row in rows if row["most_trust"] > row["trust"]}
    if more:  # whoever is believed more says it, too
        places = {draft.twin_id: draft.subject_id for draft in drafts}
        await transaction.execute(
            _BELIEVE, tenant_id=tenant_id, subjects=[places[memory_id] for memory_id in more], memories=list(more),
            trusts=list(more.values()),
        )  # fmt: skip
    # The counters of this very statement are not visible to its own SELECT.
    return {
        row["id"]: as_json(row)
        | {
            "access_count": row["access_count"] + row["repeats"], "last_accessed_at": row["last_repeat"],
            "trust": more.get(row["id"], row["trust"]),
        }
        for row in rows
    }  # fmt: skip


def _render(draft: Draft) -> dict[str, Any]:
    """A memory as it is shown once it is stored: what as_json() makes of its row."""
    new = draft.new
    return {
        "id": draft.memory_id,
        "user_id": new.user_id,
        "agent_id": new.agent_id,
        "content": new.content,
        "content_type": new.content_type,
        "kind": new.kind,
        "key": new.key,
        "importance": draft.importance,
        "tags": list(new.tags),
        "metadata": new.metadata,
        "source": new.source,
        "session_id": new.session_id,
        "status": draft.status,
        "access_count": 0,
        "last_accessed_at": None,
        "created_at": draft.now,
        "updated_at": draft.now,
        "event_at": new.event_at,
        "valid_from": new.valid_from,
        "valid_to": new.valid_to,
        "expires_at": new.expires_at,
        "pinned": new.pinned,
        "version": 1,
        "embedding": "pending" if draft.windows is None else "ready",
        "trust": draft.trust,
        "importance_score": importance_score(draft.importance),
    }


def text_array(values: Sequence[str]) -> str:
    """The text form of a text[]: unnest() cannot take an array of arrays apart by one dimension."""
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


def _columns(drafts: Sequence[Draft], tenant_id: UUID, generation_id: int) -> dict[str, Any]:
    """The parameters of an insert: memories column by column, then the rows of the tables beside them."""
    news, keywords = [draft.new for draft in drafts], [draft.weigh() for draft in drafts]
    subjects = {draft.subject_id: draft for draft in reversed(drafts) if draft.new_subject}
    return {
        "tenant_id": tenant_id,
        "new_subjects": list(subjects),
        "users": [draft.new.user_id for draft in subjects.values()],
        "subject_moments": [draft.now for draft in subjects.values()],
        "subjects": [draft.subject_id for draft in drafts],
        "memories": [draft.memory_id for draft in drafts],
        "agents": [new.agent_id for new in news],
        "statuses": [draft.status for draft in drafts],
        "contents": [new.content for new in news],
        "content_types": [new.content_type for new in news],
        "kinds": [new.kind for new in news],
        "keys": [new.key for new in news],
        "importances": [draft.importance for draft in drafts],
        "tags": [text_array(new.tags) for new in news],
        "metadata": [new.metadata for new in news],
        "sources": [new.source for new in news],
        "sessions": [new.session_id for new in news],
        "pinned": [new.pinned for new in news],
        "event_at": [new.event_at for new in news],
        "valid_from": [new.valid_from for new in news],
        "valid_to": [new.valid_to for new in news],
        "expires_at": [new.expires_at for new in news],
        "hashes": [draft.content_hash for draft in drafts],
        "keywords": [sparsevec(words.ids, words.counts) for words in keywords],
        "word_counts": [words.word_count for words in keywords],
        "tokenizer_version": TOKENIZER_VERSION,
        "embeddings": [draft.embedding for draft in drafts],
        "generations": [None if draft.windows is None else generation_id for draft in drafts],
        "window_counts": [1 if draft.windows is None else len(draft.windows) for draft in drafts],
        "large": [draft.large for draft in drafts],
        "trusts": [draft.trust for draft in drafts],
        "forget_at": [draft.forget_at for draft in drafts],
        **_signed(drafts),
        **_events(drafts),
        **_besides(drafts),
    }


def _events(drafts: Sequence[Draft]) -> dict[str, Any]:
    """What the audit trail says of new rows."""
    return {
        "events": [new_id() for _ in drafts],
        "actions": ["duplicate" if draft.outcome == "duplicate" else "created" for draft in drafts],
        "details": [{"review": draft.review} if draft.in_review else {} for draft in drafts],
    }


def _besides(drafts: Sequence[Draft]) -> dict[str, Any]:
    links = [(draft, *link) for draft in drafts for link in draft.links]
    windows = [
        (draft.subject_id, draft.memory_id, number, halfvec(draft.windows[number - 1]))
        for draft in drafts
        if draft.windows is not None
        for number in range(2, len(draft.windows) + 1)
    ]
    terms = [
        (draft.subject_id, draft.memory_id, term_id)
        for draft in drafts
        if draft.large
        for term_id in word_ids(draft.new.content)
    ]
    pending = [draft for draft in drafts if draft.windows is None and draft.status == "active"]
    ended = [(draft, *draft.outdated_by) for draft in drafts if draft.outdated_by is not None]
    return {
        "link_subjects": [link[0].subject_id for link in links],
        "link_memories": [link[1] for link in links],
        "link_relations": [link[2] for link in links],
        "link_others": [link[3] for link in links],
        "link_moments": [link[0].now for link in links],
        "window_subjects": [window[0] for window in windows],
        "window_memories": [window[1] for window in windows],
        "window_numbers": [window[2] for window in windows],
        "window_embeddings": [window[3] for window in windows],
        "term_subjects": [term[0] for term in terms],
        "term_memories": [term[1] for term in terms],
        "term_ids": [term[2] for term in terms],
        "pending_subjects": [draft.subject_id for draft in pending],
        "pending_memories": [draft.memory_id for draft in pending],
        "pending_moments": [draft.now for draft in pending],
        "ended_subjects": [draft.subject_id for draft, _, _ in ended],
        "ended_memories": [draft.memory_id for draft, _, _ in ended],
        "ended_events": [new_id() for _ in ended],
        "ended_actors": [draft.actor for draft, _, _ in ended],
        "ended_moments": [draft.now for draft, _, _ in ended],
        "ended_details": [{"reason": reason, "by": str(by)} for _, by, reason in ended],
    }


_RETIRE = sql("""
    WITH named AS (
        SELECT * FROM unnest(
            cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:events AS uuid[]), cast(:actors AS text[]),
            cast(:moments AS timestamptz[]), cast(:details AS jsonb[])
        ) AS named (subject_id, memory_id, event_id, actor, moment, detail)
    ), retired AS (
        UPDATE memories m SET status = 'deprecated', deprecated_at = n.moment, updated_at = n.moment
        FROM named n
        WHERE m.tenant_id = :tenant_id AND m.subject_id = n.subject_id AND m.memory_id = n.memory_id
          AND m.status = 'active'
        RETURNING m.subject_id, n.event_id, m.memory_id, m.version, n.actor, n.moment, n.detail
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT :tenant_id, subject_id, event_id, memory_id, 'deprecated', actor, version, detail, moment FROM retired
""")
_REPEAT = sql(f"""
    WITH repeated AS (
        SELECT * FROM unnest(
            cast(:subjects AS uuid[]), cast(:twins AS uuid[]), cast(:kept AS uuid[]), cast(:events AS uuid[]),
            cast(:actors AS text[]), cast(:moments AS timestamptz[]), cast(:trusts AS smallint[])
        ) AS repeated (subject_id, memory_id, kept_id, event_id, actor, moment, trust)
    ), counted AS (
        SELECT subject_id, memory_id, count(*) AS repeats, max(moment) AS last_repeat, max(trust) AS most_trust
        FROM repeated GROUP BY subject_id, memory_id
    ), used AS (
        UPDATE memory_usage u SET access_count = u.access_count + c.repeats, last_accessed_at = c.last_repeat
        FROM counted c
        WHERE u.tenant_id = :tenant_id AND u.subject_id = c.subject_id AND u.memory_id = c.memory_id
    ), noted AS (
        INSERT INTO memory_events (
            tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at
        )
        SELECT :tenant_id, r.subject_id, r.event_id, r.memory_id, 'repeated', r.actor, 1,
               CASE WHEN r.kept_id IS NULL THEN '{{}}' ELSE jsonb_build_object('kept_as', r.kept_id) END, r.moment
        FROM repeated r
    )
    SELECT {MEMORY_COLUMNS}, c.repeats, c.last_repeat, c.most_trust
    FROM counted c JOIN {MEMORY_SOURCE}
      ON m.tenant_id = :tenant_id AND m.subject_id = c.subject_id AND m.memory_id = c.memory_id
""")
_BELIEVE = sql("""
    UPDATE memories m SET trust = item.trust
    FROM unnest(cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:trusts AS smallint[]))
         AS item (subject_id, memory_id, trust)
    WHERE m.tenant_id = :tenant_id AND m.subject_id = item.subject_id AND m.memory_id = item.memory_id
      AND m.trust < item.trust
""")
_STORED = """
        INSERT INTO memories (
            tenant_id, subject_id, memory_id, agent_id, status, content, content_type, kind, key, importance, tags,
            metadata, source, session_id, pinned, event_at, valid_from, valid_to, expires_at, content_hash, keywords,
            word_count, embedding, generation_id, window_count, version, created_at, updated_at, tokenizer_version,
            deprecated_at, ann, trust
        )
        SELECT :tenant_id, subject_id, memory_id, agent_id, status, content, content_type, kind, key, importance,
               cast(tags AS text[]), metadata, source, session_id, pinned, event_at, valid_from, valid_to, expires_at,
               content_hash, keywords, word_count, embedding, generation_id, window_count, 1, moment, moment,
               :tokenizer_version, CASE WHEN status = 'deprecated' THEN moment END, ann, trust
        FROM unnest(
            cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:agents AS text[]), cast(:statuses AS text[]),
            cast(:contents AS text[]), cast(:content_types AS text[]), cast(:kinds AS text[]), cast(:keys AS text[]),
            cast(:importances AS real[]), cast(:tags AS text[]), cast(:metadata AS jsonb[]), cast(:sources AS text[]),
            cast(:sessions AS text[]), cast(:pinned AS bool[]), cast(:event_at AS timestamptz[]),
            cast(:valid_from AS timestamptz[]), cast(:valid_to AS timestamptz[]), cast(:expires_at AS timestamptz[]),
            cast(:hashes AS bytea[]), cast(:keywords AS sparsevec[]), cast(:word_counts AS int[]),
            cast(:embeddings AS halfvec[]), cast(:generations AS smallint[]), cast(:window_counts AS smallint[]),
            cast(:large AS bool[]), cast(:trusts AS smallint[]), cast(:moments AS timestamptz[])
        ) AS item (
            subject_id, memory_id, agent_id, status, content, content_type, kind, key, importance, tags, metadata,
            source, session_id, pinned, event_at, valid_from, valid_to, expires_at, content_hash, keywords, word_count,
            embedding, generation_id, window_count, ann, trust, moment
        )
    """
_USED = """
        INSERT INTO memory_usage (tenant_id, subject_id, memory_id, forget_at, access_count, hit_streak)
        SELECT :tenant_id, item.*, 0, 0
        FROM unnest(cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:forget_at AS timestamptz[])) AS item
    """
# What only some writes have: the column that says so, and its statement.
_OPTIONAL = {
    "new_subjects": """
        INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
        SELECT :tenant_id, item.*
        FROM unnest(cast(:new_subjects AS uuid[]), cast(:users AS text[]), cast(:subject_moments AS timestamptz[]))
             AS item
        ON CONFLICT DO NOTHING
    """,
    "window_subjects": """
        INSERT INTO memory_windows (tenant_id, subject_id, memory_id, window_number, embedding)
        SELECT :tenant_id, item.* FROM unnest(
            cast(:window_subjects AS uuid[]), cast(:window_memories AS uuid[]), cast(:window_numbers AS smallint[]),
            cast(:window_embeddings AS halfvec[])
        ) AS item
    """,
    "term_subjects": """
        INSERT INTO memory_terms (tenant_id, subject_id, memory_id, term_id)
        SELECT :tenant_id, item.* FROM unnest(
            cast(:term_subjects AS uuid[]), cast(:term_memories AS uuid[]), cast(:term_ids AS int[])
        ) AS item
    """,
    "link_subjects": """
        INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
        SELECT :tenant_id, item.* FROM unnest(
            cast(:link_subjects AS uuid[]), cast(:link_memories AS uuid[]), cast(:link_relations AS text[]),
            cast(:link_others AS uuid[]), cast(:link_moments AS timestamptz[])
        ) AS item
    """,
    "pending_subjects": """
        INSERT INTO embedding_queue (tenant_id, subject_id, memory_id, due_at, created_at)
        SELECT :tenant_id, subject_id, memory_id, moment, moment FROM unnest(
            cast(:pending_subjects AS uuid[]), cast(:pending_memories AS uuid[]),
            cast(:pending_moments AS timestamptz[])
        ) AS item (subject_id, memory_id, moment)
    """,
    "ended_subjects": """
        INSERT INTO memory_events (
            tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at
        )
        SELECT :tenant_id, subject_id, event_id, memory_id, 'deprecated', actor, 1, detail, moment FROM unnest(
            cast(:ended_subjects AS uuid[]), cast(:ended_events AS uuid[]), cast(:ended_memories AS uuid[]),
            cast(:ended_actors AS text[]), cast(:ended_moments AS timestamptz[]), cast(:ended_details AS jsonb[])
        ) AS item (subject_id, event_id, memory_id, actor, moment, detail)
    """,
}


@lru_cache(maxsize=1 << len(_OPTIONAL))
def _insert(optional: tuple[str, ...]) -> Statement:
    """One statement that writes everything; naming a table costs time even when it gets no row."""
    more = "".join(f", {name} AS ({_OPTIONAL[name]})" for name in optional)
    return sql(f"""
    WITH stored AS ({_STORED}), used AS ({_USED}) {more}
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT :tenant_id, subject_id, event_id, memory_id, action, actor, 1, detail, moment
    FROM unnest(
        cast(:subjects AS uuid[]), cast(:events AS uuid[]), cast(:memories AS uuid[]), cast(:actions AS text[]),
        cast(:actors AS text[]), cast(:moments AS timestamptz[]), cast(:details AS jsonb[])
    ) AS item (subject_id, event_id, memory_id, action, actor, moment, detail)
    """)
