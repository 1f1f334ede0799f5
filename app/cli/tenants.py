"""`mneme tenants`: the companies that share one service."""

from typing import Annotated

import typer

from app.cli.connect import with_database
from app.clock import now
from app.database import Database
from app.guard import create_tenant, list_tenants
from app.settings import Settings

app = typer.Typer(no_args_is_help=True)


@app.command()
def create(name: Annotated[str, typer.Argument(help="The tenant's name.")]) -> None:
    """Make a tenant and print its id."""

    async def action(_: Settings, database: Database) -> None:
        print((await create_tenant(database, name, now=now())).tenant_id)

    with_database(action)


@app.command("list")
def list_all() -> None:
    """Print id and name of every tenant."""

    async def action(_: Settings, database: Database) -> None:
        for tenant in await list_tenants(database):
            print(f"{tenant.tenant_id}  {tenant.created_at:%Y-%m-%d}  {tenant.name}")

    with_database(action)
