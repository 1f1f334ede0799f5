"""recall(): the search use case. Embed the query, then one read transaction that measures, judge, fetch the best.

Invariant: no connection is held while the model works; a search writes nothing; what was missing is said in `degraded`
and counted.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import is_
from typing import Any
from uuid import UUID

import numpy as np

from app import telemetry
from app.database import Database, Transaction
from app.embed import Embedder, Generation, Reranker, RerankUnavailable
from app.errors import EmbeddingUnavailable, StorageDamaged
from app.language import keyword_query, questions
from app.memory import as_json
from app.recall.candidates import Asked, columns, find, shape_of
from app.recall.cold import measure_cold, propose_cold
from app.recall.diversity import SHORTLIST, Choice, choose, most_per_source, redundancy, settled, shortlist
from app.recall.hydrate import fetch, texts_of_then, vectors_of
from app.recall.large import LargeSubjects, find_in_large
from app.recall.probe import RecallProbe
from app.recall.query import Absence, Candidates, Hit, Query, RecallConfig, Recalled
from app.recall.ranking import Judged, judge
from app.recall.replica import Replica
from app.recall.rerank import Placed, Pool, explained, leading_reranked, pool_size, pooled, rerank
from app.recall.resident import Resident, measure
from app.recall.residents import Claim, Residents
from app.recall.signals import Circumstances, Floats, Statistics, early
from app.recall.small_talk import SmallTalk
from app.recall.usage import UsageBuffer
from app.recall.why_not import explain_absence, look_up


@dataclass(frozen=True, slots=True)
class _Found:
    """What the transaction of a search leaves: verdicts, memories told by id, and the pool if they are to be reranked.

    `choice` is that of the fused order.
    """

    candidates: Candidates
    judged: Judged
    choice: Choice
    pool: Pool | None
    told: Mapping[UUID, Mapping[str, Any]]
    subjects: Mapping[UUID, UUID]
    walls: Mapping[UUID, Any]


@dataclass(frozen=True, slots=True)
class Recaller:
    """The read path of one process."""

    database: Database
    embedder: Embedder
    generation: Generation
    usage: UsageBuffer
    residents: Residents
    replica: Replica
    small_talk: SmallTalk
    reranker: Reranker
    probe: RecallProbe
    config: RecallConfig
    large: LargeSubjects = field(default_factory=LargeSubjects)

    async def recall(
        self, query: Query, *, now: datetime, explain: bool = False, why_not: Sequence[UUID] = ()
    ) -> Recalled:
        """Hits, best first, at most query.top_k; fewer rather than padding. `why_not` asks for the fate of these ids.

        Without a vector (embedder down or slow) keywords, time and importance answer, marked `embedding_unavailable`;
        memories still without a vector are judged the same way, marked `embedding_pending`. A reranker that is away or
        slow leaves the fused order, marked `rerank_unavailable`. Raises DatabaseUnavailable, PoolExhausted,
        DeadlineExceeded.
        """
        degraded: list[str] = []
        at = query.as_of or now
        query = self._configured(query)
        claim = None if why_not else self.residents.claim(query)
        asked = await self._ask(query, degraded)
        verdicts: list[Absence] = []
        if why_not or (hits := await self._from_memory(query, asked, claim, degraded, at=at, explain=explain)) is None:
            hits, verdicts = await self._from_database(query, asked, why_not, degraded, at=at, explain=explain)
        if query.as_of is None:  # to look back is not to use
            self.usage.add(query.tenant_id, hits, now)
            self.usage.wake(query.tenant_id, (hit.memory for hit in hits), now)
        telemetry.SEARCH_RESULTS.observe(len(hits))
        for reason in degraded:
            telemetry.SEARCH_DEGRADED.labels(reason).inc()
        return Recalled(hits, tuple(degraded), tuple(verdicts))

    async def _from_memory(
        self, query: Query, asked: Asked, claim: Claim | None, degraded: list[str], *, at: datetime, explain: bool
    ) -> list[Hit] | None:
        """The hits among what is held, judged while the database is asked whether it changed; None: SQL answers."""
        found = None
        if claim is not None:
            for _ in range(2):
                await asyncio.sleep(0)  # what is sent leaves between two turns of the event loop
            found = self._remembered(claim.residents, query, asked, at=at, explain=explain)
        with telemetry.search_stage("resident"):
            if claim is None or not await claim.unchanged:
                fresh = await self.residents.of(query)
                if fresh is None:
                    return None
                if claim is None or not all(map(is_, fresh, claim.residents)):
                    found = self._remembered(fresh, query, asked, at=at, explain=explain)
        if found is None:
            return None
        hits, pending = found
        degraded += ["embedding_pending"] * pending
        return hits

    async def _from_database(
        self, query: Query, asked: Asked, why_not: Sequence[UUID], degraded: list[str], *, at: datetime, explain: bool
    ) -> tuple[list[Hit], list[Absence]]:
        asked = await self._look_in_the_cold(query, asked, at=at)
        found = await self._read(query, asked, why_not, degraded, at=at)
        choice, placed = found.choice, None
        if found.pool is not None:
            choice, placed = await self._rerank(query, found, found.pool, degraded)
        ids, told, judged = found.candidates.ids, found.told, found.judged
        ranked, leads = judged.ranked(choice.chosen, explain=explain), judged.leading(choice.chosen)
        if placed is not None:
            ranked, leads = explained(ranked, placed), leading_reranked(ranked, placed)
        shown = ((ids[one.row], one, leading) for one, leading in zip(ranked, leads, strict=True))
        hits = [
            Hit(told[memory_id], found.subjects[memory_id], one.score, one.signals, leading)
            for memory_id, one, leading in shown
            if memory_id in told
        ]
        return hits, [
            explain_absence(memory_id, found.walls.get(memory_id), query, found.candidates, judged, choice, at=at)
            for memory_id in why_not
        ]

    async def _read(
        self, query: Query, asked: Asked, why_not: Sequence[UUID], degraded: list[str], *, at: datetime
    ) -> _Found:
        """All that the database has to say, in one transaction on the replica or on the primary."""

        async def read(transaction: Transaction) -> tuple[_Found, list[str]]:
            missing: list[str] = []
            return await self._read_in(transaction, query, asked, why_not, missing, at=at), missing

        answer = await self.replica.attempt(query, read)
        if answer is None:
            try:
                meanwhile = early(query, asked.keywords, at)
                async with self.database.read(query.tenant_id, ordered=True, meanwhile=meanwhile) as transaction:
                    answer = await read(transaction)
            except StorageDamaged:
                self.large.distrust()
                async with self.database.read(query.tenant_id, ordered=True) as transaction:
                    answer = await read(transaction)
        degraded += answer[1]
        return answer[0]

    async def _read_in(
        self, transaction: Transaction, query: Query, asked: Asked, why_not: Sequence[UUID], degraded: list[str], *,
        at: datetime,
    ) -> _Found:  # fmt: skip
        with telemetry.search_stage("database"):
            candidates, statistics = await self._find(transaction, query, asked, at)
        judged, pending = self._judge(candidates, query, asked, at, statistics)
        degraded += ["embedding_pending"] * pending
        with telemetry.search_stage("hydrate"):
            pool = None
            if query.rerank and len(judged.order):
                pool, rows = await self._pool(transaction, query, candidates, judged, at)
                choice = pool.choice(query)
            else:
                choice, rows = await self._choose(transaction, query, candidates, judged, at)
            ids = [candidates.ids[row] for row in (choice.chosen if pool is None else pool.rows)]
            of_then = {} if query.as_of is None else await texts_of_then(transaction, query, ids, now=at)
        walls: Mapping[UUID, Any] = {}
        if why_not:
            shape = shape_of(query, asked, self.generation.generation_id)
            walls = await look_up(transaction, query, asked, shape, why_not, now=at)
        # What is not in rows was overruled or expired between the two statements.
        told: dict[UUID, dict[str, Any]] = {one: as_json(rows[one]) for one in ids if one in rows}
        if of_then:
            told = {one: memory | of_then.get(one, {}) for one, memory in told.items()}
        subjects = {one: row["subject_id"] for one, row in rows.items()}
        return _Found(candidates, judged, choice, pool, told, subjects, walls)

    def _remembered(
        self, held: Sequence[Resident], query: Query, asked: Asked, *, at: datetime, explain: bool
    ) -> tuple[list[Hit], bool]:
        """What SQL would find, from subjects held in memory; and whether some memories have no vector yet."""
        with telemetry.search_stage("measure"):
            measured = measure(held, query, asked, at=at.timestamp())
        candidates = measured.candidates
        judged, pending = self._judge(candidates, query, asked, at)
        with telemetry.search_stage("hydrate"):
            most = most_per_source(query.max_share_per_source or 1.0, query.top_k)
            pool = pooled(candidates, judged, SHORTLIST * query.top_k, most)
            if query.diversity and len(pool.rows) > query.top_k:
                window = self.generation.spec.pair_window
                if redundancy(measured.vectors(pool.rows[: query.top_k]), window).any():  # else none gives way
                    pool = replace(pool, same=redundancy(measured.vectors(pool.rows), window))
            chosen = pool.choice(query).chosen
            both = zip(judged.ranked(chosen, explain=explain), judged.leading(chosen), strict=True)
            return [Hit(*measured.told(one.row), one.score, one.signals, leads) for one, leads in both], pending

    def _judge(
        self, candidates: Candidates, query: Query, asked: Asked, at: datetime, statistics: Statistics | None = None
    ) -> tuple[Judged, bool]:
        """The verdict, and whether some memories have no vector yet."""
        with telemetry.search_stage("ranking"):
            pending = asked.vector is not None and bool(np.isnan(candidates.cosine).any())
            window = self.generation.spec.query_window
            here = Circumstances(window=window, now=at.timestamp(), statistics=statistics)
            return judge(candidates, query, here), pending

    def _configured(self, query: Query) -> Query:
        """The query with what it leaves to the configuration."""
        diversity, share, wanted = query.diversity, query.max_share_per_source, query.rerank
        return replace(
            query,
            diversity=self.config.diversity if diversity is None else diversity,
            max_share_per_source=self.config.max_share_per_source if share is None else share,
            rerank=self.reranker.by_default if wanted is None else wanted,
        )

    async def _choose(
        self, transaction: Transaction, query: Query, candidates: Candidates, judged: Judged, at: datetime
    ) -> tuple[Choice, dict[UUID, Any]]:
        """The hits among the best candidates, and the full rows of these."""
        most = most_per_source(query.max_share_per_source or 1.0, query.top_k)
        considered = shortlist(judged.order, candidates.source, SHORTLIST * query.top_k, most)
        scores = judged.score[considered]
        sources = None if candidates.source is None else candidates.source[considered]
        chosen = choose(scores, query.top_k, sources=sources, most=most)
        if not query.diversity or not 1 < len(chosen) < len(considered):
            rows = await fetch(transaction, query, [candidates.ids[considered[one]] for one in chosen], now=at)
            return Choice(considered, [considered[position] for position in chosen], None, most), rows
        rows, near = {}, chosen[-1] + 1
        while True:  # few hits give way, so a few candidates more are enough; all are looked at only if these are not
            ids = [candidates.ids[row] for row in considered[:near]]
            further = [one for one in ids if one not in rows]
            rows |= await fetch(transaction, query, further, now=at, generation=self.generation)
            same, some = self._redundancy(rows, ids), None if sources is None else sources[:near]
            chosen = choose(
                scores[:near], query.top_k, same=same, diversity=query.diversity, sources=some, most=most
            )  # fmt: skip
            if near >= len(considered) or (len(chosen) == query.top_k and settled(chosen, same, some)):
                return Choice(considered[:near], [considered[position] for position in chosen], same, most), rows
            near += query.top_k // 2 + 1

    async def _pool(
        self, transaction: Transaction, query: Query, candidates: Candidates, judged: Judged, at: datetime
    ) -> tuple[Pool, dict[UUID, Any]]:
        """What may be reranked, and the full rows of all of it: no transaction waits for the reranker to choose."""
        most = most_per_source(query.max_share_per_source or 1.0, query.top_k)
        pool = pooled(candidates, judged, pool_size(query, self.reranker), most)
        ids = [candidates.ids[row] for row in pool.rows]
        if not query.diversity or len(ids) <= query.top_k:
            return pool, await fetch(transaction, query, ids, now=at)
        rows = await fetch(transaction, query, ids, now=at, generation=self.generation)
        return replace(pool, same=self._redundancy(rows, ids)), rows

    def _redundancy(self, rows: Mapping[UUID, Any], ids: Sequence[UUID]) -> Floats:
        spec = self.generation.spec
        return redundancy(vectors_of(rows, ids, spec.dimension), spec.pair_window)

    async def _rerank(
        self, query: Query, found: _Found, pool: Pool, degraded: list[str]
    ) -> tuple[Choice, Mapping[int, Placed] | None]:
        """The hits in the order of the reranker, or those of the fused order."""
        ids = found.candidates.ids
        there = [position for position, row in enumerate(pool.rows) if ids[row] in found.told]
        if not there:
            return found.choice, None
        pool = pool.arranged(there, pool.scores[there])
        with telemetry.search_stage("rerank"):
            try:
                contents = [found.told[ids[row]]["content"] for row in pool.rows]
                pool, placed = await rerank(self.reranker, query.text, pool, contents)
            except RerankUnavailable:
                degraded.append("rerank_unavailable")
                return found.choice, None
        return replace(pool.choice(query), reranked=True), placed

    async def _find(
        self, transaction: Transaction, query: Query, asked: Asked, now: datetime
    ) -> tuple[Candidates, Statistics | None]:
        generation_id, statistics = self.generation.generation_id, None
        shape = shape_of(query, asked, generation_id)
        cold = await measure_cold(transaction, query, asked, shape, now=now)
        large = await self.large.among(transaction, query, generation_id)
        if large:
            warm, statistics = await find_in_large(transaction, query, asked, shape, large, probe=self.probe, now=now)
        else:
            warm = await find(transaction, query, asked, shape, now=now)
        return columns(warm + cold, asked, shape), statistics

    async def _look_in_the_cold(self, query: Query, asked: Asked, *, at: datetime) -> Asked:
        """With the cold memories that may be hits, if they are asked for: no transaction waits for their vectors."""
        if not query.looks_in_the_cold:
            return asked
        with telemetry.search_stage("cold"):
            remade = await propose_cold(self.database, self.embedder, self.generation, query, asked, now=at)
        return replace(asked, remade=remade)

    async def _ask(self, query: Query, degraded: list[str]) -> Asked:
        """The query as numbers; without a vector if no signal needs one or the embedder does not give it in time."""
        with telemetry.search_stage("query"):
            keywords = keyword_query(query.text)
        unweighted = query.fusion == "weighted" and query.weights.get("similarity") == 0
        if unweighted and query.similarity_threshold == 0:
            return Asked(keywords, None)
        with telemetry.search_stage("embed"):
            try:
                async with asyncio.timeout(self.config.embedding_deadline_seconds):
                    calls = [self.embedder.embed_query(text) for text in (query.text, *questions(query.text))]
                    # One call, the usual case, needs no task of its own.
                    whole, *parts = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
            except (EmbeddingUnavailable, TimeoutError):
                degraded.append("embedding_unavailable")
                return Asked(keywords, None)
        return Asked(keywords, whole, tuple(parts), self.small_talk.mean)
