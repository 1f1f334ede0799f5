"""The verdict of a soak: a leak grows as long as one looks, a cache slows down, and noise is neither."""

import math
import random
from collections.abc import Callable

import pytest

from tests.operations.soak import judged

MIB = 2.0**20
NOISE = random.Random(3)
TIMES = [5.0 * number for number in range(180)]  # a quarter of an hour
SHAPES: dict[str, tuple[str, Callable[[float], float], str]] = {
    "a leak": ("memory", lambda t: 100 + 40 * t / 3600, "GROWS"),
    "a leak that begins late": ("memory", lambda t: 100 + max(0.0, t - 500) * 0.02, "GROWS"),
    "a cache that is full": ("memory", lambda t: 106 - 20 * math.exp(-t / 100), "flat"),
    "a cache that fills": ("memory", lambda t: 110 - 30 * math.exp(-t / 220), "fills"),
    "a cache beside a leak": ("memory", lambda t: 110 - 30 * math.exp(-t / 220) + 60 * t / 3600, "GROWS"),
    "a cache without an end in sight": ("memory", lambda t: 100 + 200 * (1 - math.exp(-t / 3000)), "GROWS"),
    "noise": ("memory", lambda _: 100 + NOISE.uniform(-2, 2), "flat"),
    "a step in the warm-up": ("memory", lambda t: 100 + 30 * (t > 200), "flat"),
    "descriptors that are lost": ("descriptors", lambda t: (20 + t // 120) / MIB, "GROWS"),
    "descriptors that come and go": ("descriptors", lambda t: (20 + t // 60 % 2) / MIB, "flat"),
}


@pytest.mark.parametrize(("kind", "shape", "expected"), SHAPES.values(), ids=SHAPES)
def test_a_leak_a_cache_and_noise_are_told_apart(kind: str, shape: Callable[[float], float], expected: str) -> None:
    assert judged(TIMES, [shape(moment) * MIB for moment in TIMES], kind)[1] == expected
