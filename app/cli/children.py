"""The processes that a supervisor starts, keeps running and ends.

Invariant: a child that dies is started again with a growing delay; one that refuses its configuration, or keeps dying,
ends its supervisor; a child ends by itself when its supervisor is killed.
"""

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass, field

from app.errors import EXIT_CONFIGURATION, StartupRefused

LONGEST_DELAY_SECONDS = 30.0
HEALTHY_SECONDS = 60.0
MOST_DEATHS = 6


@dataclass(slots=True)
class Child:
    """One process of the service; `deaths` in a row decide how long its next start waits."""

    name: str
    command: list[str]
    environment: dict[str, str]
    process: "subprocess.Popen[bytes]"
    started_at: float = field(default_factory=time.monotonic)
    deaths: int = 0
    start_at: float = 0.0

    @staticmethod
    def start(name: str, environment: dict[str, str], *options: str) -> "Child":
        """Start `mneme <name>` in a session of its own, so that Ctrl-C reaches only the supervisor."""
        command = [sys.executable, "-m", "app.cli", name, "--supervised", *options]
        return Child(name, command, environment, _spawn(command, environment))

    def revive(self) -> None:
        """If it died, start it again when its delay is over; raises StartupRefused when that is hopeless."""
        code = self.process.poll()
        if code is None:
            return
        if self.start_at == 0.0:
            lived = time.monotonic() - self.started_at
            self.deaths = 1 if lived > HEALTHY_SECONDS else self.deaths + 1
            if code == EXIT_CONFIGURATION or self.deaths >= MOST_DEATHS:
                raise StartupRefused(f"`mneme {self.name}` ended with exit code {code}; its reason is above")
            delay = min(LONGEST_DELAY_SECONDS, 2.0 ** (self.deaths - 1))
            say(f"`mneme {self.name}` ended (exit code {code}); starting it again in {delay:.0f} s")
            self.start_at = time.monotonic() + delay
        elif time.monotonic() >= self.start_at:
            self.process, self.started_at, self.start_at = _spawn(self.command, self.environment), time.monotonic(), 0.0

    def end(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()

    def stop(self, timeout_seconds: float) -> None:
        """Ask it to end, and kill it when it takes longer than `timeout_seconds`."""
        self.end()
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            say(f"`mneme {self.name}` does not end; killing it")
            self.process.kill()
            self.process.wait()


def _spawn(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    # The pipe is the lifeline: when this process is killed it closes, and the child ends by itself.
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)


def say(text: str) -> None:
    """Tell whoever started the supervisor."""
    print(f"mneme: {text}", file=sys.stderr, flush=True)
