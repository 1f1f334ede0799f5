"""The reranker that recall uses: deadline, breaker, checks and metrics around one engine.

Invariant: the order is that of the raw scores, whatever their scale; whoever asks has an answer or RerankUnavailable
within the deadline.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, SecretStr

from app.breaker import Breaker, BreakerOpen
from app.embed.embedder import Precision, QueueFull
from app.telemetry import RERANK_REQUESTS

Scores = NDArray[np.float64]


class RerankConfig(BaseModel, extra="forbid"):
    """Which reranker, and how much it may take."""

    provider: Literal["none", "local", "remote"] = Field(
        "none", description="none, a sentence-transformers CrossEncoder, or a /rerank endpoint."
    )
    model: str | None = Field(None, description="Name or folder of the model (local), or its name at the endpoint.")
    revision: str | None = Field(None, description="Revision of the model at the hub (local).")
    url: str | None = Field(None, description="Base URL of the endpoint; /rerank is added (remote).")
    api_key: SecretStr | None = Field(None, description="Bearer token of the endpoint (remote).")
    by_default: bool = Field(True, description="Rerank searches that do not say whether they want it.")
    deadline_seconds: float = Field(1.0, gt=0, description="Longest wait; then the fused order answers, degraded.")
    candidates: int = Field(100, ge=1, le=100, description="Most memories of the fused order that are reranked.")
    keep: int = Field(20, ge=1, le=100, description="Places that the reranker fills; those behind keep their order.")
    max_tokens: int = Field(512, ge=32, description="Tokens of query and memory; longer memories go window by window.")
    precision: Precision = Field(
        "auto", description="Arithmetic of a local model; auto: bfloat16 with AMX, else int8 with VNNI, else float32."
    )
    batch_size: int = Field(32, ge=1, le=512, description="Most pairs in one call of a local model.")
    queue_limit: int = Field(
        400, ge=1, description="Pairs waiting beyond which searches are not reranked (local); answered degraded."
    )


class RerankUnavailable(Exception):
    """The order could not be judged; the fused one stands."""


class RerankEngine(Protocol):
    """What compares a query with texts; one class each for local and remote."""

    @property
    def logits(self) -> bool:
        """Whether scores are unbounded, so that a sigmoid makes them shares; else they lie in [0, 1]."""
        ...

    async def compare(self, query: str, documents: Sequence[str], most: int) -> Scores:
        """Return a raw score a document; NaN for those that are not among the `most` best; raises any failure."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Reranker:
    """Documents into the order of their relevance to a query; every failure is RerankUnavailable.

    `engine` None: there is no reranker.
    """

    def __init__(self, engine: RerankEngine | None, config: RerankConfig) -> None:
        self.config = config
        self._engine = engine
        self._breaker = Breaker("rerank", neutral=(QueueFull,))

    @property
    def by_default(self) -> bool:
        """Whether a search that does not say is reranked."""
        return self._engine is not None and self.config.by_default

    @property
    def state(self) -> Literal["none", "ready", "degraded", "open"]:
        """`none`: not configured. `open`: calls are refused. `degraded`: the last call failed or a probe is due."""
        if self._engine is None or self._breaker.state == "open":
            return "none" if self._engine is None else "open"
        return "degraded" if self._breaker.failing or self._breaker.state == "half_open" else "ready"

    async def start(self) -> None:
        """Make the engine ready; a model or endpoint that is away now does not stop the start."""
        if self._engine is not None:
            await self._engine.start()

    async def close(self) -> None:
        """Refuse what waits and free the engine."""
        if self._engine is not None:
            await self._engine.close()

    async def rank(self, query: str, documents: Sequence[str]) -> list[tuple[int, float]]:
        """Positions of the best documents, at most `config.keep`, with their relevance in [0, 1], best first.

        Equal ones keep their order. Relevance is the raw score, or its sigmoid for a model that gives logits. Raises
        RerankUnavailable within `config.deadline_seconds`.
        """
        if self._engine is None:
            raise RerankUnavailable("no reranker is configured")
        outcome = "cancelled"
        try:
            async with self._breaker.guard(), asyncio.timeout(self.config.deadline_seconds):
                raw = await self._engine.compare(query, documents, self.config.keep)
                order = _order(raw, len(documents), self.config.keep)
            outcome = "ok"
        except (QueueFull, BreakerOpen) as error:
            outcome = "rejected"
            raise RerankUnavailable(str(error)) from error
        except RerankUnavailable:
            outcome = "failed"
            raise
        except Exception as error:
            outcome = "failed"
            raise RerankUnavailable(f"the reranker failed with {type(error).__name__}") from error
        finally:
            RERANK_REQUESTS.labels(outcome).inc()
        relevance = np.exp(-np.logaddexp(0.0, -raw)) if self._engine.logits else raw
        return [(position, float(relevance[position])) for position in order]


def _order(raw: Scores, count: int, keep: int) -> list[int]:
    judged = np.isfinite(raw)
    if raw.shape != (count,) or judged.sum() < min(keep, count):
        raise RerankUnavailable("the reranker judged fewer texts than it was asked for")
    order: list[int] = np.argsort(np.where(judged, -raw, np.inf), kind="stable")[: min(keep, count)].tolist()
    return order
