"""Searches of subjects too large to measure whole: the nearest, the best by postings of rare words, and the latest, for
time weighs, are proposed and measured.

Invariant: every proposed row is measured exactly like a row of a small subject, with the subject's document
frequencies. Where the vector index gives too few, what it stands for is read.
"""

from collections.abc import Sequence
from datetime import datetime
from time import monotonic
from typing import Any
from uuid import UUID

import numpy as np

from app import telemetry
from app.database import Transaction, sql
from app.indexes import PART
from app.recall.abreast import abreast
from app.recall.candidates import Asked, Shape, parameters
from app.recall.planner import SELECTIVE, LargeSubject, Plan, instead, looks, plan, share_of_parts
from app.recall.probe import RecallProbe
from app.recall.proposals import NEAREST, WORDED, Read, Walk, beside_nearest, nearest, probed, proposals, whole
from app.recall.query import Query
from app.recall.signals import Floats, Statistics

MANY = 5  # times as many nearest and worded where a search asks for more hits than MOST_USUAL
MOST_USUAL = 20
FRESH_SECONDS = 5.0  # a subject's move to the index is noticed after this time; until then it is measured whole
DISTRUST_SECONDS = 60.0
TENANTS_REMEMBERED = 10_000


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
            subjects = [LargeSubject(**row) for row in rows]
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
    shape: Shape,
    large: Sequence[LargeSubject],
    *,
    probe: RecallProbe,
    now: datetime,
) -> tuple[bytes, Statistics]:
    """Measure the proposed rows of large subjects and all rows of the query's other ones, as columns() reads them."""
    dimension = 0 if asked.vector is None else len(asked.vector)
    ids = [subject.subject_id for subject in large]
    words, grams = asked.keywords.word_ids, asked.keywords.gram_ids
    rows = sum(subject.memory_count for subject in large)
    values = parameters(query, asked, now=now)
    values |= {
        "large": ids,
        "small_shared": [subject_id for subject_id in values["shared"] if subject_id not in ids],
        "word_ids": words,
        "term_ids": [*words, *grams],
        "memories": float(rows),
        "looks": str(looks(large)),
    }
    own, dense = any(subject.user_id is not None for subject in large), "vector" in shape.vectors
    way, times = await plan(transaction, shape, large, values), 1 if query.top_k <= MOST_USUAL else MANY
    if not (dense or words):
        way = Plan("all")  # nothing proposes but time
    if way.near == "index":
        shares = share_of_parts(large)
        walk = Walk(tuple(sorted(shares)))
        narrow = shape.filters or shape.agent or shape.past
        found = None
        if dense and not narrow:  # what filters leave of the best-worded nobody knows, nor what they would cost
            halves = nearest(shape, dimension, times, walk), beside_nearest(shape, own, times, len(walk.parts))
            found = await abreast(transaction, *halves, values, shape, WORDED * times)
        if found is None:
            found = await transaction.fetch_row(proposals(shape, dimension, own, times, walk), **values)
        # None at all: the store was just switched to another model, which this process has not followed yet.
        enough = min(NEAREST * times, rows) if narrow or min(shares.values()) < SELECTIVE else 1
        if found is not None and not (dense and found["nearest"] < enough):
            if dense:
                probe.offer(query.tenant_id, probed(shape, dimension, walk.parts), values)
            return found["packed"] or b"", _statistics(found["counted"], asked, large)
        telemetry.SEARCH_UNDERFILLED.labels("ann_budget").inc()
        way = await instead(transaction, shape, rows, values)
    if way.near == "scan":
        statement = proposals(shape, dimension, own, times, Read(way.index))
    else:
        statement = whole(shape, own, way.index)
    found = await transaction.fetch_row(statement, **values, facets=way.facets)
    if found is None:
        return b"", _statistics(None, asked, large)
    return found["packed"] or b"", _statistics(found["counted"], asked, large)


def _statistics(packed: bytes | None, asked: Asked, large: Sequence[LargeSubject]) -> Statistics:
    """From the counts of terms as the statements pack them."""
    counts = np.frombuffer(packed or b"", _COUNT)
    documents = dict(zip(counts["term"].tolist(), counts["documents"].tolist(), strict=True))
    memories = sum(subject.memory_count for subject in large)
    mean = sum(subject.memory_count * subject.mean_word_count for subject in large) / max(memories, 1)

    def counted(terms: Sequence[int]) -> Floats:
        return np.array([documents.get(term, 0.0) for term in terms], dtype=np.float64)

    words, grams = counted(asked.keywords.word_ids), counted(asked.keywords.gram_ids)
    return Statistics(memories=memories, words=words, grams=grams, mean_word_count=mean)


_COUNT = np.dtype([("term", ">i4"), ("documents", ">f8")])
# Where the parts are not built yet, one index over all serves in their stead.
_LARGE: Any = sql(f"""
    SELECT subject_id, user_id, memory_count, mean_word_count,
           greatest(memory_count, (
               SELECT c.reltuples::float8 FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid AND i.indisvalid
               WHERE c.oid IN (
                   to_regclass('memories_ann_g' || :generation_id::int || '_p' || {PART.format("")}),
                   to_regclass('memories_ann_g' || :generation_id::int)
               )
               ORDER BY c.relname DESC LIMIT 1
           )) AS indexed
    FROM subjects WHERE tenant_id = :tenant_id AND ann AND ann_ready
""")
