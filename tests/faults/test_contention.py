"""The database is there, but somebody is in the way: no connection is to be had, a lock is kept, locks cross."""

import asyncio
from contextlib import AsyncExitStack, suppress

import asyncpg
import httpx2
import pytest

from app.cli import schema
from app.database import subject_lock
from app.guard import DEFAULT_TENANT_ID
from tests.faults.conftest import POOL_SIZE, Seen, Stage
from tests.faults.history import BROKEN
from tests.faults.processes import kept, until

pytestmark = pytest.mark.faults
LEMON, MANGO = "我对柠檬过敏", "我对芒果过敏"


async def write(client: httpx2.AsyncClient, content: str, user_id: str = "amy", **more: str) -> httpx2.Response:
    return await client.post("/v1/memories", json={"user_id": user_id, "content": content, **more})


async def search(client: httpx2.AsyncClient, user_id: str = "amy") -> httpx2.Response:
    return await client.post("/v1/memories:search", json={"user_id": user_id, "query": "过敏"})


def refused(answer: httpx2.Response) -> str:
    """The code of an answer that says when to come back."""
    assert answer.status_code in BROKEN, answer.text
    assert int(answer.headers["Retry-After"]) >= 1
    return str(answer.json()["code"])


async def test_an_exhausted_pool_refuses_in_time_and_recovers(stage: Stage, seen: Seen) -> None:
    async with kept(stage.server, stage.api()), stage.client() as client:
        assert (await write(client, LEMON)).status_code == 201
        async with stage.session() as stranger:
            transaction = stranger.transaction()
            await transaction.start()
            await stranger.execute("LOCK TABLE memories IN ACCESS EXCLUSIVE MODE")
            asked = [asyncio.create_task(search(client, f"user{number}")) for number in range(20)]
            asked += [asyncio.create_task(write(client, MANGO, f"user{number}")) for number in range(20)]
            middle = await stage.lives(client)
            codes = [refused(answer) for answer in await asyncio.gather(*asked)]
            await transaction.rollback()
        assert {"pool_exhausted", "deadline_exceeded"} == set(codes)
        assert await stage.backends() <= POOL_SIZE
        again = await asyncio.gather(*(write(client, MANGO, f"user{number}") for number in range(20)))
        assert {answer.status_code for answer in again} == {201}
    seen(f"/livez {middle:.1f} ms; { ({code: codes.count(code) for code in set(codes)}) }")


async def test_no_connection_is_left_on_the_server(stage: Stage, seen: Seen) -> None:
    api = stage.api()
    async with kept(stage.server, api), stage.client() as client, AsyncExitStack() as crowd:
        assert (await write(client, LEMON)).status_code == 201
        api.freeze()  # or it would be quicker than the strangers, on a slow machine
        stage.proxy.reset()
        strangers = 0
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                connection = await asyncpg.connect(stage.driver_url)
                crowd.push_async_callback(connection.close)
                strangers += 1
        api.thaw()
        assert refused(await write(client, MANGO)) == "database_unavailable"
        assert refused(await search(client)) == "database_unavailable"
        middle = await stage.lives(client)
        await crowd.aclose()
        await until(lambda: stage.ready(client), "ready again")
        assert (await write(client, MANGO)).status_code == 201
        assert (await search(client)).status_code == 200
    seen(f"{strangers} strangers; /livez {middle:.1f} ms")


async def test_the_victim_of_a_deadlock_is_done_again_and_nothing_is_half_done(stage: Stage) -> None:
    slot = {"key": "profile.company_name"}
    patient = {"database__statement_timeout_ms": "20000", "database__lock_timeout_ms": "20000"}
    await stage.ask(f"ALTER ROLE {schema.LOGIN_ROLE} IN DATABASE {stage.database} SET deadlock_timeout = '5s'")
    async with kept(stage.server, stage.api(**patient)), stage.client() as client:
        assert (await write(client, "公司名称是云启科技", **slot)).status_code == 201
        async with stage.session() as stranger:
            await stranger.execute("SET deadlock_timeout = '60s'")  # the service is to be the victim
            transaction = stranger.transaction()
            await transaction.start()
            await stranger.fetch("SELECT FROM memories FOR UPDATE")
            asked = asyncio.create_task(write(client, "公司改名为云启智能", **slot))
            waiting = """
                SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'mneme'
                  AND clock_timestamp() - query_start > interval '1s'
            """  # not in its first try, which waits for a moment only

            async def waits() -> bool:
                return bool(await stage.ask(waiting))

            await until(waits, "the write waits for the row")
            await stranger.execute("SELECT pg_advisory_xact_lock($1)", subject_lock(DEFAULT_TENANT_ID, "amy"))
            assert await stage.ask("SELECT count(*) FROM memories") == [(1,)]
            await transaction.rollback()
            assert (await asked).status_code == 201
        assert 'mneme_db_work_repeated_total{reason="undone"} 1.0' in (await client.get("/metrics")).text
        assert await stage.ask("SELECT status FROM memories ORDER BY memory_id") == [("deprecated",), ("active",)]


async def test_a_stranger_idle_in_a_transaction_holds_up_nobody_for_long(stage: Stage) -> None:
    async with kept(stage.server, stage.api()), stage.client() as client:
        written = await write(client, LEMON)
        async with stage.session() as stranger:
            transaction = stranger.transaction()
            await transaction.start()
            await stranger.fetch("SELECT FROM memories FOR UPDATE")
            place = f"/v1/memories/{written.json()['id']}"
            assert refused(await client.patch(place, json={"importance": 5})) == "deadline_exceeded"
            assert (await write(client, MANGO)).status_code == 201
            assert len((await search(client)).json()["hits"]) == 2
            await transaction.rollback()
        assert (await client.patch(place, json={"importance": 5})).status_code == 200


async def test_a_session_of_the_service_that_fell_silent_in_a_transaction_is_ended(stage: Stage) -> None:
    async with (
        kept(stage.server, stage.api(database__idle_in_transaction_timeout_ms="1500")),
        stage.client() as client,
    ):
        stage.proxy.hold = (b"enable_sort = off",)  # the write begins, with its locks, and hears no more
        asked = asyncio.create_task(write(client, LEMON))
        await stage.proxy.held.wait()
        stage.proxy.hold = ()
        idle = "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name = 'mneme'"
        assert await stage.ask(idle)
        assert (await asked).status_code == 201  # by a second try: nothing had happened yet
        assert await stage.ask(idle) == []
    assert await stage.ask("SELECT count(*) FROM memories") == [(1,)]
