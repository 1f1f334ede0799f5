"""The vector index is damaged on disk: searches stay right, writes go on without it, `mneme reindex` makes it anew.

PostgreSQL looks at the first page of an index when it plans a statement that could use it, and at its file for any
statement on the table; so the more is lost, the more would be refused.
"""

import asyncio
import os
from pathlib import Path
from uuid import UUID

import pytest

from app.cli import embedded, schema
from app.indexes import ann_index, part_of
from app.recall import RecallConfig
from tests.api.conftest import Service, make_settings, run
from tests.api.test_large_subjects import facts, fill, search
from tests.faults.conftest import Seen
from tests.operations.test_indexes import answers, grow, indexes, mneme

WRITES = (
    {"user_id": "amy", "content": "发票在火星上丢失了"},
    {"user_id": "amy", "content": "The parcel went to Saturn", "key": "parcel"},
    {"user_id": "bo", "content": "芒果过敏"},
)

pytestmark = pytest.mark.faults


@pytest.mark.usefixtures("by_index")
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
            index = ann_index(1, part_of(UUID(embedded_answer(server, "SELECT subject_id FROM subjects WHERE ann"))))
            file = directory / embedded_answer(server, f"SELECT pg_relation_filepath('{index}')")
            await asyncio.to_thread(embedded.stop, directory)
            spoil(file, damage)
            await asyncio.to_thread(embedded.start, directory)

            service.app.state.mneme.recaller.large._known.clear()
            assert await answers(service.client) == before
            found = await indexes(service)
            assert not found["ok"]
            assert found["damaged"] or found["missing"] == [index]
            already = await repeated(service)
            written = await asyncio.gather(*(service.client.post("/v1/memories", json=body) for body in WRITES))
            assert [answer.status_code for answer in written] == [201] * len(WRITES)
            assert (await indexes(service))["missing"] == [index]  # dropped, and no other part
            seen(f"damage to the {damage}: {await repeated(service) - already:.0f} writes were done again")
            for now_found, exact in zip(await answers(service.client), before, strict=True):
                assert len(now_found & exact) >= 9

            assert f"{index}: built" in await mneme(owner_url, "reindex", "--quiet")
            service.app.state.mneme.recaller.large._trusted_from = 0.0  # as if its minute were over
            assert written[0].json()["id"] in await search(service.client, "火星上的发票")
            assert (await indexes(service))["ok"]
            for now_found, exact in zip(await answers(service.client), before, strict=True):
                assert len(now_found & exact) >= 9
    finally:
        await asyncio.to_thread(embedded.stop, directory)


async def repeated(service: Service) -> float:
    """How many requests were done again because of the damage."""
    metrics = (await service.client.get("/metrics")).text
    [line] = [
        each for each in metrics.splitlines() if each.startswith('mneme_db_work_repeated_total{reason="damaged"}')
    ]
    return float(line.split()[1])


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
