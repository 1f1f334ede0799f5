"""`make soak`: mixed load on the running product; memory, descriptors, threads and connections must stay flat.

The load is steady by itself: as many memories are deleted as are written. Before it, the caches of texts and
connections are filled, as hours of work would fill them; the first third warms up and is not judged.
What still grows in the last third is a leak if it grows as in the middle one, and a cache that fills if it slows down.
"""

import argparse
import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil

from app.cli import embedded
from app.remember.statement import REMEMBERED_TEXTS
from tests.api.test_serve import free_port

USERS, MEMORIES_A_USER, SAMPLE_SECONDS = 12, 40, 5.0
FILLING, CONNECTED, AT_ONCE = REMEMBERED_TEXTS + 1_000, 6_000, 40
# What may be gained in an hour, extrapolated: bytes as a share of what is held, the others in pieces.
MOST_AN_HOUR = {"memory": 0.10, "descriptors": 4.0, "threads": 2.0, "connections": 2.0}
THINGS = ("发票", "the invoice", "路由器", "the router", "会议室", "the bicycle", "合同", "the parcel")
DOINGS = ("已经寄到", "was sent to", "搬到了", "waits in", "丢在了", "was repaired in")
PLACES = ("杭州", "Lisbon", "成都", "Oslo", "西湖边", "the cellar")
QUERIES = tuple(f"{thing} {place}" for thing in THINGS for place in PLACES)
Act = Callable[[str], Awaitable[None]]


class Load:
    """Requests of all sorts, one after the other or side by side, and what became of them."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client, self._random = client, random.Random(6)
        self._numbers = itertools.count()
        self._kept: dict[str, deque[str]] = {f"user{number}": deque() for number in range(USERS)}
        self.answers: Counter[str] = Counter()
        self.seconds: list[float] = []

    async def fill(self) -> None:
        """Write more texts than a process remembers, then all sorts over all connections; who is refused waits."""
        acts = itertools.chain(itertools.repeat(self._write, FILLING), (self._any() for _ in range(CONNECTED)))
        errands = zip(acts, itertools.cycle(self._kept), strict=False)

        async def work() -> None:
            for act, user in errands:
                try:
                    await act(user)
                except httpx2.HTTPStatusError as error:
                    if error.response.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                        raise
                    await asyncio.sleep(1)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    def _any(self) -> Act:
        return self._random.choices((self._write, self._search, self._context, self._talk), (4, 4, 1, 1))[0]

    def _text(self) -> str:
        pick = self._random.choice
        return f"{pick(THINGS)} {pick(DOINGS)} {pick(PLACES)}, case-{next(self._numbers)}"

    async def one(self) -> None:
        """Any request; failures are counted."""
        user = self._random.choice(list(self._kept))
        act, started = self._any(), time.perf_counter()
        try:
            await act(user)
            self.answers["ok"] += 1
        except (httpx2.HTTPError, AssertionError) as error:
            self.answers[f"{act.__name__}: {type(error).__name__}: {error}"[:120]] += 1
        self.seconds.append(time.perf_counter() - started)

    async def _post(self, path: str, body: dict[str, object]) -> httpx2.Response:
        answer = await self._client.post(path, json=body)
        answer.raise_for_status()
        return answer

    async def _write(self, user: str) -> None:
        written = await self._post("/v1/memories", {"user_id": user, "content": self._text()})
        kept = self._kept[user]
        if written.status_code == 201:
            kept.append(written.json()["id"])
        if len(kept) > MEMORIES_A_USER:
            gone = await self._client.delete(f"/v1/memories/{kept.popleft()}")
            assert gone.status_code in {204, 404}, gone.status_code

    async def _search(self, user: str) -> None:
        body = {"user_id": user, "query": self._random.choice(QUERIES), "top_k": 5}
        if self._random.random() < 0.3:
            body["filters"] = {"kinds": ["interaction_history"]}  # not from memory
        await self._post("/v1/memories:search", body)

    async def _context(self, user: str) -> None:
        await self._post("/v1/context", {"user_id": user, "query": self._random.choice(QUERIES)})

    async def _talk(self, user: str) -> None:
        path = f"/v1/sessions/{user}-{next(self._numbers) % 5}"
        said = [{"role": "user", "content": "今天路由器又坏了"}, {"role": "assistant", "content": "We send somebody."}]
        await self._post(f"{path}/messages", {"user_id": user, "messages": said})


def measured(name: str, processes: list[psutil.Process]) -> dict[str, float]:
    """Private memory in bytes, descriptors and threads of some processes together."""
    return {
        f"{name} memory": float(sum(each.memory_full_info().uss for each in processes)),
        f"{name} descriptors": float(sum(each.num_fds() for each in processes)),
        f"{name} threads": float(sum(each.num_threads() for each in processes)),
    }


def sample(supervisor: psutil.Process, data_dir: Path) -> dict[str, float]:
    """What API, worker and database hold now."""
    children = supervisor.children()
    found: dict[str, float] = {}
    for name, word in (("api", "serve"), ("worker", "worker")):
        found |= measured(name, [each for each in children if word in each.cmdline()])
    postmaster = psutil.Process(embedded.postmaster(data_dir / "postgres"))
    # All together grow whenever a job of the worker meets a connection that has not had its statements: bounded by the
    # fullest, times their number. What leaks in a session leaks most in the busiest.
    held = list(_sessions(postmaster))
    return found | {"fullest session memory": max(held), "database connections": float(len(held))}


def _sessions(postmaster: psutil.Process) -> Iterator[float]:
    for each in postmaster.children():
        with suppress(psutil.NoSuchProcess):  # autovacuum comes and goes
            if " mneme mneme " in " ".join(each.cmdline()):
                yield float(each.memory_full_info().uss)


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def judged(times: list[float], values: list[float], kind: str) -> tuple[float, str]:
    """What a measure gains in an hour by its last third, and what that means: flat, fills (a cache), GROWS."""
    third = len(times) // 3
    hours, found = np.array(times[third:]) / 3600, np.array(values[third:])
    middle, last = (_an_hour(hours[part], found[part]) for part in (slice(None, third), slice(third, None)))
    allowed = MOST_AN_HOUR[kind] * (found.mean() if kind == "memory" else 1)
    # A step within the noise of the samples is no growth, whatever it would be in an hour.
    if last <= allowed or _an_hour(hours, found) * (hours[-1] - hours[0]) <= found.std():
        return last, "flat"
    # Each third gains this share of what the one before gained: a cache goes on so, and all of that together is `left`.
    share = last / middle if middle > 0 else 1.0
    left = last * (hours[-1] - hours[third]) * share / (1 - share) if share < 1 else np.inf
    fills = kind == "memory" and share <= 0.5 and left <= MOST_AN_HOUR[kind] * found.mean()
    return last, "fills" if fills else "GROWS"


def _an_hour(hours: "np.ndarray[Any, Any]", values: "np.ndarray[Any, Any]") -> float:
    return float(np.polyfit(hours, values, 1)[0])


def verdict(times: list[float], samples: list[dict[str, float]]) -> bool:
    """Print what each measure gains in an hour, and say whether none grows without end."""
    start, flat = len(times) // 3, True
    for name in samples[-1]:
        kind, values = name.split()[-1], [one[name] for one in samples]
        gained, meaning = judged(times, values, kind)
        flat = flat and meaning != "GROWS"
        scale, unit = (2**20, " MiB") if kind == "memory" else (1, "")
        first, last, most = (value / scale for value in (values[start], values[-1], max(values[start:])))
        say(
            f"{name:22} first {first:8.1f} last {last:8.1f} highest {most:8.1f}{unit:4}"
            f" gains {gained / scale:+8.2f}{unit} an hour: {meaning}"
        )
    return flat


@contextmanager
def product(data_dir: Path) -> Iterator[tuple[psutil.Process, str]]:
    """`mneme up` as operations start it, on free ports."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MNEME_")} | {
        "MNEME_DATA_DIR": str(data_dir),
        "MNEME_API__PORT": str(port),
        "MNEME_WORKER__METRICS_PORT": str(free_port()),
    }
    with (data_dir / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", "up"], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + 300
            while not ready(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"mneme up does not come up, see {log.name}")
                time.sleep(1)
            yield psutil.Process(process.pid), f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def ready(port: int) -> bool:
    """Whether the API answers that it is."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx2.HTTPError:
        return False


async def soak(minutes: float, rate: float) -> bool:
    """Load at `rate` requests a second; whether nothing failed and nothing grew."""
    with tempfile.TemporaryDirectory(prefix="mneme-soak-") as directory:
        os.chmod(directory, 0o755)  # noqa: PTH101 - one system call; the database is another user
        with product(Path(directory)) as (supervisor, url):
            async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
                load, times, samples = Load(client), list[float](), list[dict[str, float]]()
                await load.fill()
                started, tasks = time.monotonic(), set[asyncio.Task[None]]()
                for number in itertools.count():
                    due = number / rate
                    if due > minutes * 60:
                        break
                    await asyncio.sleep(max(0.0, started + due - time.monotonic()))
                    tasks.add(task := asyncio.create_task(load.one()))
                    task.add_done_callback(tasks.discard)
                    elapsed = time.monotonic() - started
                    if elapsed >= len(samples) * SAMPLE_SECONDS:
                        times.append(elapsed)
                        samples.append(await asyncio.to_thread(sample, supervisor, Path(directory)))
                await asyncio.gather(*tasks)
    flat = verdict(times, samples)
    fast, slow = np.quantile(load.seconds, (0.5, 0.99)) * 1000
    say(f"{len(load.seconds)} requests in {minutes:g} min, p50 {fast:.0f} ms, p99 {slow:.0f} ms: {dict(load.answers)}")
    good = flat and set(load.answers) == {"ok"}
    say("verdict: " + ("flat" if good else "NOT flat" if not flat else "requests failed"))
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    given = parser.parse_args()
    sys.exit(not asyncio.run(soak(given.minutes, given.rate)))
