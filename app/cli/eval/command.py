"""The command: finds the sets, starts a service of its own unless a URL is given, prints tables or JSON."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated

import httpx2
import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.cli.eval.run import ARMS, FUSED, Outcome, connected, evaluate_set
from app.cli.eval.sets import GROUPS, Measures, find_sets, read_set
from app.errors import StartupRefused
from app.settings import API_KEY, PREFIX, variable

READY_SECONDS = 180.0
STOP_SECONDS = 60.0
CONCURRENCY = 16


def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder of retrieval sets, or one set.", exists=True, file_okay=False)],
    url: Annotated[str | None, typer.Option(help="A running service; without one, one is started and removed.")] = None,
    sets: Annotated[list[str] | None, typer.Option(help="Only this set (may be repeated).")] = None,
    most_queries: Annotated[int | None, typer.Option(min=1, help="At most so many queries a set.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure retrieval over HTTP with the default profile, beside its single arms and their rank fusion.

    An API key for --url is read from MNEME_API_KEY. Importance and creation time are the same for all rows, so only
    relevance is measured. Sets of which a known mean consists are named in its line.
    """
    folders = find_sets(folder, sets or ())
    with contextlib.nullcontext(url) if url else _own_service() as address:
        outcomes = asyncio.run(_all(address, folders, most_queries, quiet=as_json))
    if as_json:
        document = {"sets": [asdict(one) for one in outcomes], "means": _means(outcomes)}
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(outcomes)


async def _all(url: str, folders: Sequence[Path], most_queries: int | None, *, quiet: bool) -> list[Outcome]:
    run = secrets.token_hex(4)
    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:
        async with connected(url, os.environ.get(API_KEY), CONCURRENCY) as api:
            for folder in folders:
                retrieval = read_set(folder, most_queries)
                total = len(retrieval.memories) + len(retrieval.questions)
                task = progress.add_task(retrieval.name, total=total)
                outcome = await evaluate_set(api, retrieval, run, partial(progress.advance, task))
                outcomes.append(outcome)
                if not quiet:  # in a log, so that an hour's figures are not lost with its last minute
                    figures = (f"{arm} {measured.ndcg_10:.3f}" for arm, measured in outcome.measures.items())
                    console.print(f"{outcome.name}: nDCG@10 {', '.join(figures)}")
    return outcomes


def _means(outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean over sets of every measure and arm: over the known groups that are complete, and over all."""
    by_name = {one.name: one for one in outcomes}
    groups = {title: names for title, names in GROUPS.items() if set(names) <= set(by_name)}
    if len(by_name) > 1 and set(by_name) not in map(set, groups.values()):
        groups[f"all {len(by_name)} sets"] = tuple(by_name)
    return {
        title: {
            arm: {
                one.name: sum(getattr(by_name[name].measures[arm], one.name) for name in names) / len(names)
                for one in fields(Measures)
            }
            for arm in (*ARMS, FUSED)
        }
        for title, names in groups.items()
    }


def _print(outcomes: Sequence[Outcome]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("set", title="default profile, and nDCG@10 of other rankings of the same run", title_justify="left")
    for heading in ("queries", "nDCG@10", "Recall@5", "Recall@10", "MRR", "dense", "keyword", FUSED):
        table.add_column(heading, justify="right")
    for one in outcomes:
        figures = asdict(one.measures["default"]).values()
        others = (one.measures[arm].ndcg_10 for arm in (*ARMS, FUSED) if arm != "default")
        table.add_row(one.name, str(one.queries), *(f"{value:.3f}" for value in (*figures, *others)))
    table.add_section()
    for title, means in _means(outcomes).items():
        others = (means[arm]["ndcg_10"] for arm in (*ARMS, FUSED) if arm != "default")
        table.add_row(f"mean of {title}", "", *(f"{value:.4f}" for value in (*means["default"].values(), *others)))
    console.print(table)
    for one in outcomes:
        if unusual := {name: count for name, count in one.stored.items() if name != "created"}:
            console.print(f"{one.name}: {', '.join(f'{count} rows {name}' for name, count in unusual.items())}")
        if one.degraded:
            console.print(f"{one.name}: [red]{one.degraded} degraded answers[/]")


@contextlib.contextmanager
def _own_service() -> Iterator[str]:
    """Start `mneme up` on free ports with a temporary data directory, yield its address when ready, and stop it.

    It has all the time it wants for vectors: this measures quality, not speed.
    """
    with tempfile.TemporaryDirectory(prefix="mneme-eval-") as folder:
        port, metrics_port = _free_ports(2)
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)} | {
            variable(("data_dir",)): folder,
            variable(("api", "port")): str(port),
            variable(("worker", "metrics_port")): str(metrics_port),
            variable(("remember", "embedding_deadline_seconds")): "100",
            variable(("recall", "embedding_deadline_seconds")): "100",
        }
        log = Path(folder) / "up.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "up"],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, address, log)
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx2.HTTPError):
            if httpx2.get(f"{address}/readyz", timeout=2).status_code == 200:
                return
        time.sleep(0.2)
    raise StartupRefused(f"the service does not start:\n{log.read_text()[-2000:]}", dependency=True)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
