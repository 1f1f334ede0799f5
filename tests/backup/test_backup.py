"""A backup holds everything but what never is durable, is proved by giving it back, and says so when it cannot."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from pydantic import SecretStr
from sqlalchemy.engine import make_url

from app.backup.config import BackupConfig
from app.backup.content import plain_connection
from app.backup.store import Depot
from app.clock import now
from app.errors import StartupRefused, VerificationFailed
from tests.backup.conftest import KEY, MakeConfig, Site

MOMENT = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)


async def test_a_backup_is_complete_counted_by_tenant_and_gives_the_same_hits(site: Site) -> None:
    backups = site.backups()
    made = await backups.create(version="1", now=MOMENT)
    content = made.content
    assert content.rows == {table: (await site.ask(f"SELECT count(*) FROM {table}"))[0][0] for table in content.rows}
    one, two = map(str, site.tenants)
    assert content.tenant_rows["memories"] == {one: 11, two: 11}
    assert {status for (status,) in await site.ask("SELECT DISTINCT status FROM memories")} >= {"active", "deprecated"}
    assert "session_windows" not in content.rows
    assert (content.revision,) in await site.ask("SELECT version_num FROM alembic_version")
    assert content.extensions["vector"]
    assert content.generations[0]["model"]
    assert {search.tenant_id for search in content.searches} == set(site.tenants)
    assert all(search.memory_id in search.hits for search in content.searches)
    assert (await backups.entries())[0].state == "unverified"
    proved = await backups.verify("latest", now=MOMENT + timedelta(minutes=1))
    assert proved == made
    entry = (await backups.entries())[0]
    assert (entry.state, entry.verified_at) == ("verified", MOMENT + timedelta(minutes=1))
    assert await site.ask("SELECT datname FROM pg_database WHERE datname LIKE 'mneme_scratch_20261130030100%'") == []


async def test_conversations_that_go_on_and_keys_are_not_readable_in_it(site: Site) -> None:
    """The text of a memory is in a plain dump, which is compressed; so this looks into what it restores."""
    backups = site.backups()
    made = await backups.create(version="1", now=MOMENT)
    async with backups.opened(made, now=MOMENT) as place, plain_connection(place) as connection:
        assert await connection.fetchval("SELECT count(*) FROM session_windows") == 0
        assert await connection.fetchval("SELECT count(*) FROM memories") == 22
    assert (await site.ask("SELECT count(*) FROM session_windows"))[0][0] == 2


async def test_over_s3_and_encrypted_it_is_the_same(site: Site, s3_config: MakeConfig) -> None:
    """Over S3 without a key: test_as_a_process_of_its_own_it_ends_well_over_s3 of the commands."""
    backups = site.backups(s3_config(key=KEY))
    made = await backups.create(version="1", now=MOMENT)
    assert made.key is not None
    assert b"".join(backups.depot.read(f"{made.backup}/dump")).startswith(b"MNEMEBK1")
    await backups.verify(made.backup, now=MOMENT)
    assert [entry.state for entry in await backups.entries()] == ["verified"]


def damage(folder: Path, part: str, change: Callable[[bytes], bytes]) -> None:
    (path,) = folder.glob(f"backups/*/{part}")
    path.write_bytes(change(path.read_bytes()))


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], set[str]]] = {
    "a truncated dump": ("dump", lambda data: data[: len(data) // 2], {"truncated"}),
    "a flipped byte of data": (
        "dump",
        lambda data: data[:-2000] + bytes([data[-2000] ^ 1]) + data[-1999:],
        {"checksum", "damaged"},
    ),
    "a flipped byte of the head": ("dump", lambda data: b"Q" + data[1:], {"checksum", "damaged"}),
    "another dump of the same length": ("dump", lambda data: bytes(len(data)), {"checksum", "damaged"}),
    "a flipped byte of the manifest": ("manifest.json", lambda data: data.replace(b"rows", b"sows", 1), {"damaged"}),
    "a count of the manifest": ("manifest.json", lambda data: data.replace(b":22,", b":23,", 1), {"damaged"}),
    "half a manifest": ("manifest.json", lambda data: data[: len(data) // 2], {"damaged"}),
}


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_damage_is_found_said_and_counted_and_the_proof_does_not_move(site: Site, encrypted: bool) -> None:
    backups = site.backups(BackupConfig(key=KEY if encrypted else None))
    made = await backups.create(version="1", now=MOMENT)
    await backups.verify(made.backup, now=MOMENT)
    whole = {path.name: path.read_bytes() for path in site.data_dir.glob("backups/*/*")}
    for part, change, reasons in DAMAGES.values():
        damage(site.data_dir, part, change)
        before = failures(reasons)
        with pytest.raises(VerificationFailed) as refused:
            await backups.verify(made.backup, now=MOMENT + timedelta(hours=1))
        assert refused.value.reason in reasons
        assert refused.value.exit_code == 5
        assert failures(reasons) == before + 1
        await backups.show()
        assert sample("mneme_backup_count", state="failed") == 1
        assert sample("mneme_backup_last_verified_timestamp_seconds", kind="logical") == 0
        for name, data in whole.items():
            (site.data_dir / "backups" / made.backup / name).write_bytes(data)
    (site.data_dir / "backups" / made.backup / "manifest.json").unlink()
    with pytest.raises(VerificationFailed) as refused:
        await backups.verify(made.backup, now=MOMENT)
    assert refused.value.reason == "missing"
    assert [entry.state for entry in await backups.entries()] == ["incomplete"]


async def test_without_the_key_or_with_another_nothing_opens_and_an_old_key_still_does(site: Site) -> None:
    made = await site.backups(BackupConfig(key=KEY)).create(version="1", now=MOMENT)
    other = SecretStr("0a" * 32)
    for config in (BackupConfig(), BackupConfig(key=other)):
        with pytest.raises(VerificationFailed) as refused:
            await site.backups(config).verify(made.backup, now=MOMENT)
        assert refused.value.reason == "wrong_key"
    config = BackupConfig(key=other, old_keys=(KEY,))
    await site.backups(config).verify(made.backup, now=MOMENT)


async def test_a_login_that_row_security_stops_is_refused_instead_of_giving_an_empty_backup(site: Site) -> None:
    backups = site.backups(BackupConfig(database_url=SecretStr(site.url)))
    with pytest.raises(StartupRefused, match="row security"):
        await backups.create(version="1", now=MOMENT)
    assert await backups.entries() == []


async def test_a_dump_that_breaks_leaves_no_backup(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    backups = site.backups()
    monkeypatch.setattr("app.backup.programs.DUMP_OPTIONS", ("--format=custom", "--table=no_such_table"))
    with pytest.raises(Exception, match="pg_dump failed: no matching tables"):
        await backups.create(version="1", now=MOMENT)
    assert await backups.entries() == []


async def test_one_that_is_given_up_leaves_no_program_no_session_and_no_backup(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is stopped, or loses its lease, in the middle of the night."""
    backups, begun, write = site.backups(), threading.Event(), Depot.write

    def slow(depot: Depot, path: str, chunks: Iterable[bytes], expected_bytes: int = 0) -> None:
        def slowly() -> Iterator[bytes]:
            for chunk in chunks:
                yield chunk
                if not begun.is_set():
                    begun.set()
                    time.sleep(1)

        write(depot, path, slowly(), expected_bytes)

    monkeypatch.setattr(Depot, "write", slow)
    monkeypatch.setattr("app.backup.programs.PIPE_BYTES", 1024)
    night = asyncio.create_task(backups.nightly(version="1", clock=now))
    assert await asyncio.to_thread(begun.wait, 20)
    night.cancel()
    with pytest.raises(asyncio.CancelledError):
        await night
    assert await backups.entries() == []
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mneme-backup' AND datname = $1"
    for _ in range(200):
        left = await site.ask(sessions, make_url(site.url).database)
        if left == [(1,)]:  # the one that asks
            return
        await asyncio.sleep(0.05)
    pytest.fail("sessions of the backup are left")


async def test_far_fewer_rows_than_the_night_before_are_an_alarm_and_nothing_is_pruned(site: Site) -> None:
    backups = site.backups(BackupConfig(keep_daily=1))
    moments = iter(MOMENT + timedelta(days=day, minutes=minute) for day in range(3) for minute in range(3))
    assert await backups.nightly(version="1", clock=lambda: next(moments)) > 50
    await site.ask("DELETE FROM subjects")
    await site.ask("ALTER TABLE memory_events DISABLE TRIGGER USER")
    await site.ask("DELETE FROM memory_events")
    with pytest.raises(VerificationFailed) as refused:
        await backups.nightly(version="1", clock=lambda: next(moments))
    assert refused.value.reason == "shrunk"
    assert [entry.state for entry in await backups.entries()] == ["verified", "unverified"]
    await backups.verify("latest", now=MOMENT + timedelta(days=1, hours=1))  # somebody looked: it is as it should be
    next(moments), next(moments)
    await backups.nightly(version="1", clock=lambda: next(moments))
    assert [f"{entry.made_at:%d} {entry.state}" for entry in await backups.entries()] == ["02 verified"]


async def test_the_gauges_say_what_is_in_the_store(site: Site) -> None:
    backups = site.backups()
    await backups.show()
    assert sample("mneme_backup_last_success_timestamp_seconds", kind="logical") == 0
    made = await backups.create(version="1", now=MOMENT)
    await backups.show()
    assert sample("mneme_backup_last_success_timestamp_seconds", kind="logical") == MOMENT.timestamp()
    assert sample("mneme_backup_last_verified_timestamp_seconds", kind="logical") == 0
    await backups.verify(made.backup, now=now())
    await backups.show()
    assert sample("mneme_backup_last_verified_timestamp_seconds", kind="logical") == MOMENT.timestamp()
    assert sample("mneme_backup_size_bytes", kind="logical") == made.stored_bytes
    assert sample("mneme_backup_rows", kind="logical") == made.total_rows
    assert sample("mneme_backup_count", state="verified") == 1


def sample(name: str, **labels: str) -> float:
    value = REGISTRY.get_sample_value(name, labels)
    assert value is not None
    return value


def failures(reasons: set[str]) -> float:
    return sum(sample("mneme_backup_verification_failures_total", reason=reason) for reason in reasons)
