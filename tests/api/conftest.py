"""The service in keys mode on a real port, and what its tests do over and over."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute

from app.clock import now
from app.database import Database
from app.guard import KeyGrant, create_key, load_pepper
from app.main import create_app, follow
from app.settings import Settings

PEPPER = "a pepper for tests only"
EVERYTHING = frozenset({"read", "write", "delete", "ops", "admin"})

MakeKey = Callable[..., Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Service:
    """A running application and a client that holds no key."""

    app: FastAPI
    client: httpx2.AsyncClient

    def routes(self, *, walled: bool = True) -> list[tuple[str, str]]:
        """Method and path template of every route; `walled` leaves the probes out."""
        return [
            (method, route.path)
            for route in self.app.routes
            if isinstance(route, APIRoute) and not (walled and route.path in PROBES)
            for method in sorted(route.methods or ())
        ]


PROBES = frozenset({"/livez", "/readyz", "/healthz"})
UNKNOWN_ID = "01900000-0000-7000-8000-00000000dead"


def make_settings(url: str, data_dir: Path, **api: Any) -> Settings:
    """Settings with the hashing embedder, in keys mode."""
    return Settings(
        data_dir=data_dir,
        database={"url": url, "pool_size": 4, "pool_timeout_seconds": 20},
        embed={"provider": "hashing"},
        auth={"pepper": PEPPER, "required": api.pop("required", True)},
        api=api,
    )


class _Server(uvicorn.Server):
    """uvicorn inside a test: leaves the signals to pytest and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@asynccontextmanager
async def run(settings: Settings) -> AsyncIterator[Service]:
    """Serve on a free port of this machine, in this event loop."""
    app = create_app(settings)
    async with follow(app, settings):
        server = _Server(uvicorn.Config(app, port=0, lifespan="off", access_log=False, log_config=None))
        serving = asyncio.create_task(server.serve())
        await server.listening.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                yield Service(app, client)
        finally:
            server.should_exit = True
            await serving


@pytest.fixture(scope="session")
async def service(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """The service of this test run: every route but the probes asks for a key."""
    async with run(make_settings(database_url, tmp_path_factory.mktemp("service"))) as service:
        yield service


@pytest.fixture
def make_key(database: Database, tenant: UUID, tmp_path: Path) -> MakeKey:
    """Make a key of this test's tenant, or of another one."""

    async def make(tenant_id: UUID = tenant, scopes: frozenset[str] = EVERYTHING, **bonds: Any) -> str:
        moment = bonds.pop("made_at", None) or now()
        pepper = load_pepper(PEPPER, tmp_path, production=True)
        grant = KeyGrant(tenant_id, "test", scopes, **bonds)
        return (await create_key(database, pepper, grant, now=moment)).text

    return make


@pytest.fixture
async def agent(service: Service, make_key: MakeKey) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of this test's own, fresh tenant with every right."""
    headers = bearer(await make_key())
    async with httpx2.AsyncClient(base_url=service.client.base_url, headers=headers, timeout=30) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    """The header that shows a key."""
    return {"Authorization": f"Bearer {key}"}


def without_ids(problem: dict[str, Any]) -> dict[str, Any]:
    """A problem without what differs from request to request."""
    return {name: value for name, value in problem.items() if name not in ("request_id", "instance")}
