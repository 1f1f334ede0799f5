"""R18: clients that hang up and requests that are cancelled cost no connection, and nobody gets another's answer."""

import asyncio
import random
import socket
import struct
import time
from contextlib import suppress
from typing import Any

import httpx2
import orjson
import pytest

from tests.api.conftest import make_settings, run
from tests.faults.conftest import POOL_SIZE, Seen, Stage
from tests.faults.processes import until

pytestmark = pytest.mark.faults
USERS = 50
RESET = struct.pack("ii", 1, 0)
LEFT = """
    SELECT count(*) FILTER (WHERE state LIKE 'idle in transaction%'), count(*),
           (SELECT count(*) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.database = a.datid)
    FROM pg_stat_activity a WHERE datname = current_database() AND application_name = 'mneme' GROUP BY datid
"""


def asked(number: int) -> tuple[str, dict[str, Any]]:
    """Two searches, then a write, of one user after the other."""
    user_id = f"u{number % USERS}"
    if number % 3 == 2:
        return "/v1/memories", {"user_id": user_id, "content": f"{user_id} got parcel {number}"}
    return "/v1/memories:search", {"user_id": user_id, "query": f"parcel {number} 包裹"}


async def hang_up(port: int, number: int, seconds: float) -> bool:
    """Send a request, and reset the connection after a while; returns whether it was too early for an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path, body = asked(number)
    content = orjson.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + content)
    answer = b""
    with suppress(TimeoutError):
        answer = await asyncio.wait_for(reader.read(1), seconds)
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
    return not answer


async def cancel(client: httpx2.AsyncClient, number: int, seconds: float) -> bool:
    """Ask the application itself, and cancel it after a while; returns whether it was too early for an answer.

    An answer in time is of the right user.
    """
    path, body = asked(number)
    try:
        own(await asyncio.wait_for(client.post(path, json=body), seconds), body["user_id"])
    except TimeoutError:
        return True
    return False


def own(answer: httpx2.Response, user_id: str) -> int:
    """How many memories are in the answer; they are this user's."""
    assert answer.is_success, answer.text
    body = answer.json()
    memories = [hit["memory"] for hit in body["hits"]] if "hits" in body else [body["memory"]]
    assert {memory["user_id"] for memory in memories} <= {user_id}
    return len(memories)


async def test_300_requests_given_up_at_random_moments(stage: Stage, seen: Seen) -> None:
    moments = random.Random(3)
    settings = make_settings(stage.service_url, stage.directory, required=False)
    settings.database.pool_size = POOL_SIZE
    async with run(settings) as service:
        database = service.app.state.mneme.database
        for number in range(USERS):
            body = {"user_id": f"u{number}", "content": f"u{number} waits for a parcel 包裹"}
            own(await service.client.post("/v1/memories", json=body), f"u{number}")
        stage.proxy.latency_seconds = 0.005  # so that there is a moment between command and answer
        port = service.client.base_url.port
        assert port is not None
        inside = httpx2.ASGITransport(app=service.app)
        async with httpx2.AsyncClient(transport=inside, base_url="http://127.0.0.1", timeout=60) as client:
            started = time.perf_counter()
            assert not any(await asyncio.gather(*(cancel(client, number, 60) for number in range(30))))
            usual = time.perf_counter() - started
            early: list[bool] = []
            for batch in range(0, 300, 30):
                waits = [moments.uniform(0, usual) for _ in range(30)]
                early += await asyncio.gather(*(
                    hang_up(port, batch + place, wait) if place % 2 else cancel(client, batch + place, wait)
                    for place, wait in enumerate(waits)
                ))  # fmt: skip
        ended = time.perf_counter()
        assert 0 < sum(early[::2]) < 150, "some are cancelled inside, some are answered in time"
        assert 0 < sum(early[1::2]) < 150, "some clients hang up, some are answered in time"

        async def clean() -> bool:
            left = await stage.ask(LEFT)
            return database.checked_out == 0 and all(
                (idle, locks) == (0, 0) and sessions <= POOL_SIZE for idle, sessions, locks in left
            )

        await until(clean, "connections, locks and transactions are given back")
        seen(f"{sum(early)} of 300 given up before their answer; clean after {time.perf_counter() - ended:.2f} s")
        stage.proxy.latency_seconds = 0
        again = await asyncio.gather(*(
            service.client.post("/v1/memories:search", json={"user_id": f"u{number}", "query": "包裹 parcel"})
            for number in range(USERS)
        ))  # fmt: skip
        assert all(own(answer, f"u{number}") >= 1 for number, answer in enumerate(again))
    assert await stage.ask("SELECT count(*) - count(DISTINCT (subject_id, content)) FROM memories") == [(0,)]


async def test_what_a_cancelled_request_asked_the_database_is_ended(stage: Stage) -> None:
    """Also by a server that by itself would not notice, and with limits that are far away."""
    await stage.ask(f"ALTER DATABASE {stage.database} SET client_connection_check_interval = 0")
    settings = make_settings(stage.service_url, stage.directory, required=False)
    settings.database.lock_timeout_ms = settings.database.statement_timeout_ms = 3_600_000
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'mneme'"
    async with run(settings) as service, stage.session() as stranger:
        inside = httpx2.ASGITransport(app=service.app)
        async with httpx2.AsyncClient(transport=inside, base_url="http://127.0.0.1") as client, stranger.transaction():
            await stranger.execute("LOCK TABLE memories IN ACCESS EXCLUSIVE MODE")
            path, body = asked(0)
            search = asyncio.create_task(client.post(path, json=body))

            async def waits() -> bool:
                return bool(await stage.ask(waiting))

            async def ended() -> bool:
                return not await waits()

            await until(waits, "the search waits for the table")
            search.cancel()
            await until(ended, "its session has ended")
