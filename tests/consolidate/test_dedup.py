"""Duplicates that the write path left in doubt: merged, linked, told, once, and undone as a whole (R07, R08)."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from app.consolidate import merge_duplicates, undo_consolidation
from app.database import sql
from app.forget import place_hold
from app.llm import LanguageModel
from tests.consolidate.conftest import NOON, Store, days_ago, says, unknown_run
from tests.embed.server import Endpoint, Script, status

PAIRS = [("我养了一只猫", "我养了一只橘色的猫"), ("Emma has a cat", "Emma has a black cat")]
UNSURE = [("I take the bus", "I take the bus unless it rains"), ("我是前端工程师", "我是后端工程师")]


async def candidates(store: Store, one: str, other: str, **fields: Any) -> tuple[UUID, UUID]:
    """Two memories, linked as the write path links what it cannot decide."""
    first, second = await store.add(one, at=days_ago(2), **fields), await store.add(other, at=days_ago(1))
    await store.link(second, "candidate", first)
    return first, second


@pytest.mark.parametrize("pair", PAIRS)
async def test_what_says_less_becomes_a_duplicate_of_what_says_more(store: Store, pair: tuple[str, str]) -> None:
    less, more = await candidates(store, *pair, importance=4.5)
    dry = await store.run(merge_duplicates, dry_run=True)
    assert await store.statuses(less, more) == ["active", "active"]
    errand, told = await store.run(merge_duplicates)
    assert dry[1] == told == [(less, "active", "duplicate")]
    assert await store.statuses(less, more) == ["duplicate", "active"]
    assert await store.links() == {(less, "duplicate_of", more)}
    assert (await store.look(less))["forget_at"] is None
    kept = await store.look(more)
    assert (kept["importance"], kept["access_count"]) == (4.5, 0)
    assert (await store.events(less))[-1] == "duplicate"
    assert (await store.events(more))[-1] == "merged"
    assert await store.run(merge_duplicates) != (errand, told)
    assert (await store.run(merge_duplicates))[1] == [], "once is enough"
    assert store.asked_for == 0, "no model was loaded"


@pytest.mark.parametrize("pair", PAIRS)
async def test_a_run_is_undone_as_a_whole_and_not_done_again(store: Store, pair: tuple[str, str]) -> None:
    less, more = await candidates(store, *pair, importance=4.5)
    await store.alter(less, updated_at=days_ago(2))
    async with store.database.write(store.tenant_id) as transaction:
        used = sql("UPDATE memory_usage SET access_count = 3 WHERE tenant_id = :tenant AND memory_id = :id")
        await transaction.execute(used, tenant=store.tenant_id, id=less)
    errand, _ = await store.run(merge_duplicates)
    assert (await store.look(more))["access_count"] == 3
    assert await store.touched(errand) == [(less, "dedup", "dedup", "active", "duplicate", more)]
    assert (await undo_consolidation(store.database, store.tenant_id, unknown_run(), actor="t", now=NOON)).restored == 0
    undone = await undo_consolidation(store.database, store.tenant_id, errand.run_id, actor="key:1", now=NOON)
    assert (undone.restored, undone.left) == (1, 0)
    assert await store.statuses(less, more) == ["active", "active"]
    assert (await store.look(less))["forget_at"] is not None
    kept = await store.look(more)
    assert (kept["importance"], kept["access_count"]) == (3.0, 0)
    assert await store.links() == set()
    await store.link(more, "candidate", less)
    assert (await store.run(merge_duplicates, now=NOON + timedelta(days=1)))[1] == [], "somebody brought it back"
    again = await undo_consolidation(store.database, store.tenant_id, errand.run_id, actor="key:1", now=NOON)
    assert (again.restored, again.left) == (0, 0)


async def test_what_cannot_come_back_is_left(store: Store) -> None:
    """By then somebody has written the same text again."""
    less, more = await candidates(store, *PAIRS[1])
    errand, _ = await store.run(merge_duplicates)
    await store.alter(more, status="deprecated", deprecated_at=NOON)
    again = await store.add(PAIRS[1][0])
    assert again != less
    undone = await undo_consolidation(store.database, store.tenant_id, errand.run_id, actor="key:1", now=NOON)
    assert (undone.restored, undone.left) == (0, 1)
    assert await store.statuses(less, again) == ["duplicate", "active"]


async def test_what_is_pinned_or_held_stays(store: Store) -> None:
    pinned, _ = await candidates(store, *PAIRS[0], pinned=True)
    held, _ = await candidates(store, *PAIRS[1])
    await place_hold(store.database, store.caller, user_id=None, memory_id=held, reason="case 7", now=NOON)
    assert (await store.run(merge_duplicates))[1] == []
    assert await store.statuses(pinned, held) == ["active", "active"]


async def test_a_chain_is_merged_one_by_one_and_no_text_is_lost(store: Store) -> None:
    cat = await store.add("Emma has a cat", at=days_ago(3))
    black = await store.add("Emma has a black cat", at=days_ago(2))
    big = await store.add("Emma has a big black cat", at=days_ago(1))
    for one, other in ((black, cat), (big, black), (big, cat)):
        await store.link(one, "candidate", other)
    dry = (await store.run(merge_duplicates, dry_run=True))[1]
    told = (await store.run(merge_duplicates))[1]
    told += (await store.run(merge_duplicates))[1]
    assert sorted(told) == sorted([(cat, "active", "duplicate"), (black, "active", "duplicate")])
    assert set(dry) <= set(told)
    assert await store.statuses(cat, black, big) == ["duplicate", "duplicate", "active"]


async def test_the_work_of_a_night_is_bounded_and_the_next_goes_on(store: Store) -> None:
    pairs = [await candidates(store, f"Emma has a cat {n}", f"Emma has a black cat {n}") for n in range(5)]
    done: list[Any] = []
    for _ in range(4):
        done += (await store.run(merge_duplicates, most_pairs=2))[1]
    assert sorted(done) == sorted((less, "active", "duplicate") for less, _ in pairs)


async def test_of_another_tenant_or_user_nothing_is_touched(store: Store) -> None:
    less, _ = await candidates(store, *PAIRS[0])
    other = Store(store.database, unknown_run(), store.rememberer)
    assert (await other.run(merge_duplicates))[1] == []
    assert await store.statuses(less) == ["active"]


@pytest.mark.parametrize("pair", UNSURE)
async def test_a_model_decides_what_rules_cannot(
    store: Store, endpoint: Endpoint, model: LanguageModel, pair: tuple[str, str]
) -> None:
    first, second = await candidates(store, *pair)
    assert (await store.run(merge_duplicates))[1] == []
    assert endpoint.bodies == []
    endpoint.scripts = [says('{"answer": "neither"}')]
    assert (await store.run(merge_duplicates, model=model))[1] == []
    assert await store.links() == set(), "it need not be asked again"
    await store.link(second, "candidate", first)
    await store.alter(first, tags=["x"])
    endpoint.scripts = [says('{"answer": "first"}')]  # the link's first is the later memory
    assert (await store.run(merge_duplicates, model=model))[1] == [(first, "active", "duplicate")]
    asked = json.dumps(endpoint.bodies, ensure_ascii=False)
    assert all(text in asked for text in pair)


async def test_rules_that_tell_them_apart_are_not_asked_about(
    store: Store, endpoint: Endpoint, model: LanguageModel
) -> None:
    await candidates(store, "Deadline is 15 October", "Deadline is 16 October")
    assert (await store.run(merge_duplicates, model=model))[1] == []
    assert endpoint.bodies == []
    assert await store.links() == set()


@pytest.mark.parametrize(("script", "reason"), [(status(500), "llm_unavailable"), (says("what?"), "llm_unusable")])
async def test_a_model_that_fails_decides_nothing_and_is_asked_another_night(
    store: Store, endpoint: Endpoint, model: LanguageModel, fresh: LanguageModel, script: Script, reason: str
) -> None:
    first, second = await candidates(store, *UNSURE[0])
    less, _ = await candidates(store, *PAIRS[1])
    endpoint.scripts = [script]
    errand, told = await store.run(merge_duplicates, model=model)
    assert told == [(less, "active", "duplicate")], "rules go on"
    assert errand.counts[reason] == 1
    assert (second, "candidate", first) in await store.links()
    endpoint.scripts = [says('{"answer": "first"}')]
    assert (await store.run(merge_duplicates, model=fresh))[1] == [(first, "active", "duplicate")]


async def test_questions_are_counted_and_the_rest_waits(store: Store, endpoint: Endpoint, model: LanguageModel) -> None:
    for number in range(3):
        await candidates(store, f"I take the bus {number}", f"I take the bus {number} unless it rains")
    errand, told = await store.run(merge_duplicates, model=model, most_questions=2)
    assert (len(told), len(endpoint.bodies), errand.counts["questions_used_up"]) == (2, 2, 1)
    assert len((await store.run(merge_duplicates, model=model, most_questions=2))[1]) == 1
