"""Models that fail: what they owe is owed and no more, the breaker opens, probes and closes, and all pending drains."""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2
import pytest

from tests.api.test_operations import FACT
from tests.embed.server import Answer, Script, serving, status
from tests.embed.test_remote import DIMENSION, well, with_vectors
from tests.faults.conftest import Seen, Stage
from tests.faults.processes import kept, until

pytestmark = pytest.mark.faults


def _vectors(value: float, dimension: int = DIMENSION) -> Script:
    return with_vectors(lambda items: [item | {"embedding": [value] * dimension} for item in items])


def in_turn(scripts: Sequence[Script]) -> Script:
    """Each call meets the next fault."""
    turns = itertools.cycle(scripts)

    def script(body: dict[str, Any]) -> Answer:
        return next(turns)(body)

    return script


async def metric(client: httpx2.AsyncClient, series: str) -> float:
    """The value of a series now; 0 while nobody answers."""
    try:
        text = (await client.get("/metrics")).text
    except httpx2.TransportError:
        return 0
    found = re.findall(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found[0]) if found else 0


async def moved(client: httpx2.AsyncClient, name: str) -> tuple[float, float, float]:
    """How often a breaker opened, probed and closed."""
    series = 'mneme_circuit_breaker_transitions_total{{name="{}",state="{}"}}'
    opened, probed, closed = [
        await metric(client, series.format(name, state)) for state in ("open", "half_open", "closed")
    ]
    return opened, probed, closed


async def test_an_embedder_that_fails_in_every_way_owes_vectors_and_pays_them(stage: Stage, seen: Seen) -> None:
    numbers: Iterator[int] = itertools.count()
    with serving("/v1", well) as endpoint:
        settings = {
            "embed__provider": "remote",
            "embed__url": endpoint.url,
            "embed__model": "played",
            "embed__dimension": str(DIMENSION),
            "embed__timeout_seconds": "2",
            "remember__embedding_deadline_seconds": "1.5",
        }
        faults: Sequence[Script] = (
            status(500), _vectors(1.0, DIMENSION + 1), _vectors(float("nan")), _vectors(0.0), endpoint.silent,
            lambda _: (200, {}, b"<html>"),
        )  # fmt: skip
        async with kept(stage.server, stage.api(**settings), stage.worker(**settings)), stage.client() as client:

            async def write() -> None:
                number = next(numbers)
                body = {"user_id": "amy", "content": f"编号 {number} order number {number}"}
                assert (await client.post("/v1/memories", json=body)).status_code == 201

            async def degraded() -> list[str]:
                body = {"user_id": "amy", "query": f"order number {next(numbers)}"}
                answer = await client.post("/v1/memories:search", json=body)
                assert answer.status_code == 200
                assert answer.json()["hits"]
                return list(answer.json()["degraded"])

            async def probed_in_vain() -> bool:
                assert "embedding_unavailable" in await degraded()
                return (await moved(client, "embedding"))[0] >= 2

            async def healed() -> bool:
                paid = await stage.ask("SELECT count(*) FROM embedding_queue") == [(0,)]
                return await degraded() == [] and paid

            for _ in range(3):
                await write()
            assert await degraded() == []
            endpoint.scripts = [in_turn(faults)]
            for _ in range(8):
                await write()
            await until(probed_in_vain, "the breaker opened, probed, and opened again")
            middle = await stage.lives(client)
            owed = await stage.ask("SELECT count(*) FROM embedding_queue")
            assert owed[0][0] == 8
            endpoint.scripts = [well]
            await until(healed, "all vectors are there and searches are whole again")
            opened, probed, closed = await moved(client, "embedding")
            assert opened >= 2
            assert probed >= 2
            assert closed >= 1
            assert await metric(client, 'mneme_circuit_breaker_state{name="embedding"}') == 0
    assert await stage.ask("SELECT count(*), count(embedding) FROM memories") == [(11, 11)]
    seen(f"opened {opened:.0f}, probed {probed:.0f}, closed {closed:.0f} times; /livez {middle:.1f} ms")


async def test_a_language_model_that_fails_in_every_way_is_asked_again(stage: Stage, seen: Seen) -> None:
    with serving("/v1/chat/completions", FACT) as endpoint:
        settings = {
            "llm__url": endpoint.url.removesuffix("/chat/completions"),
            "llm__model": "played",
            "llm__deadline_seconds": "1",
            "extract__without_llm": "fail",
        }
        worker = stage.worker(**settings)
        async with (
            kept(stage.server, stage.api(**settings), worker),
            stage.client() as client,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{stage.metrics_port}") as metrics,
        ):
            endpoint.scripts = [in_turn((status(500), endpoint.silent, status(429, retry_after="0")))]
            places = []
            for number in range(8):
                body = {"user_id": f"u{number}", "messages": [{"role": "user", "content": "我对芒果过敏"}]}
                answer = await client.post("/v1/memories:extract", json=body)
                assert answer.status_code == 202
                places.append(answer.headers["Location"])

            async def opened() -> bool:
                return (await moved(metrics, "llm"))[0] >= 1

            async def drained() -> bool:
                # Nobody needs to wait minutes for the next try here; but longer than the breaker.
                await stage.ask("UPDATE operations SET due_at = least(due_at, now() + interval '6 s')")
                states = await stage.ask("SELECT DISTINCT state FROM operations")
                assert ("failed",) not in states
                return states == [("succeeded",)]

            await until(opened, "the breaker opened")
            endpoint.scripts = [FACT]
            await until(drained, "all extractions are done")
            for place in places:
                shown = (await client.get(place)).json()
                assert (shown["state"], len(shown["result"]["facts"])) == ("succeeded", 1)
            moves = await moved(metrics, "llm")
            assert min(moves) >= 1
    assert await stage.ask("SELECT count(*), count(DISTINCT subject_id) FROM memories") == [(8, 8)]
    seen("opened {:.0f}, probed {:.0f}, closed {:.0f} times".format(*moves))
