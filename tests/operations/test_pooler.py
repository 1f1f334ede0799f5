"""Behind PgBouncer in transaction mode: each transaction has its own tenant, role and settings, on any connection."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from pydantic import SecretStr
from uuid_utils.compat import uuid7

from app.cli import embedded, schema
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database, sql
from app.errors import StartupRefused
from tests import pooler

CONNECTIONS = 3
ME = sql("SELECT name, current_user, pg_backend_pid() AS backend FROM tenants")
NEW_TENANT = sql("INSERT INTO tenants (tenant_id, name, created_at) VALUES (:tenant_id, :name, :now)")
RENAME = sql("UPDATE tenants SET name = name || :more WHERE tenant_id = :tenant_id")
LEFT = sql(
    "SELECT pg_backend_pid() AS backend, current_setting('app.tenant_id', true) AS tenant, session_user AS login"
)


@pytest.fixture(scope="module")
def sockets(cluster: embedded.EmbeddedServer) -> Iterator[Path]:
    """A pooler with CONNECTIONS connections to the database."""
    with pooler.running(cluster, CONNECTIONS) as sockets:
        yield sockets


@pytest.fixture
async def pooled(sockets: Path, database_name: str) -> AsyncIterator[Database]:
    """Four times as many connections as the pooler has."""
    url = SecretStr(pooler.url(sockets, schema.LOGIN_ROLE, database_name))
    database = await Database.connect(
        DatabaseConfig(
            url=url,
            pooler=True,
            pool_size=4 * CONNECTIONS,
            start_timeout_seconds=0,
            lock_timeout_ms=1_234,
            pool_timeout_seconds=30,
        )
    )
    yield database
    await database.close()


async def test_no_tenant_sees_another_whatever_ends_its_transaction(pooled: Database) -> None:
    tenants = [UUID(str(uuid7())) for _ in range(4)]
    for tenant_id in tenants:
        async with pooled.write(tenant_id) as transaction:
            await transaction.execute(NEW_TENANT, tenant_id=tenant_id, name=str(tenant_id), now=now())
    backends: set[int] = set()

    async def look(number: int) -> None:
        tenant_id = random.Random(number).choice(tenants)
        async with pooled.read(tenant_id) as transaction:
            [row] = await transaction.fetch(ME)
            assert (row["name"], row["current_user"]) == (str(tenant_id), "mneme_app")
            backends.add(row["backend"])
            if number % 7 == 0:
                await transaction.fetch(sql("SELECT 1 / 0"))
            if number % 40 == 3:
                await asyncio.sleep(10)  # until it is given up

    async def impatient(number: int) -> None:
        async with asyncio.timeout(0.3 if number % 40 == 3 else 30):
            await look(number)

    async def changed(number: int) -> None:
        async with pooled.write(tenants[number % 4]) as transaction:
            assert await transaction.execute(RENAME, tenant_id=tenants[(number + 1) % 4], more="!") == 0
            raise LookupError

    ends = await asyncio.gather(*map(impatient, range(240)), *map(changed, range(40)), return_exceptions=True)
    failures = {type(end) for end in ends if end is not None}
    assert failures == {asyncpg.DivisionByZeroError, TimeoutError, LookupError}
    assert len(backends) >= CONNECTIONS
    async with pooled.work() as transaction:
        row = await transaction.fetch_row(LEFT)
    assert row is not None
    assert (row["tenant"] or "", row["login"]) == ("", schema.LOGIN_ROLE)


async def test_every_transaction_has_the_settings_of_a_connection_of_our_own(
    pooled: Database, database: Database
) -> None:
    names = (
        "plan_cache_mode", "enable_seqscan", "jit", "statement_timeout", "idle_in_transaction_session_timeout",
        "hnsw.ef_search", "hnsw.iterative_scan", "TimeZone", "application_name",
    )  # fmt: skip

    async def shown(one: Database) -> list[str]:
        async with one.work() as transaction:
            return [await transaction.fetch_value(sql(f"SELECT current_setting('{name}')")) for name in names]

    of_our_own = await shown(database)
    seen = await asyncio.gather(*(shown(pooled) for _ in range(2 * CONNECTIONS)))
    assert all(one == of_our_own for one in seen)
    async with pooled.work() as transaction:
        assert await transaction.fetch_value(sql("SELECT current_setting('lock_timeout')")) == "1234ms"


async def test_a_pooler_that_nobody_told_of_is_a_plain_refusal(sockets: Path, database_name: str) -> None:
    url = SecretStr(pooler.url(sockets, schema.LOGIN_ROLE, database_name))
    with pytest.raises(StartupRefused, match="MNEME_DATABASE__POOLER") as refusal:
        await Database.connect(DatabaseConfig(url=url, start_timeout_seconds=0))
    assert refusal.value.exit_code == 3
