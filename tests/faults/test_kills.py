"""kill -9 of every part while memories are written: what was acknowledged is there once, and nobody has to help."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx2
import orjson
import pytest

from tests.faults.conftest import Seen, Stage
from tests.faults.processes import kept, until


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.faults)])
async def test_what_was_acknowledged_survives_kill_9_of_any_part(stage: Stage, seen: Seen, rounds: int) -> None:
    api, worker = stage.api(), stage.worker()
    victims: list[Callable[[], object]] = [stage.server.kill, stage.server.kill_backend, api.kill, worker.kill]
    moments = random.Random(7)
    async with kept(stage.server, api, worker) as keeper, stage.history() as history:
        await history.goes_on()
        for _ in range(rounds):
            for kill in moments.sample(victims, len(victims)):
                await asyncio.sleep(moments.uniform(0, 0.5))
                await asyncio.to_thread(kill)
                await history.goes_on()
        await until(lambda: worker.alive and stage.server.alive, "everything runs again")
    assert keeper.restarts >= 3 * rounds
    seen(f"{4 * rounds} kills, {len(history.acknowledged)} acknowledged; meanwhile {dict(history.refusals)}")


WRITES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/memories", {"user_id": "amy", "content": "我对芒果过敏"}),
    (
        "/v1/memories:batch",
        {"items": [{"user_id": "amy", "content": "Amy plays the cello"}, {"content": "退货要在 7 天内"}]},
    ),
    ("/v1/memories:extract", {"user_id": "amy", "messages": [{"role": "user", "content": "我住在杭州"}]}),
]


async def test_an_api_killed_between_commit_and_answer_gives_its_successor_the_answer(stage: Stage) -> None:
    api = stage.api()
    async with kept(stage.server, api), stage.client() as client:
        for number, (path, body) in enumerate(WRITES):
            key = {"Idempotency-Key": f"kept-{number}"}
            stage.proxy.hold = (b"enable_sort = off", b"COMMIT")  # the first is how a writing transaction begins
            asked = asyncio.create_task(client.post(path, json=body, headers=key))
            await stage.proxy.held.wait()

            async def committed(name: str = key["Idempotency-Key"]) -> bool:
                return bool(await stage.ask("SELECT FROM idempotency_keys WHERE key = $1", name))

            await until(committed, "the write is committed")
            assert not asked.done()
            await asyncio.to_thread(api.kill)
            with pytest.raises(httpx2.TransportError):
                await asked
            stage.proxy.release()
            await until(lambda: stage.ready(client), "its successor is ready")
            [(status, stored)] = await stage.ask(
                "SELECT status, response FROM idempotency_keys WHERE key = $1", key["Idempotency-Key"]
            )
            for _ in range(2):
                again = await client.post(path, json=body, headers=key)
                assert again.status_code == status
                if path.endswith(":extract"):  # the state is told as it is now
                    assert again.json()["id"] == orjson.loads(stored)["operation_id"]
                else:
                    assert again.content == stored
    assert await stage.ask("SELECT count(*), count(DISTINCT content) FROM memories") == [(3, 3)]
    assert await stage.ask("SELECT count(*) FROM operations") == [(1,)]
