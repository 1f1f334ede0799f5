"""A stage for each fault: a database on a server that may be killed, a proxy before it, processes of the service."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import httpx2
import pytest

from app.backup.content import plain_connection
from app.cli import embedded, schema
from app.embed import EmbedConfig, prepare_model
from tests.api.conftest import PEPPER
from tests.api.test_serve import free_port
from tests.conftest import TEMPLATE, administer
from tests.faults.history import DEADLINE_SECONDS, History
from tests.faults.processes import Process, Server, serve, until, work
from tests.faults.proxy import Proxy, proxy

STATEMENT_SECONDS = 2
POOL_SIZE = 4


@dataclass
class Stage:
    """Where one fault plays: `owner_url` goes around the proxy, the processes go through it."""

    server: Server
    proxy: Proxy
    database: str
    owner_url: str
    directory: Path
    port: int
    metrics_port: int

    def environment(self, **settings: str) -> dict[str, str]:
        """Settings of the service; names are those of the variables without the prefix, in lower case."""
        given = {
            "database__url": self.service_url,
            "database__pool_size": str(POOL_SIZE),
            "database__statement_timeout_ms": str(STATEMENT_SECONDS * 1000),
            "database__connect_timeout_seconds": str(STATEMENT_SECONDS),
            "data_dir": str(self.directory),
            "auth__pepper": PEPPER,
            "embed__provider": "hashing",
            "api__port": str(self.port),
            "worker__metrics_port": str(self.metrics_port),
            "worker__lease_seconds": "1",
            "jobs__jitter_seconds": "0",
        } | settings
        return {f"MNEME_{name.upper()}": value for name, value in given.items()}

    def api(self, **settings: str) -> Process:
        return Process(serve, self.environment(**settings), self.directory / "api.log")

    def worker(self, **settings: str) -> Process:
        return Process(work, self.environment(**settings), self.directory / "worker.log")

    @property
    def service_url(self) -> str:
        """The service's login, through the proxy."""
        return f"postgresql+asyncpg://{schema.LOGIN_ROLE}@127.0.0.1:{self.proxy.port}/{self.database}"

    @property
    def driver_url(self) -> str:
        """The owner's, as the driver itself reads it."""
        return self.owner_url.replace("+asyncpg", "")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def client(self, timeout_seconds: float = DEADLINE_SECONDS) -> AsyncIterator[httpx2.AsyncClient]:
        """A client of the API, once that is ready."""
        async with httpx2.AsyncClient(base_url=self.url, timeout=timeout_seconds) as client:
            await until(lambda: self.ready(client), "the API is ready")
            yield client

    async def ready(self, client: httpx2.AsyncClient) -> bool:
        return await answers(client, "/readyz") == 200

    @asynccontextmanager
    async def history(self, writers: int = 8) -> AsyncIterator[History]:
        """Memories are written while the block runs; then they are compared with what is there."""
        async with self.client() as client:
            history = History(client)
            async with history.written(writers):
                yield history
            await history.check(self.owner_url)

    async def lives(self, client: httpx2.AsyncClient, probes: int = 50) -> float:
        """Ask /livez so often, one after the other: each answers. Returns the median, in ms, which stays below 100."""
        took = []
        for _ in range(probes):
            started = time.perf_counter()
            assert (await client.get("/livez")).status_code == 200
            took.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(0.02)
        middle = median(took)
        assert middle < 100, took
        return middle

    async def ask(self, query: str, *values: object) -> list[Any]:
        """What a superuser sees, around the proxy."""
        async with plain_connection(self.owner_url) as connection:
            return [tuple(row) for row in await connection.fetch(query, *values)]

    @asynccontextmanager
    async def session(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        """A session of a stranger, who may do anything."""
        async with plain_connection(self.owner_url) as connection:
            yield connection

    async def backends(self) -> int:
        """How many sessions of the service the server has."""
        [(count,)] = await self.ask(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'mneme'", self.database
        )
        return int(count)


Seen = Callable[[str], None]


@pytest.fixture
def seen(record_property: Callable[[str, object], None]) -> Seen:
    """Tell what was seen besides what had to hold: a line under the results."""
    return lambda text: record_property("seen", text)


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "seen":
                terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {text}")


async def answers(client: httpx2.AsyncClient, path: str) -> int | None:
    """The status, or None for no answer."""
    try:
        return (await client.get(path)).status_code
    except httpx2.TransportError:
        return None


@pytest.fixture(scope="session")
def server(passable_directory: Path) -> Iterator[Server]:
    """A server that only these tests use, as durable as a real one."""
    server = Server((passable_directory / "faults").resolve())
    schema.prepare(server.start(), TEMPLATE)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def model_dir(pytestconfig: pytest.Config) -> Path:
    """Where the bundled model is kept from run to run; made here, because no start need wait for that."""
    directory = pytestconfig.cache.mkdir("bundled-model")
    prepare_model(EmbedConfig(), directory)
    return directory


@asynccontextmanager
async def staged(server: Server, name: str, directory: Path, tablespace: str | None = None) -> AsyncIterator[Stage]:
    """A stage with a new database of this name on a server, which runs again at the end."""
    running = await asyncio.to_thread(server.start)
    await asyncio.to_thread(directory.mkdir)
    superuser = running.url(embedded.SUPERUSER, "postgres")
    create = f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}" + (f" TABLESPACE {tablespace}" if tablespace else "")
    await asyncio.to_thread(administer, superuser, create)
    async with proxy(running.sockets / f".s.PGSQL.{embedded.PORT}") as between:
        yield Stage(server, between, name, running.url(embedded.SUPERUSER, name), directory, free_port(), free_port())
    server.thaw()
    running = await asyncio.to_thread(server.start)
    await asyncio.to_thread(administer, superuser, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def stage(server: Server, request: pytest.FixtureRequest, passable_directory: Path) -> AsyncIterator[Stage]:
    """A stage of this test's own."""
    name = "mneme_" + re.sub("[^a-z0-9]+", "_", request.node.name.lower())[-50:].strip("_")
    async with staged(server, name, passable_directory / name) as stage:
        yield stage
