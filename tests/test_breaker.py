"""The breaker's states, driven by a clock of our own."""

import asyncio
from typing import Any

import pytest
from prometheus_client import REGISTRY

from app.breaker import Breaker, BreakerOpen


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Busy(Exception):
    pass


def make(clock: Clock, **options: Any) -> Breaker:
    return Breaker("test", failure_threshold=3, open_seconds=10.0, neutral=(Busy,), clock=clock, **options)


async def call(breaker: Breaker, error: Exception | None = None) -> None:
    async with breaker.guard():
        if error is not None:
            raise error


async def give_up(breaker: Breaker, clock: Clock, *, after_seconds: float) -> None:
    async with breaker.guard():
        clock.now += after_seconds
        raise asyncio.CancelledError


async def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        with pytest.raises(ValueError, match="down"):
            await call(breaker, ValueError("down"))


def gauge() -> float | None:
    return REGISTRY.get_sample_value("mneme_circuit_breaker_state", {"name": "test"})


async def test_only_failures_in_a_row_open_it() -> None:
    breaker = make(Clock())
    await fail(breaker, 2)
    await call(breaker)
    await fail(breaker, 2)
    assert (breaker.state, breaker.failing, gauge()) == ("closed", True, 0)
    await fail(breaker, 1)
    assert (breaker.state, gauge()) == ("open", 2)


async def test_while_open_nothing_is_called_and_the_wait_is_named() -> None:
    clock = Clock()
    breaker = make(clock)
    await fail(breaker, 3)
    clock.now = 2.0
    with pytest.raises(BreakerOpen) as refusal:
        await call(breaker, AssertionError("must not be called"))
    assert 6.0 <= refusal.value.retry_after_seconds <= 8.0


async def test_one_probe_at_a_time_and_its_success_closes() -> None:
    clock = Clock()
    breaker = make(clock)
    await fail(breaker, 3)
    clock.now = 10.0
    async with breaker.guard():
        assert (breaker.state, gauge()) == ("half_open", 1)
        with pytest.raises(BreakerOpen):
            await call(breaker)
    assert (breaker.state, breaker.failing, gauge()) == ("closed", False, 0)


async def test_a_failed_probe_opens_for_twice_as_long_up_to_the_limit() -> None:
    clock = Clock()
    breaker = make(clock, longest_open_seconds=30.0)
    await fail(breaker, 3)
    for longest in (20.0, 30.0, 30.0):
        clock.now += 100.0
        await fail(breaker, 1)
        with pytest.raises(BreakerOpen) as refusal:
            await call(breaker)
        assert 0.8 * longest <= refusal.value.retry_after_seconds <= longest


async def test_a_cancelled_probe_decides_nothing_and_frees_its_place() -> None:
    clock = Clock()
    breaker = make(clock)
    await fail(breaker, 3)
    clock.now = 10.0
    with pytest.raises(asyncio.CancelledError):
        await give_up(breaker, clock, after_seconds=1.0)
    states = [breaker.state]
    await call(breaker)
    states.append(breaker.state)
    assert states == ["half_open", "closed"]


async def test_neutral_errors_do_not_count() -> None:
    breaker = make(Clock())
    for _ in range(5):
        with pytest.raises(Busy):
            await call(breaker, Busy())
    assert (breaker.state, breaker.failing) == ("closed", False)


@pytest.mark.parametrize(("patience_seconds", "state"), [(1.0, "open"), (None, "closed")])
async def test_calls_given_up_after_the_patience_count_as_failed(patience_seconds: float | None, state: str) -> None:
    clock = Clock()
    breaker = make(clock, patience_seconds=patience_seconds)
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await give_up(breaker, clock, after_seconds=1.5)
    assert breaker.state == state


async def test_a_straggler_from_before_the_opening_does_not_close_it() -> None:
    breaker = make(Clock())
    straggler = breaker.guard()
    await straggler.__aenter__()
    await fail(breaker, 3)
    await straggler.__aexit__(None, None, None)
    assert breaker.state == "open"
