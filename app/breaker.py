"""A circuit breaker for coroutines: after repeated failures calls are refused at once, then one probe tests the water.

Invariant: while open nothing is called; while half open exactly one call is in flight; only a probe closes it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal

from app.telemetry import CIRCUIT_BREAKER_STATE, CIRCUIT_BREAKER_TRANSITIONS

State = Literal["closed", "half_open", "open"]
_GAUGE: Final[dict[State, int]] = {"closed": 0, "half_open": 1, "open": 2}


class BreakerOpen(Exception):
    """The call was not made; `retry_after_seconds` says when a probe is due."""

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__("circuit breaker is open")
        self.retry_after_seconds = retry_after_seconds


class Breaker:
    """Opens after `failure_threshold` failures in a row, for `open_seconds`, doubled up to `longest_open_seconds`.

    A call that its caller gave up after `patience_seconds` counts as failed: behind short deadlines a hanging service
    never fails otherwise. Use `async with breaker.guard():` around the call; it raises BreakerOpen.
    """

    def __init__(
        self,
        name: str,
        *,
        failure_threshold: int = 5,
        open_seconds: float = 5.0,
        longest_open_seconds: float = 60.0,
        patience_seconds: float | None = None,
        neutral: tuple[type[Exception], ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._clock, self._neutral = name, clock, neutral
        self._threshold, self._patience_seconds = failure_threshold, patience_seconds
        self._open_seconds, self._longest_open_seconds = open_seconds, longest_open_seconds
        self._failures, self._openings, self._probe_at, self._probing = 0, 0, 0.0, False
        self.state: State = "closed"
        CIRCUIT_BREAKER_STATE.labels(name).set(0)

    @property
    def failing(self) -> bool:
        """Whether the last call that counted failed."""
        return self._failures > 0

    @asynccontextmanager
    async def guard(self) -> AsyncIterator[None]:
        """Let a call through or raise BreakerOpen; its outcome moves the state."""
        probe = self._admit()
        started = self._clock()
        try:
            yield
        except self._neutral:
            raise
        except asyncio.CancelledError:
            if self._patience_seconds is not None and self._clock() - started >= self._patience_seconds:
                self._failed(probe)
            raise
        except Exception:
            self._failed(probe)
            raise
        else:
            self._succeeded(probe)
        finally:
            if probe:
                self._probing = False

    def _admit(self) -> bool:
        if self.state == "closed":
            return False
        wait_seconds = self._probe_at - self._clock()
        if wait_seconds > 0 or self._probing:
            raise BreakerOpen(max(wait_seconds, 1.0))
        self._move("half_open")
        self._probing = True
        return True

    def _succeeded(self, probe: bool) -> None:
        if probe or self.state == "closed":  # a straggler from before the opening proves nothing
            self._failures = self._openings = 0
            self._move("closed")

    def _failed(self, probe: bool) -> None:
        self._failures += 1
        if probe or (self.state == "closed" and self._failures >= self._threshold):
            longest = min(self._open_seconds * 2**self._openings, self._longest_open_seconds)
            self._openings += 1
            # Spread, so that replicas do not probe together.
            self._probe_at = self._clock() + longest * random.uniform(0.8, 1.0)  # noqa: S311
            self._move("open")

    def _move(self, state: State) -> None:
        if state != self.state:
            self.state = state
            CIRCUIT_BREAKER_STATE.labels(self._name).set(_GAUGE[state])
            CIRCUIT_BREAKER_TRANSITIONS.labels(self._name, state).inc()
