"""Back to the second before: a base backup and archived WAL undo what no dump of last night could."""

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from app.cli import embedded, schema
from app.tables import DEFAULT_TENANT
from tests.backup.conftest import SAID, Site, _site, found, product, tell
from tests.conftest import administer

MARY = "SELECT subject_id FROM subjects WHERE user_id = 'mary'"
MEMORIES = "SELECT count(*), md5(string_agg(m::text, ' ' ORDER BY memory_id)) FROM memories m"


@pytest.fixture(scope="module")
def archiving(passable_directory: Path) -> Iterator[embedded.EmbeddedServer]:
    """A server of its own that archives its WAL into a folder, as docs/backup.md says."""
    directory, archive = passable_directory / "recovered", passable_directory / "archive" / "wal"
    archive.mkdir(parents=True)
    for folder in (archive, archive.parent):
        folder.chmod(0o777)
    server = embedded.start(directory)
    administer(
        server.url(embedded.SUPERUSER, "postgres"),
        "ALTER SYSTEM SET archive_mode = on",
        f"ALTER SYSTEM SET archive_command = 'test ! -f {archive}/%f && cp %p {archive}/%f'",
    )
    embedded.stop(directory)
    yield embedded.start(directory)
    embedded.stop(directory)


def base_backup(server: embedded.EmbeddedServer, place: Path) -> None:
    account = embedded._account(server.directory)
    options = ("-h", str(server.sockets), "-U", embedded.SUPERUSER, "-X", "none", "--no-slot", "-c", "fast")
    done = embedded._run("pg_basebackup", "-D", str(place), *options, account=account)
    assert done.returncode == 0, done.stderr


def recover(server: embedded.EmbeddedServer, base: Path, target: str) -> None:
    """What the page says: everything away, the base backup in its place, and the archive up to the moment."""
    embedded.stop(server.directory)
    shutil.rmtree(server.directory)
    shutil.move(base, server.directory)
    with (server.directory / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"restore_command = 'cp {base.parent}/wal/%f %p'\n")
        settings.write(f"recovery_target_time = '{target}'\nrecovery_target_action = 'promote'\n")
    signal = server.directory / "recovery.signal"
    signal.touch()
    owner = server.directory.stat()
    for path in (signal, server.directory / "postgresql.auto.conf"):
        os.chown(path, owner.st_uid, owner.st_gid)
    embedded.start(server.directory)
    asked = ("-h", str(server.sockets), "-U", embedded.SUPERUSER, "-Atc", "SELECT pg_is_in_recovery()", "postgres")
    while embedded._run("psql", *asked, account=None).stdout.strip() != "f":
        time.sleep(0.05)


async def test_everything_deleted_comes_back_to_the_second_before(
    archiving: embedded.EmbeddedServer, passable_directory: Path, tmp_path: Path
) -> None:
    """Also for an API that runs all the while and holds a subject in memory: no answer comes from the lost future.

    After the recovery transaction numbers are given out again, so stamps alone would not tell the two futures apart.
    """
    _, url = await asyncio.to_thread(schema.prepare, archiving)
    tenant_id = UUID(DEFAULT_TENANT)
    site: Site = _site(archiving, schema.DATABASE, (tenant_id, tenant_id), tmp_path)
    async with product(url, tenant_id, tmp_path) as client:
        await tell(client, "lin", *SAID["lin"])
        base = passable_directory / "archive" / "base"
        await asyncio.to_thread(base_backup, archiving, base)
        await tell(client, "mary", *SAID["mary"])
        said = {"messages": [{"role": "user", "content": "这句话不会留下"}]}
        (await client.post("/v1/sessions/s1/messages", json={"user_id": "lin", **said})).raise_for_status()
        before, hits = await site.ask(MEMORIES), await found(client, "mary", "sister in Porto")
        ((target,),) = await site.ask("SELECT clock_timestamp()::text")

        await tell(client, "lin", {"content": "这条记忆写在错误发生之后"})
        await site.ask(
            "UPDATE memories SET content = '这是失去的将来 ' || importance WHERE subject_id IN (" + MARY + ")"
        )
        for _ in range(4):  # until the service holds the subject as it is now
            assert all("失去的将来" in content for content in await contents(client, "mary"))
        await site.ask("DELETE FROM tenants")
        await asyncio.to_thread(recover, archiving, base, target)

        await site.ask("UPDATE memories SET tags = '{found}' WHERE subject_id IN (" + MARY + ")")
        assert await contents(client, "mary") == {memory["content"] for memory in SAID["mary"]}
        assert await found(client, "mary", "sister in Porto") == hits
        await site.ask("UPDATE memories SET tags = '{}' WHERE subject_id IN (" + MARY + ")")
        assert await site.ask(MEMORIES) == before
        assert await site.ask("SELECT count(*) FROM session_windows") == [(0,)]
        await tell(client, "mary", {"content": "恢复之后还能写入新的记忆"})


async def contents(client: "object", user: str) -> set[str]:
    answer = await client.post(  # type: ignore[attr-defined]
        "/v1/memories:search", json={"user_id": user, "query": "porto calls gym 路由器", "include_shared": False}
    )
    assert answer.status_code == 200, answer.text
    return {hit["memory"]["content"] for hit in answer.json()["hits"]}
