"""Indexes that are missing or invalid: readiness says so, searches find the same, `mneme repair` makes them good."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from alembic import command
from typer.testing import CliRunner

from app import telemetry
from app.backup import plain_connection
from app.cli import embedded, schema
from app.cli.root import app as commands
from app.clock import now
from app.database import Database
from app.indexes import PARTS, ann_indexes, cure, faults
from app.recall import RecallConfig, tend_large_subjects
from app.settings import Settings
from tests.api.conftest import Service, make_settings, run
from tests.api.test_health import own_database as own_database  # noqa: PLC0414 - a fixture
from tests.api.test_health import ready
from tests.api.test_large_subjects import facts, fill, search
from tests.conftest import administer

GOOD = {"ok": True, "missing": [], "invalid": [], "damaged": False}
VECTOR = list(ann_indexes(1, 384))
UNDIVIDED = (
    "CREATE INDEX memories_ann_g1 ON memories USING hnsw ((embedding::halfvec(384)) halfvec_cosine_ops)"
    " WHERE ann AND generation_id = 1"
)
MADE = "SELECT array_agg(relname::text ORDER BY relname) FROM pg_class WHERE relname ~ '^memories_ann_'"
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


async def ask(owner_url: str, query: str) -> Any:
    async with plain_connection(owner_url) as connection:
        return await connection.fetchval(query)


async def mneme(owner_url: str, *arguments: str) -> str:
    """A command of `mneme` as the schema's owner."""
    environment = {"MNEME_DATABASE__OWNER_URL": owner_url, "MNEME_DATABASE__URL": owner_url}
    done = await asyncio.to_thread(CliRunner(env=environment).invoke, commands, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


async def test_missing_and_invalid_indexes_are_seen_do_no_harm_and_are_repaired(store: tuple[Service, str]) -> None:
    service, owner_url = store
    assert await indexes(service) == GOOD
    before = await answers(service.client)

    await asyncio.to_thread(
        administer,
        owner_url,
        f"DROP INDEX {', '.join(VECTOR)}",
        "DROP INDEX memories_session_idx",
        "CREATE INDEX memories_slot_key_ccnew1 ON memories (version)",
        "UPDATE pg_index SET indisvalid = false"
        " WHERE indexrelid IN ('memories_profile_idx'::regclass, 'memories_slot_key_ccnew1'::regclass)",
    )
    assert await indexes(service) == {
        "ok": False,
        "missing": [*VECTOR, "memories_session_idx"],
        "invalid": ["memories_profile_idx", "memories_slot_key_ccnew1"],
        "damaged": False,
    }
    for now_found, found in zip(await answers(service.client), before, strict=True):
        assert len(now_found & found) >= 9  # exact instead of by index: near ties may change places
    written = await service.client.post("/v1/memories", json={"user_id": "amy", "content": "发票在火星上丢失了"})
    assert written.status_code == 201

    count = 3 + PARTS
    assert f"{count} to repair" in await mneme(owner_url, "repair", "--dry-run")
    assert not (await indexes(service))["ok"]
    assert f"{count} repaired" in await mneme(owner_url, "repair", "--quiet")
    assert await indexes(service) == GOOD
    assert "nothing to repair" in await mneme(owner_url, "repair")
    assert written.json()["id"] in await search(service.client, "火星上的发票")

    for options in ("--quiet",), ("--drop-first", "--quiet"):
        told = await mneme(owner_url, "reindex", *options)
        assert [line.partition(": built")[0] for line in told.splitlines()] == VECTOR
    assert await indexes(service) == GOOD
    for now_found, found in zip(await answers(service.client), before, strict=True):
        assert len(now_found & found) >= 9


async def test_a_start_that_finds_its_vector_indexes_waits_for_no_writer(store: tuple[Service, str]) -> None:
    _, owner_url = store
    async with plain_connection(owner_url) as writer, plain_connection(owner_url) as starting:
        await writer.execute("BEGIN; UPDATE memories SET version = version")
        await starting.execute(
            "SET lock_timeout = '1s'; SELECT ensure_ann_index(generation_id) FROM embedding_generations"
        )
        await writer.execute("ROLLBACK")


@pytest.mark.usefixtures("by_index")
async def test_a_store_with_one_vector_index_over_all_is_served_by_it_until_it_has_parts(
    store: tuple[Service, str],
) -> None:
    service, owner_url = store
    before = await answers(service.client)
    await asyncio.to_thread(administer, owner_url, f"DROP INDEX {', '.join(VECTOR)}", UNDIVIDED)
    assert (await indexes(service))["missing"] == VECTOR
    for way in ("repair", "reindex"):
        service.app.state.mneme.recaller.large._known.clear()
        underfilled = telemetry.SEARCH_UNDERFILLED.labels("ann_budget")._value.get()
        assert await answers(service.client) == before
        assert telemetry.SEARCH_UNDERFILLED.labels("ann_budget")._value.get() == underfilled
        written = await service.client.post("/v1/memories", json={"user_id": "amy", "content": f"土星 {way}"})
        assert written.status_code == 201

        told = await mneme(owner_url, way, "--quiet")
        assert all(name in told for name in VECTOR), told
        assert await indexes(service) == GOOD
        assert await ask(owner_url, "SELECT to_regclass('memories_ann_g1')") is None
        assert written.json()["id"] in await search(service.client, f"土星 {way}")
        await service.client.delete(f"/v1/memories/{written.json()['id']}")
        await asyncio.to_thread(administer, owner_url, UNDIVIDED)
        assert "1 to repair" in await mneme(owner_url, "repair", "--dry-run")  # costs writes, and serves nobody


@pytest.mark.parametrize("rows", [0, 350])
async def test_a_migration_makes_parts_only_of_what_is_empty(
    own_database: tuple[str, str], cluster: embedded.EmbeddedServer, tmp_path: Path, rows: int
) -> None:
    name, url = own_database
    owner_url, settings = cluster.url(embedded.SUPERUSER, name), make_settings(url, tmp_path, required=False)
    config = schema._alembic(owner_url)
    async with run(settings) as service:
        await fill(service.client, facts(rows))
        await asyncio.to_thread(administer, owner_url, f"DROP INDEX {', '.join(VECTOR)}", UNDIVIDED)
        if rows:
            await grow(settings)
    for revision, wanted in (("0018", ["memories_ann_g1"]), ("0019", ["memories_ann_g1"] if rows else VECTOR)) * 2:
        there = revision == "0018"
        await asyncio.to_thread((command.downgrade if there else command.upgrade), config, revision)
        assert await ask(owner_url, MADE) == wanted, revision


def test_statements_make_what_the_schema_says() -> None:
    wrong = faults({"memories_slot_key": True}, {3: 384, 4: 5000})
    assert set(ann_indexes(3, 384)) <= set(wrong.missing)
    assert not any("_g4" in name for name in wrong.missing)  # too many dimensions for an index
    made = {name: cure(name, {3: 384}, exists=False) for name in wrong.missing}
    assert made["memories_ann_g3_p5"].startswith("CREATE INDEX CONCURRENTLY memories_ann_g3_p5 ON memories USING hnsw")
    assert made["memories_ann_g3_p5"].endswith(" = 5")
    assert made["memories_content_key"].startswith("CREATE UNIQUE INDEX CONCURRENTLY memories_content_key ON memories")
    assert "WHERE status = 'active'" in made["memories_content_key"]
