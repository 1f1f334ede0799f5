"""Part `extraction`: conversations accepted and waited for, a backlog drained by rules, and a worker with a slow model.

The language model is played by this process: it takes 800 ms for an answer, as a small one does, and finds no facts, so
that what is measured is the service's own work; the rules find one fact in each conversation.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import asyncpg
import orjson

from app.cli import schema
from app.cli.bench import service, texts
from app.cli.bench.load import BenchFailed, Connection, Timing, drive, prepared
from app.cli.bench.parts import Size
from app.cli.embedded import SUPERUSER, EmbeddedServer

EXTRACT: Final = "/v1/memories:extract"
MODEL_SECONDS: Final = 0.8
CONCURRENCY: Final = 8  # operations in a worker's hands, and calls of the model
WITH_MODEL: Final = 100  # operations that are worked off with the model
DRAIN_SECONDS: Final = 120.0
WRITES_A_SECOND: Final = 2_000  # requests prepared for one second
_LEFT = "SELECT count(*) FROM operations WHERE state IN ('queued', 'running')"
_FAILED = "SELECT count(*) FROM operations WHERE state NOT IN ('queued', 'running', 'succeeded')"


@dataclass(slots=True)
class Figures:
    """Latencies of accepting and of waiting, and operations a second of a worker by rules and with a model."""

    timings: dict[str, Timing] = field(default_factory=dict)
    drained: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By phase: operations, seconds."""

    def document(self) -> dict[str, Any]:
        return {
            "part": "extraction",
            "timings": {
                name: {
                    "per_second": round(timing.per_second, 1),
                    **{f"p{percent}_ms": round(timing.percentile(percent), 2) for percent in (50, 95, 99)},
                }
                for name, timing in self.timings.items()
            },
            "drained": {
                name: {"operations": count, "seconds": round(seconds, 2), "per_second": round(count / seconds, 1)}
                for name, (count, seconds) in self.drained.items()
            },
        }


def measure_extraction(
    server: EmbeddedServer, data_dir: Path, size: Size, processes: int = 1, *, with_model: int = WITH_MODEL
) -> Figures:
    """Measure on a fresh database of `server`; raises BenchFailed or StartupRefused."""
    _, url = schema.prepare(server, "mneme_bench_extraction")
    with service.running(server, url, data_dir, "hashing", processes) as running:
        return asyncio.run(_measured(running, url, data_dir, size, with_model))


async def _measured(running: service.Service, url: str, data_dir: Path, size: Size, with_model: int) -> Figures:
    figures, users, seconds = Figures(), size.users, size.seconds
    owner = await asyncpg.connect(running.server.url(SUPERUSER, running.database).replace("+asyncpg", ""))
    connections = [Connection(running.port) for _ in range(users)]
    try:
        accepted = await _drive(connections, EXTRACT, seconds, "accepted")
        figures.timings[f"accepted (202), {users} at once"] = accepted
        count = await owner.fetchval(_LEFT)
        with service.working(url, data_dir, {("operations", "concurrency"): str(CONCURRENCY)}):
            figures.drained["backlog by rules"] = count, await _drained(owner)
        waited = await _drive(connections, f"{EXTRACT}?wait=true", seconds, "waited")
        figures.timings[f"waited for, by rules, {users} at once"] = waited
        async with _model() as port:
            requests = iter(_requests(EXTRACT, "model", with_model))
            await drive([(each.post, requests) for each in connections], 60)
            settings = {
                ("operations", "concurrency"): str(CONCURRENCY),
                ("llm", "concurrency"): str(CONCURRENCY),
                ("llm", "url"): f"http://127.0.0.1:{port}/v1",
                ("llm", "model"): "played",
            }
            with service.working(url, data_dir, settings):
                name = f"with a model of {MODEL_SECONDS * 1000:.0f} ms, {CONCURRENCY} at once"
                figures.drained[name] = with_model, await _drained(owner)
        if failed := await owner.fetchval(_FAILED):
            raise BenchFailed(f"{failed} operations failed")
    finally:
        for connection in connections:
            connection.close()
        await owner.close()
    return figures


async def _drive(connections: Sequence[Connection], path: str, seconds: float, seed: str) -> Timing:
    requests = iter(_requests(path, seed, int(seconds * WRITES_A_SECOND)))
    return await drive([(each.post, requests) for each in connections], seconds)


def _requests(path: str, seed: str, count: int) -> list[bytes]:
    """Conversations of three messages, in one of which something is to be remembered; each of another user."""
    asks: tuple[Callable[[str], str], ...] = ("请记住：{}".format, "Please remember that {}".format)
    return [
        prepared(
            path,
            {
                "user_id": f"{seed} {number}",
                "messages": [
                    {"role": "user", "content": "Hello"},
                    {"role": "user", "content": asks[text.isascii()](text)},
                    {"role": "assistant", "content": "好的"},
                ],
            },
        )
        for number, text in enumerate(islice(texts.memories(seed), count))
    ]


async def _drained(owner: Any) -> float:
    """Seconds from the first operation that a worker has finished until none is left: its start does not count."""
    before = left = await owner.fetchval(_LEFT)
    began = finished = time.perf_counter()
    deadline = began + DRAIN_SECONDS
    while left:
        if time.perf_counter() > deadline:
            raise BenchFailed(f"{left} of {before} operations are left after {DRAIN_SECONDS:.0f} s")
        await asyncio.sleep(0.02)
        left = await owner.fetchval(_LEFT)
        finished = time.perf_counter()
        began = finished if left == before else began
    return max(finished - began, 1e-3)


@asynccontextmanager
async def _model() -> AsyncIterator[int]:
    """A chat endpoint on a free port that takes its time and finds nothing."""
    choice = {"message": {"role": "assistant", "content": '{"facts": []}'}, "finish_reason": "stop"}
    body = orjson.dumps({"choices": [choice]})
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while asked := await reader.readuntil(b"\r\n\r\n"):
                length = asked.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                await asyncio.sleep(MODEL_SECONDS)
                writer.write(head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
