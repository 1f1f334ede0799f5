"""The schema's owner at work: migrations, and the roles and databases that they and the service need.

Invariant: only this module and migrations/ ever use the owner's URL; the service logs in as a role that owns nothing.
"""

import asyncio
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from app.cli.embedded import SUPERUSER, EmbeddedServer
from app.errors import StartupRefused

LOGIN_ROLE = "mneme"
DATABASE = "mneme"
ALEMBIC_INI = Path(__file__).parents[2] / "alembic.ini"

ROLES_SQL = f"""\
-- The service's login role: owns nothing, is no superuser, and has no rights until a transaction takes one of the two
-- roles (SET LOCAL ROLE). Run as a superuser or as the database's owner with CREATEROLE, after `mneme db migrate`.
CREATE ROLE {LOGIN_ROLE} LOGIN NOINHERIT PASSWORD 'choose-one';
GRANT mneme_app, mneme_worker TO {LOGIN_ROLE};
GRANT CONNECT ON DATABASE {DATABASE} TO {LOGIN_ROLE};
"""


def upgrade(owner_url: str) -> None:
    """Bring the schema to the newest revision; two at once take turns, and the second finds nothing to do."""
    command.upgrade(_alembic(owner_url), "head")


def revisions(owner_url: str) -> tuple[str | None, str | None]:
    """Return the database's revision and the newest one of this program."""
    head = ScriptDirectory.from_config(_alembic(owner_url)).get_current_head()
    return asyncio.run(_current(owner_url)), head


def create(server: EmbeddedServer, database: str = DATABASE) -> str:
    """Create `database` on an embedded server unless it exists, and return its owner's URL."""
    asyncio.run(_create_database(server.url(SUPERUSER, "postgres"), database))
    return server.url(SUPERUSER, database)


def prepare(server: EmbeddedServer, database: str = DATABASE) -> tuple[str, str]:
    """Create, migrate and open `database` on an embedded server; return the URLs of its owner and of the service."""
    owner_url = create(server, database)
    upgrade(owner_url)
    asyncio.run(_create_login(owner_url))
    return owner_url, server.url(LOGIN_ROLE, database)


def _alembic(owner_url: str) -> Config:
    if not ALEMBIC_INI.exists():
        raise StartupRefused(f"{ALEMBIC_INI} is missing: install Mneme from its tree with `pip install --editable`")
    config = Config(ALEMBIC_INI)
    config.attributes["url"] = owner_url
    return config


async def _current(owner_url: str) -> str | None:
    engine = create_async_engine(owner_url)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(lambda plain: MigrationContext.configure(plain).get_current_revision())
    except (DBAPIError, OSError) as error:
        where = make_url(owner_url).render_as_string(hide_password=True)
        raise StartupRefused(f"{where} does not answer: {type(error).__name__}", dependency=True) from error
    finally:
        await engine.dispose()


async def _create_database(superuser_url: str, database: str) -> None:
    await _execute(
        superuser_url,
        f"SELECT count(*) FROM pg_database WHERE datname = '{database}'",
        f"CREATE DATABASE {database}",
    )


async def _create_login(superuser_url: str) -> None:
    await _execute(
        superuser_url,
        f"SELECT count(*) FROM pg_roles WHERE rolname = '{LOGIN_ROLE}'",
        f"CREATE ROLE {LOGIN_ROLE} LOGIN NOINHERIT",
        f"GRANT mneme_app, mneme_worker TO {LOGIN_ROLE}",
    )


async def _execute(url: str, exists: str, create: str, *always: str) -> None:
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            if not (await connection.execute(text(exists))).scalar_one():
                await connection.execute(text(create))
            for statement in always:
                await connection.execute(text(statement))
    finally:
        await engine.dispose()
