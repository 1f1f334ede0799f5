"""A `/rerank` endpoint as Cohere, Jina, vLLM and others serve it.

Invariant: an answer is used only if every place in it is one of the texts sent, none twice, with a finite score.
"""

from collections.abc import Sequence

import numpy as np
import orjson

from app.embed.reranker import RerankConfig, RerankUnavailable, Scores
from app.endpoint import Endpoint
from app.telemetry import RERANK_DURATION_SECONDS


class RerankEndpointEngine:
    """One call a search. An endpoint that once gave a score outside [0, 1] gives logits."""

    def __init__(self, config: RerankConfig) -> None:
        self.logits = False
        self._model = config.model
        self._endpoint = Endpoint(
            f"{(config.url or '').rstrip('/')}/rerank",
            config.api_key,
            timeout_seconds=config.deadline_seconds,
            duration_seconds=RERANK_DURATION_SECONDS,
        )

    async def start(self) -> None:
        """Nothing: an endpoint that is down now may come later, and the service starts without it."""

    async def close(self) -> None:
        await self._endpoint.close()

    async def compare(self, query: str, documents: Sequence[str], most: int) -> Scores:
        """The scores of the answer; NaN for texts that are not in it."""
        content = await self._endpoint.post(
            {"model": self._model, "query": query, "documents": documents, "top_n": min(most, len(documents))}
        )
        scores = _scores(content, len(documents))
        self.logits = self.logits or bool((scores < 0).any() or (scores > 1).any())
        return scores


def _scores(content: bytes, count: int) -> Scores:
    scores = np.full(count, np.nan)
    try:
        for result in orjson.loads(content)["results"]:
            position, score = result["index"], result["relevance_score"]
            if type(position) is not int or not 0 <= position < count or not np.isnan(scores[position]):
                raise RerankUnavailable("the rerank endpoint named a text that it was not sent, or one twice")
            if type(score) not in (int, float) or not np.isfinite(score):
                raise RerankUnavailable("the rerank endpoint gave a score that is no number")
            scores[position] = score
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RerankUnavailable(f"the rerank endpoint's answer has a wrong shape ({type(error).__name__})") from None
    return scores
