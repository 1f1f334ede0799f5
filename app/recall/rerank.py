"""Reranking: a model that reads query and memory together puts the best of the fused order in its own order.

Invariant: it only reorders. What passes filters and threshold was decided before; whatever fails, the fused order is
served; no connection is held while the model works.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.embed import Reranker
from app.recall.diversity import SHORTLIST, Choice, Sources, choose, shortlist
from app.recall.query import Candidates, Query
from app.recall.ranking import Judged, Ranked, leading
from app.recall.signals import Floats


@dataclass(frozen=True, slots=True)
class Pool:
    """What may be reranked: rows in fused order, their scores, what each two have in common, and the sources."""

    rows: Sequence[int]
    scores: Floats
    same: Floats | None
    sources: Sources | None
    most: int

    def arranged(self, order: Sequence[int], scores: Floats) -> "Pool":
        """The positions of `order` only, in that order."""
        return Pool(
            [self.rows[position] for position in order],
            scores,
            None if self.same is None else self.same[np.ix_(order, order)],
            None if self.sources is None else self.sources[order],
            self.most,
        )

    def choice(self, query: Query) -> Choice:
        """The hits: the best, with diversity and limits of sources, among as many as a search without reranking has."""
        near = SHORTLIST * query.top_k
        same = None if self.same is None else self.same[:near, :near]
        sources = None if self.sources is None else self.sources[:near]
        chosen = choose(
            self.scores[:near], query.top_k, same=same, diversity=query.diversity or 0.0, sources=sources,
            most=self.most,
        )  # fmt: skip
        rows = self.rows[:near]
        return Choice(rows, [rows[position] for position in chosen], same, self.most)


def pool_size(query: Query, reranker: Reranker) -> int:
    """How many rows to fetch: those for the reranker, and enough for a search without it."""
    return max(reranker.config.candidates, SHORTLIST * query.top_k)


def pooled(candidates: Candidates, judged: Judged, size: int, most: int) -> Pool:
    """The `size` best rows; of one source SHORTLIST · most at most."""
    rows = shortlist(judged.order, candidates.source, size, most)
    sources = None if candidates.source is None else candidates.source[rows]
    return Pool(rows, judged.score[rows], None, sources, most)


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of a row: its score now, what the reranker gave (None: not among its best), its place before."""

    score: float
    relevance: float | None
    rank_before: int


async def rerank(reranker: Reranker, text: str, pool: Pool, contents: Sequence[str]) -> tuple[Pool, dict[int, Placed]]:
    """The pool with up to `config.keep` of the first `config.candidates` in the order of the reranker, then the others.

    A reranked row's score is its relevance; those behind keep their fused order and score, but never score more than
    the last reranked one. At least one content. Raises RerankUnavailable.
    """
    best = await reranker.rank(text, contents[: reranker.config.candidates])
    relevance = dict(best)
    order = [*relevance, *(position for position in range(len(contents)) if position not in relevance)]
    behind = np.minimum(pool.scores[order[len(best) :]], best[-1][1])
    scores = np.concatenate((np.array(list(relevance.values())), behind))
    placed = {
        pool.rows[position]: Placed(score, relevance.get(position), position + 1)
        for position, score in zip(order, scores.tolist(), strict=True)
    }
    return pool.arranged(order, scores), placed


def explained(ranked: Sequence[Ranked], placed: Mapping[int, Placed]) -> list[Ranked]:
    """Hits with their scores after reranking; when explained, with what the reranker gave and their place before."""
    return [Ranked(one.row, placed[one.row].score, _with_part(one, placed[one.row])) for one in ranked]


def leading_reranked(ranked: Sequence[Ranked], placed: Mapping[int, Placed]) -> list[bool]:
    """Which hits lead by what the reranker gave; what it did not rank does not."""
    return leading(np.array([placed[one.row].relevance or 0.0 for one in ranked]))


def _with_part(one: Ranked, placed: Placed) -> Mapping[str, Mapping[str, Any]] | None:
    if one.signals is None:
        return None
    part = {"value": placed.relevance, "rank_before": placed.rank_before, "fused_score": one.score, "arm": "rerank"}
    return {**one.signals, "rerank": part}
