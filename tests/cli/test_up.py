"""`mneme up`, the whole of it on real processes: starts, comes back after any kill, stops in order, loses nothing."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil
import pytest

from app.cli import embedded

PATIENCE_SECONDS = 120


@dataclass(slots=True)
class Up:
    """One `mneme up` on a data directory and two free ports."""

    data_dir: Path
    port: int
    metrics_port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.data_dir.with_name(f"{self.data_dir.name}.log")

    def start(self) -> None:
        """Start it and return once it says that it is ready."""
        settings = {
            "MNEME_DATA_DIR": str(self.data_dir),
            "MNEME_API__PORT": str(self.port),
            "MNEME_WORKER__METRICS_PORT": str(self.metrics_port),
            "MNEME_EMBED__PROVIDER": "hashing",
        }
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "app.cli", "up"]
            self.process = subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT)
        self.until(lambda: "Mneme is ready." in self.log.read_text())

    def child(self, name: str) -> psutil.Process:
        """Return the running `mneme <name>` of this `mneme up`."""
        assert self.process is not None
        found = [child for child in psutil.Process(self.process.pid).children() if name in child.cmdline()]
        assert found, f"no `mneme {name}`"
        return found[0]

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that happens by itself; the log says why it does not."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not true():
            ended = self.process is None or self.process.poll() is not None
            assert not ended, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def remember(self, content: str) -> None:
        body = {"user_id": "lin", "content": content}
        assert httpx2.post(f"{self.address}/v1/memories", json=body, timeout=30).status_code == 201

    def remembered(self) -> set[str]:
        answer = httpx2.get(f"{self.address}/v1/memories?user_id=lin", timeout=30).raise_for_status()
        return {memory["content"] for memory in answer.json()["items"]}

    def answers(self, port: int, path: str) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(f"http://127.0.0.1:{port}{path}", timeout=5).status_code == 200
        return False

    def stop(self) -> int:
        """Ask it to end and return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)


@pytest.fixture
def up(passable_directory: Path, request: pytest.FixtureRequest) -> Iterator[Up]:
    port, metrics_port = free_ports(2)
    up = Up(passable_directory / request.node.name, port, metrics_port)
    yield up
    if up.process is not None and up.process.poll() is None:
        up.stop()
    embedded.stop(up.data_dir / "postgres")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in sockets]


def test_it_comes_back_after_the_kill_of_any_part_and_stops_everything(up: Up) -> None:
    up.start()
    up.remember("我对芒果过敏")
    again = subprocess.run(
        [sys.executable, "-m", "app.cli", "up"],
        env=os.environ | {"MNEME_DATA_DIR": str(up.data_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 3
    assert "already runs" in again.stderr
    postgres = embedded.postmaster((up.data_dir / "postgres").resolve())
    assert postgres is not None

    for child in [up.child("worker"), up.child("serve")]:
        child.kill()
    os.kill(postgres, signal.SIGKILL)
    up.until(lambda: not up.answers(up.port, "/readyz"))
    up.until(lambda: up.answers(up.port, "/readyz") and up.answers(up.metrics_port, "/metrics"))
    assert up.remembered() == {"我对芒果过敏"}
    up.remember("I like tea")

    # The supervisor itself: its children notice, the database stays and is joined.
    assert up.process is not None
    children = [up.child("worker"), up.child("serve")]
    up.process.kill()
    up.process.wait()
    _, alive = psutil.wait_procs(children, PATIENCE_SECONDS)
    assert not alive
    up.start()
    assert up.remembered() == {"我对芒果过敏", "I like tea"}

    children = [up.child("worker"), up.child("serve")]
    assert up.stop() == 0
    assert not any(child.is_running() for child in children)
    assert embedded.postmaster((up.data_dir / "postgres").resolve()) is None


def test_a_taken_port_and_a_hopeless_setting_are_plain_messages(up: Up) -> None:
    environment = os.environ | {"MNEME_DATA_DIR": str(up.data_dir), "MNEME_EMBED__PROVIDER": "hashing"}

    def refused(**settings: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "app.cli", "up"]
        ended = subprocess.run(
            command, env=environment | settings, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        return ended.returncode, ended.stderr

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, said = refused(MNEME_API__PORT=str(taken.getsockname()[1]))
    assert code == 4
    assert "MNEME_API__PORT" in said
    assert not (up.data_dir / "postgres").exists()

    ports = {"MNEME_API__PORT": str(up.port), "MNEME_WORKER__METRICS_PORT": str(up.metrics_port)}
    code, said = refused(MNEME_AUTH__PEPPER="short", **ports)
    assert code == 3
    assert "MNEME_AUTH__PEPPER" in said
    assert embedded.postmaster((up.data_dir / "postgres").resolve()) is None
