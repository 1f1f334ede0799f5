"""The verdict on every draft before it is stored: new, duplicate, or successor of what it overrules.

SQL finds what stands near (same text, same key, nearest vectors), pure rules decide; earlier items of the same batch
count as stored. Invariant: runs inside the writing transaction, under the subject's lock.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from uuid_utils.compat import uuid7

from app.database import Statement, Transaction, sql
from app.embed import Generation
from app.remember.memory import Draft, RememberConfig
from app.remember.twins import compare
from app.wire import halfvec

NEIGHBOURS = 5  # nearest active memories that may be near-duplicates
DRAFTS_PER_STATEMENT = 100


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A memory of the same scope near a draft: same text, same key, or close as a vector (cosine, else 0)."""

    memory_id: UUID
    content: str
    key: str | None
    same_text: bool
    cosine: float


async def judge(
    transaction: Transaction,
    tenant_id: UUID,
    drafts: Sequence[Draft],
    generation: Generation,
    config: RememberConfig,
    besides: UUID | None = None,
) -> None:
    """Set subject, outcome, status, twin, retired and links of each draft, in order.

    `besides` is a stored memory that is no neighbour: the draft itself, judged again once it has a vector.
    """
    low, high = generation.spec.pair_window
    least_cosine = low + config.duplicate_similarity * (high - low)
    neighbours = await _neighbours(transaction, tenant_id, drafts, generation, least_cosine)
    subject_of: dict[str | None, UUID] = {}
    overruled: set[UUID] = set()
    for draft, near_in_batch, (subject_id, large, found) in zip(
        drafts, _near_in_batch(drafts, least_cosine), neighbours, strict=True
    ):
        draft.subject_id = subject_of.setdefault(draft.new.user_id, subject_id or uuid7())
        draft.new_subject, draft.large = large is None, bool(large)
        near = [other for other in found if other.memory_id not in overruled and other.memory_id != besides]
        for earlier, cosine in near_in_batch:
            if earlier.status == "active" and earlier.outcome != "duplicate":
                same_text = earlier.content_hash == draft.content_hash
                near.append(Neighbour(earlier.memory_id, earlier.new.content, earlier.new.key, same_text, cosine))
        decide(draft, near)
        overruled.update(draft.retired)
        for earlier, _ in near_in_batch:
            if earlier.memory_id in draft.retired:  # overruled within its own batch: born deprecated
                earlier.status = "deprecated"


def decide(draft: Draft, near: Sequence[Neighbour]) -> None:
    """The verdict on one draft given its neighbours (those below the similarity threshold left out)."""
    key = draft.new.key
    holder = next((n for n in near if key is not None and n.key == key), None)
    for twin in sorted(near, key=lambda n: (not n.same_text, -n.cosine)):
        if key is not None and twin.key != key:
            continue  # the slot must come to hold this text: see below
        if twin.same_text:
            draft.outcome, draft.twin_id = "duplicate", twin.memory_id
            return
        if twin.cosine > 0 and compare(draft.new.content, twin.content) == "same":
            draft.outcome, draft.status, draft.twin_id = "duplicate", "duplicate", twin.memory_id
            draft.links.append((twin.memory_id, "duplicate_of"))
            return
    # A new value of a slot overrules the old one; the same text outside of the slot moves into it.
    overruled = {n.memory_id for n in near if n is holder or n.same_text}
    if overruled:
        draft.outcome = "superseded"
        draft.retired = sorted(overruled)
        draft.links += [(memory_id, "supersedes") for memory_id in draft.retired]


def _near_in_batch(drafts: Sequence[Draft], least_cosine: float) -> list[list[tuple[Draft, float]]]:
    """For each draft the earlier ones of its scope with the same text, the same key or close as a vector (else 0)."""
    if len(drafts) == 1:
        return [[]]
    vectors = np.zeros((len(drafts), max(0 if d.windows is None else d.windows.shape[1] for d in drafts)), np.float32)
    for number, draft in enumerate(drafts):
        if draft.windows is not None and len(draft.windows) == 1:
            vectors[number] = draft.windows[0]
    cosine = vectors @ vectors.T
    cosine[cosine < least_cosine] = 0
    near = (cosine > 0) | _equal([draft.content_hash for draft in drafts])
    near |= _equal([number if draft.new.key is None else draft.new.key for number, draft in enumerate(drafts)])
    near &= _equal([draft.scope for draft in drafts])
    return [
        [
            (drafts[earlier], float(cosine[number, earlier]))
            for earlier in np.flatnonzero(near[number, :number]).tolist()
        ]
        for number in range(len(drafts))
    ]


def _equal(values: Sequence[Hashable]) -> NDArray[np.bool_]:
    """(n, n): which of the values are equal."""
    numbers: dict[Hashable, int] = {}
    numbered = np.array([numbers.setdefault(value, len(numbers)) for value in values])
    return np.asarray(numbered[:, None] == numbered)


async def _neighbours(
    transaction: Transaction, tenant_id: UUID, drafts: Sequence[Draft], generation: Generation, least_cosine: float
) -> list[tuple[UUID | None, bool | None, list[Neighbour]]]:
    """Subject, whether it is large (None: it has no row yet), and neighbours of each draft."""
    found: list[tuple[UUID | None, bool | None, list[Neighbour]]] = []
    # In slices: a statement compares each of its drafts with every memory of its subject, and has a time limit.
    for start in range(0, len(drafts), DRAFTS_PER_STATEMENT):
        drafts_here = drafts[start : start + DRAFTS_PER_STATEMENT]
        found += [(None, None, []) for _ in drafts_here]
        rows = await transaction.fetch(
            _neighbours_statement(generation.generation_id, generation.spec.dimension),
            tenant_id=tenant_id,
            numbers=list(range(start, start + len(drafts_here))),
            users=[draft.new.user_id for draft in drafts_here],
            agents=[draft.new.agent_id for draft in drafts_here],
            hashes=[draft.content_hash for draft in drafts_here],
            keys=[draft.new.key for draft in drafts_here],
            # A long text is told apart by its hash only: equal first windows do not make equal texts.
            embeddings=[
                halfvec(draft.windows[0]) if draft.windows is not None and len(draft.windows) == 1 else None
                for draft in drafts_here
            ],
            most_distance=1 - least_cosine,
            neighbours=NEIGHBOURS,
        )
        for row in rows:
            near = found[row["number"]][2]
            found[row["number"]] = row["subject_id"], row["ann"], near
            if row["memory_id"] is not None:
                cosine = 0.0 if row["distance"] is None else 1 - row["distance"]
                near.append(Neighbour(row["memory_id"], row["content"], row["key"], row["same_text"], cosine))
    return found


@lru_cache(maxsize=16)
def _neighbours_statement(generation_id: int, dimension: int) -> Statement:
    # Generation and dimension are literals, so that the planner can prove that the partial vector index applies.
    # Materialised, so that the subject is a column and not an expression over a join, which no index can find.
    return sql(f"""
    WITH item AS MATERIALIZED (
        SELECT i.*, coalesce(s.subject_id, CASE WHEN i.user_id IS NULL THEN :tenant_id END) AS subject_id,
               s.ann
        FROM unnest(
            cast(:numbers AS int[]), cast(:users AS text[]), cast(:agents AS text[]), cast(:hashes AS bytea[]),
            cast(:keys AS text[]), cast(:embeddings AS halfvec[])
        ) AS i (number, user_id, agent_id, content_hash, key, embedding)
        LEFT JOIN LATERAL (
            SELECT subject_id, ann FROM subjects WHERE tenant_id = :tenant_id AND user_id = i.user_id
            UNION ALL
            SELECT subject_id, ann FROM subjects
            WHERE tenant_id = :tenant_id AND subject_id = :tenant_id AND i.user_id IS NULL
        ) AS s ON true
    )
    SELECT i.number, i.subject_id, i.ann, near.memory_id, near.content, near.key, near.same_text, near.distance
    FROM item i
    LEFT JOIN LATERAL (
        SELECT m.memory_id, m.content, m.key, m.content_hash = i.content_hash AS same_text,
               cast(NULL AS float8) AS distance
        FROM memories m
        WHERE m.tenant_id = :tenant_id AND m.subject_id = i.subject_id AND m.status = 'active'
          AND m.content_hash = i.content_hash AND m.agent_id IS NOT DISTINCT FROM i.agent_id
        UNION ALL
        SELECT m.memory_id, m.content, m.key, m.content_hash = i.content_hash, NULL
        FROM memories m
        WHERE m.tenant_id = :tenant_id AND m.subject_id = i.subject_id AND m.status = 'active'
          AND m.key = i.key AND m.agent_id IS NOT DISTINCT FROM i.agent_id
        UNION ALL
        SELECT * FROM (
            SELECT m.memory_id, m.content, m.key, m.content_hash = i.content_hash,
                   m.embedding <=> i.embedding AS distance
            FROM memories m
            WHERE NOT i.ann AND {_COMPARABLE} AND m.generation_id = {generation_id}
              AND m.embedding <=> i.embedding <= :most_distance
            ORDER BY m.embedding <=> i.embedding
            LIMIT :neighbours
        ) AS nearest
        UNION ALL
        SELECT * FROM (
            SELECT * FROM (
                SELECT m.memory_id, m.content, m.key, m.content_hash = i.content_hash,
                       m.embedding::halfvec({dimension}) <=> i.embedding::halfvec({dimension}) AS distance
                FROM memories m
                WHERE i.ann AND {_COMPARABLE} AND m.ann AND m.generation_id = {generation_id}
                ORDER BY m.embedding::halfvec({dimension}) <=> i.embedding::halfvec({dimension})
                LIMIT :neighbours
            ) AS indexed
            WHERE indexed.distance <= :most_distance
        ) AS nearest_in_index
    ) AS near ON true
    """)


_COMPARABLE = """
    m.tenant_id = :tenant_id AND m.subject_id = i.subject_id AND m.status = 'active'
    AND m.window_count = 1 AND m.agent_id IS NOT DISTINCT FROM i.agent_id AND i.embedding IS NOT NULL
"""
