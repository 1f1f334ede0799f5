"""The one SELECT that finds and measures: all memories of the query's subjects with the raw value of every signal.

Invariant: tenant, subject, agent, status, expiry and validity are conditions of the SELECT itself, before any cut; SQL
measures, the pure functions of signals and ranking judge.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.database import Statement, Transaction, halfvec, sparsevec, sql
from app.language import KeywordQuery
from app.memory import MEMORY_COLUMNS, MEMORY_SOURCE
from app.recall.query import Candidates, Filters, Query

# The subjects in scope; an unknown user has none, which leaves the shared one (whose id is the tenant's) or nothing.
_SUBJECTS = """
    m.subject_id = ANY (
        ARRAY(SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id)
        || cast(:shared AS uuid[])
    )
"""
_ALIVE = """
    (m.expires_at IS NULL OR m.expires_at > :now)
    AND (m.valid_from IS NULL OR m.valid_from <= :now) AND (m.valid_to IS NULL OR m.valid_to > :now)
"""
# A long text has further windows; its distance is that of its nearest one.
_DISTANCE = """
    CASE WHEN m.generation_id = :generation_id THEN
        CASE WHEN m.window_count = 1 THEN m.embedding <=> :vector
        ELSE least(m.embedding <=> :vector, (
            SELECT min(w.embedding <=> :vector) FROM memory_windows w
            WHERE w.tenant_id = m.tenant_id AND w.subject_id = m.subject_id AND w.memory_id = m.memory_id
        )) END
    END
"""
_FILTERS = {
    "tags_any": "m.tags && cast(:tags_any AS text[])",
    "tags_all": "m.tags @> cast(:tags_all AS text[])",
    "kinds": "m.kind = ANY (cast(:kinds AS text[]))",
    "content_types": "m.content_type = ANY (cast(:content_types AS text[]))",
    "created_from": "m.created_at >= :created_from",
    "created_to": "m.created_at < :created_to",
    "event_from": "m.event_at >= :event_from",
    "event_to": "m.event_at < :event_to",
    "metadata": "m.metadata @> :metadata",
    "session_id": "m.session_id = :session_id",
}


async def find(
    transaction: Transaction,
    query: Query,
    keywords: KeywordQuery,
    vector: NDArray[np.float32] | None,
    *,
    generation_id: int,
    now: datetime,
) -> Candidates:
    """Measure every memory in scope; without a vector all cosines are NaN."""
    filters = {name: getattr(query.filters, name) for name in Filters.__slots__}
    used = tuple(name for name, value in filters.items() if value)
    statement = _select(len(keywords.codes), used, vector is not None, query.agent_id is not None,
                        query.include_deprecated)  # fmt: skip
    row = await transaction.fetch_row(
        statement,
        **_scope(query, now),
        **{name: list(value) if isinstance(value, tuple) else value for name, value in filters.items()},
        **{f"code_{n}": sparsevec(code.ids, code.powers) for n, code in enumerate(keywords.codes)},
        vector=None if vector is None else halfvec(vector),
        generation_id=generation_id,
    )
    return _columns(row, keywords, len(keywords.codes))


async def fetch(transaction: Transaction, query: Query, ids: Sequence[UUID], *, now: datetime) -> dict[UUID, Any]:
    """The full rows of the best candidates that are still in scope, by id."""
    statement = _HYDRATE[query.include_deprecated]
    return {row["id"]: row for row in await transaction.fetch(statement, **_scope(query, now), ids=ids)}


def _scope(query: Query, now: datetime) -> dict[str, Any]:
    shared = query.include_shared or query.user_id is None
    return {
        "tenant_id": query.tenant_id,
        "user_id": query.user_id,
        "shared": [query.tenant_id] if shared else [],
        "agent_id": query.agent_id,
        "now": now,
    }


@lru_cache(maxsize=512)
def _select(codes: int, filters: tuple[str, ...], dense: bool, agent: bool, deprecated: bool) -> Statement:
    products = "".join(f", array_agg(row.product_{n}) AS product_{n}" for n in range(codes))
    measured = "".join(f", (-(m.keywords <#> :code_{n}))::float4 AS product_{n}" for n in range(codes))
    matching = " AND ".join(_FILTERS[name] for name in filters) or "true"
    return sql(f"""
        SELECT array_agg(row.memory_id) AS ids, array_agg(row.distance) AS distances,
               array_agg(row.word_count) AS word_counts, array_agg(row.created_at) AS created_at,
               array_agg(row.happened_at) AS happened_at, array_agg(row.importance) AS importances,
               array_agg(row.session) AS sessions, array_agg(row.matching) AS matching {products}
        FROM (
            SELECT m.memory_id, {f"({_DISTANCE})::float4" if dense else "NULL::float4"} AS distance, m.word_count,
                   extract(epoch FROM m.created_at)::float8 AS created_at,
                   extract(epoch FROM coalesce(m.event_at, m.created_at))::float8 AS happened_at, m.importance,
                   coalesce(hashtext(m.session_id), 0) AS session, ({matching}) IS TRUE AS matching {measured}
            FROM memories m
            WHERE m.tenant_id = :tenant_id AND {_SUBJECTS} AND {_status(deprecated)} AND {_ALIVE}
              {"AND (m.agent_id IS NULL OR m.agent_id = :agent_id)" if agent else ""}
            ORDER BY coalesce(m.event_at, m.created_at), m.memory_id
        ) AS row
    """)


def _status(deprecated: bool) -> str:
    return "m.status = ANY (ARRAY['active', 'deprecated'])" if deprecated else "m.status = 'active'"


_HYDRATE = {
    deprecated: sql(f"""
        SELECT {MEMORY_COLUMNS}, m.subject_id FROM {MEMORY_SOURCE}
        WHERE m.tenant_id = :tenant_id AND {_SUBJECTS} AND m.memory_id = ANY (cast(:ids AS uuid[]))
          AND {_status(deprecated)} AND {_ALIVE}
    """)
    for deprecated in (False, True)
}


def _columns(row: Any, keywords: KeywordQuery, codes: int) -> Candidates:
    if row is None or row["ids"] is None:
        row = {name: [] for name in _COLUMNS} | {f"product_{n}": [] for n in range(codes)}
    products = np.array([row[f"product_{n}"] for n in range(codes)], dtype=np.float64)
    words, grams = keywords.decode(products.reshape(codes, len(row["ids"])).T)
    return Candidates(
        ids=row["ids"],
        cosine=1 - np.array(row["distances"], dtype=np.float64),
        words=words,
        grams=grams,
        word_count=np.array(row["word_counts"], dtype=np.float64),
        created_at=np.array(row["created_at"], dtype=np.float64),
        happened_at=np.array(row["happened_at"], dtype=np.float64),
        importance=np.array(row["importances"], dtype=np.float64),
        session=np.array(row["sessions"], dtype=np.int64),
        matching=np.array(row["matching"], dtype=np.bool_),
    )


_COLUMNS = (
    "ids", "distances", "word_counts", "created_at", "happened_at", "importances", "sessions", "matching",
)  # fmt: skip
