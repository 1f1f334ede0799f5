"""recall(): the search use case. Embed the query, then one read transaction that measures, judge, fetch the best.

Invariant: no connection is held while the model works; a search writes nothing; what was missing is said in `degraded`
and counted.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from app import telemetry
from app.database import Database
from app.embed import Embedder, Generation
from app.errors import EmbeddingUnavailable
from app.language import keyword_query
from app.memory import as_json
from app.recall.candidates import fetch, find
from app.recall.query import Hit, Query, RecallConfig, Recalled
from app.recall.ranking import rank
from app.recall.signals import Circumstances
from app.recall.usage import UsageBuffer


@dataclass(frozen=True, slots=True)
class Recaller:
    """The read path of one process."""

    database: Database
    embedder: Embedder
    generation: Generation
    usage: UsageBuffer
    config: RecallConfig

    async def recall(self, query: Query, *, now: datetime, explain: bool = False) -> Recalled:
        """Hits, best first, at most query.top_k; fewer rather than padding.

        Without a vector (embedder down or slow) keywords, time and importance answer, marked `embedding_unavailable`;
        memories still without a vector are judged the same way, marked `embedding_pending`. Raises DatabaseUnavailable,
        PoolExhausted, DeadlineExceeded.
        """
        degraded: list[str] = []
        with telemetry.search_stage("query"):
            keywords = keyword_query(query.text)
        vector = await self._vector(query, degraded)
        async with self.database.read(query.tenant_id) as transaction:
            with telemetry.search_stage("database"):
                candidates = await find(
                    transaction, query, keywords, vector, generation_id=self.generation.generation_id, now=now
                )
            with telemetry.search_stage("ranking"):
                if vector is not None and np.isnan(candidates.cosine).any():
                    degraded.append("embedding_pending")
                window = self.generation.spec.query_window
                ranked = rank(candidates, query, Circumstances(window=window, now=now.timestamp()))
            with telemetry.search_stage("hydrate"):
                rows = await fetch(transaction, query, [candidates.ids[one.row] for one in ranked], now=now)
        hits = [
            Hit(as_json(rows[candidates.ids[one.row]]), one.score, one.signals if explain else None)
            for one in ranked
            if candidates.ids[one.row] in rows  # overruled or expired between the two statements
        ]
        self.usage.add(((query.tenant_id, row["subject_id"], row["id"]) for row in rows.values()), now)
        telemetry.SEARCH_RESULTS.observe(len(hits))
        for reason in degraded:
            telemetry.SEARCH_DEGRADED.labels(reason).inc()
        return Recalled(hits, tuple(degraded))

    async def _vector(self, query: Query, degraded: list[str]) -> NDArray[np.float32] | None:
        """The query's vector; None if no signal needs it or the embedder does not give it in time."""
        if query.fusion == "weighted" and query.weights.get("similarity") == 0 and query.similarity_threshold == 0:
            return None
        with telemetry.search_stage("embed"):
            try:
                async with asyncio.timeout(self.config.embedding_deadline_seconds):
                    return await self.embedder.embed_query(query.text)
            except (EmbeddingUnavailable, TimeoutError):
                degraded.append("embedding_unavailable")
                return None
