"""Between the service and its database: frozen, reset, slow, silent. Deadlines hold, the process lives, all heals."""

import asyncio
import random
import socket
from typing import Any

import pytest
from pydantic import SecretStr

from app.connections import DatabaseConfig
from app.database import Database
from tests.faults.conftest import Seen, Stage, answers
from tests.faults.history import History
from tests.faults.processes import kept, until

pytestmark = pytest.mark.faults
SILENCE = "ReadTimeout"
"""What a client notes that waited longer than any deadline."""


def heard_in_time(history: History) -> None:
    """Whatever was refused was refused in time."""
    assert SILENCE not in history.refusals, history.refusals


async def test_a_frozen_database_is_503_and_504_in_time_and_heals(stage: Stage, seen: Seen) -> None:
    async with kept(stage.server, stage.api()), stage.client() as client, stage.history() as history:
        await history.goes_on()
        stage.server.freeze()
        middle = await stage.lives(client)
        for _ in range(2):
            assert await answers(client, "/readyz") == 503
            await stage.lives(client)
        refused = dict(history.refusals)
        stage.server.thaw()
        await history.goes_on()
        await until(lambda: stage.ready(client), "ready again")
    heard_in_time(history)
    assert refused
    seen(f"/livez {middle:.1f} ms in the middle; {dict(history.refusals)}")


async def test_connections_are_reset_at_any_moment(stage: Stage, seen: Seen) -> None:
    moments = random.Random(11)
    async with kept(stage.server, stage.api()), stage.history() as history:
        await history.goes_on()
        for _ in range(10):
            await asyncio.sleep(moments.uniform(0, 0.3))
            stage.proxy.reset()
            await history.goes_on(5)
    heard_in_time(history)
    seen(f"10 resets of all connections, {len(history.acknowledged)} acknowledged; {dict(history.refusals)}")


async def test_connections_that_died_idle_cost_nobody_anything(stage: Stage) -> None:
    async with kept(stage.server, stage.api()), stage.client() as client:
        history = History(client)
        for number in range(6):
            assert await history.attempt(number)
            stage.proxy.reset()
    assert not history.refusals


async def test_a_slow_network_is_slow_and_a_very_slow_one_is_refused_in_time(stage: Stage, seen: Seen) -> None:
    async with kept(stage.server, stage.api()), stage.client() as client, stage.history(4) as history:
        await history.goes_on()
        stage.proxy.latency_seconds = 0.05
        await history.goes_on()
        assert not history.refusals
        stage.proxy.latency_seconds = 6
        await until(lambda: bool(history.refusals), "refused")
        middle = await stage.lives(client)
        stage.proxy.latency_seconds = 0
        await history.goes_on()
    heard_in_time(history)
    seen(f"50 ms: no refusal; 6 s: /livez {middle:.1f} ms, {dict(history.refusals)}")


async def test_half_open_sockets_are_noticed(stage: Stage, seen: Seen) -> None:
    async with kept(stage.server, stage.api()), stage.client() as client, stage.history() as history:
        await history.goes_on()
        stage.proxy.silence_present()  # a firewall forgot them: nobody is told
        await history.goes_on()
        forgotten = dict(history.refusals)
        stage.proxy.silence()  # the cable is out
        middle = await stage.lives(client)
        assert await answers(client, "/readyz") == 503
        await until(lambda: dict(history.refusals) != forgotten, "refused")
        stage.proxy.speak()
        await history.goes_on()
        await until(lambda: stage.ready(client), "ready again")
    heard_in_time(history)
    seen(f"forgotten: {forgotten}; silent: /livez {middle:.1f} ms, {dict(history.refusals)}")


async def test_the_system_watches_idle_connections(stage: Stage) -> None:
    """Silence on the way, which no process here can play, ends a connection within half a minute, not two hours."""
    database = await Database.connect(DatabaseConfig(url=SecretStr(stage.service_url)))
    pooled = await database.engine.raw_connection()
    driver: Any = pooled.driver_connection
    sock = driver._transport.get_extra_info("socket")
    watched = [sock.getsockopt(socket.IPPROTO_TCP, each) for each in (socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT)]
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert watched == [15, 30_000]
    pooled.close()
    await database.close()


async def test_a_commit_whose_answer_is_lost_is_not_called_undone(stage: Stage) -> None:
    async with kept(stage.server, stage.api()), stage.client() as client:
        history = History(client)
        stage.proxy.hold = (b"enable_sort = off", b"COMMIT")
        assert await history.attempt(0) is None
        assert dict(history.refusals) == {"503 database_unavailable": 1}
        assert await stage.ask("SELECT count(*) FROM memories") == [(1,)]
        stage.proxy.release()
        assert await history.attempt(0) is not None
    assert not history.violations
    assert await stage.ask("SELECT count(*) FROM memories") == [(1,)]
