"""A load generator that costs little: it shares two cores with what it measures.

Requests are bytes made beforehand, sent over keep-alive connections with one request in flight each (closed loop).
"""

import asyncio
import re
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

import numpy as np
import orjson

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
LONGEST_PHASE_SECONDS = 60.0
FRESH_SECONDS = 2.0  # uvicorn hangs up on connections that were idle for 5 seconds; a request must not cross that

Call = Callable[[Any], Awaitable[object]]
Lane = tuple[Call, Iterable[Any]]
"""One closed loop: what to call, and with what, one after the other."""


class BenchFailed(Exception):
    """The service answered something that must not happen in a bench."""


def prepared(path: str, document: object) -> bytes:
    """A POST request as bytes."""
    body = orjson.dumps(document)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


class Connection:
    """One keep-alive connection to a service on this machine; one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wire: _Wire | None = None
        self._fresh_until = 0.0

    async def post(self, request: bytes) -> bytes:
        """Send a prepared request; the answer's body, or BenchFailed when it is not 2xx."""
        loop = asyncio.get_running_loop()
        if self._wire is None or self._wire.transport.is_closing() or loop.time() > self._fresh_until:
            self.close()
            _, self._wire = await loop.create_connection(_Wire, "127.0.0.1", self._port)
        body = await self._wire.ask(request)
        self._fresh_until = loop.time() + FRESH_SECONDS
        return body

    def close(self) -> None:
        if self._wire is not None:
            self._wire.transport.close()


class _Wire(asyncio.Protocol):
    """As much of HTTP/1.1 as uvicorn speaks to us: a head with Content-Length, then the body."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._received = bytearray()
        self._end = 0
        self._answer: asyncio.Future[bytes] | None = None

    def ask(self, request: bytes) -> "asyncio.Future[bytes]":
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class is no subclass

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if self._end == 0:
            head = received.find(b"\r\n\r\n")
            if head < 0:
                return
            length = _LENGTH.search(received, 0, head + 2)
            self._end = head + 4 + (int(length[1]) if length else 0)
        if len(received) >= self._end and self._answer is not None:
            status, body = bytes(received[9:12]), bytes(received[received.find(b"\r\n\r\n") + 4 : self._end])
            del received[: self._end]
            self._end = 0
            if status[:1] == b"2":
                self._answer.set_result(body)
            else:
                self._answer.set_exception(BenchFailed(f"HTTP {status.decode()}: {body[:300].decode()}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchFailed(f"the service hung up: {error}"))


@dataclass(slots=True)
class Timing:
    """Latencies in milliseconds of what was done in `seconds` of wall time."""

    milliseconds: "array[float]" = field(default_factory=lambda: array("d"))
    seconds: float = 0.0

    def add(self, other: "Timing") -> None:
        self.milliseconds.extend(other.milliseconds)
        self.seconds += other.seconds

    @property
    def per_second(self) -> float:
        return len(self.milliseconds) / self.seconds

    def percentile(self, percent: float) -> float:
        return float(np.percentile(np.array(self.milliseconds), percent))


async def drive(lanes: Sequence[Lane], seconds: float) -> Timing:
    """Run all lanes at once, each until its items or the time are used up; lanes may share one iterator."""
    timing, begin = Timing(), perf_counter()
    end = begin + seconds

    async def run(call: Call, items: Iterable[Any]) -> None:
        for item in items:
            sent = perf_counter()
            await call(item)
            got = perf_counter()
            timing.milliseconds.append((got - sent) * 1000)
            if got >= end:
                return

    async with asyncio.timeout(LONGEST_PHASE_SECONDS):
        await asyncio.gather(*(run(call, items) for call, items in lanes))
    timing.seconds = perf_counter() - begin
    return timing


async def alternate(*lanes: Lane) -> tuple[Timing, ...]:
    """Run lanes in turn, one item of each, so that whatever disturbs the machine disturbs all."""
    timings = tuple(Timing() for _ in lanes)
    async with asyncio.timeout(LONGEST_PHASE_SECONDS):
        for items in zip(*(lane[1] for lane in lanes), strict=False):
            for timing, (call, _), item in zip(timings, lanes, items, strict=True):
                sent = perf_counter()
                await call(item)
                timing.milliseconds.append((perf_counter() - sent) * 1000)
    for timing in timings:
        timing.seconds = sum(timing.milliseconds) / 1000
    return timings
