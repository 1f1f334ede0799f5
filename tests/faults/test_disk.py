"""No room left, for data or for the log: writes are refused, nothing acknowledged is lost, and room is all it takes."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from app.cli import embedded, schema
from app.errors import StartupRefused
from tests.conftest import TEMPLATE, administer
from tests.faults.conftest import Seen, staged
from tests.faults.processes import Server, kept, until

pytestmark = pytest.mark.faults


@contextmanager
def small_disk(place: Path, megabytes: int, like: Path) -> Iterator[Path]:
    """A tmpfs of this size for the server to whom the folder `like` belongs."""
    if shutil.which("mount") is None:
        pytest.skip("a small disk cannot be mounted here: there is no `mount`")
    place.mkdir()
    owner = like.stat()
    options = f"size={megabytes}m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here ({done.stderr.splitlines()[0]}): run it as root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def full(disk: Path, left_bytes: int = 0) -> Iterator[None]:
    """A file takes all the room but `left_bytes`."""
    ballast = disk / "ballast"
    room = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - left_bytes)
    try:
        yield
    finally:
        ballast.unlink()


async def test_a_full_disk_for_data_is_507_and_reads_go_on(
    server: Server, passable_directory: Path, seen: Seen
) -> None:
    directory = passable_directory / "full_data"
    with small_disk(directory.with_suffix(".disk"), 128, server.directory) as disk:
        superuser = server.start().url(embedded.SUPERUSER, "postgres")
        await asyncio.to_thread(administer, superuser, f"CREATE TABLESPACE small LOCATION '{disk}'")
        async with (
            staged(server, "full_data", directory, "small") as stage,
            kept(server, stage.api()),
            stage.client() as client,
            stage.history() as history,
        ):
            await history.goes_on()
            with full(disk, 1 << 20):
                await until(lambda: history.refusals["507 storage_full"] > 20, "507")
                question = {"user_id": "user1", "query": "fact number 1"}
                found = await client.post("/v1/memories:search", json=question)
                assert found.status_code == 200
                assert found.json()["hits"]
                assert await stage.ready(client)
                middle = await stage.lives(client)
            await history.goes_on()
        await asyncio.to_thread(administer, superuser, "DROP TABLESPACE small")
    assert set(history.refusals) == {"507 storage_full"}
    seen(f"/livez {middle:.1f} ms; {len(history.acknowledged)} acknowledged, {dict(history.refusals)}")


async def test_a_full_disk_for_the_log_stops_the_database_until_there_is_room(
    passable_directory: Path, seen: Seen
) -> None:
    server, directory = Server((passable_directory / "full_log.pg").resolve()), passable_directory / "full_log"
    running = server.start()
    small = ("min_wal_size = '32MB'", "max_wal_size = '64MB'")
    superuser = running.url(embedded.SUPERUSER, "postgres")
    await asyncio.to_thread(administer, superuser, *(f"ALTER SYSTEM SET {line}" for line in small))
    await asyncio.to_thread(schema.prepare, running, TEMPLATE)
    server.stop()
    log = server.directory / "pg_wal"
    with small_disk(directory.with_suffix(".disk"), 160, server.directory) as disk:
        shutil.copytree(log, disk / "pg_wal")
        for path in (disk / "pg_wal", *(disk / "pg_wal").rglob("*")):
            os.chown(path, server.directory.stat().st_uid, server.directory.stat().st_gid)
        shutil.rmtree(log)
        log.symlink_to(disk / "pg_wal")
        try:
            async with (
                staged(server, "full_log", directory) as stage,
                kept(server, stage.api()) as keeper,
                stage.client() as client,
                stage.history() as history,
            ):
                await history.goes_on()
                with full(disk):

                    async def stopped() -> bool:
                        try:
                            await stage.ask("SELECT pg_switch_wal()")
                        except (StartupRefused, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                            return not server.alive
                        return False

                    await until(stopped, "the log is full")
                    acknowledged = len(history.acknowledged)
                    middle = await stage.lives(client)
                    assert not await stage.ready(client)
                assert len(history.acknowledged) == acknowledged
                await history.goes_on()
                await until(lambda: stage.ready(client), "ready again")
        finally:
            server.stop()
    seen(f"/livez {middle:.1f} ms; restarts {keeper.restarts}; {dict(history.refusals)}")
