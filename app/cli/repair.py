"""`mneme repair` and `mneme reindex`: indexes are made again while the service goes on, as the schema's owner."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import typer
from sqlalchemy.ext.asyncio import AsyncConnection

from app.cli import schema
from app.cli.connect import with_owner
from app.cli.progress import Shown, progress
from app.errors import StartupRefused
from app.indexes import GENERATIONS, INDEXES, ann_indexes, cure, faults, superseded

TURN: Final = 0x4D4E454D46  # one repair at a time
POLL_SECONDS: Final = 0.5
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def repair(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Make missing and invalid indexes again, one after the other; reads and writes go on."""

    async def work(owner_url: str) -> int:
        async with _turn(owner_url) as connection:
            generations, found = await _generations(connection), await _found(connection)
            wrong = faults(found, generations)
            whole = found | dict.fromkeys((*wrong.invalid, *wrong.missing), True)  # once these are made again
            away = [name for name in superseded(whole) if name not in wrong.invalid]
            for name in (*wrong.invalid, *wrong.missing, *away):
                statement = cure(name, generations, exists=name in found)
                print(f"{name}: {statement.split(' CONCURRENTLY')[0].lower()}")
                if not dry_run:
                    await _run(owner_url, connection, name, statement, quiet=quiet)
        return len(wrong.invalid) + len(wrong.missing) + len(away)

    done = with_owner(lambda url: _plainly(url, work))
    print(f"{done} to repair" if dry_run else f"{done} repaired" if done else "nothing to repair")


def reindex(
    drop_first: Annotated[
        bool, typer.Option("--drop-first", help="For a damaged one: without it all is compared exactly meanwhile.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Build the vector index of the active embedding generation anew; the old one serves until the new one is ready."""

    async def work(owner_url: str) -> None:
        async with _turn(owner_url) as connection:
            generations = await _generations(connection)
            for name in (name for one in generations.items() for name in ann_indexes(*one)):
                if drop_first:
                    await connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
                statement = cure(name, generations, exists=name in await _found(connection))
                await _run(owner_url, connection, name, statement, quiet=quiet)
                size = await connection.exec_driver_sql(f"SELECT pg_relation_size('{name}')")
                print(f"{name}: built, {size.scalar_one():,} bytes")
            for name in superseded(await _found(connection)):
                await connection.exec_driver_sql(cure(name, generations, exists=True))

    with_owner(lambda url: _plainly(url, work))


def _plainly(url: str, work: Any) -> Any:
    with schema.plain_refusals(url):
        return asyncio.run(work(url))


@asynccontextmanager
async def _turn(owner_url: str) -> AsyncIterator[AsyncConnection]:
    async with schema.connection(owner_url) as connection:
        await connection.exec_driver_sql("SET statement_timeout = 0")
        free = await connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({TURN})")
        if not free.scalar_one():
            raise StartupRefused("another repair or reindex is at work", dependency=True)
        yield connection


async def _generations(connection: AsyncConnection) -> dict[int, int]:
    return {row.id: row.dimension for row in await connection.exec_driver_sql(GENERATIONS)}


async def _found(connection: AsyncConnection) -> dict[str, bool]:
    return {row.name: row.valid for row in await connection.exec_driver_sql(INDEXES)}


async def _run(owner_url: str, connection: AsyncConnection, name: str, statement: str, *, quiet: bool) -> None:
    """Run a statement, and show how far it is as another connection sees it."""
    with progress(name, quiet=quiet, counted=True) as shown:
        watching = asyncio.create_task(_watch(owner_url, shown))
        try:
            await connection.exec_driver_sql(statement)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _watch(owner_url: str, shown: Shown) -> None:
    async with schema.connection(owner_url) as connection:
        while True:
            row = (await connection.exec_driver_sql(_PROGRESS)).first()
            if row is not None and row.total:
                shown(row.done, row.total)
            await asyncio.sleep(POLL_SECONDS)


# Rows where they are counted (HNSW does not know how many there will be), else blocks of the table.
_PROGRESS: Final = """
SELECT CASE WHEN tuples_total > 0 THEN tuples_done ELSE blocks_done END AS done,
       CASE WHEN tuples_total > 0 THEN tuples_total ELSE blocks_total END AS total
FROM pg_stat_progress_create_index WHERE datname = current_database()
"""
