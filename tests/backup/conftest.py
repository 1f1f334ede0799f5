"""A real S3 server on loopback, a place for backups of either sort, and a database that a backup role may read."""

import asyncio
import fcntl
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from moto.server import ThreadedMotoServer
from pydantic import SecretStr
from sqlalchemy.engine import make_url
from uuid_utils.compat import uuid7

from app.backup import Backups
from app.backup.config import BackupConfig
from app.backup.content import plain_connection
from app.backup.store import Depot
from app.cli import embedded, schema
from app.clock import now
from app.database import Database
from app.guard import KeyGrant, create_key, load_pepper
from tests.api.conftest import EVERYTHING, PEPPER, bearer, make_settings, run
from tests.conftest import CLUSTER, TEMPLATE, administer

KEY = SecretStr("5e" * 32)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of moto's S3 server: the real protocol over real HTTP."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


MakeConfig = Callable[..., BackupConfig]


@pytest.fixture
def s3_config(s3: str) -> MakeConfig:
    """Settings of a fresh bucket."""

    def make(**more: object) -> BackupConfig:
        bucket = f"backups-{uuid7().hex}"
        httpx2.put(f"{s3}/{bucket}").raise_for_status()
        return BackupConfig.model_validate(
            {
                "store": f"s3://{bucket}/nightly/mneme",
                "s3_endpoint": s3,
                "s3_access_key_id": "test",
                "s3_secret_access_key": "test",
                **more,
            }
        )

    return make


@pytest.fixture(params=["folder", "s3"])
def depot(request: pytest.FixtureRequest, tmp_path: Path) -> Depot:
    """A place for backups: once a folder, once a bucket."""
    if request.param == "folder":
        return Depot.open(BackupConfig(), tmp_path)
    make: MakeConfig = request.getfixturevalue("s3_config")
    return Depot.open(make(), tmp_path)


@dataclass(frozen=True, slots=True)
class Site:
    """A database with memories of two tenants, and the URLs of its logins."""

    url: str
    owner_url: str
    backup_url: str
    tenants: tuple[UUID, UUID]
    data_dir: Path

    def backups(self, config: BackupConfig | None = None) -> Backups:
        """The backups of this database, in a folder unless `config` says otherwise."""
        return Backups.open(config or BackupConfig(), self.data_dir, self.backup_url)

    async def ask(self, query: str, *values: object) -> list[Any]:
        """What a superuser sees."""
        async with plain_connection(self.owner_url) as connection:
            return [tuple(row) for row in await connection.fetch(query, *values)]


@asynccontextmanager
async def product(
    url: str, tenant_id: UUID, data_dir: Path, key: str | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """The service on a database, and a client of one tenant with every right, with a key that is made or was before."""
    settings = make_settings(url, data_dir)
    async with run(settings) as service:
        if key is None:
            database = await Database.connect(settings.database)
            try:
                pepper = load_pepper(PEPPER, data_dir, production=True)
                key = (await create_key(database, pepper, KeyGrant(tenant_id, "test", EVERYTHING), now=now())).text
            finally:
                await database.close()
        async with httpx2.AsyncClient(base_url=service.client.base_url, headers=bearer(key), timeout=30) as client:
            yield client


SAID: dict[str, list[dict[str, Any]]] = {
    "lin": [
        {"content": "我对芒果过敏，不能吃任何芒果做的甜点", "kind": "profile", "importance": 5},
        {"content": "下个月要去成都出差三天，住在春熙路附近", "importance": 4},
        {"content": "Please send invoices as PDF, never as paper", "kind": "user_preference"},
        {"content": "公司名称是云启科技", "key": "profile.company_name"},
        {"content": "公司名称是云启智能", "key": "profile.company_name"},
        {"content": "订单 A-1027 的退款已经到账", "kind": "task_state"},
    ],
    "mary": [
        {"content": "Her sister lives in Porto and teaches physics", "importance": 3},
        {"content": "She prefers calls on Thursday afternoons", "kind": "user_preference"},
        {"content": "路由器型号是 TX-300，固件版本 2.4", "kind": "domain_knowledge"},
        {"content": "She leaves the gym membership at the end of May", "expires_at": "2026-12-30T00:00:00Z"},
    ],
}


async def tell(client: httpx2.AsyncClient, user: str | None, *memories: dict[str, Any]) -> list[str]:
    """Store memories one after the other; returns their ids."""
    ids = []
    for memory in memories:
        answer = await client.post("/v1/memories", json={"user_id": user, **memory})
        assert answer.status_code == 201, answer.text
        ids.append(answer.json()["memory"]["id"])
    return ids


async def found(client: httpx2.AsyncClient, user: str | None, query: str) -> list[str]:
    """The ids of what a search finds, in order."""
    answer = await client.post("/v1/memories:search", json={"user_id": user, "query": query, "top_k": 10})
    assert answer.status_code == 200, answer.text
    return [hit["memory"]["id"] for hit in answer.json()["hits"]]


def _site(cluster: embedded.EmbeddedServer, name: str, tenants: tuple[UUID, UUID], data_dir: Path) -> Site:
    return Site(
        cluster.url(schema.LOGIN_ROLE, name), cluster.url(embedded.SUPERUSER, name),
        cluster.url(schema.BACKUP_ROLE, name), tenants, data_dir,
    )  # fmt: skip


def _administer(cluster: embedded.EmbeddedServer, *statements: str) -> "Awaitable[None]":
    return asyncio.to_thread(administer, cluster.url(embedded.SUPERUSER, "postgres"), *statements)


async def fill(url: str, tenants: Sequence[UUID], data_dir: Path) -> None:
    """Let the product itself store what two tenants say; conversations go on."""
    for tenant_id in tenants:
        async with product(url, tenant_id, data_dir) as client:
            for user, memories in SAID.items():
                await tell(client, user, *memories)
            await tell(client, None, {"content": "退货要在收货后七天内提出", "kind": "domain_knowledge"})
            said = {"messages": [{"role": "user", "content": "这句话只属于正在进行的对话"}]}
            answer = await client.post("/v1/sessions/s1/messages", json={"user_id": "lin", **said})
            assert answer.status_code == 201, answer.text


@pytest.fixture(scope="session")
async def filled(
    cluster: embedded.EmbeddedServer, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    """A filled database, from which every test has a copy."""
    name = f"mneme_filled_{uuid7().hex[-12:]}"
    with (pytestconfig.stash[CLUSTER] / "reader.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        superuser_url = cluster.url(embedded.SUPERUSER, "postgres")
        await asyncio.to_thread(schema.create_reader, superuser_url, schema.BACKUP_ROLE)
    await _administer(cluster, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    made = _site(cluster, name, (UUID(str(uuid7())), UUID(str(uuid7()))), tmp_path_factory.mktemp("filled"))
    for tenant_id, tenant in zip(made.tenants, ("one", "two"), strict=True):
        await made.ask("INSERT INTO tenants (tenant_id, name, created_at) VALUES ($1, $2, now())", tenant_id, tenant)
    await fill(made.url, made.tenants, made.data_dir)
    return made


@pytest.fixture
async def site(cluster: embedded.EmbeddedServer, filled: Site, tmp_path: Path) -> AsyncIterator[Site]:
    """A filled database of this test's own."""
    name = f"mneme_site_{uuid7().hex[-12:]}"
    await _administer(cluster, f"CREATE DATABASE {name} TEMPLATE {make_url(filled.url).database}")
    yield _site(cluster, name, filled.tenants, tmp_path)
    await _administer(cluster, f"DROP DATABASE {name} WITH (FORCE)")
