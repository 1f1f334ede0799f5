"""What every test may ask for: a migrated database of its own, a fresh tenant, and the service on a real port.

One embedded server a test run, shared by the xdist workers; one database a worker, cloned from a migrated template.
Tests log in as the role of the service. A fresh tenant a test makes cleaning up needless. Only what was started here is
stopped here.
"""

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import pytest
import structlog
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from uuid_utils.compat import uuid7

from app.cli import embedded, schema
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database, sql
from app.recall import planner
from tests import pooler

TEMPLATE = "mneme_template"
POOLER = "MNEME_DATABASE__POOLER"
CLUSTER = pytest.StashKey[Path]()

# A test cluster may lose everything when the machine loses power, and only then.
FAST = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")


@pytest.fixture
def by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large subjects are searched by the vector index, however cheap it would be to read those of a test."""
    monkeypatch.setattr(planner, "SCANNED", 1e9)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pooler", action="store_true", help="Between the service and its database stands PgBouncer, as in production."
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("pooler"):
        os.environ[POOLER] = "true"
    given = getattr(config, "workerinput", {}).get("cluster")
    if given is None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end like Ctrl-C, so that the server is stopped
        given = tempfile.mkdtemp(prefix="mneme-tests-")
    config.stash[CLUSTER] = Path(given)


def pytest_configure_node(node: "object") -> None:
    """xdist: tell a worker which cluster the run uses."""
    node.workerinput["cluster"] = str(node.config.stash[CLUSTER])  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and CLUSTER in config.stash:
        embedded.stop(config.stash[CLUSTER] / "postgres")
        shutil.rmtree(config.stash[CLUSTER])


@pytest.fixture(scope="session")
def passable_directory(pytestconfig: pytest.Config) -> Path:
    """A temporary directory that the embedded server's system user can pass (pytest closes its own to others)."""
    return Path(tempfile.mkdtemp(dir=pytestconfig.stash[CLUSTER]))


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> embedded.EmbeddedServer:
    """The embedded server of this test run, with a migrated template database."""
    directory = pytestconfig.stash[CLUSTER] / "postgres"
    with (directory.parent / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = embedded.start(directory)
        if server.started:
            settings = [f"ALTER SYSTEM SET {line}" for line in FAST]
            administer(server.url(embedded.SUPERUSER, "postgres"), *settings, "SELECT pg_reload_conf()")
            schema.prepare(server, TEMPLATE)
    return server


@pytest.fixture(scope="session")
def database_name(cluster: embedded.EmbeddedServer) -> str:
    """A database of this xdist worker, cloned from the template."""
    name = f"mneme_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    administer(cluster.url(embedded.SUPERUSER, "postgres"), f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    return name


@pytest.fixture(scope="session")
def database_url(cluster: embedded.EmbeddedServer, database_name: str, pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL as which the service logs in."""
    if pytestconfig.getoption("pooler"):
        with pooler.running(cluster, size=5) as sockets:
            yield pooler.url(sockets, schema.LOGIN_ROLE, database_name)
    else:
        yield cluster.url(schema.LOGIN_ROLE, database_name)


@pytest.fixture(scope="session")
def owner_url(cluster: embedded.EmbeddedServer, database_name: str) -> str:
    """The URL of the superuser, for looking behind the walls."""
    return cluster.url(embedded.SUPERUSER, database_name)


@pytest.fixture(scope="session")
async def database(database_url: str, pytestconfig: pytest.Config) -> AsyncIterator[Database]:
    """The service's own pool, logged in as its own role."""
    behind = bool(pytestconfig.getoption("pooler"))
    database = await Database.connect(DatabaseConfig(url=SecretStr(database_url), pooler=behind))
    yield database
    await database.close()


@pytest.fixture(autouse=True)
def logging_of_one_test() -> Iterator[None]:
    """A command sets up logging for its process, and writes to what pytest closes after the test."""
    yield
    structlog.reset_defaults()
    root = logging.getLogger()
    for handler in [each for each in root.handlers if type(each).__module__ == "app.telemetry"]:
        root.removeHandler(handler)


@pytest.fixture
async def tenant(database: Database) -> UUID:
    """A tenant that nobody has used yet."""
    tenant_id = UUID(str(uuid7()))
    async with database.write(tenant_id) as transaction:
        await transaction.execute(_NEW_TENANT, tenant_id=tenant_id, name=str(tenant_id), created_at=now())
    return tenant_id


def administer(url: str, *statements: str) -> None:
    """Run statements outside any transaction, as the superuser."""

    async def run() -> None:
        engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
        try:
            async with engine.connect() as connection:
                for statement in statements:
                    await connection.execute(text(statement))
        finally:
            await engine.dispose()

    asyncio.run(run())


_NEW_TENANT = sql("INSERT INTO tenants (tenant_id, name, created_at) VALUES (:tenant_id, :name, :created_at)")
