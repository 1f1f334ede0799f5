"""What changed is judged again beside what is there, by the rules and caps of the write path (R10, R11)."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from app.consolidate import deprecate_overruled, undo_consolidation
from app.forget import place_hold
from app.llm import LanguageModel
from app.remember import Pair, open_reviews, reject_review
from tests.consolidate.conftest import NOON, Store, days_ago, says
from tests.embed.server import Endpoint, Script, status

CITIES = [("我住在上海", "我搬到杭州了"), ("I live in Boston", "I moved to Denver")]


async def contradiction(store: Store, old: str, new: str, **fields: Any) -> tuple[UUID, UUID]:
    """Two memories of which the write path did not see that they contradict: the new one was edited into it."""
    first = await store.add(old, at=days_ago(9), **fields)
    second = await store.add("placeholder of no meaning", at=days_ago(2), user_id=fields.get("user_id", "lin"))
    await store.shelf.amend(store.caller, second, {"content": new}, now=days_ago(1))
    assert await store.statuses(first, second) == ["active", "active"]
    return first, second


@pytest.mark.parametrize("pair", CITIES)
async def test_an_edit_overrules_what_it_contradicts_the_next_night(store: Store, pair: tuple[str, str]) -> None:
    old, new = await contradiction(store, *pair)
    dry = (await store.run(deprecate_overruled, dry_run=True))[1]
    assert await store.statuses(old) == ["active"]
    errand, told = await store.run(deprecate_overruled)
    assert dry == told == [(old, "active", "deprecated")]
    seen = await store.look(old)
    assert (seen["status"], seen["deprecated_at"], seen["forget_at"]) == ("deprecated", NOON, None)
    assert (new, "supersedes", old) in await store.links()
    assert (await store.events(old))[-1] == "deprecated"
    [(memory_id, rule, reason, *change)] = await store.touched(errand)
    assert (memory_id, rule, bool(reason), change) == (old, "deprecate", True, ["active", "deprecated", new])
    assert (await store.run(deprecate_overruled))[1] == []
    undone = await undo_consolidation(store.database, store.tenant_id, errand.run_id, actor="key:1", now=NOON)
    assert (undone.restored, undone.left) == (1, 0)
    assert await store.links() == set()
    assert (await store.run(deprecate_overruled, now=NOON + timedelta(days=1)))[1] == [], "somebody brought it back"
    assert await store.statuses(old, new) == ["active", "active"]


async def test_what_is_older_never_overrules_what_is_newer(store: Store) -> None:
    """An old plan, stored late behind the back of the rules, is itself outdated."""
    plan = await store.add("placeholder of no meaning", at=days_ago(9))
    home = await store.add("I live in Boston", at=days_ago(2))
    await store.alter(plan, content="I moved to Denver", updated_at=days_ago(1))
    assert (await store.run(deprecate_overruled))[1] == []
    assert await store.statuses(plan, home) == ["active", "active"]


async def test_what_is_pinned_or_held_goes_to_review(store: Store) -> None:
    pinned, one = await contradiction(store, *CITIES[0], pinned=True)
    held, two = await contradiction(store, *CITIES[1], user_id="wang")
    await place_hold(store.database, store.caller, user_id=None, memory_id=held, reason="case 7", now=NOON)
    assert (await store.run(deprecate_overruled))[1] == []
    assert await store.statuses(pinned, held) == ["active", "active"]
    assert await store.links() >= {(one, "review", pinned), (two, "review", held)}


async def test_what_somebody_kept_is_neither_retired_nor_asked_about_again(store: Store) -> None:
    pinned, one = await contradiction(store, *CITIES[0], pinned=True)
    await store.run(deprecate_overruled)
    [review] = await open_reviews(store.database, store.caller, "lin")
    assert (review.pair, review.reason) == (Pair(one, pinned), "update_words")
    await reject_review(store.database, store.caller, review.pair, now=NOON)
    await store.alter(pinned, pinned=False, updated_at=NOON)
    await store.alter(one, updated_at=NOON)
    assert (await store.run(deprecate_overruled, now=NOON + timedelta(days=1)))[1] == []
    assert await store.statuses(pinned, one) == ["active", "active"]
    assert await open_reviews(store.database, store.caller, "lin") == []


async def test_r11_what_is_added_overrules_nothing_and_more_than_a_few_are_only_reviewed(store: Store) -> None:
    facts = [await store.add(text, at=days_ago(9)) for text in ("I work at Acme", "I live in Boston", "I have a cat")]
    added = await store.add("placeholder of no meaning", at=days_ago(2))
    await store.shelf.amend(store.caller, added, {"content": "I also work at a payroll committee"}, now=days_ago(1))
    assert (await store.run(deprecate_overruled))[1] == []
    assert await store.statuses(*facts) == ["active"] * 3
    store.rememberer.config.most_retired = 0
    moved = await store.add("another placeholder", at=days_ago(2))
    await store.shelf.amend(store.caller, moved, {"content": "I moved to Denver"}, now=days_ago(1))
    assert (await store.run(deprecate_overruled))[1] == []
    assert (moved, "review", facts[1]) in await store.links()


async def test_an_edit_that_says_the_same_is_left_to_dedup(store: Store) -> None:
    first = await store.add("Emma has a black cat", at=days_ago(9))
    second = await store.add("placeholder of no meaning", at=days_ago(2))
    await store.shelf.amend(store.caller, second, {"content": "Emma has a cat"}, now=days_ago(1))
    assert (await store.run(deprecate_overruled))[1] == []
    assert await store.links() == {(second, "candidate", first)}


async def test_what_is_no_longer_valid_is_overruled_by_time(store: Store) -> None:
    over = await store.add("Lin is on holiday", at=days_ago(9), valid_to=days_ago(1))
    coming = await store.add("林在休假，回来前找王", at=days_ago(9), valid_to=NOON + timedelta(days=1))
    kept = await store.add("合同有效期到昨天", at=days_ago(9), valid_to=days_ago(1), pinned=True)
    dry = (await store.run(deprecate_overruled, dry_run=True))[1]
    errand, told = await store.run(deprecate_overruled)
    assert dry == told == [(over, "active", "deprecated")]
    assert errand.counts["validity_ended"] == 1
    assert await store.statuses(over, coming, kept) == ["deprecated", "active", "active"]
    later = NOON + timedelta(days=2)
    assert (await store.run(deprecate_overruled, now=later))[1] == [(coming, "active", "deprecated")]
    undone = await undo_consolidation(store.database, store.tenant_id, errand.run_id, actor="key:1", now=NOON)
    assert (undone.restored, undone.left) == (1, 0)


async def test_the_work_of_a_night_is_bounded_and_the_next_goes_on(store: Store) -> None:
    others = [await store.add(f"note number {n} about project {n}", at=days_ago(8)) for n in range(120)]
    old, _ = await contradiction(store, *CITIES[0], user_id=None)
    mine, _ = await contradiction(store, *CITIES[0])
    nights = [(await store.run(deprecate_overruled, most_changed=50))[1] for _ in range(4)]
    assert nights[0] == [(old, "active", "deprecated")], "of the tenant's shared memory, which has nothing else"
    assert nights[1:] == [[], [(mine, "active", "deprecated")], []]
    assert await store.statuses(*others[:2]) == ["active"] * 2
    asked = store.asked_for
    await store.run(deprecate_overruled, most_changed=50)
    assert store.asked_for == asked, "nothing has changed since, so no model is loaded"


@pytest.fixture
def pair_for_a_model() -> tuple[str, str]:
    return "Dana works at Acme", "Dana works at Orchid Labs"


async def test_a_model_may_see_what_rules_cannot(
    store: Store, endpoint: Endpoint, model: LanguageModel, pair_for_a_model: tuple[str, str]
) -> None:
    old, new = await store.add(pair_for_a_model[0], at=days_ago(9)), await store.add(pair_for_a_model[1])
    assert (await store.run(deprecate_overruled))[1] == []
    endpoint.scripts = [says('{"contradicted": []}'), says('{"contradicted": [1]}')]
    assert (await store.run(deprecate_overruled, model=model))[1] == [(old, "active", "deprecated")]
    assert await store.statuses(old, new) == ["deprecated", "active"]
    assert pair_for_a_model[0] in json.dumps(endpoint.bodies)


@pytest.mark.parametrize(("script", "reason"), [(status(500), "llm_unavailable"), (says("what?"), None)])
async def test_a_model_that_fails_overrules_nothing_and_is_asked_another_night(
    store: Store, endpoint: Endpoint, model: LanguageModel, fresh: LanguageModel, script: Script, reason: str | None
) -> None:
    old = await store.add("Dana works at Acme", at=days_ago(9))
    await store.add("Dana works at Orchid Labs")
    endpoint.scripts = [script]
    errand, told = await store.run(deprecate_overruled, model=model)
    assert told == []
    assert reason is None or errand.counts[reason] == 1
    endpoint.scripts = [says('{"contradicted": []}'), says('{"contradicted": [1]}')]
    assert (await store.run(deprecate_overruled, model=fresh))[1] == [(old, "active", "deprecated")]
