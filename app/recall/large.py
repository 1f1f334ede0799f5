"""Candidates of subjects too large to measure whole: nearest by the vector index, best by postings of rare words.

Invariant: the index only proposes. Every proposed row is measured exactly like a row of a small subject, with the
subject's document frequencies; where the index gives fewer rows than it should, the subject is measured whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from time import monotonic
from typing import Any
from uuid import UUID

import numpy as np

from app import telemetry
from app.database import Statement, Transaction, sql
from app.embed import Generation
from app.recall.candidates import SUBJECTS, Asked, Shape, alive, columns, matching, parameters, record, shape_of
from app.recall.probe import RecallProbe
from app.recall.profile import IN_ORDER_OF_INDEX
from app.recall.query import Candidates, Query
from app.recall.signals import Statistics

NEAREST = 200  # rows that the vector index proposes
WORDED = 300  # rows that the postings propose
PROBED = 10  # nearest memories that a probe compares
POSTINGS_READ = 5_000  # postings read for one query: those of its rarest words
FRESH_SECONDS = 5.0  # a subject's move to the index is noticed after this time; until then it is measured whole
TENANTS_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class LargeSubject:
    """A subject with index and postings, and its size when these were last refreshed."""

    subject_id: UUID
    user_id: str | None
    memory_count: int
    mean_word_count: float


class LargeSubjects:
    """Which subjects of a tenant are large; looked up every few seconds, as it only decides how fast a search is."""

    def __init__(self) -> None:
        self._known: dict[UUID, tuple[float, tuple[LargeSubject, ...]]] = {}

    async def among(self, transaction: Transaction, query: Query) -> list[LargeSubject]:
        """The large ones among the subjects of a query."""
        fresh_until, subjects = self._known.get(query.tenant_id, (0.0, ()))
        if fresh_until < monotonic():
            if len(self._known) > TENANTS_REMEMBERED:
                self._known.clear()
            rows = await transaction.fetch(_LARGE, tenant_id=query.tenant_id)
            subjects = tuple(LargeSubject(**row) for row in rows)
            self._known[query.tenant_id] = monotonic() + FRESH_SECONDS, subjects
        shared = query.include_shared or query.user_id is None
        return [
            subject
            for subject in subjects
            if (shared and subject.subject_id == query.tenant_id)
            or (subject.user_id is not None and subject.user_id == query.user_id)
        ]


async def find_in_large(
    transaction: Transaction,
    query: Query,
    asked: Asked,
    large: Sequence[LargeSubject],
    *,
    generation: Generation,
    probe: RecallProbe,
    now: datetime,
) -> tuple[Candidates, Statistics]:
    """Measure the proposed rows of large subjects and all rows of the query's other ones."""
    shape = shape_of(query, asked, generation.generation_id)
    statistics = await _statistics(transaction, query, asked, large)
    rare = _rarest(asked, statistics)
    values = parameters(query, asked, now=now)
    ids = [subject.subject_id for subject in large]
    values |= {
        "large": ids,
        "small_shared": [subject_id for subject_id in values["shared"] if subject_id not in ids],
        "rare_ids": [term_id for term_id, _ in rare],
        "rare_weights": [weight for _, weight in rare],
    }
    if "vector" in shape.vectors or rare:
        await transaction.execute(IN_ORDER_OF_INDEX)
        own = any(subject.user_id is not None for subject in large)
        row = await transaction.fetch_row(_proposed(shape, generation.spec.dimension, own), **values)
        expected = min(NEAREST, sum(subject.memory_count for subject in large))
        narrow = shape.filters or shape.agent or shape.past
        if row is not None and not (narrow and "vector" in shape.vectors and row["nearest"] < expected):
            if "vector" in shape.vectors:
                probe.offer(query.tenant_id, _probed(shape, generation.spec.dimension), values)
            return columns(row["packed"], asked, shape), statistics
        telemetry.SEARCH_UNDERFILLED.labels("ann_budget").inc()
    packed = await transaction.fetch_value(_whole(shape), **values)
    return columns(packed, asked, shape), statistics


async def _statistics(
    transaction: Transaction, query: Query, asked: Asked, large: Sequence[LargeSubject]
) -> Statistics:
    words, grams = asked.keywords.word_ids, asked.keywords.gram_ids
    rows = await transaction.fetch(
        _FREQUENCIES,
        tenant_id=query.tenant_id,
        large=[subject.subject_id for subject in large],
        terms=[*words, *grams],
    )
    frequency = {row["term_id"]: float(row["documents"]) for row in rows}
    memories = sum(subject.memory_count for subject in large)
    mean = sum(subject.memory_count * subject.mean_word_count for subject in large) / max(memories, 1)
    return Statistics(
        memories=memories,
        words=np.array([frequency.get(term, 0.0) for term in words], dtype=np.float64),
        grams=np.array([frequency.get(term, 0.0) for term in grams], dtype=np.float64),
        mean_word_count=mean,
    )


def _rarest(asked: Asked, statistics: Statistics) -> list[tuple[int, float]]:
    """The query's rarest words with their idf, as many as POSTINGS_READ allows; at least one."""
    chosen: list[tuple[int, float]] = []
    read = 0.0
    for frequency, term_id in sorted(zip(statistics.words.tolist(), asked.keywords.word_ids, strict=True)):
        read += max(frequency, 1.0)
        if chosen and read > POSTINGS_READ:
            break
        chosen.append((term_id, float(np.log1p((statistics.memories + 0.5) / (frequency + 0.5)))))
    return chosen


def _in_large(shape: Shape) -> str:
    return f"""
        m.tenant_id = :tenant_id AND m.subject_id = ANY (cast(:large AS uuid[])) AND {alive(shape)}
        AND ({matching(shape)}) AND m.generation_id = {shape.generation_id}
    """


def _near(shape: Shape, dimension: int) -> str:
    # Generation and dimension are literals, so that the planner can prove that the partial index applies.
    return f"""
        SELECT m.subject_id, m.memory_id FROM memories m WHERE {_in_large(shape)} AND m.ann
        ORDER BY m.embedding::halfvec({dimension}) <=> cast(:vector AS halfvec({dimension})) LIMIT {NEAREST}
    """


@lru_cache(maxsize=64)
def _probed(shape: Shape, dimension: int) -> Statement:
    """The share of the nearest PROBED memories that is among the nearest PROBED of those that the index proposes."""
    return sql(f"""
        WITH near AS MATERIALIZED ({_near(shape, dimension)}
        ), found AS MATERIALIZED (
            SELECT m.embedding <=> :vector AS distance FROM near
            JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = near.subject_id
                 AND m.memory_id = near.memory_id
            ORDER BY distance LIMIT {PROBED}
        ), truly AS MATERIALIZED (
            SELECT m.embedding <=> :vector AS distance FROM memories m WHERE {_in_large(shape)}
            ORDER BY distance LIMIT {PROBED}
        )
        SELECT cast(count(*) AS float8) / nullif((SELECT count(*) FROM truly), 0)
        FROM found WHERE distance <= (SELECT max(distance) FROM truly)
    """)


@lru_cache(maxsize=256)
def _proposed(shape: Shape, dimension: int, own_is_large: bool) -> Statement:
    others = _SMALL_SHARED if own_is_large else _SMALL_OWN_AND_SHARED
    nothing = "SELECT NULL::uuid AS subject_id, NULL::uuid AS memory_id WHERE false"
    return sql(f"""
        WITH near AS MATERIALIZED ({_near(shape, dimension) if "vector" in shape.vectors else nothing}
        ), worded AS MATERIALIZED (
            SELECT ranked.subject_id, ranked.memory_id
            FROM (
                SELECT t.subject_id, t.memory_id, sum(rare.weight) AS weight
                FROM unnest(cast(:rare_ids AS int[]), cast(:rare_weights AS float8[])) AS rare (term_id, weight)
                JOIN memory_terms t ON t.term_id = rare.term_id
                WHERE t.tenant_id = :tenant_id AND t.subject_id = ANY (cast(:large AS uuid[]))
                GROUP BY t.subject_id, t.memory_id ORDER BY weight DESC, t.memory_id DESC
            ) AS ranked
            CROSS JOIN LATERAL (
                SELECT FROM memories m
                WHERE m.tenant_id = :tenant_id AND m.subject_id = ranked.subject_id AND m.memory_id = ranked.memory_id
                  AND {alive(shape)} AND ({matching(shape)})
                LIMIT 1
            ) AS standing
            ORDER BY ranked.weight DESC, ranked.memory_id DESC LIMIT {WORDED}
        ), picked AS (
            SELECT * FROM near UNION SELECT * FROM worded
        ), proposed AS (
            SELECT string_agg({record(shape)}, '') AS packed
            FROM picked
            JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = picked.subject_id
                 AND m.memory_id = picked.memory_id
            WHERE {alive(shape)}
        ), others AS (
            SELECT string_agg({record(shape)}, '') AS packed FROM memories m
            WHERE m.tenant_id = :tenant_id AND {others} AND {alive(shape)}
        )
        SELECT coalesce(proposed.packed, ''::bytea) || coalesce(others.packed, ''::bytea) AS packed,
               (SELECT count(*) FROM near) AS nearest
        FROM proposed, others
    """)


@lru_cache(maxsize=256)
def _whole(shape: Shape) -> Statement:
    return sql(f"""
        SELECT string_agg({record(shape)}, '') FROM memories m
        WHERE m.tenant_id = :tenant_id AND {SUBJECTS} AND {alive(shape)} AND ({matching(shape)})
    """)


# Of the subjects in scope those that are not large. Named by parameter where that is all, for then the planner knows
# that they are small; in the other form it takes them for average ones.
_SMALL_SHARED = "m.subject_id = ANY (cast(:small_shared AS uuid[]))"
_SMALL_OWN_AND_SHARED = """
    m.subject_id = ANY (
        ARRAY(SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id)
        || cast(:small_shared AS uuid[])
    )
"""
_LARGE: Any = sql("""
    SELECT subject_id, user_id, memory_count, mean_word_count FROM subjects
    WHERE tenant_id = :tenant_id AND ann AND ann_ready
""")
_FREQUENCIES = sql("""
    SELECT term_id, sum(document_count) AS documents FROM term_statistics
    WHERE tenant_id = :tenant_id AND subject_id = ANY (cast(:large AS uuid[]))
      AND term_id = ANY (cast(:terms AS int[]))
    GROUP BY term_id
""")
