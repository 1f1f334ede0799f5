"""The vector index is damaged on disk: searches stay right, what needs it is refused in time, `mneme reindex` heals.

PostgreSQL looks at the first page of an index when it plans a statement that could use it, and at its file for any
statement on the table; so the more is lost, the more is refused.
"""

import asyncio
import os
from pathlib import Path

import pytest

from app.cli import embedded, schema
from app.recall import RecallConfig
from tests.api.conftest import make_settings, run
from tests.api.test_large_subjects import facts, fill, search
from tests.faults.conftest import Seen
from tests.operations.test_indexes import answers, grow, indexes, mneme

LOST = {"user_id": "amy", "content": "发票在火星上丢失了"}

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("damage", ["pages", "first page", "file"])
async def test_a_damaged_vector_index(damage: str, passable_directory: Path, tmp_path: Path, seen: Seen) -> None:
    directory = passable_directory / damage.replace(" ", "_")
    server = await asyncio.to_thread(embedded.start, directory)
    owner_url, url = await asyncio.to_thread(schema.prepare, server)
    patient = RecallConfig(resident_mb=0, embedding_deadline_seconds=30)
    settings = make_settings(url, tmp_path, required=False).model_copy(update={"recall": patient})
    try:
        async with run(settings) as service:
            await fill(service.client, facts(350))
            before = await answers(service.client)
            await grow(settings)
            file = directory / embedded_answer(server, "SELECT pg_relation_filepath('memories_ann_g1')")
            await asyncio.to_thread(embedded.stop, directory)
            spoil(file, damage)
            await asyncio.to_thread(embedded.start, directory)

            service.app.state.mneme.recaller.large._known.clear()
            if damage == "file":
                refused = await service.client.post("/v1/memories:search", json={"user_id": "amy", "query": "发票"})
                assert (refused.status_code, refused.json()["code"]) == (503, "storage_damaged")
            else:
                assert await answers(service.client) == before
            found = await indexes(service)
            assert (found["ok"], found["damaged"]) == (False, True)
            refused = await service.client.post("/v1/memories", json=LOST)
            assert (refused.status_code, refused.json()["code"]) == (503, "storage_damaged")
            assert int(refused.headers["Retry-After"]) >= 1
            other = await service.client.post("/v1/memories", json={"user_id": "bo", "content": "芒果过敏"})
            assert other.status_code == (201 if damage == "pages" else 503)
            seen(f"damage to the {damage}: a small user's write answers {other.status_code}")

            await mneme(owner_url, "reindex", "--drop-first", "--quiet")
            again = await service.client.post("/v1/memories", json=LOST)
            assert again.status_code == 201
            service.app.state.mneme.recaller.large._trusted_from = 0.0  # as if its minute were over
            assert again.json()["id"] in await search(service.client, "火星上的发票")
            assert (await indexes(service))["ok"]
            for now_found, exact in zip(await answers(service.client), before, strict=True):
                assert len(now_found & exact) >= 9
    finally:
        await asyncio.to_thread(embedded.stop, directory)


def spoil(file: Path, damage: str) -> None:
    """Lose the file, its first page, or all others."""
    if damage == "file":
        file.unlink()
        return
    page = 8192
    content = bytearray(file.read_bytes())
    if damage == "pages":
        content[page:] = os.urandom(len(content) - page)
    else:
        content[:page] = os.urandom(page)
    file.write_bytes(content)


def embedded_answer(server: embedded.EmbeddedServer, query: str) -> str:
    options = ("-h", str(server.sockets), "-U", embedded.SUPERUSER, "-Atc", query, schema.DATABASE)
    return embedded._run("psql", *options, account=None).stdout.strip()
