"""Any OpenAI-compatible `/v1/embeddings` endpoint.

Invariant: an answer is used only after its shape and order were checked; no error quotes a text or the answer.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from app.embed.embedder import EmbedConfig, Kind, QueueFull, Vectors
from app.embed.models import ModelSpec
from app.endpoint import Endpoint, Refused
from app.errors import EmbeddingUnavailable
from app.telemetry import (
    EMBEDDING_BATCH_SIZE,
    EMBEDDING_DURATION_SECONDS,
    EMBEDDING_QUEUE_DEPTH,
    EMBEDDING_TRUNCATED,
)

DOCUMENT_CALLS: Final = 4
"""Calls with documents at once; queries do not wait for them."""

QUERY_WINDOWS: Final = 4

ASCII_TOKENS: Final = 1 / 3
OTHER_TOKENS: Final = 1.5
"""Tokens a character, on the safe side of common tokenizers: the endpoint's own is not here."""

OVERLAP_FRACTION: Final = 1 / 8


class RemoteEngine:
    """Texts in batches to the endpoint; retries what may pass, within one deadline for all."""

    def __init__(self, spec: ModelSpec, config: EmbedConfig) -> None:
        self.spec = spec
        self._batch_size, self._limit, self._timeout_seconds = (
            config.batch_size, config.queue_limit, config.timeout_seconds,
        )  # fmt: skip
        self._depth = 0
        self._documents = asyncio.Semaphore(DOCUMENT_CALLS)
        self._endpoint = Endpoint(
            f"{(config.url or '').rstrip('/')}/embeddings",
            config.api_key,
            timeout_seconds=config.timeout_seconds,
            duration_seconds=EMBEDDING_DURATION_SECONDS,
        )

    async def start(self) -> None:
        """Nothing: an endpoint that is down now may come later, and the service starts without it."""

    async def close(self) -> None:
        await self._endpoint.close()

    def count_tokens(self, text: str) -> int:
        """An estimate that rather counts too many."""
        return int(np.ceil(_token_costs(text).sum()))

    async def encode(self, texts: Sequence[str], kind: Kind) -> list[Vectors]:
        """Return (windows, dimension) for each text; raises QueueFull, Refused, TimeoutError, httpx2.HTTPError."""
        if self._depth >= self._limit:
            raise QueueFull(1.0)
        self._count(len(texts))
        try:
            windows = [self._split(text, kind) for text in texts]
            flat = [window for cut in windows for window in cut]
            batches = [flat[at : at + self._batch_size] for at in range(0, len(flat), self._batch_size)]
            async with asyncio.timeout(self._timeout_seconds), asyncio.TaskGroup() as group:
                calls = [group.create_task(self._call(batch, kind)) for batch in batches]
        except* Exception as errors:
            raise _first(errors) from errors
        finally:
            self._count(-len(texts))
        rows = np.concatenate([call.result() for call in calls])
        ends = np.cumsum([len(cut) for cut in windows])
        return np.split(rows, ends[:-1])

    def _count(self, texts: int) -> None:
        self._depth += texts
        EMBEDDING_QUEUE_DEPTH.set(self._depth)

    def _split(self, text: str, kind: Kind) -> list[str]:
        prompt = self.spec.query_prompt if kind == "query" else self.spec.document_prompt
        room = self.spec.max_tokens - self.count_tokens(prompt) - 2
        ends = np.cumsum(_token_costs(text))
        if not len(ends) or ends[-1] <= room:
            return [prompt + text]
        windows = []
        for start in np.arange(0, max(ends[-1] - room * OVERLAP_FRACTION, 1), room * (1 - OVERLAP_FRACTION)):
            first, last = np.searchsorted(ends, (start, start + room), side="right")
            windows.append(prompt + text[first:last])
        if kind == "query" and len(windows) > QUERY_WINDOWS:
            EMBEDDING_TRUNCATED.inc()
            windows = windows[:QUERY_WINDOWS]
        return windows

    async def _call(self, inputs: Sequence[str], kind: Kind) -> Vectors:
        if kind == "query":
            return await self._post(inputs)
        async with self._documents:
            return await self._post(inputs)

    async def _post(self, inputs: Sequence[str]) -> Vectors:
        content = await self._endpoint.post({"model": self.spec.model, "input": inputs, "encoding_format": "float"})
        EMBEDDING_BATCH_SIZE.observe(len(inputs))
        return _vectors(content, len(inputs))


def _token_costs(text: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.where(points < 128, ASCII_TOKENS, OTHER_TOKENS)


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    """The first single error of a group; an endpoint that says when to come back is quoted."""
    error: Exception | BaseExceptionGroup[Exception] = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Refused):
        return EmbeddingUnavailable(str(error), retry_after_seconds=error.retry_after_seconds)
    return error


def _vectors(content: bytes, count: int) -> Vectors:
    """Return (count, dimension) in the order of the inputs, whatever the order of the answer."""
    try:
        items = orjson.loads(content)["data"]
        if sorted(item["index"] for item in items) != list(range(count)):
            raise EmbeddingUnavailable("the embedding endpoint gave another number of vectors than texts")
        by_index = {item["index"]: item["embedding"] for item in items}
        vectors = np.array([by_index[index] for index in range(count)], dtype=np.float32)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise EmbeddingUnavailable(
            f"the embedding endpoint's answer has a wrong shape ({type(error).__name__})"
        ) from None
    if vectors.ndim != 2:
        raise EmbeddingUnavailable("the embedding endpoint's answer has a wrong shape")
    return vectors
