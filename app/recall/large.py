"""Candidates of subjects too large to measure whole: the nearest by the vector index, the best by postings of rare
words, and the latest, for time weighs.

Invariant: the index only proposes. Every proposed row is measured exactly like a row of a small subject, with the
subject's document frequencies. Where little passes the filters, or the index gives too few, all that does is measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from time import monotonic
from typing import Any
from uuid import UUID

import numpy as np

from app import telemetry
from app.database import Statement, Transaction, sql
from app.embed import Generation
from app.recall.candidates import Asked, Shape, alive, matching, parameters, record, shape_of
from app.recall.narrow import COUNTED, Index, Way, narrowest, of_time, proposed
from app.recall.probe import RecallProbe
from app.recall.profile import IN_ORDER_OF_INDEX
from app.recall.query import Query
from app.recall.signals import Floats, Statistics

# Measured on 100,000 memories against a scan of all (docs/decisions/0015): more nearest or more best-worded cost more
# and change hits little; without the latest, a third of the best ten is missed.
NEAREST = 100  # rows that the vector index proposes: as many as one walk of it finds (hnsw.ef_search)
WORDED = 100  # rows that the postings propose
LATEST = 400  # latest rows, of which those that pass the filters are proposed
MANY = 5  # times as many nearest and worded where a search asks for more hits than MOST_USUAL
MOST_USUAL = 20
SELECTIVE = 0.07  # of the rows of the index: where fewer are looked for, all of them are measured; it would miss some
MEASURED = 20_000  # rows that are measured at most where the index would miss some
PROBED = 10  # nearest memories that a probe compares
POSTINGS_READ = 3_000  # postings read for one query: those of its rarest words
FRESH_SECONDS = 5.0  # a subject's move to the index is noticed after this time; until then it is measured whole
DISTRUST_SECONDS = 60.0
TENANTS_REMEMBERED = 10_000
TERMS_REMEMBERED = 20_000


@dataclass(slots=True)
class LargeSubject:
    """A subject with index and postings, and its size when these were last refreshed.

    `share` is its share of the rows of the vector index, which it has in common with others; `frequencies` remembers in
    how many of its memories a term occurs, as of that refresh.
    """

    subject_id: UUID
    user_id: str | None
    memory_count: int
    mean_word_count: float
    share: float
    frequencies: dict[int, float] = field(default_factory=dict, compare=False)


class LargeSubjects:
    """Which subjects of a tenant are large; looked up every few seconds, as it only decides how fast a search is."""

    def __init__(self) -> None:
        self._known: dict[UUID, tuple[float, list[LargeSubject]]] = {}
        self._trusted_from = 0.0

    @property
    def is_distrusted(self) -> bool:
        """Whether the vector index was found damaged a moment ago: every subject is measured whole meanwhile."""
        return monotonic() < self._trusted_from

    def distrust(self) -> None:
        """Leave the index alone for DISTRUST_SECONDS, and then try again."""
        self._trusted_from = monotonic() + DISTRUST_SECONDS
        telemetry.SEARCH_UNDERFILLED.labels("index_damaged").inc()

    async def among(self, transaction: Transaction, query: Query, generation_id: int) -> list[LargeSubject]:
        """The large ones among the subjects of a query."""
        if self.is_distrusted:
            return []
        fresh_until, subjects = self._known.get(query.tenant_id, (0.0, []))
        if fresh_until < monotonic():
            if len(self._known) > TENANTS_REMEMBERED:
                self._known.clear()
            rows = await transaction.fetch(_LARGE, tenant_id=query.tenant_id, generation_id=generation_id)
            before = {subject.subject_id: subject for subject in subjects}
            subjects = []
            for row in rows:
                read = LargeSubject(**row)
                known = before.get(read.subject_id)
                subjects.append(known if known is not None and known == read else read)
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
) -> tuple[bytes, Statistics]:
    """Measure the proposed rows of large subjects and all rows of the query's other ones, as columns() reads them."""
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
    own = any(subject.user_id is not None for subject in large)
    way, selective = await _selective(transaction, shape, large, values)
    if not selective and ("vector" in shape.vectors or rare):
        await transaction.execute(IN_ORDER_OF_INDEX)
        times = 1 if query.top_k <= MOST_USUAL else MANY
        row = await transaction.fetch_row(_proposed(shape, generation.spec.dimension, own, times), **values)
        expected = min(NEAREST * times, sum(subject.memory_count for subject in large))
        narrow = shape.filters or shape.agent or shape.past or sum(subject.share for subject in large) < SELECTIVE
        # None at all: the store was just switched to another model, which this process has not followed yet.
        few = row is None or row["nearest"] < (expected if narrow else 1)
        if row is not None and not ("vector" in shape.vectors and few):
            if "vector" in shape.vectors:
                probe.offer(query.tenant_id, _probed(shape, generation.spec.dimension), values)
            return row["packed"] or b"", statistics
        telemetry.SEARCH_UNDERFILLED.labels("ann_budget").inc()
        way = way or await narrowest(transaction, shape, values)
    index = None if way is None or way.passing == COUNTED else way.index
    facets = None if way is None else way.facets
    packed = await transaction.fetch_value(_whole(shape, own, index), **values, facets=facets)
    return packed or b"", statistics


async def _selective(
    transaction: Transaction, shape: Shape, large: Sequence[LargeSubject], values: Mapping[str, Any]
) -> tuple[Way | None, bool]:
    """Whether so few rows are looked for that all are measured, and the way to them, if it was looked for."""
    share, rows = sum(subject.share for subject in large), sum(subject.memory_count for subject in large)
    if share < SELECTIVE and rows <= MEASURED:
        return None, True
    if not (shape.filters or shape.agent):
        return None, False
    await transaction.execute(IN_ORDER_OF_INDEX)
    sample = 1.0
    if not (shape.past or of_time(shape)):
        sample = await transaction.fetch_value(_passing(shape), **values) / (LATEST * len(large))
        if sample * share >= SELECTIVE:
            return None, False
    way = await narrowest(transaction, shape, values)
    if way is None:
        return None, sample * share < SELECTIVE
    return way, way.passing <= MEASURED and way.passing / max(rows, 1) * share < SELECTIVE


async def _statistics(
    transaction: Transaction, query: Query, asked: Asked, large: Sequence[LargeSubject]
) -> Statistics:
    words, grams = asked.keywords.word_ids, asked.keywords.gram_ids
    terms = {*words, *grams}
    unknown = [subject for subject in large if not terms <= subject.frequencies.keys()]
    if unknown:
        rows = await transaction.fetch(
            _FREQUENCIES,
            tenant_id=query.tenant_id,
            large=[subject.subject_id for subject in unknown],
            terms=list(terms),
        )
        for subject in unknown:
            if len(subject.frequencies) > TERMS_REMEMBERED:
                subject.frequencies.clear()
            subject.frequencies.update(dict.fromkeys(terms, 0.0))
            subject.frequencies.update(
                (row["term_id"], float(row["document_count"]))
                for row in rows
                if row["subject_id"] == subject.subject_id
            )
    memories = sum(subject.memory_count for subject in large)
    mean = sum(subject.memory_count * subject.mean_word_count for subject in large) / max(memories, 1)

    def counted(terms: Sequence[int]) -> Floats:
        return np.array([sum(subject.frequencies[term] for subject in large) for term in terms], dtype=np.float64)

    return Statistics(memories=memories, words=counted(words), grams=counted(grams), mean_word_count=mean)


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


def _near(shape: Shape, dimension: int, packed: str, times: int = 1) -> str:
    # Generation and dimension are literals, so that the planner can prove that the partial index applies.
    return f"""
        SELECT m.memory_id, {packed} AS packed FROM memories m WHERE {_in_large(shape)} AND m.ann
        ORDER BY m.embedding::halfvec({dimension}) <=> cast(:vector AS halfvec({dimension})) LIMIT {NEAREST * times}
    """


@lru_cache(maxsize=64)
def _probed(shape: Shape, dimension: int) -> Statement:
    """The share of the nearest PROBED memories that is among the nearest PROBED of those that the index proposes."""
    return sql(f"""
        WITH near AS MATERIALIZED ({_near(shape, dimension, "m.embedding <=> :vector")}
        ), found AS MATERIALIZED (
            SELECT packed AS distance FROM near ORDER BY distance LIMIT {PROBED}
        ), truly AS MATERIALIZED (
            SELECT m.embedding <=> :vector AS distance FROM memories m WHERE {_in_large(shape)}
            ORDER BY distance LIMIT {PROBED}
        )
        SELECT cast(count(*) AS float8) / nullif((SELECT count(*) FROM truly), 0)
        FROM found WHERE distance <= (SELECT max(distance) FROM truly)
    """)


@lru_cache(maxsize=256)
def _proposed(shape: Shape, dimension: int, own_is_large: bool, times: int = 1) -> Statement:
    # Each row is measured where it is found; only the limit ends the two walks, along the vector index and down the
    # list of the best-worded, and what the first has met is not told twice.
    others = _SMALL_SHARED if own_is_large else _SMALL_OWN_AND_SHARED
    near = _near(shape, dimension, record(shape), times) if "vector" in shape.vectors else _NOTHING
    return sql(f"""
        WITH near AS MATERIALIZED ({near}
        ), worded AS MATERIALIZED (
            SELECT m.memory_id, {record(shape)} AS packed
            FROM (
                SELECT t.subject_id, t.memory_id, sum(rare.weight) AS weight
                FROM unnest(cast(:rare_ids AS int[]), cast(:rare_weights AS float8[])) AS rare (term_id, weight)
                JOIN memory_terms t ON t.term_id = rare.term_id
                WHERE t.tenant_id = :tenant_id AND t.subject_id = ANY (cast(:large AS uuid[]))
                GROUP BY t.subject_id, t.memory_id ORDER BY weight DESC, t.memory_id DESC
            ) AS ranked
            JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = ranked.subject_id
                 AND m.memory_id = ranked.memory_id
            WHERE ranked.memory_id NOT IN (SELECT near.memory_id FROM near) AND {alive(shape)} AND ({matching(shape)})
            ORDER BY ranked.weight DESC, ranked.memory_id DESC LIMIT {WORDED * times}
        ), latest AS (
            SELECT {record(shape)} AS packed
            FROM {_LATEST} WHERE {alive(shape)} AND ({matching(shape)}) AND {"false" if shape.past else "true"}
              AND m.memory_id NOT IN (SELECT memory_id FROM near)
              AND m.memory_id NOT IN (SELECT memory_id FROM worded)
        ), others AS (
            SELECT {record(shape)} AS packed FROM memories m
            WHERE m.tenant_id = :tenant_id AND {others} AND {alive(shape)}
        ), found AS (
            SELECT packed FROM near UNION ALL SELECT packed FROM worded
            UNION ALL SELECT packed FROM latest UNION ALL SELECT packed FROM others
        )
        SELECT (SELECT string_agg(packed, '') FROM found) AS packed, (SELECT count(*) FROM near) AS nearest
    """)


@lru_cache(maxsize=256)
def _passing(shape: Shape) -> Statement:
    return sql(f"SELECT count(*) FROM {_LATEST} WHERE {alive(shape)} AND ({matching(shape)})")


@lru_cache(maxsize=256)
def _whole(shape: Shape, own_is_large: bool, index: Index | None) -> Statement:
    """All that passes the filters: of large subjects by an index of one of them, or by reading these whole."""
    # Filters first: they look at columns that lie in front, and most rows need not be taken apart any further.
    others = _SMALL_SHARED if own_is_large else _SMALL_OWN_AND_SHARED
    large = "memories m" if index is None else proposed(shape, index)
    return sql(f"""
        WITH found AS (
            SELECT {record(shape)} AS packed FROM {large}
            WHERE m.tenant_id = :tenant_id AND m.subject_id = ANY (cast(:large AS uuid[]))
              AND ({matching(shape)}) AND {alive(shape)}
            UNION ALL
            SELECT {record(shape)} FROM memories m
            WHERE m.tenant_id = :tenant_id AND {others} AND ({matching(shape)}) AND {alive(shape)}
        )
        SELECT string_agg(packed, '') FROM found
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
_LATEST = f"""
    unnest(cast(:large AS uuid[])) AS one (subject_id)
    CROSS JOIN LATERAL (
        SELECT * FROM memories m WHERE m.tenant_id = :tenant_id AND m.subject_id = one.subject_id
        ORDER BY m.memory_id DESC LIMIT {LATEST}
    ) AS m
"""
_NOTHING = "SELECT NULL::uuid AS memory_id, NULL::bytea AS packed WHERE false"
_LARGE: Any = sql("""
    SELECT subject_id, user_id, memory_count, mean_word_count,
           least(1, memory_count / greatest(1, memory_count, (
               SELECT reltuples::float8 FROM pg_class WHERE oid = to_regclass('memories_ann_g' || :generation_id::int)
           ))) AS share
    FROM subjects WHERE tenant_id = :tenant_id AND ann AND ann_ready
""")
_FREQUENCIES = sql("""
    SELECT subject_id, term_id, document_count FROM term_statistics
    WHERE tenant_id = :tenant_id AND subject_id = ANY (cast(:large AS uuid[]))
      AND term_id = ANY (cast(:terms AS int[]))
""")
