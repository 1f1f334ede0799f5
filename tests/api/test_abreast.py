"""Large subjects searched on two connections at once: what is found is what one statement finds; none stays out."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest
from pydantic import SecretStr

from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database, sql
from app.recall import RecallConfig, abreast, candidates, large, tend_large_subjects
from tests.api.conftest import Service
from tests.api.test_large_subjects import QUERIES, facts, fill, forget_what_is_large
from tests.conftest import POOLER

pytestmark = pytest.mark.skipif(POOLER in os.environ, reason="behind a pooler nobody has a second connection")
SHAPE = candidates.Shape(0, (), (), False, False, False, False, False, 1)
LONG = sql("SELECT pg_sleep(30)::text AS packed")
SHORT = sql("SELECT pg_sleep(0.2), NULL::bytea AS worded, NULL::bytea AS packed, NULL::bytea AS counted")
WRONG = sql("SELECT (1 / 0)::text AS packed")


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Database]:
    """A pool with two connections, both idle."""
    database = await Database.connect(DatabaseConfig(url=SecretStr(database_url), pool_size=2))
    async with database.work(), database.work():
        pass
    await until_all_are_back(database)
    yield database
    await database.close()


async def until_all_are_back(database: Database) -> None:
    async with asyncio.timeout(10):
        while database.checked_out:  # noqa: ASYNC110 - a pool has no event
            await asyncio.sleep(0.001)


async def hits(agent: httpx2.AsyncClient, query: str, **fields: Any) -> dict[str, float]:
    response = await agent.post("/v1/memories:search", json={"user_id": "amy", "query": query, **fields})
    assert response.status_code == 200, response.text
    return {hit["memory"]["id"]: hit["score"] for hit in response.json()["hits"]}


@pytest.mark.usefixtures("by_index")
async def test_two_statements_at_once_find_what_one_finds(
    agent: httpx2.AsyncClient, service: Service, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await fill(agent, facts(450))
    await fill(agent, facts(330, 700), user_id=None)
    for memory_id in ids[:300:10]:
        assert (await agent.delete(f"/v1/memories/{memory_id}")).status_code == 204
    await tend_large_subjects(database, RecallConfig(exact_scan_rows=300), now=now())
    forget_what_is_large(service)
    outcomes: list[bool] = []

    async def counted(*given: Any) -> Any:
        found = await abreast.abreast(*given)
        outcomes.append(found is not None)
        return found

    monkeypatch.setattr(large, "abreast", counted)
    modes: list[dict[str, Any]] = [
        {"top_k": 20}, {"top_k": 60, "diversity": 0}, {"include_shared": False}, {"include_deprecated": True},
        {"max_share_per_source": 0.5}, {"weights": {"similarity": 0, "keyword": 1, "time": 0, "importance": 0}},
        {"similarity_threshold": 0.1}, {"agent_id": "a1"},
    ]  # fmt: skip
    await asyncio.gather(*(hits(agent, query) for query in QUERIES))  # several connections are open now
    for mode in modes:
        for query in QUERIES[:4]:
            both: dict[str, float] = {}
            for _ in range(20):  # access counts are written now and then, and then there is none to spare
                outcomes.clear()
                await until_all_are_back(service.app.state.mneme.database)
                both = await hits(agent, query, **mode)
                if False not in outcomes:
                    break
            with monkeypatch.context() as alone:
                alone.setattr(Database, "has_spare", False)
                one = await hits(agent, query, **mode)
            assert [*one] == [*both], (mode, query)
            assert one == pytest.approx(both, abs=1e-4)  # a moment later
            assert outcomes in ([True, False], []), (mode, query)
            assert bool(outcomes) == mode.keys().isdisjoint({"weights", "agent_id"})  # there is no walk, or it is long


@pytest.mark.parametrize("given_up", [True, False], ids=["cancelled", "failed"])
async def test_what_ends_before_its_other_half_leaves_no_connection_out(
    pool: Database, tenant: UUID, given_up: bool
) -> None:
    async def ask() -> Any:
        async with pool.read(tenant) as transaction:
            return await abreast.abreast(transaction, LONG, LONG if given_up else WRONG, {}, SHAPE, 1)

    asking = asyncio.create_task(ask())
    if given_up:
        async with asyncio.timeout(10):
            while pool.checked_out < 2:  # noqa: ASYNC110 - a pool has no event
                await asyncio.sleep(0.001)
        asking.cancel()
    with pytest.raises(asyncio.CancelledError if given_up else asyncpg.DivisionByZeroError):
        async with asyncio.timeout(5):
            await asking
    await until_all_are_back(pool)
    assert not pool.turns.locked()


async def test_a_walk_that_fails_fails_the_search(pool: Database, tenant: UUID) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(asyncpg.DivisionByZeroError):
            async with pool.read(tenant) as transaction:
                await abreast.abreast(transaction, WRONG, SHORT, {}, SHAPE, 1)
    await until_all_are_back(pool)


async def test_who_takes_the_idle_connection_in_that_moment_lets_the_walk_come_after_the_rest(
    pool: Database, tenant: UUID
) -> None:
    size = candidates.record_bytes(SHAPE)
    one, two, three, four, five = (bytes([n]) * size for n in range(1, 6))
    near = sql("SELECT cast(:near AS bytea) AS packed")
    rest = sql("SELECT cast(:worded AS bytea) AS worded, cast(:others AS bytea) AS packed, NULL::bytea AS counted")
    values = {"near": one + two, "worded": two + three + one + four + five, "others": five + two + three}
    async with pool.read(tenant) as transaction:
        answers = iter([transaction.beside(), None])
        transaction.beside = lambda: next(answers)
        found = await abreast.abreast(transaction, near, rest, values, SHAPE, 2)
    assert found == {"packed": one + two + three + four + five, "nearest": 2, "counted": None}
