"""Which way large subjects are searched without a filter: by size and share of the vector index."""

from typing import Any
from uuid import UUID

import pytest

from app.indexes import PARTS
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
    large = [planner.LargeSubject(SUBJECT, "u", rows, 10.0, rows + others)]
    found = await planner.plan(nobody, SHAPE, large, {})
    assert (found.near, found.index, found.facets) == (near, None, None)


async def test_subjects_in_one_part_share_its_walk_and_those_in_two_take_two() -> None:
    nobody: Any = None
    one, other = (planner.LargeSubject(UUID(int=number), "u", 10_000, 10.0, 50_000) for number in (1, 2))
    same = planner.LargeSubject(UUID(int=1 + PARTS), None, 10_000, 10.0, 50_000)
    assert planner.share_of_parts([one, other]) == {1: 0.2, 2: 0.2}
    assert planner.share_of_parts([one, same]) == {1: 0.4}
    assert (await planner.plan(nobody, SHAPE, [one], {})).near == "scan"
    assert (await planner.plan(nobody, SHAPE, [one, other], {})).near == "scan"
    assert (await planner.plan(nobody, SHAPE, [one, same], {})).near == "index"


@pytest.mark.parametrize(
    ("indexed", "wanted"), [(0, 100), (100_000, 100), (250_000, 100), (500_000, 200), (1_000_000, 300), (9e6, 300)]
)
def test_the_more_there_are_the_farther_a_walk_looks(indexed: float, wanted: int) -> None:
    large = [planner.LargeSubject(SUBJECT, "u", 10_000, 10.0, rows) for rows in (10_000.0, indexed)]
    assert planner.looks(large) == wanted
