"""The embedder that the verbs use: cache, breaker, checks and metrics around one engine.

Invariant: a vector that is not finite, zero or of another dimension raises EmbeddingUnavailable and is never returned.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, SecretStr, field_validator

from app.breaker import Breaker, BreakerOpen
from app.embed.models import ModelSpec
from app.errors import EmbeddingUnavailable
from app.telemetry import EMBEDDING_CACHE, EMBEDDING_REQUESTS

Vectors = NDArray[np.float32]
Kind = Literal["query", "document"]
Precision = Literal["auto", "float32", "bfloat16", "int8"]
SMALLEST_NORM: Final = 1e-6
SOURCE: Final = (
    "provider", "model", "revision", "url", "dimension", "query_prompt", "document_prompt", "max_tokens",
)  # fmt: skip
"""What of a configuration says which model it is."""


class EmbedConfig(BaseModel, extra="forbid"):
    """Which embedder, and how hard it may work."""

    provider: Literal["bundled", "local", "remote", "hashing"] = Field(
        "bundled", description="bundled model, sentence-transformers model, OpenAI-compatible endpoint, or weightless."
    )
    model: str | None = Field(None, description="Name or folder of the model (local), or its name at the endpoint.")
    revision: str | None = Field(None, description="Revision of the model; part of what makes vectors comparable.")
    url: str | None = Field(None, description="Base URL of the endpoint, with /v1 (remote).")
    api_key: SecretStr | None = Field(None, description="Bearer token of the endpoint (remote).")
    dimension: int | None = Field(None, ge=8, le=4000, description="Dimension of the vectors; pgvector indexes 4,000.")
    query_prompt: str | None = Field(None, description="Put before queries; empty: as the model says.")
    document_prompt: str | None = Field(None, description="Put before memories; empty: as the model says.")
    max_tokens: int | None = Field(None, ge=16, description="Tokens of one window; longer texts get several windows.")
    query_window: tuple[float, float] | None = Field(
        None, description="Query–memory cosines that mean 0 and 1; empty: as calibrated."
    )
    pair_window: tuple[float, float] | None = Field(
        None, description="Memory–memory cosines that mean 0 and 1; empty: as calibrated."
    )
    precision: Precision = Field(
        "auto",
        description="Arithmetic of a local model; auto: int8 with VNNI or AVX2 alone, else float32 (in torch: bfloat16 "
        "with AMX).",
    )
    threads: int | None = Field(None, ge=1, description="Threads of a local model; empty: half the cores, at most 4.")
    batch_size: int = Field(64, ge=1, le=512, description="Most texts in one call of the model.")
    batch_wait_ms: float = Field(2.0, ge=0, le=100, description="Longest wait for a batch to fill.")
    queue_limit: int = Field(256, ge=1, description="Texts waiting beyond which new ones are refused with 503.")
    query_cache_size: int = Field(4096, ge=0, description="Query vectors kept in memory.")
    timeout_seconds: float = Field(
        10.0, gt=0, description="Longest time of one call of the endpoint, retries included."
    )
    keep_previous_days: float = Field(
        7.0, ge=0, description="How long the vectors of a model that was left are kept up, so that one may go back."
    )

    @field_validator("query_window", "pair_window")
    @classmethod
    def ordered(cls, window: tuple[float, float] | None) -> tuple[float, float] | None:
        if window is not None and not -1 <= window[0] < window[1] <= 1:
            raise ValueError("must be two cosines, the smaller first")
        return window

    @property
    def stated(self) -> frozenset[str]:
        """The windows that are set here, whatever was measured."""
        return frozenset(name for name in ("query_window", "pair_window") if getattr(self, name) is not None)

    def source(self) -> dict[str, Any]:
        """Where the model comes from and how it is used, without secrets: enough to load it again."""
        return self.model_dump(include=set(SOURCE), exclude_none=True)

    def of(self, source: dict[str, Any]) -> "EmbedConfig":
        """The same effort for the model of another source."""
        here = {name: value for name, value in self if name not in (*SOURCE, "query_window", "pair_window")}
        return EmbedConfig(**here, **source)


class QueueFull(Exception):
    """The engine has no room; it is busy, not broken."""

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__("embedding queue is full")
        self.retry_after_seconds = retry_after_seconds


class Engine(Protocol):
    """What turns texts into vectors; one class each for local, remote and hashing."""

    spec: ModelSpec

    async def encode(self, texts: Sequence[str], kind: Kind) -> list[Vectors]:
        """Return (windows, dimension) for each text, of any length of vector; raises QueueFull or any failure."""
        ...

    def count_tokens(self, text: str) -> int: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Embedder:
    """Texts to unit vectors of `spec.dimension`; every failure is EmbeddingUnavailable."""

    def __init__(self, engine: Engine, *, query_cache_size: int, patience_seconds: float | None = None) -> None:
        self.spec = engine.spec
        self._engine = engine
        self._breaker = Breaker("embedding", patience_seconds=patience_seconds, neutral=(QueueFull,))
        self._cache: OrderedDict[str, Vectors] = OrderedDict()
        self._cache_size = query_cache_size

    @property
    def state(self) -> Literal["ready", "degraded", "open"]:
        """`open`: calls are refused. `degraded`: the last call failed or a probe is due."""
        if self._breaker.state == "open":
            return "open"
        return "degraded" if self._breaker.failing or self._breaker.state == "half_open" else "ready"

    async def start(self) -> None:
        """Make the engine ready, so that the first request is as fast as the next."""
        await self._engine.start()

    async def close(self) -> None:
        """Refuse what waits and free the engine."""
        await self._engine.close()

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` for this model, without prompt and special tokens; an estimate for a remote one."""
        return self._engine.count_tokens(text)

    async def embed_query(self, text: str) -> Vectors:
        """Return the query's vector, shape (dimension,), read-only; a query longer than one window gets the mean.

        Raises EmbeddingUnavailable.
        """
        if (cached := self._cache.get(text)) is not None:
            self._cache.move_to_end(text)
            EMBEDDING_CACHE.labels("hit").inc()
            return cached
        EMBEDDING_CACHE.labels("miss").inc()
        windows = (await self._embed([text], "query"))[0]
        vector: Vectors = windows[0] if len(windows) == 1 else _unit(windows.mean(axis=0, keepdims=True))[0]
        vector.setflags(write=False)
        if self._cache_size:
            self._cache[text] = vector
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return vector

    async def embed_documents(self, texts: Sequence[str]) -> list[Vectors]:
        """Return for each text its windows' vectors, shape (windows, dimension); long texts have several.

        Raises EmbeddingUnavailable when any of them fails.
        """
        return await self._embed(texts, "document") if texts else []

    async def _embed(self, texts: Sequence[str], kind: Kind) -> list[Vectors]:
        outcome = "cancelled"
        try:
            async with self._breaker.guard():
                answers = await self._engine.encode(texts, kind)
                checked = self._checked(answers)
            outcome = "ok"
            return checked
        except (QueueFull, BreakerOpen) as error:
            outcome = "rejected"
            raise EmbeddingUnavailable(str(error), retry_after_seconds=error.retry_after_seconds) from error
        except EmbeddingUnavailable:
            outcome = "failed"
            raise
        except Exception as error:
            outcome = "failed"
            raise EmbeddingUnavailable(f"the embedder failed with {type(error).__name__}") from error
        finally:
            EMBEDDING_REQUESTS.labels(kind, outcome).inc(len(texts))

    def _checked(self, answers: Sequence[Vectors]) -> list[Vectors]:
        """The answers as unit vectors: made all at once, for each by itself costs as much as a cheap embedding."""
        for vectors in answers:
            if vectors.ndim != 2 or len(vectors) == 0 or vectors.shape[1] != self.spec.dimension:
                raise EmbeddingUnavailable("the embedder gave a vector of the wrong dimension")
        unit = _unit(np.concatenate(answers) if len(answers) > 1 else answers[0])
        ends = accumulate(map(len, answers))
        return [unit[end - len(vectors) : end] for end, vectors in zip(ends, answers, strict=True)]


def _unit(vectors: Vectors) -> Vectors:
    norms = np.sqrt(np.add.reduce(vectors * vectors, axis=1, keepdims=True))
    if not all(SMALLEST_NORM < norm < math.inf for norm in norms[:, 0].tolist()):
        raise EmbeddingUnavailable("the embedder gave a vector that is zero or not finite")
    unit: Vectors = (vectors / norms).astype(np.float32, copy=False)
    return unit
