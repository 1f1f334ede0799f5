"""The catalog tells whether DESIGN holds: tenant-first keys, row security on every table, roles without power."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url
from uuid_utils.compat import uuid7

from app.clock import now
from app.database import Database, sql
from app.tables import GLOBAL_TABLES, metadata
from tests.conftest import administer

GLOBAL = {table.name for table in GLOBAL_TABLES} | {"alembic_version"}
OF_TENANT = sorted(set(metadata.tables) - GLOBAL)
OF_SUBJECT = sorted(name for name in OF_TENANT if "subject_id" in metadata.tables[name].primary_key.columns)


@pytest.fixture
async def owner(owner_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(owner_url.replace("postgresql+asyncpg", "postgresql"))
    yield connection
    await connection.close()


async def test_every_table_of_the_database_is_declared(owner: "asyncpg.Connection[Any]") -> None:
    names = await owner.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert {row["tablename"] for row in names} == set(metadata.tables) | {"alembic_version"}


async def test_primary_keys_begin_with_tenant_then_subject(owner: "asyncpg.Connection[Any]") -> None:
    rows = await owner.fetch(
        """
        SELECT c.relname AS table, array_agg(a.attname ORDER BY k.position) AS columns
        FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
        CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (number, position)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
        WHERE i.indisprimary AND c.relnamespace = 'public'::regnamespace GROUP BY c.relname
        """
    )
    keys = {row["table"]: row["columns"] for row in rows}
    assert {name for name in keys if keys[name][0] != "tenant_id"} == GLOBAL
    assert {name: keys[name][1] for name in OF_SUBJECT} == dict.fromkeys(OF_SUBJECT, "subject_id")


async def test_unique_and_foreign_keys_hold_the_tenant(owner: "asyncpg.Connection[Any]") -> None:
    unique = await owner.fetch(
        "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public' AND indexdef LIKE 'CREATE UNIQUE%'"
    )
    loose = [
        row["indexdef"] for row in unique if row["tablename"] not in GLOBAL and "(tenant_id" not in row["indexdef"]
    ]
    assert loose == ["CREATE UNIQUE INDEX tenants_name_key ON public.tenants USING btree (name)"]
    foreign = await owner.fetch("SELECT pg_get_constraintdef(oid) AS definition FROM pg_constraint WHERE contype = 'f'")
    assert foreign
    assert all("(tenant_id" in row["definition"] for row in foreign)


async def test_no_role_of_the_service_may_delete_a_generation(owner: "asyncpg.Connection[Any]") -> None:
    """So that a memory needs no foreign key to its own."""
    for role in ("mneme_app", "mneme_worker"):
        for right in ("DELETE", "TRUNCATE"):
            assert not await owner.fetchval("SELECT has_table_privilege($1, 'embedding_generations', $2)", role, right)


async def test_ids_are_uuids_without_a_sequence(owner: "asyncpg.Connection[Any]") -> None:
    assert await owner.fetch("SELECT 1 FROM pg_sequences WHERE schemaname = 'public'") == []
    columns = await owner.fetch(
        """
        SELECT table_name, column_name, data_type FROM information_schema.columns
        WHERE table_schema = 'public' AND column_name ~ '_id$'
        """
    )
    texts = {"user_id", "agent_id", "session_id"}  # names that the tenant gives
    numbers = {"generation_id", "other_generation_id", "signs_generation_id", "term_id"}
    others = {(row["table_name"], row["column_name"]) for row in columns if row["data_type"] != "uuid"}
    assert {column for _, column in others} == texts | numbers


async def test_row_security_is_forced_on_every_table_of_a_tenant(owner: "asyncpg.Connection[Any]") -> None:
    rows = await owner.fetch(
        """
        SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity AS forced, (
            SELECT pg_get_expr(p.polqual, p.polrelid) FROM pg_policy p
            WHERE p.polrelid = c.oid AND p.polroles = ARRAY['mneme_app'::regrole::oid]
        ) AS condition
        FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
        """
    )
    secured = {row["relname"]: row for row in rows}
    for name in OF_TENANT:
        assert secured[name]["forced"], name
        assert re.search(r"tenant_id = .*NULLIF\(current_setting\('app.tenant_id'", secured[name]["condition"]), name


async def test_conversations_are_in_no_log_of_the_database(owner: "asyncpg.Connection[Any]") -> None:
    """Nor, therefore, in a replica or a base backup."""
    rows = await owner.fetch(
        "SELECT relname FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r'"
        " AND relnamespace = 'public'::regnamespace"
    )
    assert [row["relname"] for row in rows] == ["session_windows"]


async def test_the_service_roles_have_no_power(owner: "asyncpg.Connection[Any]") -> None:
    rows = await owner.fetch(
        """
        SELECT rolname FROM pg_roles WHERE rolname IN ('mneme', 'mneme_app', 'mneme_worker')
          AND NOT rolsuper AND NOT rolbypassrls AND NOT rolcreaterole AND NOT rolcreatedb
          AND NOT EXISTS (SELECT FROM pg_class WHERE relowner = pg_roles.oid)
        """
    )
    assert {row["rolname"] for row in rows} == {"mneme", "mneme_app", "mneme_worker"}


@pytest.mark.parametrize("table", OF_TENANT)
async def test_another_tenants_rows_do_not_exist(database: Database, tenant: UUID, table: str) -> None:
    del tenant  # whose row in `tenants` must not be seen by a stranger
    async with database.read(UUID(str(uuid7()))) as transaction:
        assert await transaction.fetch_value(sql(f"SELECT count(*) FROM {table}")) == 0


async def test_a_row_for_another_tenant_cannot_be_written(database: Database, tenant: UUID) -> None:
    stranger = UUID(str(uuid7()))
    insert = sql("INSERT INTO subjects (tenant_id, subject_id, created_at) VALUES (:tenant, :tenant, :now)")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        async with database.write(stranger) as transaction:
            await transaction.execute(insert, tenant=tenant, now=now())


@pytest.mark.parametrize(
    "table",
    [
        "memories", "memory_events", "memory_versions", "memory_windows", "memory_links", "memory_sources",
        "session_windows",
    ],
)  # fmt: skip
async def test_the_worker_role_never_reads_memories(database: Database, table: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.work() as transaction:
            await transaction.fetch(sql(f"SELECT * FROM {table}"))


async def test_outside_of_a_transaction_the_login_sees_nothing(database_url: str) -> None:
    connection = await asyncpg.connect(database_url.replace("postgresql+asyncpg", "postgresql"))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT * FROM memories")
    finally:
        await connection.close()


@pytest.mark.parametrize("change", ["UPDATE memory_events SET action = 'x'", "DELETE FROM memory_events"])
async def test_the_audit_trail_is_append_only(owner: "asyncpg.Connection[Any]", change: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
        await owner.execute(change)


@pytest.fixture
def migrator(owner_url: str) -> Config:
    administer(owner_url, "DROP DATABASE IF EXISTS steps_of_migration", "CREATE DATABASE steps_of_migration")
    config = Config("alembic.ini")
    base, _, parameters = owner_url.partition("?")
    config.attributes["url"] = f"{base.rpartition('/')[0]}/steps_of_migration?{parameters}"
    return config


async def test_of_two_migrators_at_once_one_waits(migrator: Config) -> None:
    """Also where an index is made concurrently, which waits for every statement that holds a snapshot."""
    upgrade = (
        "import sys; from alembic import command; from alembic.config import Config; config = Config('alembic.ini');"
        "config.attributes['url'] = sys.argv[1]; command.upgrade(config, 'head')"
    )
    both = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", upgrade, migrator.attributes["url"]) for _ in "ab"
    ]
    assert [await each.wait() for each in both] == [0, 0]
    await asyncio.to_thread(command.check, migrator)


def test_models_and_migrations_agree_and_each_step_goes_down_and_up(migrator: Config) -> None:
    for revision in reversed(list(ScriptDirectory.from_config(migrator).walk_revisions())):
        command.upgrade(migrator, revision.revision)
        command.downgrade(migrator, "-1")
        command.upgrade(migrator, revision.revision)
    command.check(migrator)


@pytest.fixture
def plain_owner(owner_url: str) -> Config:
    """As docs/operations.md says: a login with CREATEROLE that owns the database, where the extension is there."""
    administer(
        owner_url,
        "DROP DATABASE IF EXISTS of_a_plain_owner",
        "DROP ROLE IF EXISTS plain_owner",
        "CREATE ROLE plain_owner LOGIN CREATEROLE",
        "GRANT mneme_app, mneme_worker TO plain_owner WITH ADMIN TRUE, SET TRUE, INHERIT FALSE",
        "CREATE DATABASE of_a_plain_owner OWNER plain_owner",
    )
    url = make_url(owner_url).set(database="of_a_plain_owner")
    administer(url.render_as_string(hide_password=False), "CREATE EXTENSION vector")
    config = Config("alembic.ini")
    config.attributes["url"] = url.set(username="plain_owner").render_as_string(hide_password=False)
    return config


def test_an_owner_without_power_migrates(plain_owner: Config) -> None:
    command.upgrade(plain_owner, "head")
    command.check(plain_owner)


async def test_what_was_stored_before_there_was_forgetting_gets_its_due_date_and_its_way_back(
    plain_owner: Config, owner_url: str
) -> None:
    """By an owner who, with row security forced, sees no row."""
    await asyncio.to_thread(command.upgrade, plain_owner, "0005")
    url = make_url(owner_url).set(database="of_a_plain_owner", drivername="postgresql")
    connection = await asyncpg.connect(url.render_as_string(hide_password=False))
    try:
        await connection.execute(
            """
            INSERT INTO tenants (tenant_id, name, created_at) SELECT gen_random_uuid(), 'other', now();
            INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
            SELECT tenant_id, gen_random_uuid(), 'lin', now() FROM tenants;
            INSERT INTO memories (tenant_id, subject_id, memory_id, status, content, content_type, kind, importance,
                                  tags, metadata, pinned, version, created_at, updated_at, content_hash, keywords,
                                  word_count, tokenizer_version)
            SELECT tenant_id, subject_id, gen_random_uuid(), status, 'x', 'text', 'task_state', 3, '{}', '{}', pinned,
                   1, '2026-01-01Z', '2026-01-01Z', uuid_send(gen_random_uuid()), '{}/1000000000', 0, 1
            FROM subjects, (VALUES ('active', false), ('active', true), ('archived', false)) AS one (status, pinned);
            INSERT INTO memory_usage (tenant_id, subject_id, memory_id, access_count, hit_streak)
            SELECT tenant_id, subject_id, memory_id, 0, 0 FROM memories;
            """
        )
        await asyncio.to_thread(command.upgrade, plain_owner, "0007")
        rows = await connection.fetch(
            "SELECT status, pinned, date_trunc('day', forget_at) AS due, rule FROM memories"
            " JOIN memory_usage USING (tenant_id, subject_id, memory_id)"
            " LEFT JOIN memory_archive USING (tenant_id, subject_id, memory_id)"
        )
    finally:
        await connection.close()
    due = datetime(2026, 7, 14, tzinfo=UTC)
    expected = {("active", False, due, None), ("active", True, None, None), ("archived", False, None, "asked")}
    assert len(rows) == 6
    assert {tuple(row.values()) for row in rows} == expected


async def test_every_change_of_memories_moves_the_stamp_of_their_subjects(database: Database, tenant: UUID) -> None:
    """Also one that no code of the service makes; a subject that is erased takes its stamp with it."""
    subjects = [UUID(str(uuid7())) for _ in range(2)]
    memories = [UUID(str(uuid7())) for _ in range(2)]
    names = {"tenant": tenant, "subjects": subjects, "memories": memories, "now": now()}
    stamps = sql("SELECT stamp FROM subject_stamps WHERE tenant_id = :tenant ORDER BY subject_id")
    statements = (
        """
        INSERT INTO memories (tenant_id, subject_id, memory_id, status, content, content_type, kind, importance, tags,
                              metadata, pinned, version, created_at, updated_at, content_hash, keywords, word_count,
                              tokenizer_version)
        SELECT :tenant, s, m, 'active', 'x', 'text', 'profile', 3, '{}', '{}', false, 1, :now, :now, uuid_send(m),
               '{}/1000000000', 0, 1
        FROM unnest(cast(:subjects AS uuid[]), cast(:memories AS uuid[])) AS one (s, m)
        """,
        "UPDATE memories SET importance = 4 WHERE tenant_id = :tenant",
        "DELETE FROM memories WHERE tenant_id = :tenant",
    )
    async with database.write(tenant) as transaction:
        await transaction.execute(
            sql("""
                INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
                SELECT :tenant, s, s::text, :now FROM unnest(cast(:subjects AS uuid[])) AS s
            """),
            **names,
        )
    seen: set[tuple[int, ...]] = set()
    for text in statements:
        async with database.write(tenant) as transaction:
            await transaction.execute(sql(text), **names)
        async with database.read(tenant) as transaction:
            seen.add(tuple(row["stamp"] for row in await transaction.fetch(stamps, tenant=tenant)))
    assert [len(one) for one in seen] == [2, 2, 2]
    async with database.write(tenant) as transaction:
        await transaction.execute(sql(statements[0]), **names)
    async with database.write(tenant) as transaction:
        await transaction.execute(sql("DELETE FROM subjects WHERE tenant_id = :tenant"), tenant=tenant)
        assert await transaction.fetch(stamps, tenant=tenant) == []
