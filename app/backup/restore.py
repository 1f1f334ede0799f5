"""Giving a dump back: into an empty database, or into a scratch database that goes away again.

Invariant: all or nothing. A dump is restored in one transaction, whose commit waits until the checksum of the whole
dump is right; extension and roles are there before, and what is there after is counted.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
from sqlalchemy.engine import make_url

from app.backup.config import BackupConfig
from app.backup.content import compare, lift_row_security, plain_connection
from app.backup.dump import Flow, Progress, no_progress
from app.backup.manifest import DUMP, Manifest
from app.backup.programs import Restore, programs_for
from app.backup.seal import key_named, unseal
from app.backup.store import Depot
from app.database import APP_ROLE, MIN_PGVECTOR, WORKER_ROLE
from app.errors import Conflict, StartupRefused, VerificationFailed

SCRATCH: Final = "mneme_scratch"
_SCRATCH_STAYS: Final = timedelta(days=1)
_MAINTENANCE: Final = "postgres"


async def restore_all(
    config: BackupConfig, depot: Depot, manifest: Manifest, keys: Sequence[bytes], url: str, *,
    progress: Progress = no_progress,
) -> None:  # fmt: skip
    """Restore into the empty database of `url`, made when it does not exist, as its owner; no superuser is needed.

    Raises Conflict when the database is not empty, StartupRefused when the server is older than the dump, or lacks the
    extension or a role and this login may not make it, ProgramFailed, and VerificationFailed when the dump is damaged
    (nothing is left then) or gives back something else.
    """
    await _ensure_database(url)
    async with plain_connection(url) as connection:
        await _refuse_filled(connection)
        await prepare(connection, manifest)
    await _fill(config, depot, manifest, keys, url, progress)
    async with plain_connection(url) as connection:
        await connection.execute("ANALYZE")
        await compare(connection, manifest.content)


async def check_target(depot: Depot, manifest: Manifest, url: str) -> None:
    """Find out, changing nothing, what would stop restore_all() at once; raises as it does."""
    if await asyncio.to_thread(depot.size, f"{manifest.backup}/{DUMP}") != manifest.stored_bytes:
        raise VerificationFailed("truncated", "the dump has not the size that it had")
    async with plain_connection(url, _MAINTENANCE) as connection:
        await _refuse_older(connection, manifest)
        await _refuse_missing_roles(connection, manifest, may_lack={APP_ROLE, WORKER_ROLE})
        if not await connection.fetchval("SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"):
            raise StartupRefused("this PostgreSQL has no pgvector: install it first", dependency=True)
        name = make_url(url).database
        there, may_extend = await connection.fetchval(_DATABASE, name), await connection.fetchval(_MAY_EXTEND)
    if there:
        async with plain_connection(url) as connection:
            await _refuse_filled(connection)
            may_extend = may_extend or await connection.fetchval(_EXTENDED)
    if not may_extend:
        place = "the database" if there else "the new database"
        raise StartupRefused(f"an administrator must first run `CREATE EXTENSION vector` in {place} {name}")


async def erase_again(url: str, erased: Sequence[tuple[UUID, UUID]]) -> int:
    """Remove subjects (tenant, subject) from a restored database that nobody uses yet; returns how many were there.

    Their audit trail, which holds no text, stays, as it does when a subject is erased.
    """
    if not erased:
        return 0
    tenants, subjects = [tenant_id for tenant_id, _ in erased], [subject_id for _, subject_id in erased]
    async with plain_connection(url) as connection, connection.transaction():
        forced = await lift_row_security(connection)
        gone = await connection.fetchval(_ERASE, tenants, subjects)
        if await connection.fetchval("SELECT to_regclass('erasures')"):  # a dump may be older than this table
            await connection.execute(_NOTE_ERASED, tenants, subjects)
        for table in await connection.fetch(_BESIDES):
            await connection.execute(_ERASE_FROM.format(table=table["name"]), tenants, subjects)
        # Stored answers to requests of the last day name no subject; those of the tenants concerned go, too.
        await connection.execute("DELETE FROM idempotency_keys WHERE tenant_id = ANY ($1::uuid[])", tenants)
        for table in forced:
            await connection.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    return int(gone)


@asynccontextmanager
async def scratch(
    config: BackupConfig, depot: Depot, manifest: Manifest, keys: Sequence[bytes], url: str, *, now: datetime,
    progress: Progress = no_progress,
) -> AsyncIterator[str]:  # fmt: skip
    """The URL of a database made on the server of `url` and filled from a backup; it is dropped at the end.

    It is cloned from the database `mneme_scratch` when there is one (which then has the extension), else it is empty.
    Raises as restore_all, and StartupRefused when this login may not make databases.
    """
    name = f"{SCRATCH}_{now.astimezone(UTC):%Y%m%d%H%M%S}_{secrets.token_hex(3)}"
    async with plain_connection(url) as connection:
        await _drop_old(connection, now)
        cloned = await connection.fetchval(_DATABASE, SCRATCH)
        template = SCRATCH if cloned else "template0 ENCODING 'UTF8'"
        try:
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        except asyncpg.InsufficientPrivilegeError as error:
            raise StartupRefused(
                "this login may not make scratch databases: give it CREATEDB, or set MNEME_BACKUP__SCRATCH_URL"
            ) from error
    place = make_url(url).set(database=name).render_as_string(hide_password=False)
    try:
        async with plain_connection(place) as connection:
            await prepare(connection, manifest)
        await _fill(config, depot, manifest, keys, place, progress)
        yield place
    finally:
        async with plain_connection(url) as connection:
            await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


async def prepare(connection: Any, manifest: Manifest) -> None:
    """See to what must be there before the first table: server version, roles and extension; raises StartupRefused."""
    await _refuse_older(connection, manifest)
    login = await connection.fetchval("SELECT current_user")
    for role in (APP_ROLE, WORKER_ROLE):
        said = f'CREATE ROLE {role} NOLOGIN; GRANT {role} TO "{login}"'
        await _ensure(connection, _MAKE_ROLE.format(role=role), said)
    await _refuse_missing_roles(connection, manifest)
    await _ensure(connection, "CREATE EXTENSION IF NOT EXISTS vector", "CREATE EXTENSION vector")
    there = await connection.fetchval("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    if tuple(map(int, there.split("."))) < MIN_PGVECTOR:
        wanted = ".".join(map(str, MIN_PGVECTOR))
        raise StartupRefused(f"pgvector {wanted} or newer is needed, this server has {there}")


async def _refuse_filled(connection: Any) -> None:
    if (tables := await connection.fetchval(_HOW_MANY_TABLES)) > 0:
        name = await connection.fetchval("SELECT current_database()")
        raise Conflict(f"the database {name} has {tables} tables: a whole backup goes into an empty one")


async def _refuse_older(connection: Any, manifest: Manifest) -> None:
    server = await connection.fetchval("SELECT current_setting('server_version_num')::int") // 10_000
    dumped = manifest.content.server_version // 10_000
    if server < dumped:
        raise StartupRefused(f"the dump is of PostgreSQL {dumped}, this server is {server}: it must not be older")


async def _refuse_missing_roles(connection: Any, manifest: Manifest, may_lack: Collection[str] = ()) -> None:
    known = {row["rolname"] for row in await connection.fetch("SELECT rolname FROM pg_roles")}
    if missing := sorted(set(manifest.content.roles) - known - set(may_lack)):
        needed = "; ".join(f'CREATE ROLE "{role}" NOLOGIN' for role in missing)
        raise StartupRefused(
            f"grants in the dump name roles that this server lacks; an administrator first runs {needed}"
        )


async def _ensure(connection: Any, statement: str, said: str) -> None:
    try:
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError as error:
        name = await connection.fetchval("SELECT current_database()")
        raise StartupRefused(f"an administrator must first run `{said}` in the database {name}") from error
    except (asyncpg.UndefinedFileError, asyncpg.FeatureNotSupportedError) as error:
        raise StartupRefused("this PostgreSQL has no pgvector: install it first", dependency=True) from error


async def _fill(
    config: BackupConfig, depot: Depot, manifest: Manifest, keys: Sequence[bytes], url: str, progress: Progress
) -> None:
    async with plain_connection(url) as connection:
        server = await connection.fetchval("SELECT current_setting('server_version_num')::int")
    fitting = programs_for(server // 10_000, config.programs)
    if fitting.major < manifest.dump_version:  # it cannot read a newer one's format
        fitting = programs_for(manifest.dump_version, config.programs)
    restore = Restore(fitting, url)
    feeding = asyncio.create_task(asyncio.to_thread(restore.feed, _checked(depot, manifest, keys, progress)))
    try:
        await asyncio.shield(feeding)
    finally:
        restore.stop()
        await asyncio.gather(feeding, return_exceptions=True)


def _checked(depot: Depot, manifest: Manifest, keys: Sequence[bytes], progress: Progress) -> Iterator[bytes]:
    """The plain dump; raises VerificationFailed at the latest at its end when it is not what was stored."""
    path, key = f"{manifest.backup}/{DUMP}", None if manifest.key is None else key_named(keys, manifest.key)
    if (size := depot.size(path)) != manifest.stored_bytes:
        raise VerificationFailed("truncated", f"the dump has {size} bytes instead of {manifest.stored_bytes}")
    flow = Flow(progress, manifest.stored_bytes)
    stored = flow.through(depot.read(path))
    yield from stored if key is None else unseal(stored, key, manifest.backup)
    if flow.digest.hexdigest() != manifest.sha256:
        raise VerificationFailed("checksum", "the dump is not the one that was stored: its checksum differs")


async def _ensure_database(url: str) -> None:
    place = make_url(url)
    quoted = '"' + str(place.database).replace('"', '""') + '"'
    async with plain_connection(url, _MAINTENANCE) as connection:
        if not await connection.fetchval("SELECT count(*) FROM pg_database WHERE datname = $1", place.database):
            await _ensure(
                connection, f"CREATE DATABASE {quoted} TEMPLATE template0 ENCODING 'UTF8'", f"CREATE DATABASE {quoted}"
            )


async def _drop_old(connection: Any, now: datetime) -> None:
    """Scratch databases of verifications that were killed."""
    oldest = f"{SCRATCH}_{(now - _SCRATCH_STAYS).astimezone(UTC):%Y%m%d%H%M%S}"
    for row in await connection.fetch(_SCRATCHES, f"^{SCRATCH}_[0-9]{{14}}_[0-9a-f]{{6}}$", oldest):
        await connection.execute(f"DROP DATABASE IF EXISTS {row['datname']} WITH (FORCE)")


_DATABASE: Final = "SELECT count(*) FROM pg_database WHERE datname = $1"
_EXTENDED: Final = "SELECT count(*) FROM pg_extension WHERE extname = 'vector'"
# Of an extension that is not marked as trusted only a superuser makes use.
_MAY_EXTEND: Final = """
SELECT r.rolsuper OR EXISTS (SELECT FROM pg_available_extension_versions WHERE name = 'vector' AND trusted)
FROM pg_roles r WHERE r.rolname = current_user
"""
_HOW_MANY_TABLES: Final = """
SELECT count(*) FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
"""
_ERASE: Final = """
WITH gone AS (
    DELETE FROM subjects s USING unnest($1::uuid[], $2::uuid[]) AS erased (tenant_id, subject_id)
    WHERE s.tenant_id = erased.tenant_id AND s.subject_id = erased.subject_id RETURNING s.subject_id
) SELECT count(*) FROM gone
"""
# So that nothing of theirs comes back from the archive or an older backup, either.
_NOTE_ERASED: Final = """
INSERT INTO erasures (tenant_id, subject_id, erasure_id, actor, counts, created_at)
SELECT tenant_id, subject_id, gen_random_uuid(), 'restore', '{}', now()
FROM unnest($1::uuid[], $2::uuid[]) AS erased (tenant_id, subject_id)
WHERE NOT EXISTS (SELECT FROM erasures e WHERE e.tenant_id = erased.tenant_id AND e.subject_id = erased.subject_id)
"""
_BESIDES: Final = """
SELECT c.oid::regclass::text AS name FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname NOT IN ('memory_events', 'erasures')
  AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'subject_id' AND NOT a.attisdropped)
"""
_ERASE_FROM: Final = """
DELETE FROM {table} t USING unnest($1::uuid[], $2::uuid[]) AS erased (tenant_id, subject_id)
WHERE t.tenant_id = erased.tenant_id AND t.subject_id = erased.subject_id
"""
_SCRATCHES: Final = """
SELECT datname FROM pg_database WHERE datname ~ $1 AND datname < $2 AND pg_has_role(datdba, 'USAGE')
"""
# As the first migration makes them: nobody's login, and whoever makes them may step down into them.
_MAKE_ROLE: Final = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
    IF NOT pg_has_role(current_user, '{role}', 'SET') THEN
        GRANT {role} TO CURRENT_USER WITH SET TRUE, INHERIT FALSE;
    END IF;
END $$
"""
