"""Archived memories in a store of objects: read back before they go, whole when they return, gone if erased."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import orjson
import pytest

from app.backup import Archive
from app.backup.archive import Box
from app.backup.config import BackupConfig
from app.backup.store import Depot
from app.clock import now
from app.database import Database
from app.errand import Errand
from app.errors import Conflict, StartupRefused, VerificationFailed
from tests.api.conftest import make_settings
from tests.backup.conftest import KEY, MakeConfig, product
from workers.context import Context
from workers.jobs import embed, erasures

TEXTS = ("聊到周末去爬山，\u2028要带护膝", "Talked about hiking with knee pads", "第三次聊到爬山")


@pytest.fixture
async def agent(database_url: str, tenant: UUID, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with product(database_url, tenant, tmp_path) as client:
        yield client


@pytest.fixture(params=["in a folder", "in a bucket, encrypted"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    if request.param == "in a folder":
        return Archive.open(BackupConfig(), tmp_path)
    make: MakeConfig = request.getfixturevalue("s3_config")
    config = make(key=KEY)
    return Archive.open(config.model_copy(update={"archive_store": config.store}), tmp_path)


async def written_and_deleted(agent: httpx2.AsyncClient, user_id: str = "lin") -> list[str]:
    ids = []
    for text in TEXTS:
        answer = await agent.post("/v1/memories", json={"user_id": user_id, "content": text, "tags": ["爬山"]})
        ids.append(str(answer.json()["id"]))
    edited = await agent.patch(f"/v1/memories/{ids[2]}", json={"content": "第四次聊到爬山"})
    assert edited.status_code == 200
    for memory_id in ids:
        assert (await agent.delete(f"/v1/memories/{memory_id}")).status_code == 204
    return ids


async def export(archive: Archive, database: Database, tenant: UUID, *, dry_run: bool = False) -> int:
    later = now() + timedelta(seconds=1)
    return await archive.export(database, tenant, before=later, now=now(), dry_run=dry_run)


async def test_what_was_moved_out_comes_back_as_it_was(
    agent: httpx2.AsyncClient, archive: Archive, database: Database, database_url: str, tenant: UUID, tmp_path: Path
) -> None:
    ids = await written_and_deleted(agent)
    await written_and_deleted(agent, "wang")
    assert await export(archive, database, tenant, dry_run=True) == 6
    assert await archive.boxes() == []
    assert await export(archive, database, tenant) == 6
    assert await export(archive, database, tenant) == 0
    assert (await agent.post(f"/v1/memories/{ids[0]}:restore")).status_code == 404, "it is not in the database"
    stored = b"".join(
        piece for box in await archive.boxes() for piece in archive.depot.read(f"{box.name}/memories.jsonl.gz")
    )
    assert "爬山".encode() not in stored
    assert [box.memories for box in await archive.boxes()] == [3, 3]
    for box in await archive.boxes():
        assert await archive.restore(database, box.name, now=now()) == 3
        assert await archive.restore(database, box.name, now=now()) == 0, "what is there stays as it is"
    for memory_id, text in zip(ids, [*TEXTS[:2], "第四次聊到爬山"], strict=True):
        restored = await agent.post(f"/v1/memories/{memory_id}:restore")
        assert (restored.status_code, restored.json()["memory"]["content"]) == (200, text)
        assert restored.json()["memory"]["tags"] == ["爬山"]
    context = Context(make_settings(database_url, tmp_path), database)
    await embed(context, Errand(now()))
    await context.close()
    body = {"user_id": "lin", "query": "爬山 hiking", "top_k": 10}
    hits = (await agent.post("/v1/memories:search", json=body)).json()["hits"]
    assert {hit["memory"]["id"] for hit in hits} == set(ids)
    history: list[dict[str, Any]] = (await agent.get(f"/v1/memories/{ids[2]}/history")).json()["items"]
    assert [event["action"] for event in history] == [
        "created", "amended", "archived", "exported", "recovered", "restored", "warmed",
    ]  # fmt: skip
    assert history[1]["replaced"]["content"] == TEXTS[2]


async def test_what_was_moved_out_before_a_column_was_there_has_its_default(
    agent: httpx2.AsyncClient, archive: Archive, database: Database, tenant: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await written_and_deleted(agent)
    assert await export(archive, database, tenant) == 3
    lines = Archive._lines

    def older(self: Archive, box: Box) -> list[str]:
        documents = [orjson.loads(line) for line in lines(self, box)]
        for document in documents:
            for name in ("trust", "other_window_count"):
                assert document["memories"][0].pop(name) is not None
        return [orjson.dumps(document).decode() for document in documents]

    monkeypatch.setattr(Archive, "_lines", older)
    (box,) = await archive.boxes()
    assert await archive.restore(database, box.name, now=now()) == 3
    restored = await agent.post(f"/v1/memories/{ids[0]}:restore")
    assert (restored.status_code, restored.json()["memory"]["trust"]) == (200, 100)


async def test_nothing_leaves_the_database_that_the_store_does_not_hold(
    agent: httpx2.AsyncClient, archive: Archive, database: Database, tenant: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await written_and_deleted(agent)
    write = Depot.write

    def lossy(self: Depot, path: str, chunks: list[bytes], expected_bytes: int = 0) -> None:
        write(self, path, [chunks[0][:-1]], expected_bytes)

    with monkeypatch.context() as patched:
        patched.setattr(Depot, "write", lossy)
        with pytest.raises(VerificationFailed):
            await export(archive, database, tenant)
    held = await agent.post("/v1/holds", json={"memory_id": ids[0], "reason": "case 7"})
    assert held.status_code == 201
    for name in archive.depot.backups():  # what broke off has no manifest
        archive.depot.delete(name)
    assert await export(archive, database, tenant) == 2, "all are still there, and what is held stays"
    assert (await agent.post(f"/v1/memories/{ids[0]}:restore")).status_code == 200


async def test_damage_and_another_key_are_seen(
    agent: httpx2.AsyncClient, archive: Archive, database: Database, tenant: UUID
) -> None:
    await written_and_deleted(agent)
    await export(archive, database, tenant)
    (box,) = await archive.boxes()
    path = f"{box.name}/memories.jsonl.gz"
    stored = b"".join(archive.depot.read(path))
    if archive.keys:
        with pytest.raises(VerificationFailed, match="key"):
            await Archive(archive.depot, ()).restore(database, box.name, now=now())
    archive.depot.write_bytes(path, stored[:50] + bytes([stored[50] ^ 1]) + stored[51:])
    with pytest.raises(VerificationFailed):
        await archive.restore(database, box.name, now=now())
    archive.depot.write_bytes(path, stored)
    assert await archive.restore(database, box.name, now=now()) == 3


async def test_who_was_erased_has_nothing_left_in_the_store(
    agent: httpx2.AsyncClient, archive: Archive, database: Database, tenant: UUID
) -> None:
    await written_and_deleted(agent)
    await written_and_deleted(agent, "wang")
    await export(archive, database, tenant)
    assert (await agent.delete("/v1/subjects/lin")).status_code == 200
    boxes = await archive.boxes()
    refused = 0
    for box in boxes:
        try:
            await archive.restore(database, box.name, now=now())
        except Conflict:
            refused += 1
    assert refused == 1
    assert await archive.prune(database, tenant, now=now(), dry_run=True) == 1
    assert await archive.prune(database, tenant, now=now()) == 1
    assert len(await archive.boxes()) == 1
    assert await archive.prune(database, tenant, now=now()) == 0


async def test_an_erasure_reaches_the_store_by_the_job_it_leaves_open(
    agent: httpx2.AsyncClient, database: Database, database_url: str, tenant: UUID, tmp_path: Path
) -> None:
    settings = make_settings(database_url, tmp_path)
    archive = Archive.open(settings.backup, settings.data_dir)
    await written_and_deleted(agent)
    await written_and_deleted(agent, "wang")
    await export(archive, database, tenant)
    context = Context(settings, database)
    await erasures(context, Errand(now()))
    assert len(await archive.boxes()) == 2
    answer = (await agent.delete("/v1/subjects/lin")).json()
    assert (answer["memories"], answer["exported"]) == (0, 3)
    assert len(await archive.boxes()) == 2, "not in the request: a store may be slow, or away"
    (tmp_path / "archive").rename(tmp_path / "away")
    (tmp_path / "archive").touch()
    with pytest.raises(StartupRefused):
        await erasures(context, Errand(now()))
    (tmp_path / "archive").unlink()
    (tmp_path / "away").rename(tmp_path / "archive")
    assert await erasures(context, Errand(now())) == 1
    (left,) = await archive.boxes()
    assert await archive.restore(database, left.name, now=now()) == 3
    (tmp_path / "archive").rename(tmp_path / "away")
    assert await erasures(context, Errand(now())) == 0
    assert not (tmp_path / "archive").exists(), "what is done is not looked at again"


async def test_who_is_erased_during_an_export_leaves_nothing_in_the_store(
    agent: httpx2.AsyncClient, archive: Archive, database: Database, tenant: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erased, and cleared by the job, after the memories were read and before they were stored."""
    await written_and_deleted(agent)
    due = Archive._due

    async def read_before_the_erasure(self: Archive, *arguments: Any) -> AsyncIterator[Any]:
        async for found in due(self, *arguments):
            assert (await agent.delete("/v1/subjects/lin")).json()["memories"] == 3
            await self.prune(database, tenant, now=now())
            yield found

    monkeypatch.setattr(Archive, "_due", read_before_the_erasure)
    assert await export(archive, database, tenant) == 0
    assert archive.depot.backups() == []
