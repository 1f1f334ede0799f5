"""mneme simulate: a tiny year through the command's own code, its known truth, and its picture."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from app.cli import embedded
from app.cli.simulate import command
from app.cli.simulate.lives import MONTH_DAYS, START, Lives
from app.cli.simulate.plot import draw
from app.cli.simulate.store import Month, share_within
from app.remember import NewMemory
from tests.conftest import TEMPLATE, administer

SUBJECTS, WRITES, MONTHS = 5, 90, 2


def test_with_the_jobs_less_is_kept_and_the_truth_is_still_found(
    cluster: embedded.EmbeddedServer, passable_directory: Path, tmp_path: Path
) -> None:
    for name in command.STORES.values():
        administer(
            cluster.url(embedded.SUPERUSER, "postgres"), f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}"
        )  # fmt: skip
    days: list[tuple[int, int]] = []
    lives = Lives(SUBJECTS, WRITES, MONTHS)
    told: list[tuple[str, Month]] = []
    year = command.live(
        cluster, passable_directory, lives, lambda *done: days.append(done), lambda *month: told.append(month)
    )
    assert told == [(name, months[number]) for number in range(MONTHS) for name, months in year.items()]
    assert days == [(number, MONTHS * MONTH_DAYS) for number in range(1, MONTHS * MONTH_DAYS + 1)]
    kept, left = year[command.WITH][-1], year[command.WITHOUT][-1]
    assert kept.month == left.month == MONTHS
    assert kept.written == left.written == WRITES
    assert left.archived == 0 < kept.archived
    assert kept.active < left.active
    forgotten = sum(month.jobs["forget"] for month in year[command.WITH])
    assert kept.archived == forgotten - sum(month.jobs["purge"] for month in year[command.WITH])
    assert left.jobs == {}
    assert kept.questions == left.questions > 5  # of the last month
    assert kept.found_10 is not None
    assert left.found_10 is not None
    assert min(kept.found_10, left.found_10) >= 0.9
    assert kept.p95_ms is not None
    assert kept.p95_ms > 0
    command.show(year)
    draw(year, "a tiny year", tmp_path / "year.png")
    assert (tmp_path / "year.png").read_bytes().startswith(b"\x89PNG")


def lived(seed: int) -> tuple[Lives, list[NewMemory]]:
    lives = Lives(20, 2_000, 12, seed)
    return lives, [memory for day in lives.days() for memory in day.writes]


def test_a_seed_is_a_year() -> None:
    assert lived(1)[1] == lived(1)[1] != lived(2)[1]


def test_the_truth_is_what_was_told_last() -> None:
    lives, told = lived(0)
    last: dict[tuple[str | None, str], str] = {}
    changed = 0
    for memory in told:
        if (meaning := lives.meaning(str(memory.user_id), memory.content)) is not None:
            before = last.get((memory.user_id, meaning[0]), meaning[1])
            changed += before != meaning[1]
            last[memory.user_id, meaning[0]] = meaning[1]
    assert changed > 10
    assert {place: lives.truth(str(place[0]), place[1]) for place in last} == last
    assert len(last) > 100


def test_every_customer_asks_in_the_own_tongue_and_the_first_ones_most() -> None:
    asked = [(question, day.at) for day in Lives(20, 2_000, 12).days() for question in day.questions]
    assert all(START <= question.told_at <= at for question, at in asked)
    counts = [sum(question.user_id == f"customer {number}" for question, _ in asked) for number in range(20)]
    assert sum(counts[:5]) > 2 * sum(counts[15:])
    chinese = {question.user_id for question, _ in asked if not question.text.isascii()}
    assert chinese == {f"customer {number}" for number in range(1, 20, 2)}


@pytest.mark.parametrize(
    ("places", "most", "share"), [([0, 4, None, 7], 5, 0.5), ([0, 4, None, 7], 10, 0.75), ([], 5, None)]
)
def test_shares(places: Sequence[int | None], most: int, share: float | None) -> None:
    assert share_within(places, most) == share


def test_told_to_end_it_stops_its_server_and_leaves_nothing(passable_directory: Path) -> None:
    """As every command does that starts one: eval, bench."""
    told = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "simulate", "--subjects", "2", "--writes", "40"],
        env=os.environ | {"TMPDIR": str(passable_directory)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        marks = "mneme-simulate-*/postgres/postmaster.pid"
        while not (found := list(passable_directory.glob(marks))) or "ready" not in found[0].read_text():
            assert told.poll() is None
            time.sleep(0.1)
        server = int(found[0].read_text().split()[0])
        told.send_signal(signal.SIGTERM)
        assert told.wait(60) == 130
    finally:
        told.kill()
    with suppress(psutil.NoSuchProcess):  # nobody may have buried it yet
        assert psutil.Process(server).status() == psutil.STATUS_ZOMBIE
    assert list(passable_directory.glob("mneme-simulate-*")) == []
