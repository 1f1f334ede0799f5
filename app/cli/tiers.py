"""`mneme tiers`: what is hot, warm and cold, how much room it takes, and what the next run would save."""

import sys
from typing import Annotated, Any, Final
from uuid import UUID

import orjson
import typer
from rich.console import Console
from rich.table import Table

from app.cli.connect import tenants_meant, with_database
from app.clock import now
from app.database import Database
from app.forget import report_tiers
from app.settings import Settings

app = typer.Typer(no_args_is_help=True)
WIDTH: Final = 160  # where there is no terminal


@app.callback()
def group() -> None:
    """Only so that `report` stays a command of its own."""


@app.command()
def report(
    tenant: Annotated[UUID | None, typer.Option("--tenant", help="Only this tenant; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")] = False,
) -> None:
    """Print memories and bytes of each tier, and what `mneme jobs run cool` would move and save now."""

    async def action(settings: Settings, database: Database) -> list[dict[str, Any]]:
        return [
            {"tenant_id": str(one.tenant_id), "tenant": one.name} | row
            for one in await tenants_meant(database, tenant)
            for row in await report_tiers(database, settings.forget, one.tenant_id, now=now())
        ]

    rows = with_database(action)
    if as_json:
        for row in rows:
            print(orjson.dumps(row).decode())
        return
    table = Table("tenant", "tier", box=None, pad_edge=False)
    for heading in ("memories", "bytes", "text", "vectors", "keywords", "would move", "would save"):
        table.add_column(heading, justify="right")
    for row in rows:
        numbers = (row["memories"], *(row[name] for name in SIZES), row["would_move"], row["would_save"])
        table.add_row(row["tenant"], row["tier"], *(f"{number:,}" for number in numbers))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)


SIZES: Final = ("bytes", "text_bytes", "vector_bytes", "keyword_bytes")
