"""A sentence-transformers CrossEncoder in this process, which reads query and memory together.

Invariant: a model that cannot be loaded never stops a search or the start: it is tried again when it is next needed. No
memory loses its tail: a long one is judged window by window, and the best counts.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.embed.batcher import Batcher, Meters
from app.embed.embedder import Kind, Vectors
from app.embed.local import OVERLAP_TOKENS
from app.embed.reranker import RerankConfig, RerankUnavailable, Scores
from app.embed.torch_model import BATCH_TOKENS, prepare_torch, settle
from app.errors import StartupRefused
from app.telemetry import (
    RERANK_BATCH_SIZE,
    RERANK_DURATION_SECONDS,
    RERANK_QUEUE_DEPTH,
    RERANK_QUEUE_WAIT_SECONDS,
    RERANK_TRUNCATED,
    log,
)

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

METERS: Final = Meters(RERANK_QUEUE_DEPTH, RERANK_QUEUE_WAIT_SECONDS, RERANK_DURATION_SECONDS, RERANK_BATCH_SIZE)
SPARE_TOKENS: Final = 4
"""A text cut at a token's border may become a token or two more."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and one window of a memory; its length is that of both in tokens."""

    texts: tuple[str, str]
    tokens: int

    def __len__(self) -> int:
        return self.tokens


class PairModel:
    """The loaded model; everything here belongs to the batcher's thread alone."""

    def __init__(self, model: "CrossEncoder", max_tokens: int) -> None:
        from torch import nn  # noqa: PLC0415

        self._model, self._as_they_are = model, nn.Identity()
        self._room = min(max_tokens, model.max_seq_length or max_tokens) - SPARE_TOKENS
        self._room -= model.tokenizer.num_special_tokens_to_add(pair=True)

    def split(self, text: tuple[str, str], kind: Kind) -> list[Pair]:  # noqa: ARG002 - all pairs are one kind
        """The query, at most half of the room, with each window of the memory."""
        query, document = text
        ends = self._ends(query)
        if len(ends) > self._room // 2:
            RERANK_TRUNCATED.inc()
            ends = ends[: self._room // 2]
            query = query[: ends[-1]]
        asked, ends = len(ends), self._ends(document)
        room = self._room - asked
        if len(ends) <= room:
            return [Pair((query, document), asked + len(ends))]
        step = room - min(OVERLAP_TOKENS, room // 2)
        starts = range(0, len(ends) - room + step, step)
        parts = [(start, min(start + room, len(ends))) for start in starts]
        return [
            Pair((query, document[ends[first - 1] if first else 0 : ends[last - 1]]), asked + last - first)
            for first, last in parts
        ]

    def forward(self, windows: Sequence[Pair]) -> Vectors:
        """The logits, shape (windows, labels)."""
        pairs: list[Any] = [pair.texts for pair in windows]
        scores = self._model.predict(
            pairs, batch_size=len(pairs), show_progress_bar=False, activation_fn=self._as_they_are
        )
        return np.asarray(scores, np.float32).reshape(len(pairs), -1)

    def _ends(self, text: str) -> list[int]:
        """Where each token of a text ends."""
        encoded = self._model.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )
        return [end for _, end in encoded["offset_mapping"]]


class CrossEncoderEngine:
    """A model behind its batcher, loaded at start or, failing that, in the background of a later search."""

    logits: Final = True

    def __init__(self, config: RerankConfig, threads: int | None) -> None:
        self._config, self._threads = config, threads
        self._batcher: Batcher[tuple[str, str]] | None = None
        self._loading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        with suppress(RerankUnavailable):
            await self._load()

    async def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            with suppress(asyncio.CancelledError, RerankUnavailable):
                await self._loading
        if self._batcher is not None:
            await self._batcher.close()

    async def compare(self, query: str, documents: Sequence[str], most: int) -> Scores:  # noqa: ARG002 - all are judged
        """The logit of each document: that of its best window."""
        if self._batcher is None:
            if self._loading is None or self._loading.done():
                self._loading = asyncio.create_task(self._load())
            await asyncio.shield(self._loading)
        if self._batcher is None:
            raise RerankUnavailable("the reranker is not loaded")
        # Neighbours of like length share a pass of the model, and padding costs as much as text.
        order = sorted(range(len(documents)), key=lambda position: len(documents[position]))
        windows = await self._batcher.encode([(query, documents[position]) for position in order], "query")
        scores = np.empty(len(documents))
        scores[order] = [logits.max() for logits in windows]
        return scores

    async def _load(self) -> None:
        try:
            model = await asyncio.to_thread(_load, self._config, self._threads)
        except StartupRefused:
            raise
        except Exception as error:  # the hub's client raises of everything; a search must not care
            log().warning("reranker_not_loaded", error=type(error).__name__)
            raise RerankUnavailable("the reranker cannot be loaded") from error
        self._batcher = Batcher(
            model,
            batch_size=self._config.batch_size,
            batch_tokens=BATCH_TOKENS,
            wait_seconds=0.0,
            limit=self._config.queue_limit,
            meters=METERS,
        )
        self._batcher.start()


def _load(config: RerankConfig, threads: int | None) -> PairModel:
    """Load the model; raises StartupRefused when it is no reranker, else what its library raises."""
    from sentence_transformers import CrossEncoder  # noqa: PLC0415

    precision, dtype = prepare_torch(threads, config.precision)
    model = CrossEncoder(
        config.model, device="cpu", revision=config.revision, model_kwargs={"dtype": dtype}, trust_remote_code=False
    )
    if model.num_labels != 1:
        raise StartupRefused(f"{config.model} gives {model.num_labels} scores a pair, a reranker gives one")
    settle(model, precision)
    pairs = PairModel(model, config.max_tokens)
    pairs.forward(pairs.split(("start", "start"), "query"))  # the first pass allocates and is slow
    return pairs
