"""What is stored near a draft, for the verdict on it: the same text, the same key, the nearest vectors.

Invariant: read in the writing transaction, under the subject's lock, so nothing comes between it and the verdict.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from app.database import Statement, Transaction, sql
from app.embed import Generation
from app.indexes import PART, part_of
from app.remember.columns import Rows, lone, same, stated
from app.remember.memory import Draft, pack

NEIGHBOURS: Final = 5
"""Nearest active memories that a draft is compared with."""
FAR_NEIGHBOURS: Final = 10
"""The same, at any distance, for a draft that denies, says that something changed, or tells of what is long over: what
it overrules, or is overruled by, is worded otherwise."""
DRAFTS_PER_STATEMENT: Final = 100


def most_near(least: float) -> int:
    """How many neighbours a draft gets that counts those of this cosine."""
    return FAR_NEIGHBOURS if least == -1 else NEIGHBOURS


async def stored_near(
    transaction: Transaction, tenant_id: UUID, drafts: Sequence[Draft], generation: Generation, least: Sequence[float]
) -> list[tuple[UUID | None, bool | None, list[Any]]]:
    """Subject, whether it is large (None: it has no row yet), and the rows of the neighbours of each draft.

    `least` is the smallest cosine that counts, draft by draft; those with -1 get FAR_NEIGHBOURS.
    """
    found: list[tuple[UUID | None, bool | None, list[Any]]] = []
    # In slices: a statement compares each of its drafts with every memory of its subject, and has a time limit.
    for start in range(0, len(drafts), DRAFTS_PER_STATEMENT):
        drafts_here = drafts[start : start + DRAFTS_PER_STATEMENT]
        pack(drafts_here)
        found += [(None, None, []) for _ in drafts_here]
        values = {
            "tenant_id": tenant_id,
            "agents": same(draft.new.agent_id for draft in drafts_here),
            "hashes": [draft.content_hash for draft in drafts_here],
            # A long text is told apart by its hash only: equal first windows do not make equal texts.
            "embeddings": [
                draft.embedding if draft.windows is not None and len(draft.windows) == 1 else None
                for draft in drafts_here
            ],
            "distances": same(1 - cosine for cosine in least[start : start + len(drafts_here)]),
        }
        asked = values | {
            "users": same(draft.new.user_id for draft in drafts_here),
            "keys": stated(draft.new.key for draft in drafts_here),
        }
        alone = len(drafts_here) == 1
        rows = await transaction.fetch(
            _near(generation.generation_id, alone=alone), **(lone(asked, _ITEM.parameters) if alone else asked)
        )
        for row in rows:
            number = start + row["number"] - 1
            near = found[number][2]
            found[number] = row["subject_id"], row["ann"], near
            if row["memory_id"] is not None:
                near.append(row)
        subjects = [subject_id if large else None for subject_id, large, _ in found[start:]]
        for part in sorted({part_of(subject_id) for subject_id in subjects if subject_id is not None}):
            statement = _near_by_index(generation.generation_id, generation.spec.dimension, part)
            for row in await transaction.fetch(statement, **values, subjects=subjects):
                found[start + row["number"] - 1][2].append(row)
    return found


_ITEM = Rows(
    "user_id users text =", "agent_id agents text =", "content_hash hashes bytea", "key keys text",
    "embedding embeddings halfvec", "most_distance distances float8 =",
)  # fmt: skip
_ITEM_OF_SUBJECT = Rows(
    "subject_id subjects uuid", "agent_id agents text =", "content_hash hashes bytea", "embedding embeddings halfvec",
    "most_distance distances float8 =",
)  # fmt: skip
_MOST = f"CASE WHEN i.most_distance = 2 THEN {FAR_NEIGHBOURS} ELSE {NEIGHBOURS} END"  # as most_near() has it


@lru_cache(maxsize=16)
def _near(generation_id: int, *, alone: bool) -> Statement:
    """By text, by key and, unless the subject is large, by vector; a row of nulls for a draft with nothing near."""
    # Materialised, so that the subject is a column and not an expression over a join, which no index can find. In the
    # order of memories_content_key and memories_slot_key: in a young store others look as good, and are read whole.
    return sql(f"""
    WITH item AS MATERIALIZED (
        SELECT i.*, coalesce(s.subject_id, CASE WHEN i.user_id IS NULL THEN :tenant_id END) AS subject_id,
               s.ann
        FROM {_ITEM.sql(alone=alone)} AS i
        LEFT JOIN LATERAL (
            SELECT subject_id, ann FROM subjects WHERE tenant_id = :tenant_id AND user_id = i.user_id
            UNION ALL
            SELECT subject_id, ann FROM subjects
            WHERE tenant_id = :tenant_id AND subject_id = :tenant_id AND i.user_id IS NULL
        ) AS s ON true
    )
    SELECT i.number, i.subject_id, i.ann, near.memory_id, near.content, near.key, near.same_text, near.true_since,
           near.pinned, near.distance
    FROM item i
    LEFT JOIN LATERAL (
        SELECT * FROM (
            SELECT m.memory_id, m.content, m.key, m.content_hash = i.content_hash AS same_text,
                   {_TRUE_SINCE} AS true_since, m.pinned, cast(NULL AS float8) AS distance
            FROM memories m
            WHERE m.tenant_id = :tenant_id AND m.subject_id = i.subject_id AND m.status = 'active'
              AND m.content_hash = i.content_hash AND m.agent_id IS NOT DISTINCT FROM i.agent_id
            ORDER BY m.agent_id
        ) AS same
        UNION ALL
        SELECT * FROM (
            SELECT m.memory_id, m.content, m.key, m.content_hash = i.content_hash, {_TRUE_SINCE}, m.pinned,
                   cast(NULL AS float8)
            FROM memories m
            WHERE m.tenant_id = :tenant_id AND m.subject_id = i.subject_id AND m.status = 'active'
              AND m.key = i.key AND m.agent_id IS NOT DISTINCT FROM i.agent_id
            ORDER BY m.agent_id
        ) AS slot
        UNION ALL
        SELECT * FROM (
            SELECT m.memory_id, m.content, m.key, m.content_hash = i.content_hash, {_TRUE_SINCE}, m.pinned,
                   m.embedding <=> i.embedding AS distance
            FROM memories m
            WHERE NOT i.ann AND {_COMPARABLE} AND m.generation_id = {generation_id}
              AND m.embedding <=> i.embedding <= i.most_distance
            ORDER BY m.embedding <=> i.embedding
            LIMIT {_MOST}
        ) AS nearest
    ) AS near ON true
    """)


@lru_cache(maxsize=64)
def _near_by_index(generation_id: int, dimension: int, part: int) -> Statement:
    """By vector, of drafts whose large `subjects` are in this part of the vector index; null: not asked for."""
    # Generation, dimension and part are literals, so that the planner can prove that the partial index applies.
    return sql(f"""
    SELECT i.number, near.*
    FROM {_ITEM_OF_SUBJECT.sql(alone=False)} AS i
    CROSS JOIN LATERAL (
        SELECT m.memory_id, m.content, m.key, m.content_hash = i.content_hash AS same_text,
               {_TRUE_SINCE} AS true_since, m.pinned,
               m.embedding::halfvec({dimension}) <=> i.embedding::halfvec({dimension}) AS distance
        FROM memories m
        WHERE {_COMPARABLE} AND m.ann AND m.generation_id = {generation_id} AND {PART.format("m.")} = {part}
          AND {PART.format("i.")} = {part}
        ORDER BY m.embedding::halfvec({dimension}) <=> i.embedding::halfvec({dimension})
        LIMIT {_MOST}
    ) AS near
    WHERE near.distance <= i.most_distance
    """)


_TRUE_SINCE = "least(m.event_at, m.created_at)"
_COMPARABLE = """
    m.tenant_id = :tenant_id AND m.subject_id = i.subject_id AND m.status = 'active'
    AND m.cooled_by IS NULL AND m.window_count = 1 AND m.agent_id IS NOT DISTINCT FROM i.agent_id
    AND i.embedding IS NOT NULL AND m.kind <> 'summary'
"""
# A summary says again what others say, and ends when one of them does: nothing is a duplicate of it.
