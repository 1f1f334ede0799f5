"""Migrations while an old program goes on: what it writes and reads stays possible, and waits for a moment only."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from alembic.script import ScriptDirectory
from pydantic import SecretStr
from uuid_utils.compat import uuid7

from app.backup.content import plain_connection
from app.cli import embedded, schema
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database, sql
from app.errors import DatabaseUnavailable, DeadlineExceeded, StartupRefused
from app.main import open_services
from app.wire import sparsevec
from tests.api.conftest import make_settings
from tests.conftest import administer
from tests.faults.conftest import Seen

pytestmark = pytest.mark.faults

# What a program of the first schema says; frozen, whatever the schema becomes.
TENANT = sql("INSERT INTO tenants (tenant_id, name, created_at) VALUES (:tenant, 'old', :now)")
SUBJECT = sql(
    "INSERT INTO subjects (tenant_id, subject_id, user_id, created_at) VALUES (:tenant, :subject, :user, :now)"
)
WRITE = sql("""
    INSERT INTO memories (
        tenant_id, subject_id, memory_id, status, content, content_type, kind, importance, tags, metadata, pinned,
        version, created_at, updated_at, content_hash, keywords, word_count, tokenizer_version
    ) VALUES (
        :tenant, :subject, :memory, 'active', :content, 'text', 'profile', 3, '{}', '{}', false,
        1, :now, :now, :hash, :keywords, 1, 1
    )
""")
READ = sql("SELECT content FROM memories WHERE tenant_id = :tenant AND subject_id = :subject AND status = 'active'")
CHANGE = sql("""
    UPDATE memories SET importance = 4, version = version + 1, updated_at = :now
    WHERE tenant_id = :tenant AND subject_id = :subject AND memory_id = :memory
""")
FORGET = sql("DELETE FROM memories WHERE tenant_id = :tenant AND subject_id = :subject AND memory_id = :memory")


class OldProgram:
    """Writes, reads, changes and forgets; waits for locks as the service does, and tries again."""

    def __init__(self, database: Database, tenant: UUID) -> None:
        self._database, self._tenant, self._subject = database, tenant, UUID(str(uuid7()))
        self.kept: set[str] = set()
        self.turns, self.waited, self.longest_seconds = 0, 0, 0.0

    async def begin(self) -> None:
        async with self._database.write(self._tenant) as transaction:
            await transaction.execute(
                SUBJECT, tenant=self._tenant, subject=self._subject, user=str(self._subject), now=now()
            )

    async def turn(self) -> None:
        """One memory more, and every third one less."""
        content, memory, started = f"第{self.turns}条记忆", UUID(str(uuid7())), time.monotonic()
        names = {"tenant": self._tenant, "subject": self._subject, "memory": memory}
        values = {"content": content, "hash": content.encode(), "keywords": sparsevec([1], [1.0]), "now": now()}
        while True:
            try:
                async with self._database.write(self._tenant) as transaction:
                    await transaction.execute(WRITE, **names, **values)
                    await transaction.execute(CHANGE, **names, now=now())
                    if self.turns % 3 == 0:
                        assert await transaction.execute(FORGET, **names) == 1
                break
            except (DeadlineExceeded, DatabaseUnavailable):  # 504: a lock was not free in time; 503: a deadlock
                self.waited += 1
        self.kept |= {content} if self.turns % 3 else set()
        self.turns += 1
        async with self._database.read(self._tenant) as transaction:
            rows = await transaction.fetch(READ, tenant=self._tenant, subject=self._subject)
        assert {row["content"] for row in rows} == self.kept
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - started)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[asyncio.Task[None]]:
        """All the while; whatever fails, fails here."""
        running = True

        async def go_on() -> None:
            while running:
                await self.turn()
                await asyncio.sleep(0.01)

        task = asyncio.create_task(go_on())
        try:
            yield task
        finally:
            running = False
            await task  # and says so, if it failed


async def test_an_old_program_writes_on_through_every_migration(
    cluster: embedded.EmbeddedServer, database_name: str, tmp_path: Path, seen: Seen
) -> None:
    name = f"{database_name}_old"
    owner_url = cluster.url(embedded.SUPERUSER, name)
    await asyncio.to_thread(administer, cluster.url(embedded.SUPERUSER, "postgres"), f"CREATE DATABASE {name}")
    scripts = ScriptDirectory.from_config(schema._alembic(owner_url))
    first, *further = [script.revision for script in reversed(list(scripts.walk_revisions()))]
    await asyncio.to_thread(schema.upgrade, owner_url, first)
    url, tenant = cluster.url(schema.LOGIN_ROLE, name), UUID(str(uuid7()))
    database = await Database.connect(DatabaseConfig(url=SecretStr(url)))
    try:
        async with database.write(tenant) as transaction:
            await transaction.execute(TENANT, tenant=tenant, now=now())
        old = OldProgram(database, tenant)
        await old.begin()
        async with old.at_work() as working:
            for revision in further[:-1]:
                await asyncio.to_thread(schema.upgrade, owner_url, revision)

            with pytest.raises(StartupRefused, match="mneme db migrate") as refusal:  # a new program, an old schema
                async with open_services(make_settings(url, tmp_path)):
                    pass
            assert refusal.value.exit_code == 4

            await asyncio.to_thread(schema.upgrade, owner_url, further[-1])
            before = old.turns
            while old.turns < before + 5:
                assert not working.done()
                await asyncio.sleep(0.05)
        async with open_services(make_settings(url, tmp_path)):
            pass
        seen(f"{len(further)} migrations, {old.turns} turns, {old.waited} waits, longest {old.longest_seconds:.1f} s")
    finally:
        await database.close()
        await asyncio.to_thread(
            administer, cluster.url(embedded.SUPERUSER, "postgres"), f"DROP DATABASE {name} WITH (FORCE)"
        )


async def test_a_migration_that_gets_no_lock_gives_up_and_is_done_later(
    cluster: embedded.EmbeddedServer, database_name: str
) -> None:
    name = f"{database_name}_locked"
    owner_url = cluster.url(embedded.SUPERUSER, name)
    await asyncio.to_thread(administer, cluster.url(embedded.SUPERUSER, "postgres"), f"CREATE DATABASE {name}")
    try:
        await asyncio.to_thread(schema.upgrade, owner_url, STAMPS_BEFORE)
        async with plain_connection(owner_url) as stranger:
            transaction = stranger.transaction()
            await transaction.start()
            await stranger.execute("LOCK TABLE memories IN ROW EXCLUSIVE MODE")  # an open write
            started = time.monotonic()
            with pytest.raises(StartupRefused, match="lock timeout") as refusal:
                await asyncio.to_thread(schema.upgrade, owner_url, STAMPS)
            assert 3.5 < time.monotonic() - started < 20  # 4 s by its own limit, on a busy machine
            assert refusal.value.exit_code == 4
            assert await stranger.fetchval("SELECT version_num FROM alembic_version") == STAMPS_BEFORE
            await transaction.rollback()
        await asyncio.to_thread(schema.upgrade, owner_url, STAMPS)
        async with plain_connection(owner_url) as connection:
            assert await connection.fetchval("SELECT version_num FROM alembic_version") == STAMPS
    finally:
        await asyncio.to_thread(
            administer, cluster.url(embedded.SUPERUSER, "postgres"), f"DROP DATABASE {name} WITH (FORCE)"
        )


STAMPS_BEFORE, STAMPS = "0003", "0004"  # triggers on memories: for a moment nobody else may write
