"""What is in a database: measured in the dump's own snapshot, and again in what was restored from it.

Invariant: the walls are part of it. Searches run as the application's role with a tenant set, and without a tenant that
role must see nothing, or the content is not what it should be.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
from sqlalchemy.engine import make_url

from app.backup.manifest import Content, Search
from app.database import APP_ROLE
from app.errors import StartupRefused, VerificationFailed

HITS: Final = 10
_UNLIMITED: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@asynccontextmanager
async def plain_connection(url: str, database: str | None = None) -> AsyncIterator[Any]:
    """A connection of its own without time limits, outside of any pool; raises StartupRefused when there is none."""
    place = make_url(url)
    query = {name: value if isinstance(value, str) else value[0] for name, value in place.query.items()}
    try:
        connection = await asyncpg.connect(
            host=place.host or query.get("host"),
            port=place.port or int(query.get("port", 5432)),
            user=place.username,
            password=place.password,
            database=database or place.database,
            ssl=query.get("ssl") or query.get("sslmode"),
            timeout=10,
            server_settings={"application_name": "mneme-backup", "timezone": "UTC", "jit": "off"}
            | dict.fromkeys(_UNLIMITED, "0"),
        )
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        where = place.render_as_string(hide_password=True)
        raise StartupRefused(f"{where}: {error or type(error).__name__}", dependency=True) from error
    try:
        yield connection
    finally:
        await connection.close()


async def measure(connection: Any, searches: int) -> Content:
    """The content, with new searches of up to `searches` tenants; call it within a snapshot."""
    rows, tenant_rows = await _count(connection)
    sampled = await connection.fetch(_SAMPLED, searches) if "memories" in rows else []
    return Content(
        server_version=await connection.fetchval("SELECT current_setting('server_version_num')::int"),
        extensions=dict(await connection.fetch("SELECT extname, extversion FROM pg_extension ORDER BY extname")),
        revision=await connection.fetchval("SELECT version_num FROM alembic_version")
        if "alembic_version" in rows
        else None,
        roles=tuple(row["role"] for row in await connection.fetch(_ROLES)),
        generations=await _generations(connection) if "embedding_generations" in rows else (),
        rows=rows,
        tenant_rows=tenant_rows,
        searches=tuple([await _search(connection, dict(sample)) for sample in sampled]),
        erasures=tuple(map(tuple, await connection.fetch(_ERASURES))) if "erasures" in rows else (),
    )


async def compare(connection: Any, expected: Content) -> None:
    """Check that a restored database holds what `expected` says; raises VerificationFailed with the first difference.

    Its owner may be stopped by row security, which is lifted for the counting and stays as it was: a transaction that
    is rolled back.
    """
    transaction = connection.transaction()
    await transaction.start()
    try:
        await lift_row_security(connection)
        rows, tenant_rows = await _count(connection)
    finally:
        await transaction.rollback()
    for table, count in expected.rows.items():
        if rows.get(table) != count:
            raise VerificationFailed("counts", f"{table}: {count} rows were dumped, {rows.get(table, 0)} came back")
        if tenant_rows.get(table, {}) != expected.tenant_rows.get(table, {}):
            raise VerificationFailed("counts", f"{table}: the rows of single tenants are not as they were dumped")
    revision = await connection.fetchval("SELECT version_num FROM alembic_version") if expected.revision else None
    if revision != expected.revision:
        raise VerificationFailed("schema", f"the schema came back as {revision}, not as {expected.revision}")
    if expected.rows.get("memories") and await _seen_without_tenant(connection):
        raise VerificationFailed("walls", "row security did not come back: rows are seen without a tenant")
    for search in expected.searches:
        found = await _search(connection, search.model_dump(exclude={"hits"}))
        if found != search:
            raise VerificationFailed("searches", f"a search of tenant {search.tenant_id} finds something else")


async def lift_row_security(connection: Any) -> list[str]:
    """Let the tables' owner see every row; returns the tables where that was forced upon it."""
    tables = [row["name"] for row in await connection.fetch(_FORCED)]
    for table in tables:
        await connection.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    return tables


async def _count(connection: Any) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    rows: dict[str, int] = {}
    tenant_rows: dict[str, dict[str, int]] = {}
    for table in await connection.fetch(_TABLES):
        if table["of_tenant"]:
            counts = await connection.fetch(f"SELECT tenant_id, count(*) FROM {table['quoted']} GROUP BY tenant_id")
            tenant_rows[table["name"]] = {str(tenant_id): count for tenant_id, count in counts}
            rows[table["name"]] = sum(tenant_rows[table["name"]].values())
        else:
            rows[table["name"]] = await connection.fetchval(f"SELECT count(*) FROM {table['quoted']}")
    return rows, tenant_rows


async def _generations(connection: Any) -> tuple[dict[str, str], ...]:
    return tuple({name: str(value) for name, value in row.items()} for row in await connection.fetch(_GENERATIONS))


async def _search(connection: Any, asked: dict[str, Any]) -> Search:
    """Nearest by vector and words, as the application's role behind row security."""
    async with _as_application(connection, str(asked["tenant_id"])):
        hits = await connection.fetch(_SEARCH, asked["tenant_id"], asked["subject_id"], asked["memory_id"], HITS)
    return Search(**asked, hits=tuple(row["memory_id"] for row in hits))


async def _seen_without_tenant(connection: Any) -> bool:
    async with _as_application(connection, ""):
        return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM memories)"))


@asynccontextmanager
async def _as_application(connection: Any, tenant_id: str) -> AsyncIterator[None]:
    async with connection.transaction():  # within a snapshot a savepoint
        await connection.execute("SELECT set_config('app.tenant_id', $1, true)", tenant_id)
        try:
            await connection.execute(f"SET LOCAL ROLE {APP_ROLE}")
        except asyncpg.InsufficientPrivilegeError as error:
            raise StartupRefused(f"the login must be a member of {APP_ROLE}: see docs/backup.md") from error
        yield
        await connection.execute("RESET ROLE")


# What a dump carries: no temporary, unlogged or foreign tables, and none of an extension.
_TABLES: Final = """
SELECT c.relname AS name, c.oid::regclass::text AS quoted,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id') AS of_tenant
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relkind = 'r' AND c.relpersistence = 'p'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY c.relname
"""
_FORCED: Final = """
SELECT oid::regclass::text AS name FROM pg_class
WHERE relforcerowsecurity AND relkind = 'r' AND pg_has_role(relowner, 'USAGE')
"""
_ROLES: Final = """
SELECT DISTINCT r.rolname AS role FROM pg_roles r WHERE r.oid IN (
    SELECT g.grantee FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS g
    WHERE c.relnamespace = 'public'::regnamespace AND g.grantee <> c.relowner
    UNION ALL SELECT g.grantee FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) AS g
    WHERE p.pronamespace = 'public'::regnamespace AND g.grantee <> p.proowner
    UNION ALL SELECT unnest(polroles) FROM pg_policy
) ORDER BY 1
"""
_GENERATIONS: Final = """
SELECT generation_id, model, revision, dimension, tokenizer_version, state FROM embedding_generations ORDER BY 1
"""
_ERASURES: Final = "SELECT DISTINCT tenant_id, subject_id FROM erasures ORDER BY 1, 2"
_SAMPLED: Final = """
SELECT t.tenant_id, m.subject_id, m.memory_id
FROM tenants t CROSS JOIN LATERAL (
    SELECT subject_id, memory_id FROM memories
    WHERE tenant_id = t.tenant_id AND status = 'active' AND embedding IS NOT NULL
    ORDER BY memory_id DESC LIMIT 1
) AS m
ORDER BY md5(t.tenant_id::text) LIMIT $1
"""
_SEARCH: Final = """
SELECT m.memory_id
FROM memories q JOIN memories m
  ON m.tenant_id = q.tenant_id AND m.subject_id = q.subject_id AND m.generation_id = q.generation_id
WHERE q.tenant_id = $1 AND q.subject_id = $2 AND q.memory_id = $3 AND m.status = 'active'
ORDER BY (m.embedding <=> q.embedding) + (m.keywords <#> q.keywords), m.memory_id LIMIT $4
"""
