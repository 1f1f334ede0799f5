"""Real worker processes on one database: as many runs as slots, and nobody is missed when one is killed (R37)."""

import asyncio
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest

PROBE = Path(__file__).with_name("probe.py")
Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def start(database_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Start a worker with the probe's job; whatever was started is ended."""
    started: list[asyncio.subprocess.Process] = []

    async def start(*arguments: str, lease_seconds: str = "1") -> asyncio.subprocess.Process:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MNEME_")} | {
            "MNEME_DATABASE__URL": database_url,
            "MNEME_DATABASE__POOL_SIZE": "2",
            "MNEME_WORKER__METRICS_PORT": str(port),
            "MNEME_WORKER__LEASE_SECONDS": lease_seconds,
            "MNEME_WORKER__DRAIN_SECONDS": "0.2",
            "PYTHONPATH": str(Path.cwd()),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROBE), *arguments, env=environment, cwd=tmp_path, stdout=asyncio.subprocess.DEVNULL
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


def lines(file: Path) -> list[tuple[str, str]]:
    text = file.read_text(encoding="ascii") if file.exists() else ""
    return [(slot, run_id) for slot, run_id in (line.split() for line in text.splitlines())]


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - another process sets no event here
            await asyncio.sleep(0.05)


async def test_three_processes_run_ten_slots_ten_times(start: Start, tmp_path: Path) -> None:
    file, name = tmp_path / "runs", f"probe-{uuid4().hex}"
    processes = [await start(str(file), name, "0.4") for _ in range(3)]
    await until(lambda: len({slot for slot, _ in lines(file)}) >= 10)
    for process in processes:
        process.terminate()
    assert [await process.wait() for process in processes] == [0, 0, 0]
    runs = Counter(slot for slot, _ in lines(file))
    assert [runs[slot] for slot in sorted(runs)[:10]] == [1] * 10


async def test_a_killed_process_is_followed_by_another_on_the_same_run(start: Start, tmp_path: Path) -> None:
    file, name = tmp_path / "runs", f"probe-{uuid4().hex}"
    day = "86400"
    first = await start(str(file), name, day, "hang")
    await until(lambda: len(lines(file)) == 1)
    second = await start(str(file), name, day)
    first.send_signal(signal.SIGKILL)
    await first.wait()
    await until(lambda: len(lines(file)) == 2, seconds=30)
    second.terminate()
    assert await second.wait() == 0
    (slot, run_id), other = lines(file)
    assert other == (slot, run_id)


async def test_a_process_that_is_told_to_end_gives_its_run_to_another_at_once(start: Start, tmp_path: Path) -> None:
    file, name = tmp_path / "runs", f"probe-{uuid4().hex}"
    day, hour = "86400", "3600"
    first = await start(str(file), name, day, "hang", lease_seconds=hour)
    await until(lambda: len(lines(file)) == 1)
    first.terminate()
    assert await first.wait() == 0
    second = await start(str(file), name, day, lease_seconds=hour)
    await until(lambda: len(lines(file)) == 2)
    second.terminate()
    assert await second.wait() == 0
    (slot, run_id), other = lines(file)
    assert other == (slot, run_id)
