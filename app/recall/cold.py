"""Cold memories in a search that asks for them: signs and words propose a few, which are made whole and then measured.

Invariant: what is proposed is measured by the same record as any other memory, with its vector and keywords made anew
from its text; no connection is held while the model works.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import numpy as np
from asyncpg import BitString

from app.database import Database, Statement, Transaction, sql
from app.embed import Embedder, Generation
from app.errors import EmbeddingUnavailable
from app.language import keyword_vector
from app.recall.candidates import SUBJECTS, Asked, Remade, Shape, alive, matching, parameters, record, shape_of
from app.recall.query import Query
from app.wire import halfvec, sparsevec

NEAREST: Final = 50
WORDED: Final = 20
"""Proposed by the signs of the vector and by words in the text (docs/decisions/0018); each of them is embedded."""
LONGEST_SECONDS: Final = 5.0
"""For vectors of what is proposed. Who asks for what was not used for months waits longer than usual."""


async def propose_cold(
    database: Database, embedder: Embedder, generation: Generation, query: Query, asked: Asked, *, now: datetime
) -> Remade:
    """The cold memories in scope that may be hits, made whole. Raises what a search raises."""
    shape = shape_of(query, asked, generation.generation_id)
    words = [word for word in asked.keywords.words if len(word) > 1]
    values = parameters(query, asked, now=now) | {"signs": _signs(asked), "query_words": words}
    async with database.read(query.tenant_id) as transaction:
        rows = await transaction.fetch(_proposed(shape), **values)
    texts = [row["content"] for row in rows]
    found = [keyword_vector(text) for text in texts]
    return Remade(
        [row["memory_id"] for row in rows],
        await _embedded(embedder, asked, texts),
        [sparsevec(one.ids, one.counts) for one in found],
    )


async def measure_cold(transaction: Transaction, query: Query, asked: Asked, shape: Shape, *, now: datetime) -> bytes:
    """Records of what was proposed and is still there and cold, as candidates.columns() reads them."""
    remade = asked.remade
    if not remade.ids:
        return b""
    values = parameters(query, asked, now=now)
    values |= {"ids": remade.ids, "embeddings": remade.embeddings, "keyword_vectors": remade.keywords}
    packed = await transaction.fetch_value(_measured(shape), **values)
    return packed or b""


async def _embedded(embedder: Embedder, asked: Asked, texts: Sequence[str]) -> list[bytes | None]:
    """The vector of each text: of several windows that which is nearest to the query."""
    if asked.vector is None or not texts:
        return [None] * len(texts)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            windows = await embedder.embed_documents(texts)
    except (EmbeddingUnavailable, TimeoutError):
        return [None] * len(texts)
    return [halfvec(one[int(np.argmax(one @ asked.vector))]) for one in windows]


def _signs(asked: Asked) -> BitString | None:
    """The signs that tell the query from small talk: a vector's own tell little, for all texts have most in common."""
    if asked.vector is None or asked.small_talk is None:
        return None
    return BitString("".join("1" if value > 0 else "0" for value in (asked.vector - asked.small_talk).tolist()))


def _scope(shape: Shape) -> str:
    return f"m.tenant_id = :tenant_id AND {SUBJECTS} AND {alive(shape, cold=True)} AND ({matching(shape)})"


@lru_cache(maxsize=64)
def _proposed(shape: Shape) -> Statement:
    # Words are looked for in the text as it stands: keywords there are none.
    return sql(f"""
        WITH cold AS MATERIALIZED (
            SELECT m.memory_id, m.content,
                   CASE WHEN m.signs_generation_id = {shape.generation_id} THEN m.signs <~> cast(:signs AS varbit) END
                       AS far,
                   (SELECT count(*) FROM unnest(cast(:query_words AS text[])) AS word
                    WHERE strpos(lower(m.content), word) > 0) AS worded
            FROM memories m WHERE {_scope(shape)}
        ), proposed AS (
            (SELECT memory_id, content FROM cold WHERE far IS NOT NULL ORDER BY far, memory_id DESC LIMIT {NEAREST})
            UNION
            (SELECT memory_id, content FROM cold WHERE worded > 0 ORDER BY worded DESC, memory_id DESC LIMIT {WORDED})
        )
        SELECT memory_id, content FROM proposed ORDER BY memory_id
    """)


@lru_cache(maxsize=64)
def _measured(shape: Shape) -> Statement:
    return sql(f"""
        SELECT string_agg({record(shape)}, '') FROM (
            SELECT c.*, made.embedding, made.keywords, 1 AS window_count,
                   CASE WHEN made.embedding IS NOT NULL THEN {shape.generation_id} END AS generation_id,
                   NULL::halfvec AS other_embedding, NULL::smallint AS other_generation_id, 1 AS other_window_count
            FROM unnest(cast(:ids AS uuid[]), cast(:embeddings AS halfvec[]), cast(:keyword_vectors AS sparsevec[]))
                 AS made (memory_id, embedding, keywords)
            JOIN (
                SELECT {", ".join(_STORED)} FROM memories
            ) AS c ON c.tenant_id = :tenant_id AND c.memory_id = made.memory_id
        ) AS m WHERE {_scope(shape)}
    """)


_STORED: Final = (
    "tenant_id", "subject_id", "memory_id", "agent_id", "status", "content_type", "kind", "importance", "tags",
    "metadata", "source", "session_id", "created_at", "event_at", "valid_from", "valid_to", "expires_at",
    "deprecated_at", "word_count", "cooled_by", "trust",
)  # fmt: skip
