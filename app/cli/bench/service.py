"""The service under test: a database and an API process of its own, what they use, and their end.

Invariant: only what was started here is looked at and stopped, and it listens on loopback alone.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx2
import psutil

from app.cli import embedded
from app.cli.connect import URL
from app.cli.embedded import EmbeddedServer
from app.errors import StartupRefused
from app.settings import PREFIX, variable

READY_SECONDS = 120.0
STOP_SECONDS = 30.0
MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds so far; the API is the event loops of its processes, the model all of their other threads."""

    api: float
    model: float
    database: float
    load: float

    def since(self, before: "Usage") -> "Usage":
        """What was used in between."""
        return Usage(
            self.api - before.api, self.model - before.model, self.database - before.database, self.load - before.load
        )


@dataclass(frozen=True, slots=True)
class Service:
    """A running API process on a port of this machine, and the server that holds its database."""

    server: EmbeddedServer
    database: str
    port: int
    process_id: int

    def usage(self) -> Usage:
        """CPU seconds of API, model, database and this very process."""
        loop = total = 0.0
        for process in self._api():
            threads = process.threads()
            loop += sum(each.user_time + each.system_time for each in threads if each.id == process.pid)
            total += sum(each.user_time + each.system_time for each in threads)
        return Usage(loop, total - loop, sum(map(_cpu_seconds, self._database())), _cpu_seconds(psutil.Process()))

    def memory_mb(self) -> tuple[float, float]:
        """Peak of the API's processes with their models, and what those of the database hold now, shared pages once."""
        database = 0
        for process in self._database():
            with contextlib.suppress(psutil.Error):
                held = process.memory_full_info()
                database += getattr(held, "pss", held.uss)
        return sum(_peak_bytes(each.pid) for each in self._api()) / MEGABYTE, database / MEGABYTE

    def _api(self) -> list[psutil.Process]:
        started = psutil.Process(self.process_id)
        return [started, *started.children()]

    def _database(self) -> list[psutil.Process]:
        owner = embedded.postmaster(self.server.directory)
        if owner is None:
            raise StartupRefused("the database ended during the bench", dependency=True)
        return [psutil.Process(owner), *psutil.Process(owner).children()]


@contextlib.contextmanager
def running(
    server: EmbeddedServer, url: str, data_dir: Path, provider: str, processes: int = 1,
    settings: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Iterator[Service]:  # fmt: skip
    """Start `mneme serve` on a free port with the database `url`, yield it when all of it is ready, and stop it.

    `settings` are further ones by their path. Raises StartupRefused when it does not start.
    """
    port = _free_port()
    log = data_dir / f"serve-{provider}.log"
    settings = {
        ("api", "port"): str(port), ("api", "processes"): str(processes), ("embed", "provider"): provider, **settings
    }  # fmt: skip
    with _started("serve", url, data_dir, settings, log) as process:
        _wait_until_ready(process, port, processes, log)
        yield Service(server, url.partition("@/")[2].partition("?")[0], port, process.pid)


@contextlib.contextmanager
def working(url: str, data_dir: Path, settings: Mapping[tuple[str, str], str]) -> Iterator[None]:
    """Start `mneme worker` with the hashing embedder, and stop it."""
    settings = {("worker", "metrics_port"): str(_free_port()), ("embed", "provider"): "hashing", **settings}
    with _started("worker", url, data_dir, settings, data_dir / "worker.log"):
        yield


@contextlib.contextmanager
def _started(
    command: str, url: str, data_dir: Path, settings: Mapping[tuple[str, str], str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of the service; its settings come from here alone, not from this command's environment."""
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)} | {
        URL: url,
        variable(("data_dir",)): str(data_dir),
        **{variable(path): value for path, value in settings.items()},
    }
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command; the pipe is its lifeline
            [sys.executable, "-m", "app.cli", command, "--supervised"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, processes: int, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if log.read_text().count('"event":"listening"') == processes:
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == 200:
                    return
        time.sleep(0.1)
    raise StartupRefused(f"the service does not start:\n{log.read_text()[-2000:]}", dependency=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def _peak_bytes(process_id: int) -> int:
    with contextlib.suppress(OSError):  # Linux keeps the peak itself
        for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    resident: int = psutil.Process(process_id).memory_info().rss
    return resident
