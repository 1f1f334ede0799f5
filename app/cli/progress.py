"""How long work shows how far it is: a bar for people, a JSON line every five seconds for machines, or nothing."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import orjson
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

SECONDS_A_LINE: Final = 5.0
Shown = Callable[[int, int], None]


@contextmanager
def progress(step: str, *, quiet: bool = False, counted: bool = False) -> Iterator[Shown]:
    """Give a function that is told how much is done and how much there is (0: unknown); bytes, or `counted` things.

    On a terminal a bar, elsewhere JSON lines with step, done and total, both on standard error; `quiet`: nothing.
    """
    if quiet:
        yield lambda *_: None
    elif sys.stderr.isatty():
        columns = (
            (TextColumn("{task.completed:.0f} of {task.total}"),)
            if counted
            else (DownloadColumn(), TransferSpeedColumn())
        )
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), *columns, TimeElapsedColumn(), console=Console(stderr=True)
        )
        with bar:
            task = bar.add_task(step, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total or None)
    else:
        yield _lines(step)


def _lines(step: str) -> Shown:
    said_at = time.monotonic()

    def shown(done: int, total: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= SECONDS_A_LINE:
            said_at = time.monotonic()
            sys.stderr.write(orjson.dumps({"step": step, "done": done, "total": total}).decode() + "\n")
            sys.stderr.flush()

    return shown
