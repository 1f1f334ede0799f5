"""The one thread that owns a model: it drains a bounded queue in micro-batches and never blocks the event loop.

Invariant: queries go before documents; a text whose caller has gone is not encoded; every request ends exactly once.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
from prometheus_client import Gauge, Histogram

from app.embed.embedder import Kind, QueueFull, Vectors
from app.errors import EmbeddingUnavailable
from app.telemetry import (
    EMBEDDING_BATCH_SIZE,
    EMBEDDING_DURATION_SECONDS,
    EMBEDDING_QUEUE_DEPTH,
    EMBEDDING_QUEUE_WAIT_SECONDS,
)

Text_contra = TypeVar("Text_contra", contravariant=True)
"""What the model takes: a text, or whatever else it cuts into windows."""

SMOOTHING: Final = 0.1
LONGEST_RETRY_AFTER_SECONDS: Final = 30.0

QUERY_PASSES: Final = 4
"""Passes with queries in a row while documents wait."""


@dataclass(frozen=True, slots=True)
class Meters:
    """Where a batcher says how it fares."""

    queue_depth: Gauge
    queue_wait_seconds: Histogram
    duration_seconds: Histogram
    batch_size: Histogram


EMBEDDING: Final = Meters(
    EMBEDDING_QUEUE_DEPTH, EMBEDDING_QUEUE_WAIT_SECONDS, EMBEDDING_DURATION_SECONDS, EMBEDDING_BATCH_SIZE
)


class Model(Protocol[Text_contra]):
    """What the thread calls; nothing else may touch the model."""

    def split(self, text: Text_contra, kind: Kind) -> Sequence[Sized]:
        """Return the windows, whose lengths are their tokens."""
        ...

    def forward(self, windows: Sequence[Any]) -> Vectors:
        """Return (windows, dimension); windows come sorted by length."""
        ...


@dataclass(slots=True)
class Request:
    """One call and the vectors of its texts as they become ready."""

    texts: Sequence[Any]
    kind: Kind
    future: "asyncio.Future[list[Vectors]]"
    queued_at: float
    vectors: list[Vectors] = field(default_factory=list)
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One window of one text of a request: its place in `request.vectors[text][window]`."""

    request: Request
    text: int
    window: int
    tokens: Sized


class Batcher(Generic[Text_contra]):
    """`encode` from coroutines of one event loop, computed by one thread."""

    def __init__(
        self,
        model: Model[Text_contra],
        *,
        batch_size: int,
        batch_tokens: int,
        wait_seconds: float,
        limit: int,
        meters: Meters = EMBEDDING,
    ) -> None:
        self._model, self._meters = model, meters
        self._batch_size, self._batch_tokens, self._wait_seconds = batch_size, batch_tokens, wait_seconds
        self._limit = limit
        self._arrived: deque[Request] = deque()
        self._waiting: dict[Kind, deque[Job]] = {"query": deque(), "document": deque()}
        self._query_passes = 0
        self._depth = 0  # texts not yet finished
        self._seconds_per_text = 0.0
        self._condition = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; call it from the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="mneme-model", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Let the running batch end and fail what waits with EmbeddingUnavailable."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def encode(self, texts: Sequence[Text_contra], kind: Kind) -> list[Vectors]:
        """Return (windows, dimension) for each text; raises QueueFull, or what the model raised."""
        if self._closing or self._thread is None:
            raise EmbeddingUnavailable("the model is not running")
        # Judged before these texts count: a large batch may enter an idle queue, and nothing a full one.
        if self._depth >= self._limit:
            raise QueueFull(min(max(self._depth * self._seconds_per_text, 1.0), LONGEST_RETRY_AFTER_SECONDS))
        request = Request(texts, kind, self._loop.create_future(), time.perf_counter())
        with self._condition:
            self._arrived.append(request)
            self._condition.notify()
        self._count(len(texts))
        try:
            return await request.future
        finally:
            self._count(-len(texts))

    def _count(self, texts: int) -> None:
        self._depth += texts
        self._meters.queue_depth.set(self._depth)

    def _run(self) -> None:
        while self._wait():
            batch = self._next_batch()
            if batch:
                self._compute(batch)
        self._finish([(job.request, EmbeddingUnavailable("the model is shutting down")) for job in self._drain()])
        del self._model  # hundreds of megabytes, whoever holds this batcher still

    def _wait(self) -> bool:
        """Sleep until there is work, then a moment more for company; False when closing."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._arrived or any(self._waiting.values()))
            # A backlog is a batch already. Else wait for the neighbours of a request that has just come.
            if self._arrived and not any(self._waiting.values()):
                deadline = self._arrived[0].queued_at + self._wait_seconds
                while not self._closing and sum(len(each.texts) for each in self._arrived) < self._batch_size:
                    if not self._condition.wait(deadline - time.perf_counter()):
                        break
            return not self._closing

    def _take_arrived(self) -> list[Request]:
        with self._condition:
            arrived = list(self._arrived)
            self._arrived.clear()
        return arrived

    def _next_batch(self) -> list[Job]:
        """Cut what has arrived into windows; return the oldest of one kind within the limits, sorted by length."""
        for request in self._take_arrived():
            if not request.future.done():
                self._cut(request)
        queries, documents = self._waiting["query"], self._waiting["document"]
        # Apart, because a query would wait for the documents beside it; and in turns, or documents might never come.
        if queries and not (documents and self._query_passes == QUERY_PASSES):
            queue = queries
            self._query_passes += 1 if documents else 0
        else:
            queue = documents
            self._query_passes = 0
        batch: list[Job] = []
        budget = self._batch_tokens
        while queue and len(batch) < self._batch_size:
            if not queue[0].request.future.done():  # else the caller has gone, or another window failed
                budget -= len(queue[0].tokens)
                if batch and budget < 0:
                    break
                batch.append(queue[0])
            queue.popleft()
        return sorted(batch, key=lambda job: len(job.tokens))

    def _cut(self, request: Request) -> None:
        try:
            cuts = [self._model.split(text, request.kind) for text in request.texts]
        except Exception as error:  # the caller's to see: the thread must live on
            self._finish([(request, error)])
            return
        request.missing = sum(map(len, cuts))
        request.vectors = [np.empty((len(windows), 0), np.float32) for windows in cuts]
        self._waiting[request.kind].extend(
            Job(request, text, window, tokens)
            for text, windows in enumerate(cuts)
            for window, tokens in enumerate(windows)
        )

    def _compute(self, batch: Sequence[Job]) -> None:
        started = time.perf_counter()
        for job in batch:
            self._meters.queue_wait_seconds.observe(started - job.request.queued_at)
        try:
            vectors = self._model.forward([job.tokens for job in batch])
        except Exception as error:  # the callers' to see: the thread must live on
            self._finish([(job.request, error) for job in batch])
            return
        seconds = time.perf_counter() - started
        self._seconds_per_text += SMOOTHING * (seconds / len(batch) - self._seconds_per_text)
        self._meters.duration_seconds.observe(seconds)
        self._meters.batch_size.observe(len(batch))
        complete: list[tuple[Request, Exception | None]] = []
        for job, vector in zip(batch, vectors, strict=True):
            request = job.request
            if request.vectors[job.text].shape[1] == 0:
                request.vectors[job.text] = np.empty((len(request.vectors[job.text]), len(vector)), np.float32)
            request.vectors[job.text][job.window] = vector
            request.missing -= 1
            if request.missing == 0:
                complete.append((request, None))
        self._finish(complete)

    def _drain(self) -> list[Job]:
        jobs = [Job(request, 0, 0, ()) for request in self._take_arrived()]
        for queue in self._waiting.values():
            jobs.extend(queue)
            queue.clear()
        return jobs

    def _finish(self, outcomes: Sequence[tuple[Request, Exception | None]]) -> None:
        """Hand outcomes to the event loop: one wake-up a batch, however many requests it ends."""
        if outcomes:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(_resolve, outcomes)


def _resolve(outcomes: Sequence[tuple[Request, Exception | None]]) -> None:
    for request, error in outcomes:
        if request.future.done():
            continue
        if error is None:
            request.future.set_result(request.vectors)
        else:
            request.future.set_exception(error)
