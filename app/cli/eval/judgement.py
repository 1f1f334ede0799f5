"""The commands `eval-dedup` and `eval-conflict`: judgement measured on labelled pairs, beside the limits it keeps."""

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.cli.eval.pairs import CONTRADICTION, PairOutcome, find_pairs, measure_pairs
from app.clock import now
from app.embed import load_embedder
from app.settings import load_settings

Folder = Annotated[Path, typer.Argument(help="Folder of sets of pairs, or one set.", exists=True, file_okay=False)]
Sets = Annotated[list[str] | None, typer.Option(help="Only this set (may be repeated).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]

LEAST_RECALL: Final = {"memsim_zh": 0.95}
MOST_FALSE_MERGES: Final = {"memsim_zh": 0.01, "lcqmc_zh": 0.05, "mrpc_en": 0.05, "pawsx_zh": 0.10}
MOST_FALSE_RETIREMENTS: Final = 0.005


def evaluate_dedup(folder: Folder, sets: Sets = None, as_json: AsJson = False) -> None:
    """Measure on pairs labelled 1 and 0 what is taken for a duplicate: the same embedder and functions as a write.

    Exits with 1 when a set that has a limit is beyond it.
    """
    outcomes = asyncio.run(_measured(folder, sets or (), classes=False, quiet=as_json))
    rows = [
        {
            "set": one.name,
            "pairs": one.counts.total(),
            "recall": one.share("same", 1),
            "false_merges": one.share("same", 0),
            "candidates_of_same": one.share("candidate", 1),
            "candidates_of_different": one.share("candidate", 0),
            "overruled_of_same": one.share("retired", 1),
            "overruled_of_different": one.share("retired", 0),
            "kept": one.share("same", 1) >= LEAST_RECALL.get(one.name, 0)
            and one.share("same", 0) <= MOST_FALSE_MERGES.get(one.name, 1),
        }
        for one in outcomes
    ]
    limits = {
        name: (f"recall ≥ {LEAST_RECALL[name]:.2f}, " if name in LEAST_RECALL else "") + f"false ≤ {most:.2f}"
        for name, most in MOST_FALSE_MERGES.items()
    }
    _print("duplicates: the second text of each pair, when the first is stored", rows, limits, as_json=as_json)


def evaluate_conflict(folder: Folder, sets: Sets = None, as_json: AsJson = False) -> None:
    """Measure on pairs labelled contradiction and otherwise what overrules the older text, in both orders, by rules.

    Exits with 1 when more than 0.5 % of the pairs of a set that do not contradict are retired.
    """
    outcomes = asyncio.run(_measured(folder, sets or (), classes=True, quiet=as_json))
    rows = []
    for one in outcomes:
        others = one.labels() - {CONTRADICTION}
        wrong = one.share("retired", *others)
        rows.append(
            {
                "set": one.name,
                "judged": one.counts.total(),
                "recall": one.share("retired", CONTRADICTION),
                "false_retirements": wrong,
                "false_merges_of_contradictions": one.share("same", CONTRADICTION),
                "kept": wrong <= MOST_FALSE_RETIREMENTS,
            }
        )
    limits = {one.name: f"false ≤ {MOST_FALSE_RETIREMENTS}" for one in outcomes}
    _print("conflicts: rules only, either text as the newer one", rows, limits, as_json=as_json)


async def _measured(folder: Path, names: Sequence[str], *, classes: bool, quiet: bool) -> list[PairOutcome]:
    settings = load_settings()
    found = list(find_pairs(folder, names, classes=classes))
    embedder = load_embedder(settings.embed, settings.data_dir)
    await embedder.start()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    outcomes = []
    try:
        with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:
            for name, pairs in found:
                task = progress.add_task(name, total=len({text for pair in pairs for text in (pair.left, pair.right)}))
                outcomes.append(
                    await measure_pairs(
                        name, pairs, embedder, settings.remember, now(),
                        partial(progress.advance, task), both_orders=classes,
                    )
                )  # fmt: skip
    finally:
        await embedder.close()
    return outcomes


def _print(title: str, rows: Sequence[dict[str, Any]], limits: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps({"sets": list(rows)}, option=orjson.OPT_INDENT_2).decode())
    else:
        console = Console(width=None if sys.stdout.isatty() else 140)
        table = Table(title=title, title_justify="left")
        for heading in rows[0]:
            table.add_column("limit" if heading == "kept" else heading.replace("_", " "), justify="right")
        for row in rows:
            limit = limits.get(row["set"], "")
            verdict = "" if not limit else f"{limit}: {'kept' if row['kept'] else '[red]missed[/]'}"
            figures = (f"{value:.4f}" if isinstance(value, float) else str(value) for value in list(row.values())[:-1])
            table.add_row(*figures, verdict)
        console.print(table)
    if not all(row["kept"] for row in rows):
        raise typer.Exit(1)
