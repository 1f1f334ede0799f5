"""Which database a command talks to: the configured one, or the embedded server of the data directory."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

import typer
from pydantic import SecretStr

from app.cli import embedded, schema
from app.database import Database
from app.errors import StartupRefused
from app.guard import Tenant, list_tenants
from app.settings import Settings, load_settings, variable

Result = TypeVar("Result")
URL = variable(("database", "url"))


def refuse_embedded_in_production(settings: Settings) -> None:
    """Raise StartupRefused when production has no database of its own."""
    if settings.env == "production":
        raise StartupRefused(f"production needs a real PostgreSQL: set {URL} (postgresql+asyncpg://…)")


def use_running_server(settings: Settings) -> None:
    """Put the URL of the data directory's running embedded server into this process's environment, if one is needed.

    Raises StartupRefused when nothing is configured and no embedded server runs.
    """
    if settings.database.url is not None:
        return
    refuse_embedded_in_production(settings)
    server = embedded.join(settings.data_dir / "postgres")
    if server is None:
        raise StartupRefused(f"no database: set {URL} (postgresql+asyncpg://…), or start everything with `mneme up`")
    os.environ[URL] = server.url(schema.LOGIN_ROLE, schema.DATABASE)


def with_database(action: Callable[[Settings, Database], Awaitable[Result]]) -> Result:
    """Run `action` on the service's database; an embedded server that does not run is started for it alone."""
    settings = load_settings()
    if settings.database.url is not None:
        return asyncio.run(_connected(settings, action))
    refuse_embedded_in_production(settings)
    server = embedded.start(settings.data_dir / "postgres")
    try:
        _, url = schema.prepare(server)
        settings.database.url = SecretStr(url)
        return asyncio.run(_connected(settings, action))
    finally:
        if server.started:
            embedded.stop(server.directory)


async def tenants_meant(database: Database, only: UUID | None) -> list[Tenant]:
    """All tenants, or the one that was named. Raises typer.BadParameter when there is none of that id."""
    tenants = [one for one in await list_tenants(database) if only in (None, one.tenant_id)]
    if only is not None and not tenants:
        raise typer.BadParameter("no such tenant", param_hint="--tenant")
    return tenants


def with_database_and_owner(action: Callable[[Settings, Database, str], Awaitable[Result]]) -> Result:
    """Run `action` as with_database does, with the URL of the schema's owner as well."""
    settings = load_settings()
    owner_url = settings.database.owner_url or settings.database.url
    if owner_url is not None:
        return with_database(lambda known, database: action(known, database, owner_url.get_secret_value()))
    refuse_embedded_in_production(settings)
    server = embedded.start(settings.data_dir / "postgres")
    try:
        owner, url = schema.prepare(server)
        settings.database.url = SecretStr(url)
        return asyncio.run(_connected(settings, lambda known, database: action(known, database, owner)))
    finally:
        if server.started:
            embedded.stop(server.directory)


def with_owner(action: Callable[[str], Result]) -> Result:
    """Run `action` with the URL of the schema's owner; the embedded server is started for it when it does not run."""
    settings = load_settings()
    url = settings.database.owner_url or settings.database.url
    if url is not None:
        return action(url.get_secret_value())
    refuse_embedded_in_production(settings)
    server = embedded.start(settings.data_dir / "postgres")
    try:
        return action(schema.create(server))
    finally:
        if server.started:
            embedded.stop(server.directory)


async def _connected(settings: Settings, action: Callable[[Settings, Database], Awaitable[Result]]) -> Result:
    async with _open(settings) as database:
        return await action(settings, database)


@asynccontextmanager
async def _open(settings: Settings) -> AsyncIterator[Database]:
    database = await Database.connect(settings.database)
    try:
        yield database
    finally:
        await database.close()
