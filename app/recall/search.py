"""recall(): the search use case. Embed the query, then one read transaction that measures, judge, fetch the best.

Invariant: no connection is held while the model works; a search writes nothing; what was missing is said in `degraded`
and counted.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np

from app import telemetry
from app.database import Database, Transaction
from app.embed import Embedder, Generation
from app.errors import EmbeddingUnavailable
from app.language import keyword_query, questions
from app.memory import as_json
from app.recall.candidates import Asked, find, shape_of
from app.recall.diversity import Choice, choose, most_per_source, redundancy, shortlist
from app.recall.hydrate import fetch, fetch_beside, texts_of_then
from app.recall.large import LargeSubjects, find_in_large
from app.recall.query import Candidates, Hit, Query, RecallConfig, Recalled
from app.recall.ranking import Judged, judge
from app.recall.signals import Circumstances, Statistics
from app.recall.small_talk import SmallTalk
from app.recall.usage import UsageBuffer
from app.recall.why_not import explain_absence, look_up


@dataclass(frozen=True, slots=True)
class Recaller:
    """The read path of one process."""

    database: Database
    embedder: Embedder
    generation: Generation
    usage: UsageBuffer
    small_talk: SmallTalk
    config: RecallConfig
    large: LargeSubjects = field(default_factory=LargeSubjects)

    async def recall(
        self, query: Query, *, now: datetime, explain: bool = False, why_not: Sequence[UUID] = ()
    ) -> Recalled:
        """Hits, best first, at most query.top_k; fewer rather than padding. `why_not` asks for the fate of these ids.

        Without a vector (embedder down or slow) keywords, time and importance answer, marked `embedding_unavailable`;
        memories still without a vector are judged the same way, marked `embedding_pending`. Raises DatabaseUnavailable,
        PoolExhausted, DeadlineExceeded.
        """
        degraded: list[str] = []
        at = query.as_of or now
        query = self._configured(query)
        asked = await self._ask(query, degraded)
        async with self.database.read(query.tenant_id) as transaction:
            with telemetry.search_stage("database"):
                candidates, statistics = await self._find(transaction, query, asked, at)
            with telemetry.search_stage("ranking"):
                if asked.vector is not None and np.isnan(candidates.cosine).any():
                    degraded.append("embedding_pending")
                circumstances = Circumstances(
                    window=self.generation.spec.query_window, now=at.timestamp(), statistics=statistics
                )
                judged = judge(candidates, query, circumstances)
            with telemetry.search_stage("hydrate"):
                choice, rows = await self._choose(transaction, query, candidates, judged, at)
                ids = [candidates.ids[row] for row in choice.chosen]
                of_then = {} if query.as_of is None else await texts_of_then(transaction, query, ids, now=at)
            shape = shape_of(query, asked, self.generation.generation_id)
            walls = await look_up(transaction, query, asked, shape, why_not, now=at) if why_not else {}
        ranked = judged.ranked(choice.chosen, explain=explain)
        hits = [
            Hit(as_json(rows[memory_id]) | of_then.get(memory_id, {}), one.score, one.signals)
            for memory_id, one in zip(ids, ranked, strict=True)
            if memory_id in rows  # overruled or expired between the two statements
        ]
        if query.as_of is None:  # to look back is not to use
            shown = (hit.memory["id"] for hit in hits)
            self.usage.add(((query.tenant_id, rows[one]["subject_id"], one) for one in shown), now)
        telemetry.SEARCH_RESULTS.observe(len(hits))
        for reason in degraded:
            telemetry.SEARCH_DEGRADED.labels(reason).inc()
        verdicts = [
            explain_absence(memory_id, walls.get(memory_id), query, candidates, judged, choice, at=at)
            for memory_id in why_not
        ]
        return Recalled(hits, tuple(degraded), tuple(verdicts))

    def _configured(self, query: Query) -> Query:
        """The query with what it leaves to the configuration."""
        diversity, share = query.diversity, query.max_share_per_source
        return replace(
            query,
            diversity=self.config.diversity if diversity is None else diversity,
            max_share_per_source=self.config.max_share_per_source if share is None else share,
        )

    async def _choose(
        self, transaction: Transaction, query: Query, candidates: Candidates, judged: Judged, at: datetime
    ) -> tuple[Choice, dict[UUID, Any]]:
        """The hits among the best candidates, and the full rows of these."""
        most = most_per_source(query.max_share_per_source or 1.0, query.top_k)
        considered = shortlist(judged.order, candidates.source, query.top_k, most)
        scores = judged.score[considered]
        sources = None if candidates.source is None else candidates.source[considered]
        chosen = choose(scores, query.top_k, sources=sources, most=most)
        ids = [candidates.ids[row] for row in considered]
        best = [ids[position] for position in chosen]
        same = None
        if query.diversity and 1 < len(chosen) < len(considered):
            rows, vectors = await fetch_beside(transaction, query, best, ids, self.generation, now=at)
            same = redundancy(vectors, self.generation.spec.pair_window)
            chosen = choose(scores, query.top_k, same=same, diversity=query.diversity, sources=sources, most=most)
            best = [ids[position] for position in chosen if ids[position] not in rows]
            if best:
                rows |= await fetch(transaction, query, best, now=at)
        else:
            rows = await fetch(transaction, query, best, now=at)
        return Choice(considered, [considered[position] for position in chosen], same, most), rows

    async def _find(
        self, transaction: Transaction, query: Query, asked: Asked, now: datetime
    ) -> tuple[Candidates, Statistics | None]:
        large = await self.large.among(transaction, query)
        if large:
            return await find_in_large(transaction, query, asked, large, generation=self.generation, now=now)
        generation_id = self.generation.generation_id
        return await find(transaction, query, asked, generation_id=generation_id, now=now), None

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
