"""Real processes of the service and a real server of their own, to be killed, frozen and started again.

They are forked from a process that has imported everything already, so a start takes tenths of a second. Only what was
started here is stopped here.
"""

import asyncio
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from app.cli import embedded
from app.errors import StartupRefused

PATIENCE_SECONDS: Final = 60.0
"""How long anything may take on a loaded machine before it counts as never."""

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["app.main", "workers.__main__", "tests.faults.processes"])


def serve() -> None:
    """What `mneme serve` runs."""
    from app.main import serve as run  # noqa: PLC0415 - in the fork only
    from app.settings import load_settings  # noqa: PLC0415

    run(load_settings())


def work() -> None:
    """What `mneme worker` runs."""
    from workers.__main__ import main  # noqa: PLC0415 - in the fork only

    main()


def _enter(run: Callable[[], None], environment: Mapping[str, str], log: str, more_bytes: int | None) -> None:
    os.environ.update(environment)
    if more_bytes is not None:
        taken = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (taken + more_bytes, taken + more_bytes))
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    run()


@dataclass
class Process:
    """One process of the service, with its environment and its log.

    `more_bytes`: so much memory it may take besides what it begins with.
    """

    run: Callable[[], None]
    environment: dict[str, str]
    log: Path
    more_bytes: int | None = None
    _process: Any = None

    def start(self) -> None:
        arguments = self.run, self.environment, str(self.log), self.more_bytes
        self._process = _forks.Process(target=_enter, args=arguments, daemon=True)
        self._process.start()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def process_id(self) -> int:
        return int(self._process.pid)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()

    def freeze(self) -> None:
        os.kill(self.process_id, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process_id, signal.SIGCONT)

    def said(self, event: str) -> int:
        """How many lines of its log tell of this event."""
        return self.log.read_text().count(f'"event":"{event}"') if self.log.exists() else 0

    def stop(self) -> int:
        """Ask it to end, and return its exit code; one that does not end is killed."""
        if self.alive:
            with suppress(ProcessLookupError):
                self.thaw()
            self._process.terminate()
            self._process.join(PATIENCE_SECONDS)
        if self.alive:
            self.kill()
        return int(self._process.exitcode) if self._process is not None else 0


@dataclass
class Server:
    """An embedded PostgreSQL that no other test uses."""

    directory: Path

    def start(self) -> embedded.EmbeddedServer:
        return embedded.start(self.directory)

    def stop(self) -> None:
        self.thaw()
        embedded.stop(self.directory)

    @property
    def alive(self) -> bool:
        return embedded.postmaster(self.directory) is not None

    def kill(self) -> None:
        """kill -9 of the postmaster; what it leaves behind ends by itself."""
        os.kill(self._postmaster().pid, signal.SIGKILL)

    def kill_backend(self) -> bool:
        """kill -9 of one backend of the service, whatever it does; False if there is none now."""
        backends = [each for each in self._postmaster().children() if "mneme" in " ".join(each.cmdline())]
        for backend in sorted(backends, key=lambda each: "COMMIT" not in " ".join(each.cmdline())):
            with suppress(psutil.NoSuchProcess):
                backend.kill()
                return True
        return False

    def freeze(self) -> None:
        """SIGSTOP of the server and all its processes."""
        for process in self._all():
            process.suspend()

    def thaw(self) -> None:
        if self.alive:
            for process in self._all():
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def _postmaster(self) -> psutil.Process:
        process_id = embedded.postmaster(self.directory)
        assert process_id is not None, "the server does not run"
        return psutil.Process(process_id)

    def _all(self) -> list[psutil.Process]:
        postmaster = self._postmaster()
        return [postmaster, *postmaster.children(recursive=True)]


@dataclass
class Keeper:
    """Starts again whatever died, as an init system does, and nothing else: no repair, no order, no waiting."""

    server: Server
    processes: Sequence[Process]
    restarts: int = 0
    _task: "asyncio.Task[None] | None" = field(default=None)

    async def _keep(self) -> None:
        while True:
            if not self.server.alive:
                await asyncio.to_thread(self._revive_server)
            for process in self.processes:
                if not process.alive:
                    self.restarts += 1
                    await asyncio.to_thread(process.start)
            await asyncio.sleep(0.1)

    def _revive_server(self) -> None:
        with suppress(StartupRefused):  # tried again
            self.server.start()
            self.restarts += 1


@asynccontextmanager
async def kept(server: Server, *processes: Process) -> AsyncIterator[Keeper]:
    """Run processes, and start again what dies, until the end; then all but the server are stopped."""
    keeper = Keeper(server, processes)
    task = asyncio.create_task(keeper._keep())
    try:
        yield keeper
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in processes if process._process))


async def until(
    true: Callable[[], bool | Awaitable[bool]], what: str, patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Wait for something that happens by itself; the time limit is only for what never does."""
    deadline = time.monotonic() + patience_seconds
    while True:
        answer = true()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.05)
