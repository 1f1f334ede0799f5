"""`mneme jobs`: which jobs there are and what they did; running one here and now; undoing what a run did."""

import importlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import orjson
import structlog
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from app.cli.connect import tenants_meant, with_database
from app.cli.progress import SECONDS_A_LINE
from app.clock import now
from app.consolidate import undo_consolidation
from app.database import Database
from app.errand import Change, Errand
from app.errors import EXIT_HELD
from app.forget import undo_cooling, undo_run
from app.runs import history as runs_of
from app.settings import Settings

app = typer.Typer(no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of a job, from `mneme jobs list`.")]
TenantOption = Annotated[UUID | None, typer.Option("--tenant", help="Only this tenant; default: all.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress and no summary.")]
ACTOR: Final = "command"
WIDTH: Final = 160  # where there is no terminal


@app.command("list")
def list_all(as_json: JsonOption = False) -> None:
    """Print every job: when it runs, when next, and how it ran last."""

    async def action(settings: Settings, database: Database) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = await _workers().list_jobs(settings, database)
        return jobs

    jobs = with_database(action)
    if as_json:
        _print_lines(jobs)
        return
    table = _table("job", "runs", "next", "last run", "what it does")
    for job in jobs:
        table.add_row(job["job"], job["schedule"], _moment(job["next_at"]), _last(job["last_run"]), job["meaning"])
    _print(table)


@app.command()
def run(
    name: NameArgument,
    once: Annotated[bool, typer.Option("--once", help="Run once, now; that is what it does anyway.")] = True,
    if_due: Annotated[
        bool, typer.Option("--if-due", help="Only if its slot has not had its run yet: for cron beside workers.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what a run would do.")] = False,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a job here and now, under the lease that the workers use, and print every memory it changes.

    Ends with exit code 75 when a run of this job goes on elsewhere.
    """
    del once
    workers = _workers()
    wanted = workers.Wanted(name, tenant, dry_run, if_due)
    if (why := workers.refusal(wanted)) is not None:
        raise typer.BadParameter(why)
    log_trouble_only()

    async def action(settings: Settings, database: Database) -> tuple[str, Errand]:
        await tenants_meant(database, tenant)
        with _progress(name, quiet=quiet) as watch:
            ended: tuple[str, Errand] = await workers.run_job(
                settings, database, wanted, tell=_tell_json if as_json else _tell, watch=watch
            )
            return ended

    outcome, errand = with_database(action)
    if outcome == "held":
        print(f"mneme: a run of {name} goes on elsewhere", file=sys.stderr)
        raise typer.Exit(EXIT_HELD)
    if not quiet:
        print(_summary(name, outcome, errand), file=sys.stderr)


@app.command()
def history(
    name: Annotated[str | None, typer.Argument(help="Only this job.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most runs.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Print the runs of the last 30 days, the latest first."""

    async def action(_: Settings, database: Database) -> list[dict[str, Any]]:
        return await runs_of(database, job=name, limit=limit)

    runs = with_database(action)
    if as_json:
        _print_lines(runs)
        return
    table = _table("run", "job", "slot", "state", "took", "by", "did")
    for one in runs:
        did = " ".join(f"{key}={value}" for key, value in one["counts"].items())
        table.add_row(
            str(one["run_id"] or "-"), one["job"], _moment(one["slot"]), _state(one), _took(one),
            one["actor"] or "schedule", f"{'dry ' if one['dry_run'] else ''}{one['error'] or did}",
        )  # fmt: skip
    _print(table)


@app.command()
def undo(
    run_id: Annotated[UUID, typer.Argument(metavar="RUN", help="Id of the run, from `mneme jobs history`.")],
    tenant: TenantOption = None,
) -> None:
    """Bring back what a run archived, merged, overruled or made cold, if it was not purged; put away its summaries."""

    async def action(_: Settings, database: Database) -> tuple[int, int]:
        tenants = [one.tenant_id for one in await tenants_meant(database, tenant)]
        undone = [
            await undo(database, one, run_id, actor=ACTOR, now=now())
            for one in tenants
            for undo in (undo_run, undo_consolidation)
        ]
        queued = sum([await undo_cooling(database, one, run_id, now=now()) for one in tenants])
        return queued + sum(one.restored for one in undone), sum(one.left for one in undone)

    log_trouble_only()
    restored, left = with_database(action)
    print(f"{restored} brought back, {left} left: others stand in their place")


async def run_here(
    settings: Settings, database: Database, name: str, *, watch: Callable[[Errand], None]
) -> tuple[str, Errand]:
    """Run a job once in this process, under its lease; returns as workers.command.run_job does."""
    workers = _workers()
    ended: tuple[str, Errand] = await workers.run_job(settings, database, workers.Wanted(name), tell=_tell, watch=watch)
    return ended


def _table(*headings: str) -> Table:
    """Only the last column is broken into lines: what stands in the others is to be copied."""
    *whole, last = headings
    return Table(*(Column(heading, no_wrap=True) for heading in whole), last, box=None, pad_edge=False)


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)


def log_trouble_only() -> None:
    """What a worker would log of a run is printed here, or is its summary."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def _workers() -> Any:
    return importlib.import_module("workers.command")


def _tell(_: Errand, change: Change) -> None:
    print(f"{change.memory_id}  {change.before} -> {change.after}  {change.rule}: {change.reason}")


def _tell_json(_: Errand, change: Change) -> None:
    _print_lines([asdict(change)])


def _print_lines(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(orjson.dumps(row, default=str, option=orjson.OPT_UTC_Z).decode())


@contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[Callable[[Errand], None]]:
    """On standard error: on a terminal a line that moves, elsewhere a JSON line every five seconds."""
    console = Console(stderr=True)
    if quiet:
        yield lambda _: None
        return
    if not console.is_terminal:
        yield _lines(name)
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(name)
        yield lambda errand: shown.update(task, description=f"{name}  {errand.stands_at}  {_counts(errand)}")


def _lines(name: str) -> Callable[[Errand], None]:
    said_at = time.monotonic()

    def watch(errand: Errand) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= SECONDS_A_LINE:
            said_at = time.monotonic()
            line = {"job": name, "run_id": errand.run_id, "at": errand.stands_at, "counts": dict(errand.counts)}
            print(orjson.dumps(line, default=str).decode(), file=sys.stderr, flush=True)  # a driver's own UUID

    return watch


def _summary(name: str, outcome: str, errand: Errand) -> str:
    if outcome == "done":
        return f"{name}: this slot has had its run"
    dry = " (dry: nothing was changed)" if errand.dry_run else ""
    return f"{name}: {_counts(errand) or 'nothing to do'}{dry}; run {errand.run_id}"


def _counts(errand: Errand) -> str:
    return ", ".join(f"{name} {count}" for name, count in errand.counts.items())


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


def _last(run: dict[str, Any] | None) -> str:
    return "-" if run is None else f"{_state(run)} {_moment(run['started_at'])}"


def _state(run: dict[str, Any]) -> str:
    return "abandoned" if run["abandoned"] else str(run["state"])


def _took(run: dict[str, Any]) -> str:
    return "-" if run["finished_at"] is None else f"{(run['finished_at'] - run['started_at']).total_seconds():.1f} s"
