"""The door to PostgreSQL: what a transaction may see, that nothing stays on a connection, how failures are told."""

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgvector import HalfVector, SparseVector
from pydantic import SecretStr
from uuid_utils.compat import uuid7

from app import database as module
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database, sql
from app.errors import DatabaseUnavailable, DeadlineExceeded, PoolExhausted, StartupRefused
from app.wire import halfvec, halfvecs, sparsevec, sparsevec_of
from tests.conftest import administer

ME = sql("SELECT name FROM tenants")
PID = sql("SELECT pg_backend_pid()")
SLEEP = sql("SELECT pg_sleep(:seconds)")
NEW_TENANT = sql("INSERT INTO tenants (tenant_id, name, created_at) VALUES (:tenant_id, :name, :now)")


def config(url: str, **changes: Any) -> DatabaseConfig:
    return DatabaseConfig(url=SecretStr(url), start_timeout_seconds=0, **changes)


@pytest.fixture
async def narrow(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection, so that everything meets on it."""
    database = await Database.connect(config(database_url, pool_size=1, pool_timeout_seconds=0.3))
    yield database
    await database.close()


async def make_tenants(database: Database, count: int) -> list[UUID]:
    tenants = [UUID(str(uuid7())) for _ in range(count)]
    for tenant_id in tenants:
        async with database.write(tenant_id) as transaction:
            await transaction.execute(NEW_TENANT, tenant_id=tenant_id, name=str(tenant_id), now=now())
    return tenants


def test_named_parameters_become_numbers_and_casts_stay() -> None:
    statement = sql("SELECT :b::int + :a, :b, 'x'::text, a.b::jsonb, now()::timestamptz FROM t WHERE x = :a_2")
    assert statement.sql == "SELECT $1::int + $2, $1, 'x'::text, a.b::jsonb, now()::timestamptz FROM t WHERE x = $3"
    assert statement.names == ("b", "a", "a_2")


async def test_r22_the_tenant_never_stays_on_a_connection(narrow: Database) -> None:
    first, second = await make_tenants(narrow, 2)
    for number in range(40):
        tenant = random.Random(number).choice((first, second))
        if number % 5 == 0:
            with pytest.raises(asyncpg.DivisionByZeroError):
                async with narrow.read(tenant) as transaction:
                    await transaction.fetch(sql("SELECT 1 / 0"))
        async with narrow.read(tenant) as transaction:
            assert [row["name"] for row in await transaction.fetch(ME)] == [str(tenant)]
        async with narrow.read(UUID(int=0)) as transaction:
            assert await transaction.fetch(ME) == []


async def test_a_failed_block_rolls_back_and_a_clean_one_commits(narrow: Database) -> None:
    tenant = UUID(str(uuid7()))

    async def fail_after_writing() -> None:
        async with narrow.write(tenant) as transaction:
            await transaction.execute(NEW_TENANT, tenant_id=tenant, name=str(tenant), now=now())
            raise LookupError

    with pytest.raises(LookupError):
        await fail_after_writing()
    async with narrow.read(tenant) as transaction:
        assert await transaction.fetch(ME) == []
    # As a server says that is still recovering, or was made a standby: away for writers, and back later.
    with pytest.raises(DatabaseUnavailable, match="ReadOnly"):
        async with narrow.read(tenant) as transaction:
            await transaction.execute(NEW_TENANT, tenant_id=tenant, name=str(tenant), now=now())


async def test_r18_cancelled_requests_leave_no_answer_behind_and_no_connection_out(database_url: str) -> None:
    database = await Database.connect(config(database_url, pool_size=3))
    try:
        tenants = await make_tenants(database, 5)
        chance = random.Random(7)

        async def ask(tenant: UUID) -> None:
            async with database.read(tenant) as transaction:
                await transaction.fetch(SLEEP, seconds=0.002)
                assert [row["name"] for row in await transaction.fetch(ME)] == [str(tenant)]

        async def hang_up(tenant: UUID) -> None:
            task = asyncio.create_task(ask(tenant))
            await asyncio.sleep(chance.random() * 0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        for _ in range(20):
            await asyncio.gather(*(hang_up(chance.choice(tenants)) for _ in range(5)))
        await asyncio.gather(*(ask(chance.choice(tenants)) for _ in range(50)))
        async with asyncio.timeout(10):
            while database.checked_out:  # noqa: ASYNC110 - readers do not wait for the end of their transactions
                await asyncio.sleep(0.001)
    finally:
        await database.close()


async def test_a_full_pool_and_a_slow_statement_are_told_apart(narrow: Database, database_url: str) -> None:
    async with narrow.work():
        with pytest.raises(PoolExhausted):
            await narrow.ping()
    await narrow.ping()
    impatient = await Database.connect(config(database_url, pool_size=1, statement_timeout_ms=50))
    try:
        with pytest.raises(DeadlineExceeded):
            async with impatient.work() as transaction:
                await transaction.fetch(SLEEP, seconds=5.0)
        await impatient.ping()
    finally:
        await impatient.close()


async def test_who_waits_for_a_connection_goes_before_who_comes_later(narrow: Database) -> None:
    order: list[str] = []

    async def use(name: str) -> None:
        async with narrow.work():
            order.append(name)

    async with narrow.work():
        waiting = asyncio.create_task(use("first"))
        await asyncio.sleep(0.01)
    await use("later")
    await waiting
    assert order == ["first", "later"]


async def test_connections_that_died_are_replaced_unnoticed(narrow: Database, owner_url: str) -> None:
    async with narrow.work() as transaction:
        pid = await transaction.fetch_value(sql("SELECT pg_backend_pid()"))
    await asyncio.to_thread(administer, owner_url, f"SELECT pg_terminate_backend({pid}, 5000)")
    await narrow.ping()
    async with narrow.work() as transaction:
        assert await transaction.fetch_value(sql("SELECT pg_backend_pid()")) != pid


async def test_counting_has_a_workers_rights_and_a_connection_of_its_own_that_is_replaced(
    narrow: Database, owner_url: str
) -> None:
    async with narrow.work():  # the pool's only one
        with pytest.raises(PoolExhausted):
            await narrow.count("SELECT FROM tenants")
    counts = await asyncio.gather(*(narrow.count(f"SELECT FROM generate_series(1, {n})") for n in range(4)))
    assert counts == [0, 1, 2, 3]
    async with narrow.work():
        assert await narrow.count("SELECT FROM tenants WHERE false") == 0
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await narrow.count("SELECT FROM memories")
    assert await narrow.count(f"SELECT WHERE current_user = '{module.WORKER_ROLE}'") == 1
    assert narrow._counting is not None
    pid = narrow._counting.get_server_pid()
    await asyncio.to_thread(administer, owner_url, f"SELECT pg_terminate_backend({pid}, 5000)")
    assert await narrow.count("SELECT FROM generate_series(1, 2)") == 2


async def test_a_backend_killed_under_a_request_is_an_unavailable_database(narrow: Database, owner_url: str) -> None:
    async def ask_a_dying_backend() -> None:
        async with narrow.work() as transaction:
            pid = await transaction.fetch_value(sql("SELECT pg_backend_pid()"))
            await asyncio.to_thread(administer, owner_url, f"SELECT pg_terminate_backend({pid}, 5000)")
            await transaction.fetch(ME)

    with pytest.raises(DatabaseUnavailable):
        await ask_a_dying_backend()
    await narrow.ping()


async def test_what_was_read_stands_however_its_transaction_ends(
    narrow: Database, tenant: UUID, owner_url: str
) -> None:
    async with narrow.read(tenant) as transaction:
        assert len(await transaction.fetch(ME)) == 1
        pid = await transaction.fetch_value(sql("SELECT pg_backend_pid()"))
        await asyncio.to_thread(administer, owner_url, f"SELECT pg_terminate_backend({pid}, 5000)")
    async with narrow.read(tenant) as transaction:  # on the pool's only connection, which is another one now
        assert len(await transaction.fetch(ME)) == 1
        assert await transaction.fetch_value(sql("SELECT pg_backend_pid()")) != pid


async def test_the_connection_used_last_is_used_next_and_closing_waits_for_readers_to_end(database_url: str) -> None:
    database = await Database.connect(config(database_url, pool_size=4))
    pid = sql("SELECT pg_backend_pid()")

    async def ask(seconds: float) -> int:
        async with database.work() as transaction:
            await transaction.fetch(SLEEP, seconds=seconds)
            return int(await transaction.fetch_value(pid))

    many = await asyncio.gather(*(ask(0.02 * n) for n in range(1, 5)))
    assert len(set(many)) == 4
    assert [await ask(0) for _ in range(5)] == [many[-1]] * 5
    async with database.read(UUID(str(uuid7()))) as transaction:
        await transaction.fetch(ME)
    await database.close()
    assert database.checked_out == 0


async def test_a_reader_alone_has_a_second_transaction_of_the_same_tenant_beside_it(database_url: str) -> None:
    database = await Database.connect(config(database_url, pool_size=3))
    tenant, *_ = await make_tenants(database, 1)
    async with database.read(tenant) as alone:
        assert alone.beside() is None  # no other connection was ever needed
        async with database.read(tenant) as second:
            assert second.beside() is None
        async with asyncio.timeout(10):
            while database.checked_out > 1:  # noqa: ASYNC110 - readers do not wait for the end of their transactions
                await asyncio.sleep(0.001)
        beside = alone.beside()
        assert beside is not None
        async with beside as other:
            assert [row["name"] for row in await other.fetch(ME)] == [str(tenant)]
            assert alone.beside() is None  # both are out
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await other.execute(NEW_TENANT, tenant_id=UUID(int=1), name="?", now=now())
    async with database.write(tenant) as writer:
        assert writer.beside() is None
    await database.close()
    pooled = config(database_url, pooler=True)  # where all who hold a connection might wait for a second
    for lonely in (Database(config(database_url), spares=False), Database(pooled)):
        async with lonely.read(tenant) as transaction:
            async with lonely.read(tenant):
                pass
            async with asyncio.timeout(10):
                while not lonely.idle:  # noqa: ASYNC110 - a pool has no event
                    await asyncio.sleep(0.001)
            assert transaction.beside() is None
        await lonely.close()


async def test_locks_are_held_until_the_end(database: Database) -> None:
    tenant, order = UUID(str(uuid7())), []

    async def hold(name: str) -> None:
        async with database.write(tenant, 4_711) as transaction:
            order.append(name)
            await transaction.fetch(SLEEP, seconds=0.02)
            order.append(name)

    await asyncio.gather(*(hold(name) for name in "abc"))
    assert order[0::2] == order[1::2]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("MIN_POSTGRESQL", 99, "PostgreSQL 99 or newer"), ("MIN_PGVECTOR", (99, 0, 0), r"pgvector 99\.0\.0 or newer")],
)
async def test_an_old_server_is_refused_in_plain_words(
    database_url: str, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, message: str
) -> None:
    monkeypatch.setattr(module, name, value)
    with pytest.raises(StartupRefused, match=message):
        await Database.connect(config(database_url))


async def test_an_empty_database_and_no_database_are_refused_in_plain_words(owner_url: str, tmp_path: Any) -> None:
    base, _, parameters = owner_url.partition("?")
    with pytest.raises(StartupRefused, match="mneme db migrate"):
        await Database.connect(config(f"{base.rpartition('/')[0]}/template1?{parameters}"))
    with pytest.raises(StartupRefused, match="not reachable"):
        await Database.connect(config(f"postgresql+asyncpg://mneme@/mneme?host={tmp_path}"))
    with pytest.raises(StartupRefused, match="MNEME_DATABASE__URL"):
        await Database.connect(DatabaseConfig())


async def test_a_superusers_url_steps_down_into_the_walls(owner_url: str, tenant: UUID) -> None:
    database = await Database.connect(config(owner_url))
    try:
        async with database.read(UUID(str(uuid7()))) as transaction:
            assert await transaction.fetch(ME) == []
        async with database.read(tenant) as transaction:
            assert len(await transaction.fetch(ME)) == 1
    finally:
        await database.close()


@given(st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=64))
def test_vectors_are_spoken_in_pgvectors_own_format(values: list[float]) -> None:
    theirs = HalfVector(values).to_binary()
    vector = np.array(values, dtype=np.float32)
    assert halfvec(vector) == theirs
    assert halfvecs(np.stack([vector, vector[::-1]])) == [theirs, HalfVector(values[::-1]).to_binary()]


@given(st.dictionaries(st.integers(0, 999_999_999), st.integers(1, 3), max_size=40))
def test_sparse_vectors_are_spoken_in_pgvectors_own_format(weights: dict[int, int]) -> None:
    ids = sorted(weights)
    theirs = SparseVector(dict[int, float](weights), 1_000_000_000).to_binary()
    assert sparsevec(ids, [weights[i] for i in ids]) == theirs
    assert sparsevec_of(np.array(ids, np.int64), np.array([weights[i] for i in ids], np.int64)) == theirs


async def test_what_is_made_early_is_made_while_an_answer_is_waited_for(narrow: Database, tenant: UUID) -> None:
    done: list[str] = []
    async with narrow.write(tenant) as transaction:
        transaction.meanwhile(partial(done.append, name) for name in ("one", "two"))
        assert done == []
        await transaction.execute(SLEEP, seconds=0.2)
        assert done == ["one", "two"]
        transaction.meanwhile([partial(done.append, "left")] * 2)
        transaction.meanwhile([partial(done.append, "instead")])
        await transaction.fetch(SLEEP, seconds=0.2)
        assert done[2:] == ["instead"]
        transaction.meanwhile([partial(done.append, "never")])
    assert done[3:] == []


async def test_what_is_made_early_is_made_while_a_transaction_begins(
    narrow: Database, database: Database, tenant: UUID
) -> None:
    done: list[str] = []
    async with database.write(tenant, 4711) as first:
        waiting = asyncio.create_task(_begun(narrow, tenant, done))
        async with asyncio.timeout(5):
            while len(done) < 2:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert done == ["one", "two"]
        await first.fetch(ME)
    await waiting
    assert done == ["one", "two", "began"]


async def _begun(database: Database, tenant: UUID, done: list[str]) -> None:
    pieces = [partial(done.append, name) for name in ("one", "two")]
    async with database.write(tenant, 4711, meanwhile=pieces):
        done.append("began")


async def test_the_connection_used_last_is_used_next_until_a_dead_one_was_met(narrow: Database, tenant: UUID) -> None:
    async with narrow.read(tenant) as transaction:
        first = await transaction.fetch_value(PID)
    await _given_back(narrow, 1)
    async with narrow.read(tenant) as transaction:
        assert await transaction.fetch_value(PID) == first
        assert narrow.checked_out == 1
    await _given_back(narrow, 1)
    assert narrow.checked_out == 0
    await narrow.start_afresh()
    assert narrow.idle == []
    async with narrow.read(tenant) as transaction:
        assert await transaction.fetch_value(PID) != first


async def _given_back(database: Database, count: int) -> None:
    async with asyncio.timeout(5):
        while len(database.idle) < count:  # noqa: ASYNC110 - a pool has no event
            await asyncio.sleep(0.01)
