"""Indexes that are missing or invalid: readiness says so, searches find the same, `mneme repair` makes them good."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from app.cli import embedded
from app.cli.root import app as commands
from app.clock import now
from app.database import Database
from app.indexes import cure, faults
from app.recall import RecallConfig, tend_large_subjects
from app.settings import Settings
from tests.api.conftest import Service, make_settings, run
from tests.api.test_health import own_database as own_database  # noqa: PLC0414 - a fixture
from tests.api.test_health import ready
from tests.api.test_large_subjects import facts, fill, search
from tests.conftest import administer

QUERIES = ("invoice lost in Rome", "快递 杭州", "case-123")


@pytest.fixture
async def store(
    own_database: tuple[str, str], cluster: embedded.EmbeddedServer, tmp_path: Path
) -> AsyncIterator[tuple[Service, str]]:
    """A service whose one user is large, on a database that may be broken, and the owner's URL of that."""
    name, url = own_database
    settings = make_settings(url, tmp_path, required=False)
    patient = RecallConfig(resident_mb=0, embedding_deadline_seconds=30)
    async with run(settings.model_copy(update={"recall": patient})) as service:
        await fill(service.client, facts(350))
        await grow(settings)
        yield service, cluster.url(embedded.SUPERUSER, name)


async def indexes(service: Service) -> dict[str, Any]:
    status, body = await ready(service)
    assert status == 200  # searches are right all the same
    found: dict[str, Any] = body["checks"]["indexes"]
    return found


async def answers(client: httpx2.AsyncClient) -> list[set[str]]:
    return [set(await search(client, query)) for query in QUERIES]


async def grow(settings: Settings) -> None:
    """Move who is large to the index, as the job does."""
    database = await Database.connect(settings.database)
    await tend_large_subjects(database, RecallConfig(exact_scan_rows=300), now=now())
    await database.close()


async def mneme(owner_url: str, *arguments: str) -> str:
    """A command of `mneme` as the schema's owner."""
    environment = {"MNEME_DATABASE__OWNER_URL": owner_url, "MNEME_DATABASE__URL": owner_url}
    done = await asyncio.to_thread(CliRunner(env=environment).invoke, commands, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


async def test_missing_and_invalid_indexes_are_seen_do_no_harm_and_are_repaired(store: tuple[Service, str]) -> None:
    service, owner_url = store
    good = {"ok": True, "missing": [], "invalid": [], "damaged": False}
    assert await indexes(service) == good
    before = await answers(service.client)

    await asyncio.to_thread(
        administer,
        owner_url,
        "DROP INDEX memories_ann_g1",
        "DROP INDEX memories_session_idx",
        "CREATE INDEX memories_slot_key_ccnew1 ON memories (version)",
        "UPDATE pg_index SET indisvalid = false"
        " WHERE indexrelid IN ('memories_profile_idx'::regclass, 'memories_slot_key_ccnew1'::regclass)",
    )
    assert await indexes(service) == {
        "ok": False,
        "missing": ["memories_ann_g1", "memories_session_idx"],
        "invalid": ["memories_profile_idx", "memories_slot_key_ccnew1"],
        "damaged": False,
    }
    for now_found, found in zip(await answers(service.client), before, strict=True):
        assert len(now_found & found) >= 9  # exact instead of by index: near ties may change places
    written = await service.client.post("/v1/memories", json={"user_id": "amy", "content": "发票在火星上丢失了"})
    assert written.status_code == 201

    assert "4 to repair" in await mneme(owner_url, "repair", "--dry-run")
    assert not (await indexes(service))["ok"]
    assert "4 repaired" in await mneme(owner_url, "repair", "--quiet")
    assert await indexes(service) == good
    assert "nothing to repair" in await mneme(owner_url, "repair")
    assert written.json()["id"] in await search(service.client, "火星上的发票")

    assert "memories_ann_g1: built" in await mneme(owner_url, "reindex", "--quiet")
    assert "memories_ann_g1: built" in await mneme(owner_url, "reindex", "--drop-first")
    assert await indexes(service) == good
    for now_found, found in zip(await answers(service.client), before, strict=True):
        assert len(now_found & found) >= 9


def test_statements_make_what_the_schema_says() -> None:
    wrong = faults({"memories_slot_key": True}, {3: 384, 4: 5000})
    assert "memories_ann_g3" in wrong.missing
    assert "memories_ann_g4" not in wrong.missing  # too many dimensions for an index
    made = {name: cure(name, {3: 384}, exists=False) for name in wrong.missing}
    assert made["memories_ann_g3"].startswith("CREATE INDEX CONCURRENTLY memories_ann_g3 ON memories USING hnsw")
    assert made["memories_content_key"].startswith("CREATE UNIQUE INDEX CONCURRENTLY memories_content_key ON memories")
    assert "WHERE status = 'active'" in made["memories_content_key"]
