"""The command: two stores on one embedded server live through the same days, one with the jobs of the night."""

import asyncio
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import orjson
import structlog
import typer
from rich.console import Console
from rich.table import Table

from app.cli import embedded, schema
from app.cli.embedded import EmbeddedServer
from app.cli.progress import Shown, progress
from app.cli.simulate.lives import MONTH_DAYS, Lives
from app.cli.simulate.plot import draw, require
from app.cli.simulate.store import Month, opened

WITH: Final = "with jobs"
WITHOUT: Final = "without jobs"
STORES: Final = {WITH: "mneme_year_with", WITHOUT: "mneme_year_without"}
Year = Mapping[str, Sequence[Month]]
Told = Callable[[str, Month], None]


def simulate(
    subjects: Annotated[int, typer.Option(min=1, max=100_000, help="Customers whose year it is.")] = 1_000,
    writes: Annotated[int, typer.Option(min=1, max=10_000_000, help="What they say in all.")] = 200_000,
    months: Annotated[int, typer.Option(min=1, max=60, help="Months of 30 days.")] = 12,
    seed: Annotated[int, typer.Option(help="Another seed, another year.")] = 0,
    plot: Annotated[Path | None, typer.Option(dir_okay=False, help="Draw the figures into this PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each month as it ends, an object a line.")] = False,
) -> None:
    """Let two stores live through the same made-up year, one with the jobs of the night, and measure both each month.

    On an embedded PostgreSQL in a temporary folder, with an embedder that costs nothing and default settings, whatever
    the environment says. Time is simulated. Customers speak Chinese and English; what is true of them, and when it
    changes, is known, so it is counted how often search finds it. 15,000 writes of 100 customers take four minutes,
    200,000 of 1,000 about an hour.
    """
    if plot is not None:
        require()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="mneme-simulate-") as folder:
        Path(folder).chmod(0o755)  # the server's system user passes through
        server = embedded.start(Path(folder) / "postgres")
        try:
            with progress("days", counted=True) as shown:
                lives = Lives(subjects, writes, months, seed)
                year = live(server, Path(folder), lives, shown, _print_line if as_json else None)
        finally:
            embedded.stop(server.directory)
    if not as_json:
        show(year)
    if plot is not None:
        draw(year, f"{subjects:,} customers, {writes:,} writes", plot)


def _print_line(store: str, month: Month) -> None:
    print(orjson.dumps({"store": store, **asdict(month)}).decode(), flush=True)


def live(server: EmbeddedServer, data_dir: Path, lives: Lives, shown: Shown, told: Told | None = None) -> Year:
    """Run the year on two databases of `server`; returns the months of each store, which are `told` as they end.

    Raises StartupRefused.
    """
    for name in STORES.values():
        schema.prepare(server, name)
    return asyncio.run(_live(server, data_dir, lives, shown, told))


async def _live(server: EmbeddedServer, data_dir: Path, lives: Lives, shown: Shown, told: Told | None) -> Year:
    """Both stores side by side, so that what disturbs the machine disturbs both."""
    year: dict[str, list[Month]] = {name: [] for name in STORES}
    async with (
        opened(server, STORES[WITH], data_dir, lives, jobs=True) as kept,
        opened(server, STORES[WITHOUT], data_dir, lives, jobs=False) as left,
    ):
        for number, day in enumerate(lives.days(), start=1):
            for store in (kept, left):
                await store.write(day)
            for turn, question in enumerate(day.questions):
                for store in (kept, left) if turn % 2 else (left, kept):
                    await store.ask(question, day.at)
            for name, store in ((WITH, kept), (WITHOUT, left)):
                await store.end(day)
                if number % MONTH_DAYS == 0:
                    year[name].append(await store.measure())
                    if told is not None:
                        told(name, year[name][-1])
            shown(number, lives.length)
    return year


COLUMNS: Final = {
    "month": "month", "written": "written", "active": "active", "cold": "of them cold", "deprecated": "deprecated",
    "duplicate": "duplicate", "archived": "archived", "bytes": "MB", "duplicates": "said twice", "untrue": "untrue",
    "found_5": "found @5", "found_10": "found @10", "found_old": "old found @10", "stale_5": "stale @5",
    "p95_ms": "p95 ms",
}  # fmt: skip


def show(year: Year) -> None:
    """Print a table for each store."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name, months in year.items():
        table = Table(title=name, title_justify="left")
        for heading in COLUMNS.values():
            table.add_column(heading, justify="right")
        for month in months:
            table.add_row(*(_cell(field, getattr(month, field)) for field in COLUMNS))
        console.print(table)
        did = sum((Counter(month.jobs) for month in months), Counter[str]())
        if did:
            console.print("Changed by the jobs: " + ", ".join(f"{job} {count:,}" for job, count in did.items()))


def _cell(field: str, value: float | None) -> str:
    if value is None:
        return ""
    if field == "bytes":
        return f"{value / 1e6:.1f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}" if field == "p95_ms" else f"{value:.3f}"
