"""A real streaming replica: searches go there, never see less than what was acknowledged, and outlive it."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import psutil
import pytest
from pydantic import SecretStr

from app import telemetry
from app.cli import embedded, schema
from app.clock import now
from app.database import Database
from app.guard import KeyGrant, create_key, load_pepper
from app.recall import RecallConfig
from app.settings import Settings
from app.tables import DEFAULT_TENANT
from tests.api.conftest import EVERYTHING, PEPPER, Service, bearer, make_settings, run
from tests.conftest import FAST, administer

TENANT = UUID(DEFAULT_TENANT)
SAID = ("我对芒果过敏，不能吃芒果蛋糕", "The router in the cellar restarts every night", "国庆要去杭州住西湖边")
OUTCOMES = ("used", "behind", "failed", "open")

BY_SQL = RecallConfig(resident_mb=0, embedding_deadline_seconds=30)  # a busy machine degrades nothing here


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers, the second fed by the first."""

    primary: embedded.EmbeddedServer
    replica: embedded.EmbeddedServer

    def settings(self, data_dir: Path, recall: RecallConfig = BY_SQL) -> Settings:
        """Those of a service that knows both."""
        settings = make_settings(self.primary.url(schema.LOGIN_ROLE, schema.DATABASE), data_dir)
        url = SecretStr(self.replica.url(schema.LOGIN_ROLE, schema.DATABASE))
        database = settings.database.model_copy(update={"replica_url": url, "replica_patience_seconds": 2.0})
        return settings.model_copy(update={"recall": recall, "database": database})

    def ask(self, server: embedded.EmbeddedServer, query: str) -> str:
        """What a superuser is answered."""
        options = ("-h", str(server.sockets), "-U", embedded.SUPERUSER, "-Atc", query, schema.DATABASE)
        done = embedded._run("psql", *options, account=None)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    async def caught_up(self) -> None:
        """Wait until the replica shows all that the primary has."""
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        position = self.ask(self.primary, "SELECT pg_current_wal_insert_lsn()")
        while self.ask(self.replica, f"SELECT pg_last_wal_replay_lsn() >= '{position}'") != "t":
            time.sleep(0.05)

    def start_replica(self) -> None:
        """A standby never says that it is ready, so it is launched without waiting for that."""
        account = embedded._account(self.replica.directory)
        embedded._launch(self.replica.directory, account, time.monotonic() + 60)


@pytest.fixture(scope="module")
def pair(passable_directory: Path) -> Iterator[Pair]:
    primary = embedded.start(passable_directory / "primary")
    administer(
        primary.url(embedded.SUPERUSER, "postgres"), *(f"ALTER SYSTEM SET {line}" for line in FAST),
        "SELECT pg_reload_conf()",
    )  # fmt: skip
    schema.prepare(primary)
    place = passable_directory / "beside" / "replica"
    place.parent.mkdir()
    place.parent.chmod(0o777)
    account = embedded._account(primary.directory)
    options = ("-h", str(primary.sockets), "-U", embedded.SUPERUSER, "-R", "-X", "stream", "-c", "fast")
    done = embedded._run("pg_basebackup", "-D", str(place), *options, account=account)
    assert done.returncode == 0, done.stderr
    pair = Pair(primary, embedded.EmbeddedServer(place, embedded._socket_directory(place, account), started=True))
    pair.start_replica()
    yield pair
    embedded.stop(place)
    embedded.stop(primary.directory)


@pytest.fixture
async def key(pair: Pair, tmp_path: Path) -> str:
    database = await Database.connect(pair.settings(tmp_path).database)
    grant = KeyGrant(TENANT, "test", EVERYTHING)
    made = await create_key(database, load_pepper(PEPPER, tmp_path, production=True), grant, now=now())
    await database.close()
    return made.text


@asynccontextmanager
async def served(settings: Settings, key: str) -> AsyncIterator[tuple[httpx2.AsyncClient, Service]]:
    async with (
        run(settings) as service,
        httpx2.AsyncClient(base_url=service.client.base_url, headers=bearer(key), timeout=30) as client,
    ):
        yield client, service


async def write(client: httpx2.AsyncClient, user: str, content: str) -> str:
    answer = await client.post("/v1/memories", json={"user_id": user, "content": content})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def search(client: httpx2.AsyncClient, user: str, query: str, **more: Any) -> list[str]:
    answer = await client.post("/v1/memories:search", json={"user_id": user, "query": query, "top_k": 50, **more})
    assert answer.status_code == 200, answer.text
    assert answer.json()["degraded"] == []
    return [hit["memory"]["id"] for hit in answer.json()["hits"]]


def counts() -> dict[str, float]:
    return {each: telemetry.SEARCH_REPLICA.labels(each)._value.get() for each in OUTCOMES}


def since(before: dict[str, float]) -> dict[str, float]:
    return {each: value - before[each] for each, value in counts().items() if value != before[each]}


async def test_searches_go_to_the_replica_and_find_the_same(pair: Pair, key: str, tmp_path: Path) -> None:
    alone = pair.settings(tmp_path)
    alone.database.replica_url = None
    async with served(pair.settings(tmp_path), key) as (client, _), served(alone, key) as (plain, _):
        for content in SAID:
            await write(client, "amy", content)
        await pair.caught_up()
        before = counts()
        for query in ("芒果", "router", "杭州 西湖"):
            assert await search(client, "amy", query) == await search(plain, "amy", query)
            assert len(await search(client, "amy", query, filters={"kinds": ["interaction_history"]})) >= 1
        assert await search(client, "nobody", "芒果") == []
        assert since(before) == {"used": 6, "behind": 1}  # who is not known there may have come a moment ago
        assert await asyncio.to_thread(pair.ask, pair.replica, HEARD) != "0"


async def test_whatever_was_acknowledged_is_seen_however_far_the_replica_lags(
    pair: Pair, key: str, tmp_path: Path
) -> None:
    """Two processes: the one that searches has not written and knows nothing of it."""
    settings = pair.settings(tmp_path)
    async with served(settings, key) as (writer, _), served(settings, key) as (reader, _):
        old, doomed = await write(writer, "bo", SAID[0]), await write(writer, "bo", SAID[1])
        await write(writer, "cy", SAID[2])
        await pair.caught_up()
        assert set(await search(reader, "bo", "芒果 router")) == {old, doomed}
        await asyncio.to_thread(pair.ask, pair.replica, "SELECT pg_wal_replay_pause()")
        try:
            before = counts()
            new = await write(writer, "bo", "她的新地址是上海市静安区")
            assert (await writer.delete(f"/v1/memories/{doomed}")).status_code == 204
            assert new in await search(reader, "bo", "新地址 上海")
            assert doomed not in await search(reader, "bo", "router restarts every night")
            late = await write(writer, "newcomer", SAID[1])
            assert await search(reader, "newcomer", "router") == [late]
            assert since(before) == {"behind": 3}
            assert len(await search(reader, "cy", "杭州")) == 1  # of whom nothing changed
            shared = await writer.post("/v1/memories", json={"content": "仓库的门周日不开"})
            assert shared.status_code == 201
            assert shared.json()["id"] in await search(reader, "cy", "仓库的门周日")
            assert since(before) == {"behind": 4, "used": 1}
        finally:
            await asyncio.to_thread(pair.ask, pair.replica, "SELECT pg_wal_replay_resume()")
        await pair.caught_up()
        before = counts()
        assert set(await search(reader, "bo", "地址 芒果")) == {old, new}
        assert since(before) == {"used": 1}


async def test_held_subjects_stay_as_fresh_as_the_primary(pair: Pair, key: str, tmp_path: Path) -> None:
    async with (
        served(pair.settings(tmp_path, RecallConfig(resident_after=1, embedding_deadline_seconds=30)), key) as (
            reader,
            _,
        ),
        served(pair.settings(tmp_path), key) as (writer, _),
    ):
        for number in range(8):
            written = await write(writer, "dee", f"The code of door {number} is {number * 7919}-X")
            assert written in await search(reader, "dee", f"code of door {number}")


async def test_a_dead_replica_costs_no_client_anything(pair: Pair, key: str, tmp_path: Path) -> None:
    async with served(pair.settings(tmp_path), key) as (client, service):
        written = await write(client, "eve", SAID[1])
        await pair.caught_up()
        before, answers = counts(), 0
        running = True

        async def go_on() -> None:
            nonlocal answers
            while running:
                assert written in await search(client, "eve", "router")
                answers += 1

        searches = [asyncio.create_task(go_on()) for _ in range(4)]
        deadline = time.monotonic() + 60
        while answers < 8:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        options = ("stop", "-D", str(pair.replica.directory), "-m", "immediate")
        account = embedded._account(pair.replica.directory)
        await asyncio.to_thread(embedded._run, "pg_ctl", *options, account=account)
        deadline = time.monotonic() + 60
        while service.app.state.mneme.recaller.replica.state != "open":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        after_death, deadline = answers, time.monotonic() + 60
        while answers < after_death + 10:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        running = False
        await asyncio.gather(*searches)
        assert set(since(before)) == {"used", "failed", "open"}
        ready = await service.client.get("/readyz?verbose")
        assert (ready.status_code, ready.json()["checks"]["replica"]) == (200, {"state": "open"})

        await asyncio.to_thread(pair.start_replica)
        await pair.caught_up()
        service.app.state.mneme.recaller.replica._breaker._probe_at = 0.0  # as if its time were over
        before = counts()
        assert written in await search(client, "eve", "router")
        assert since(before) == {"used": 1}
        assert service.app.state.mneme.recaller.replica.state == "closed"


async def test_a_frozen_replica_is_waited_for_only_so_long(pair: Pair, key: str, tmp_path: Path) -> None:
    settings = pair.settings(tmp_path)
    settings.database.replica_patience_seconds = 0.2
    async with served(settings, key) as (client, _):
        written = await write(client, "flo", SAID[1])
        await pair.caught_up()
        await search(client, "flo", "router")
        postmaster = embedded.postmaster(pair.replica.directory)
        assert postmaster is not None
        frozen = [psutil.Process(postmaster), *psutil.Process(postmaster).children()]
        before = counts()
        for process in frozen:
            process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(7):
                assert written in await search(client, "flo", "router")
        finally:
            for process in frozen:
                process.send_signal(signal.SIGCONT)
        assert since(before) == {"failed": 5, "open": 2}


HEARD = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mneme' AND query = 'COMMIT'"
