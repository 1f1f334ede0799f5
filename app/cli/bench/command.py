"""The command: starts a service of its own for each part, runs it, and prints times, ratios, targets and costs."""

import gc
import sys
import tempfile
from asyncio import Runner
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import orjson
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from app.cli import embedded, schema
from app.cli.bench import service
from app.cli.bench.extraction import Figures, measure_extraction
from app.cli.bench.growth import measure_growth
from app.cli.bench.load import BenchFailed, Timing
from app.cli.bench.night import measure_night
from app.cli.bench.parts import Report, Size, model_part, service_part
from app.cli.bench.service import Service

Part = Literal["model", "service", "growth", "extraction", "night"]
PARTS: Final[dict[Part, tuple[str, Callable[[Service, Size], Coroutine[Any, Any, Report]]]]] = {
    "model": ("bundled", model_part),
    "service": ("hashing", service_part),
}
PERCENTS: Final = (50, 95, 99)


def bench(  # noqa: PLR0913, PLR0917 - the options of a command are its user's
    only: Annotated[
        Part | None,
        typer.Option(help="Run one part: model (bundled), service, growth, extraction or night (hashing)."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=30, help="Length of each search phase.")] = 4.0,
    users: Annotated[int, typer.Option(min=1, max=80, help="Concurrent users.")] = 50,
    memories: Annotated[int, typer.Option(min=4, max=1000, help="Memories of each user (part service).")] = 200,
    rows: Annotated[int, typer.Option(min=100, max=1_000_000, help="Memories of the largest subject (growth).")] = (
        100_000
    ),
    store: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder that keeps what part growth fills, for the next run.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes of the API.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure a service of its own, on an embedded PostgreSQL in a temporary folder, beside plain SQL of the same run.

    Part `model`: concurrent sessions write 5 memories each, then search, embedding included. Part `service`: users ×
    memories with an embedder that costs nothing, so that only the service is measured. Part `growth`: what a search
    costs as subjects and stores grow, and what the vector index finds. Part `extraction`: conversations accepted and
    waited for, and how fast a worker drains them, by rules and with a language model of 800 ms. Part `night`: searches
    by day and during the clean-up.
    """
    size = Size(users, memories, seconds)
    with tempfile.TemporaryDirectory(prefix="mneme-bench-") as folder:
        directory = Path(folder)
        server = embedded.start(directory / "postgres")
        try:
            reports = [measure(server, directory, part, size, processes) for part in PARTS if only in (None, part)]
            if only in (None, "growth"):
                reports.append(measure_growth(directory, size, rows, processes, store))
            if only in (None, "night"):
                reports.append(measure_night(server, directory, size, processes))
            conversations = only in (None, "extraction")
            extraction = measure_extraction(server, directory, size, processes) if conversations else None
        except BenchFailed as error:
            print(f"mneme: {error}", file=sys.stderr)
            raise typer.Exit(1) from error
        finally:
            embedded.stop(server.directory)
    if as_json:
        documents = [document(report) for report in reports]
        documents += [extraction.document()] if extraction else []
        print(orjson.dumps(documents, option=orjson.OPT_INDENT_2).decode())
    else:
        for report in reports:
            _print(report)
        if extraction:
            _print_extraction(extraction)


def measure(server: embedded.EmbeddedServer, data_dir: Path, part: Part, size: Size, processes: int = 1) -> Report:
    """Run one part against a fresh database of `server`; raises BenchFailed or StartupRefused."""
    _, url = schema.prepare(server, f"mneme_bench_{part}")
    with service.running(server, url, data_dir, PARTS[part][0], processes) as running:
        return run_part(running, part, size)


def run_part(running: Service, part: Part, size: Size) -> Report:
    """Run one part against a running service."""
    gc.collect()
    gc.freeze()
    with Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(PARTS[part][1](running, size))


def document(report: Report) -> dict[str, object]:
    return {
        "part": report.part,
        "timings": {
            phase: {"service": _figures(timings[0]), "plain_sql": _figures(timings[1])}
            for phase, timings in report.timings.items()
        },
        "targets": [
            {"name": target.name, "value": round(target.value, 3), "most": target.most, "unit": target.unit,
             "met": target.met}
            for target in report.targets
        ],
        "cpu_seconds": report.usage,
        "memory_mb": {"api_peak": round(report.api_peak_mb), "database": round(report.database_mb)},
        "memories": report.stored,
        "tables": report.tables,
    }  # fmt: skip


def _figures(timing: Timing) -> dict[str, float]:
    return {
        "count": len(timing.milliseconds),
        "per_second": round(timing.per_second, 1),
        **{f"p{percent}_ms": round(timing.percentile(percent), 3) for percent in PERCENTS},
    }


def _print_extraction(figures: Figures) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("phase", title="part extraction: milliseconds, operations a second", title_justify="left")
    for heading in (*(f"p{percent}" for percent in PERCENTS), "a second"):
        table.add_column(heading, justify="right")
    for name, timing in figures.timings.items():
        table.add_row(name, *(f"{timing.percentile(percent):.1f}" for percent in PERCENTS), f"{timing.per_second:,.0f}")
    for name, (count, seconds) in figures.drained.items():
        table.add_row(f"a worker, {name}: {count:,} in {seconds:.1f} s", "", "", "", f"{count / seconds:,.1f}")
    console.print(table)


def _print(report: Report) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    times = Table(
        "phase",
        "",
        title=f"part {report.part}: milliseconds; times: how many more the plain SQL does in a second",
        title_justify="left",
    )
    for heading in (*(f"p{percent}" for percent in PERCENTS), "a second", "times"):
        times.add_column(heading, justify="right")
    for phase, timings in report.timings.items():
        ratio = timings[1].per_second / timings[0].per_second
        for name, timing, last in zip(("service", "plain SQL"), timings, (f"{ratio:.1f}", ""), strict=True):
            figures = (f"{timing.percentile(percent):.2f}" for percent in PERCENTS)
            times.add_row(phase if last else "", name, *figures, f"{timing.per_second:,.0f}", last)
    console.print(times)

    targets = Table("target", title="targets (x: times the plain SQL)", title_justify="left")
    for heading in ("value", "at most", ""):
        targets.add_column(heading, justify="right")
    for target in report.targets:
        verdict = "[green]ok[/]" if target.met else "[red]missed[/]"
        targets.add_row(target.name, f"{target.value:.1f} {target.unit}", f"{target.most:g} {target.unit}", verdict)
    console.print(targets)

    costs = Table("CPU seconds", title_justify="left")
    for heading in ("API", "model", "database", "load"):
        costs.add_column(heading, justify="right")
    for phase, used in report.usage.items():
        costs.add_row(phase, *(f"{value:.2f}" for value in (used.api, used.model, used.database, used.load)))
    console.print(costs)
    _print_tables(console, report)
    stored = ", ".join(f"{count:,} {status}" for status, count in report.stored.items())
    console.print(
        f"Peak memory: API{' with model' if report.part == 'model' else ''} {report.api_peak_mb:,.0f} MB, "
        f"database {report.database_mb:,.0f} MB. Memories: {stored}.\n"
    )


def _print_tables(console: Console, report: Report) -> None:
    for title, rows in report.tables.items():
        table = Table("", title=title, title_justify="left")
        columns = list(next(iter(rows.values())))
        for column in columns:
            table.add_column(column, justify="right")
        for name, values in rows.items():
            table.add_row(name, *(f"{values[column]:.3g}" for column in columns))
        console.print(table)
