"""`mneme archive`: moves archived memories to a store of objects, lists what is there, and brings it back."""

import sys
from datetime import timedelta
from typing import Annotated
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table

from app.backup import Archive
from app.cli.connect import tenants_meant, with_database
from app.clock import now
from app.database import Database
from app.settings import Settings

app = typer.Typer(no_args_is_help=True)

TenantOption = Annotated[UUID | None, typer.Option("--tenant", help="Only this tenant; default: all.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only say how much it would be.")]


@app.command()
def export(
    days: Annotated[float, typer.Option(min=0, help="Only what was archived so many days ago and earlier.")] = 7,
    tenant: TenantOption = None,
    dry_run: DryOption = False,
) -> None:
    """Move archived memories to the store, each out of the database only when it was read back from there."""

    async def action(settings: Settings, database: Database) -> int:
        archive, before = _archive(settings), now() - timedelta(days=days)
        tenants = await _tenants(database, tenant)
        return sum([await archive.export(database, one, before=before, now=now(), dry_run=dry_run) for one in tenants])

    print(f"{with_database(action)} memories {'would be ' if dry_run else ''}exported")


@app.command("list")
def list_all() -> None:
    """Print what is in the store: name, tenant, memories and bytes."""

    async def action(settings: Settings, _: Database) -> Table:
        table = Table("name", "made (UTC)", "memories", "bytes", "encrypted", box=None, pad_edge=False)
        for box in await _archive(settings).boxes():
            table.add_row(
                box.name, f"{box.made_at:%Y-%m-%d %H:%M}", f"{box.memories:,}", f"{box.stored_bytes:,}",
                "no" if box.key is None else "yes",
            )  # fmt: skip
        return table

    Console(width=None if sys.stdout.isatty() else 200).print(with_database(action))


@app.command()
def restore(name: Annotated[str, typer.Argument(help="Name of an object, from `mneme archive list`.")]) -> None:
    """Put the memories of an object back among the archived ones; `:restore` then makes one active."""

    async def action(settings: Settings, database: Database) -> int:
        return await _archive(settings).restore(database, name, now=now())

    print(f"{with_database(action)} memories are archived in the database again")


@app.command()
def prune(tenant: TenantOption = None, dry_run: DryOption = False) -> None:
    """Remove from the store what is of users who were erased; `export` does it, too."""

    async def action(settings: Settings, database: Database) -> int:
        archive, tenants = _archive(settings), await _tenants(database, tenant)
        return sum([await archive.prune(database, one, now=now(), dry_run=dry_run) for one in tenants])

    print(f"{with_database(action)} objects {'would be ' if dry_run else ''}removed")


def _archive(settings: Settings) -> Archive:
    return Archive.open(settings.backup, settings.data_dir)


async def _tenants(database: Database, only: UUID | None) -> list[UUID]:
    return [one.tenant_id for one in await tenants_meant(database, only)]
