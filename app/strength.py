"""The strength of a memory: halved every half-life since it was last written or used, and the moment it is forgotten.

Invariant: pure and monotone, so "weaker than FORGOTTEN" says the same as "later than forget_at", which is stored.
"""

from datetime import datetime, timedelta
from math import log2
from typing import Final

FORGOTTEN: Final = 0.05
"""A strength below this is forgotten: 4.3 half-lives without being written or used."""
MEAN_IMPORTANCE: Final = 3.0
IMPORTANCE_STEPS: Final = 2.0
"""So many steps of importance double the half-life: 1 halves it, 5 doubles it."""
USES_MOST: Final = 3.0
"""Use lengthens the half-life at most threefold: what was useful for years may still become untrue."""


def half_life(base_days: float, importance: float, uses: int) -> timedelta:
    """How long a memory takes to lose half of its strength.

    `base_days` is its kind's, at importance 3 (of 1 to 5) and never used; 1, 3, 15 uses make it 1.25, 1.5, 2 times as
    long.
    """
    weight = 2.0 ** ((importance - MEAN_IMPORTANCE) / IMPORTANCE_STEPS)
    return timedelta(days=base_days * weight * min(1 + log2(1 + uses) / 4, USES_MOST))


def strength(age: timedelta, half_life: timedelta) -> float:
    """From 1 (written or used just now, or in the future) towards 0."""
    return float(2.0 ** -max(0.0, age / half_life))


def forget_at(since: datetime, half_life: timedelta) -> datetime:
    """When the strength of what was last written or used at `since` falls to FORGOTTEN: the inverse of strength()."""
    return since + half_life * log2(1 / FORGOTTEN)
