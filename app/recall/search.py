"""recall(): the search use case. Embed the query, then one read transaction that measures, judge, fetch the best.

Invariant: no connection is held while the model works; a search writes nothing; what was missing is said in `degraded`
and counted.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from app import telemetry
from app.database import Database, Transaction
from app.embed import Embedder, Generation
from app.errors import EmbeddingUnavailable
from app.language import keyword_query, questions
from app.memory import as_json
from app.recall.candidates import Asked, fetch, find, texts_of_then
from app.recall.large import LargeSubjects, find_in_large
from app.recall.query import Candidates, Hit, Query, RecallConfig, Recalled
from app.recall.ranking import rank
from app.recall.signals import Circumstances, Statistics
from app.recall.small_talk import SmallTalk
from app.recall.usage import UsageBuffer


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

    async def recall(self, query: Query, *, now: datetime, explain: bool = False) -> Recalled:
        """Hits, best first, at most query.top_k; fewer rather than padding.

        Without a vector (embedder down or slow) keywords, time and importance answer, marked `embedding_unavailable`;
        memories still without a vector are judged the same way, marked `embedding_pending`. Raises DatabaseUnavailable,
        PoolExhausted, DeadlineExceeded.
        """
        degraded: list[str] = []
        at = query.as_of or now
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
                ranked = rank(candidates, query, circumstances, explain=explain)
            ids = [candidates.ids[one.row] for one in ranked]
            with telemetry.search_stage("hydrate"):
                rows = await fetch(transaction, query, ids, now=at)
                of_then = {} if query.as_of is None else await texts_of_then(transaction, query, ids, now=at)
        hits = [
            Hit(as_json(rows[memory_id]) | of_then.get(memory_id, {}), one.score, one.signals)
            for memory_id, one in zip(ids, ranked, strict=True)
            if memory_id in rows  # overruled or expired between the two statements
        ]
        if query.as_of is None:  # to look back is not to use
            self.usage.add(((query.tenant_id, row["subject_id"], row["id"]) for row in rows.values()), now)
        telemetry.SEARCH_RESULTS.observe(len(hits))
        for reason in degraded:
            telemetry.SEARCH_DEGRADED.labels(reason).inc()
        return Recalled(hits, tuple(degraded))

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
