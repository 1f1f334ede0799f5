"""The one SELECT that finds and measures: all memories of the query's subjects with the raw value of every signal.

Invariant: tenant, subject, agent, status, expiry and validity are conditions of the SELECT itself, before any cut; SQL
measures, the pure functions of signals and ranking judge. The measures come as one string of fixed-width records, which
numpy reads as it is: as arrays or rows they would cost both sides more than the measuring.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
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
    packed = await transaction.fetch_value(
        statement,
        **_scope(query, now),
        **{name: list(value) if isinstance(value, tuple) else value for name, value in filters.items()},
        **{f"code_{n}": sparsevec(code.ids, code.powers) for n, code in enumerate(keywords.codes)},
        vector=None if vector is None else halfvec(vector),
        generation_id=generation_id,
    )
    return _columns(packed, keywords)


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
    matching = " AND ".join(_FILTERS[name] for name in filters) or "true"
    packed = [
        "uuid_send(m.memory_id)",
        "timestamptz_send(m.created_at)",
        "timestamptz_send(coalesce(m.event_at, m.created_at))",
        f"float4send(coalesce(({_DISTANCE if dense else 'NULL'})::float4, 'NaN'))",
        "float4send(m.importance)",
        "int4send(m.word_count)",
        "int4send(coalesce(hashtext(m.session_id), 0))",
        f"boolsend(({matching}) IS TRUE)",
        *(f"float4send((-(m.keywords <#> :code_{n}))::float4)" for n in range(codes)),
    ]
    return sql(f"""
        SELECT string_agg({" || ".join(packed)}, '')
        FROM memories m
        WHERE m.tenant_id = :tenant_id AND {_SUBJECTS} AND {_status(deprecated)} AND {_ALIVE}
          {"AND (m.agent_id IS NULL OR m.agent_id = :agent_id)" if agent else ""}
    """)


@lru_cache(maxsize=64)
def _layout(codes: int) -> np.dtype[np.void]:
    """One memory as _select packs it: big-endian, times in microseconds since 2000."""
    return np.dtype(
        [("id", ">u8", 2), ("created_at", ">i8"), ("happened_at", ">i8"), ("distance", ">f4"), ("importance", ">f4"),
         ("word_count", ">i4"), ("session", ">i4"), ("matching", "?"), ("products", ">f4", (codes,))]
    )  # fmt: skip


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


def _columns(packed: bytes | None, keywords: KeywordQuery) -> Candidates:
    """The packed memories as columns, in order of time."""
    rows = np.frombuffer(packed or b"", _layout(len(keywords.codes)))
    rows = rows[np.lexsort((rows["id"][:, 1], rows["id"][:, 0], rows["happened_at"]))]
    words, grams = keywords.decode(rows["products"])
    return Candidates(
        ids=_Ids(rows["id"]),
        cosine=1 - rows["distance"].astype(np.float64),
        words=words,
        grams=grams,
        word_count=rows["word_count"].astype(np.float64),
        created_at=rows["created_at"] / 1e6 + _YEAR_2000,
        happened_at=rows["happened_at"] / 1e6 + _YEAR_2000,
        importance=rows["importance"].astype(np.float64),
        session=rows["session"].astype(np.int64),
        matching=rows["matching"],
    )


class _Ids(Sequence[UUID]):
    """Ids in two numbers each, turned into a UUID only when asked for: few candidates become hits."""

    def __init__(self, halves: NDArray[np.uint64]) -> None:
        self._halves = halves

    def __len__(self) -> int:
        return len(self._halves)

    def __getitem__(self, row: Any) -> Any:
        high, low = self._halves[row].tolist()
        return UUID(int=high << 64 | low)


_YEAR_2000 = datetime(2000, 1, 1, tzinfo=UTC).timestamp()  # the zero of PostgreSQL's clock
