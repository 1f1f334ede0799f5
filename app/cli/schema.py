"""The schema's owner at work: migrations, and the roles and databases that they and the service need.

Invariant: only this module and migrations/ ever use the owner's URL; the service logs in as a role that owns nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from app.backup import SCRATCH
from app.cli.embedded import SUPERUSER, EmbeddedServer
from app.errors import StartupRefused

LOGIN_ROLE = "mneme"
BACKUP_ROLE = "mneme_backup"
DATABASE = "mneme"
ATTEMPTS = 10
DEADLOCK = "40P01"
ALEMBIC_INI = Path(__file__).parents[2] / "alembic.ini"

ROLES_SQL = f"""\
-- The service's login role: owns nothing, is no superuser, and has no rights until a transaction takes one of the two
-- roles (SET LOCAL ROLE). Run once as a superuser or as an owner with CREATEROLE, after `mneme db migrate`.
CREATE ROLE {LOGIN_ROLE} LOGIN NOINHERIT PASSWORD 'choose-one';
GRANT mneme_app, mneme_worker TO {LOGIN_ROLE};

-- The login of backups (MNEME_BACKUP__DATABASE_URL): reads every row, past row security, changes none, and proves
-- backups good in scratch databases of its own, clones of {SCRATCH}, since only a superuser makes the extension.
CREATE ROLE {BACKUP_ROLE} LOGIN BYPASSRLS CREATEDB PASSWORD 'choose-one';
GRANT pg_read_all_data TO {BACKUP_ROLE};
GRANT mneme_app, mneme_worker TO {BACKUP_ROLE} WITH INHERIT FALSE, SET TRUE;
CREATE DATABASE {SCRATCH} OWNER {BACKUP_ROLE};
\\connect {SCRATCH}
CREATE EXTENSION vector;
"""


def upgrade(owner_url: str, revision: str = "head") -> None:
    """Bring the schema to a revision; two at once take turns, and the second finds nothing to do.

    A migration that PostgreSQL breaks off to end a deadlock with a running service is tried again.
    """
    with plain_refusals(owner_url):
        for attempt in range(ATTEMPTS):
            try:
                command.upgrade(_alembic(owner_url), revision)
            except DBAPIError as error:
                if attempt + 1 == ATTEMPTS or getattr(error.orig, "sqlstate", None) != DEADLOCK:
                    raise
            else:
                return


def revisions(owner_url: str) -> tuple[str | None, str | None]:
    """Return the database's revision and the newest one of this program."""
    head = ScriptDirectory.from_config(_alembic(owner_url)).get_current_head()
    with plain_refusals(owner_url):
        return asyncio.run(_current(owner_url)), head


def create(server: EmbeddedServer, database: str = DATABASE) -> str:
    """Create `database` on an embedded server unless it exists, and return its owner's URL."""
    asyncio.run(_create_database(server.url(SUPERUSER, "postgres"), database))
    return server.url(SUPERUSER, database)


def prepare(server: EmbeddedServer, database: str = DATABASE) -> tuple[str, str]:
    """Create, migrate and open `database` on an embedded server; return the URLs of its owner and of the service."""
    owner_url = create(server, database)
    upgrade(owner_url)
    create_login(owner_url, LOGIN_ROLE)
    return owner_url, server.url(LOGIN_ROLE, database)


def create_login(owner_url: str, role: str, password: str | None = None) -> None:
    """Make the service's login role unless it exists, and let it take the two roles that the migrations made."""
    quoted, secret = _quoted(role), "" if password is None else " PASSWORD " + _literal(password)
    exists = f"SELECT count(*) FROM pg_roles WHERE rolname = {_literal(role)}"
    create = f"CREATE ROLE {quoted} LOGIN NOINHERIT{secret}"
    with plain_refusals(owner_url):
        asyncio.run(_execute(owner_url, exists, create, f"GRANT mneme_app, mneme_worker TO {quoted}"))


def create_reader(superuser_url: str, role: str, password: str | None = None) -> None:
    """Make the login of backups unless it exists, and the database from which its scratch databases are cloned."""
    quoted, secret = _quoted(role), "" if password is None else " PASSWORD " + _literal(password)
    scratch = make_url(superuser_url).set(database=SCRATCH).render_as_string(hide_password=False)
    with plain_refusals(superuser_url):
        asyncio.run(
            _execute(
                superuser_url,
                f"SELECT count(*) FROM pg_roles WHERE rolname = {_literal(role)}",
                f"CREATE ROLE {quoted} LOGIN BYPASSRLS CREATEDB{secret}",
                f"GRANT pg_read_all_data TO {quoted}",
                f"GRANT mneme_app, mneme_worker TO {quoted} WITH INHERIT FALSE, SET TRUE",
            )
        )
        exists = f"SELECT count(*) FROM pg_database WHERE datname = '{SCRATCH}'"
        asyncio.run(_execute(superuser_url, exists, f"CREATE DATABASE {SCRATCH} OWNER {quoted}"))
        asyncio.run(_execute(scratch, "SELECT 1", "", "CREATE EXTENSION IF NOT EXISTS vector"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _alembic(owner_url: str) -> Config:
    if not ALEMBIC_INI.exists():
        raise StartupRefused(f"{ALEMBIC_INI} is missing: install Mneme from its tree with `pip install --editable`")
    config = Config(ALEMBIC_INI)
    config.attributes["url"] = owner_url
    return config


async def _current(owner_url: str) -> str | None:
    async with connection(owner_url) as opened:
        return await opened.run_sync(lambda plain: MigrationContext.configure(plain).get_current_revision())


async def _create_database(superuser_url: str, database: str) -> None:
    await _execute(
        superuser_url,
        f"SELECT count(*) FROM pg_database WHERE datname = '{database}'",
        f"CREATE DATABASE {database}",
    )


async def _execute(url: str, exists: str, create: str, *always: str) -> None:
    async with connection(url) as opened:
        if not (await opened.exec_driver_sql(exists)).scalar_one():
            await opened.exec_driver_sql(create)
        for statement in always:
            await opened.exec_driver_sql(statement)


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[AsyncConnection]:
    """A connection on which every statement is its own transaction."""
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as opened:
            yield opened
    finally:
        await engine.dispose()


@contextmanager
def plain_refusals(url: str) -> Iterator[None]:
    """Turn what the driver or PostgreSQL says about a URL that does not work into StartupRefused."""
    try:
        yield
    except (ArgumentError, ImportError):
        raise StartupRefused(
            "the database URL is not of the form postgresql+asyncpg://user:password@host/name"
        ) from None
    except (OSError, DBAPIError) as error:
        reason = str(error.orig if isinstance(error, DBAPIError) else error).splitlines()[0]
        where = make_url(url).render_as_string(hide_password=True)
        raise StartupRefused(f"{where}: {reason}", dependency=True) from error
