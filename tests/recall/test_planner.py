"""Which way large subjects are searched without a filter: by size and share of the vector index."""

from typing import Any
from uuid import UUID

import pytest

from app.recall import Query, candidates, planner
from tests.recall.test_plans import ASKED

SUBJECT, QUERY = UUID(int=1), Query(tenant_id=UUID(int=2), user_id="u", text="")
SHAPE = candidates.shape_of(QUERY, ASKED, 1)


@pytest.mark.parametrize(
    ("rows", "others", "near"),
    [
        (6_000, 0, "index"),  # alone in the index, a subject is its best use
        (100_000, 0, "index"),
        (1_000_000, 0, "index"),
        (10_000, 100_000, "scan"),
        (10_000, 10_000_000, "scan"),
        (20_000, 1_000_000, "scan"),
        (100_000, 300_000, "index"),
        (100_000, 1_000_000, "index"),  # walks past many of others, yet reading would take longer
        (100_000, 10_000_000, "scan"),
    ],
)
async def test_what_is_cheaper(rows: int, others: int, near: str) -> None:
    nobody: Any = None  # without a filter nothing is asked
    large = [planner.LargeSubject(SUBJECT, "u", rows, 10.0, rows / (rows + others))]
    found = await planner.plan(nobody, SHAPE, large, {})
    assert (found.near, found.index, found.facets) == (near, None, None)


async def test_two_subjects_are_one_way() -> None:
    nobody: Any = None
    one = planner.LargeSubject(SUBJECT, "u", 10_000, 10.0, 0.05)
    assert (await planner.plan(nobody, SHAPE, [one], {})).near == "scan"
    assert (await planner.plan(nobody, SHAPE, [one, one, one, one, one], {})).near == "index"
