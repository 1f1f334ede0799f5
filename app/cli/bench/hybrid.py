"""The hybrid search that a careful developer would write on the tables of the service: one statement, plain asyncpg.

Nearest by vector and best by words, a hundred each, fused by reciprocal ranks; the best rows with their counters.
Its vectors and terms are made beforehand, and nobody checks rights: the ratio is the price of all that it leaves out.
A subject in the vector index has two such statements; the cheaper of those that find the hundred nearest counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.cli.bench import raw
from app.cli.embedded import EmbeddedServer
from app.indexes import PART, PARTS, part_of
from app.language import keyword_query
from app.wire import halfvec, register_codecs, sparsevec

ARM: Final = 100
MOST_POSTINGS: Final = 5_000
_FUSED: Final = f"""
    , fused AS (
        SELECT memory_id,
               coalesce(1.0::float8 / (60 + near.place), 0) + coalesce(1.0::float8 / (60 + worded.place), 0) AS score
        FROM near FULL JOIN worded USING (memory_id) ORDER BY score DESC LIMIT {raw.TOP_K}
    )
    SELECT m.memory_id, m.content, m.kind, m.key, m.importance, m.tags, m.metadata, m.source, m.session_id, m.status,
           m.created_at, m.updated_at, m.event_at, m.version, u.access_count, u.last_accessed_at, fused.score
    FROM fused
    JOIN memories m ON m.tenant_id = $1 AND m.subject_id = $2 AND m.memory_id = fused.memory_id
    JOIN memory_usage u ON u.tenant_id = $1 AND u.subject_id = $2 AND u.memory_id = fused.memory_id
    ORDER BY fused.score DESC
"""
EXACT: Final = f"""
    WITH measured AS MATERIALIZED (
        SELECT memory_id, embedding <=> $3 AS distance, keywords <#> $4 AS product
        FROM memories WHERE tenant_id = $1 AND subject_id = $2 AND status = 'active'
    ), near AS (
        SELECT memory_id, row_number() OVER () AS place
        FROM (SELECT memory_id FROM measured ORDER BY distance LIMIT {ARM}) AS nearest
    ), worded AS (
        SELECT memory_id, row_number() OVER () AS place
        FROM (SELECT memory_id FROM measured WHERE product < 0 ORDER BY product LIMIT {ARM}) AS best
    ) {_FUSED}
"""
# Of one part of the vector index.
_NEAREST: Final = f"""
    SELECT memory_id, embedding::halfvec({raw.DIMENSION}) <=> $3::halfvec({raw.DIMENSION}) AS distance FROM memories
    WHERE tenant_id = $1 AND subject_id = $2 AND status = 'active' AND ann AND generation_id = 1
      AND {PART.format("")} = {{part}}
    ORDER BY distance LIMIT {ARM}
"""
_BY_INDEX: Final = f"""
    WITH near AS (
        SELECT memory_id, row_number() OVER (ORDER BY distance) AS place FROM ({_NEAREST}) AS nearest
    ), rare AS (
        SELECT term_id, ln(1 + 1e6::float8 / document_count) AS weight FROM (
            SELECT term_id, document_count,
                   sum(document_count) OVER (ORDER BY document_count, term_id) - document_count AS before
            FROM term_statistics WHERE tenant_id = $1 AND subject_id = $2 AND term_id = ANY ($4)
        ) AS counted WHERE before + document_count <= {MOST_POSTINGS} OR before = 0
    ), worded AS (
        SELECT memory_id, row_number() OVER () AS place FROM (
            SELECT t.memory_id FROM rare JOIN memory_terms t USING (term_id)
            WHERE t.tenant_id = $1 AND t.subject_id = $2
            GROUP BY t.memory_id ORDER BY sum(rare.weight) DESC LIMIT {ARM}
        ) AS best
    ) {_FUSED}
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question about one subject, as both statements want it."""

    tenant_id: UUID
    subject_id: UUID
    vector: bytes
    words: bytes
    term_ids: Sequence[int]

    @staticmethod
    def of(tenant_id: UUID, subject_id: UUID, text: str, vector: NDArray[np.float32]) -> "Asked":
        """A text with its vector."""
        ids = sorted(set(keyword_query(text).word_ids))
        return Asked(tenant_id, subject_id, halfvec(vector), sparsevec(ids, [1.0] * len(ids)), ids)


@dataclass(slots=True)
class Hybrid:
    """One plain connection with the statements prepared; `by_index` says which of them it uses."""

    connection: raw.Connection
    exact: Any
    indexed: Sequence[Any]  # by part of the vector index
    by_index: bool = False

    @staticmethod
    async def connect(server: EmbeddedServer, database: str) -> "Hybrid":
        """Log in as the superuser."""
        connection = await raw.connect(server, database, teach=register_codecs)
        # Else the planner would now and then read and sort a subject instead of its vector index.
        await connection.execute(f"SET hnsw.ef_search = {ARM}; SET jit = off; SET enable_sort = off")
        await connection.execute("SET hnsw.iterative_scan = relaxed_order")  # the index is not the subject's alone
        by_part = [await connection.prepare(_BY_INDEX.format(part=part)) for part in range(PARTS)]
        return Hybrid(connection, await connection.prepare(EXACT), by_part)

    async def search(self, asked: Asked) -> list[Any]:
        """The best rows."""
        where = asked.tenant_id, asked.subject_id, asked.vector
        if self.by_index:
            rows: list[Any] = await self.indexed[part_of(asked.subject_id)].fetch(*where, asked.term_ids)
        else:
            rows = await self.exact.fetch(*where, asked.words)
        return rows

    async def choose(self, questions: Sequence[Asked]) -> dict[str, float]:
        """Take the cheaper way for a subject in the vector index, if it finds what is asked for; what both cost."""
        times: dict[bool, list[float]] = {False: [], True: []}
        for asked in questions:
            for way, took in times.items():
                self.by_index, begin = way, perf_counter()
                await self.search(asked)
                took.append((perf_counter() - begin) * 1000)
        exact, indexed = (float(np.median(took)) for took in times.values())
        found = [
            len(
                await self.connection.fetch(
                    _NEAREST.format(part=part_of(one.subject_id)), one.tenant_id, one.subject_id, one.vector
                )
            )
            for one in questions
        ]
        self.by_index = min(found) == ARM and indexed < exact
        return {"exact ms": exact, "by index ms": indexed, f"found of {ARM}": min(found), "by index": self.by_index}
