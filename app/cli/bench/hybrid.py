"""The hybrid search that a careful developer would write on the tables of the service: one statement, plain asyncpg.

Nearest by vector and best by words, a hundred each, fused by reciprocal ranks; the best rows with their counters.
Its vectors and terms are made beforehand, and nobody checks rights: the ratio is the price of all that it leaves out.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.cli.bench import raw
from app.cli.embedded import EmbeddedServer
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
BY_INDEX: Final = f"""
    WITH near AS (
        SELECT memory_id, row_number() OVER () AS place FROM (
            SELECT memory_id FROM memories
            WHERE tenant_id = $1 AND subject_id = $2 AND status = 'active' AND ann AND generation_id = 1
            ORDER BY embedding::halfvec({raw.DIMENSION}) <=> $3::halfvec({raw.DIMENSION}) LIMIT {ARM}
        ) AS nearest
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
class Hybrid:
    """One plain connection with the statement prepared, for subjects of one size."""

    connection: raw.Connection
    search: Callable[[tuple[Any, ...]], Awaitable[list[Any]]]

    @staticmethod
    async def connect(server: EmbeddedServer, database: str, *, large: bool) -> "Hybrid":
        """Log in as the superuser; `large`: by vector index and postings."""
        connection = await raw.connect(server, database, teach=register_codecs)
        # Else the planner would now and then read and sort a subject instead of its vector index.
        await connection.execute(f"SET hnsw.ef_search = {ARM}; SET jit = off; SET enable_sort = off")
        statement = await connection.prepare(BY_INDEX if large else EXACT)
        return Hybrid(connection, lambda asked: statement.fetch(*asked))


def asked(tenant_id: UUID, subject_id: UUID, text: str, vector: NDArray[np.float32], *, large: bool) -> tuple[Any, ...]:
    """The parameters of one question."""
    query = keyword_query(text)
    ids = sorted(set(query.word_ids))
    terms = ids if large else sparsevec(ids, [1.0] * len(ids))
    return tenant_id, subject_id, halfvec(vector), terms
