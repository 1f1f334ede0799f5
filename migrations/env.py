"""Runs migrations as the owner of the schema: online over asyncpg, or offline as SQL (`alembic upgrade head --sql`)."""

import asyncio
import time
from typing import Any

from alembic import context
from sqlalchemy import Connection, pool, text
from sqlalchemy.ext.asyncio import create_async_engine

from app.tables import metadata

MIGRATOR_LOCK = 0x4D4E454D45  # "MNEME": two migrators at once, one waits


def database_url() -> str:
    """The URL handed over by the caller (`config.attributes["url"]`), else the one in the settings."""
    given = context.config.attributes.get("url")
    if given is not None:
        return str(given)
    from app.settings import Settings  # noqa: PLC0415 - a caller who hands over the URL needs no settings

    database = Settings().database
    url = database.owner_url or database.url
    if url is None:
        raise SystemExit("no database: set MNEME_DATABASE__OWNER_URL or MNEME_DATABASE__URL")
    return url.get_secret_value()


def compared(_entity: Any, name: str | None, kind: str, _reflected: bool, _compare_to: Any) -> bool:
    # Vector indexes are expressions per generation, made by a job: not part of the static schema.
    return not (kind == "index" and name is not None and name.startswith("memories_ann_"))


def configure(**target: Any) -> None:
    context.configure(target_metadata=metadata, include_object=compared, transaction_per_migration=True, **target)
    with context.begin_transaction():
        context.run_migrations()


def run_on(connection: Connection) -> None:
    # Asked for again and again: a statement that waits for the lock would hold a snapshot, for which CREATE INDEX
    # CONCURRENTLY of the migrator that has the lock waits in turn.
    while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": MIGRATOR_LOCK}):
        connection.commit()
        time.sleep(0.2)
    connection.commit()
    try:
        configure(connection=connection)
    finally:
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATOR_LOCK})
        connection.commit()


async def run_online() -> None:
    engine = create_async_engine(database_url(), poolclass=pool.NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(run_on)
    finally:
        await engine.dispose()


if context.is_offline_mode():
    configure(dialect_name="postgresql", literal_binds=True)
else:
    asyncio.run(run_online())
