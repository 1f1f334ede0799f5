"""Each rule: what it points at, and what comes near and stays. R37: dry equals real, nothing goes without a trace."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.database import sql
from app.errors import Invalid
from app.forget import RULES, forget, place_hold, put_policy, read_policy
from app.forget.policy import policy_of
from app.kinds import KINDS
from tests.forget.conftest import CONFIG, NOON, Store, days_ago

IDLE: dict[str, Any] = {"created_at": days_ago(400), "updated_at": days_ago(400)}
CASE: dict[str, Any] = {"kind": "task_state", "updated_at": days_ago(31)}

CASES: list[tuple[str, dict[str, Any], str | None]] = [
    ("importance 1 for more than a week", {"importance": 1.0, "updated_at": days_ago(7.01)}, "trivial"),
    ("importance 1, but not yet a week old", {"importance": 1.0, "updated_at": days_ago(6.99)}, None),
    ("a little above 1", {"importance": 1.1, "updated_at": days_ago(8)}, None),
    ("importance 1, pinned", {"importance": 1.0, "pinned": True, **IDLE}, None),
    ("expired a second ago", {"expires_at": NOON - timedelta(seconds=1)}, "expired"),
    ("expired this very moment", {"expires_at": NOON}, "expired"),
    ("expires in a second", {"expires_at": NOON + timedelta(seconds=1)}, None),
    ("expired, but pinned", {"expires_at": days_ago(9), "pinned": True}, None),
    ("closed by a tag", {"tags": ["closed"], **CASE}, "task_closed"),
    ("closed by its metadata", {"metadata": {"state": "Resolved"}, **CASE}, "task_closed"),
    ("closed in Chinese", {"content": "工单A102已关闭", **CASE}, "task_closed"),
    ("closed in English", {"content": "Ticket A102 is closed", **CASE}, "task_closed"),
    ("not closed yet", {"content": "工单A102尚未关闭", **CASE}, None),
    ("asked whether it is closed", {"content": "工单A102已关闭吗？", **CASE}, None),
    ("not resolved", {"content": "Ticket A102 is not resolved", **CASE}, None),
    ("closed three weeks ago", {"content": "工单A102已关闭", **CASE, "updated_at": days_ago(21)}, None),
    ("words of closing in a preference", {**CASE, "content": "Ticket A is closed", "kind": "user_preference"}, None),
    ("overruled half a year ago", {"status": "deprecated", "deprecated_at": days_ago(181)}, "superseded"),
    ("overruled last month", {"status": "deprecated", "deprecated_at": days_ago(30)}, None),
    ("a duplicate of half a year", {"status": "duplicate", "updated_at": days_ago(181)}, "duplicate"),
    ("overruled, but pinned", {"status": "deprecated", "deprecated_at": days_ago(999), "pinned": True}, None),
    ("importance 0.25 of 1, untouched for 181 days", {"importance": 2.0, "updated_at": days_ago(181)}, "stale"),
    ("just below 0.3 of 1", {"importance": 2.19, "updated_at": days_ago(181)}, "stale"),
    ("0.3 of 1", {"importance": 2.2, "updated_at": days_ago(181)}, None),
    ("untouched for 179 days", {"importance": 2.0, "updated_at": days_ago(179)}, None),
    ("important and old", {"importance": 5.0, **IDLE}, None),
    ("due and never used", {"forget_at": days_ago(0.1)}, "faded"),
    ("not due yet", {"forget_at": NOON + timedelta(days=1)}, None),
    ("due, but used since", {"forget_at": days_ago(1), "last_accessed_at": days_ago(2)}, None),
    ("due, used long ago", {"forget_at": days_ago(1), "last_accessed_at": days_ago(300), **IDLE}, "faded"),
    ("archived by hand", {"status": "archived", "importance": 1.0, **IDLE}, None),
    ("quarantined", {"status": "quarantined", "importance": 1.0, **IDLE}, None),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "rule"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_what_a_rule_points_at(store: Store, fields: dict[str, Any], rule: str | None) -> None:
    memory_id = await store.add(**fields)
    before = (await store.look(memory_id))["status"]
    swept = await store.sweep()
    assert swept == ({} if rule is None else {memory_id: rule})
    seen = await store.look(memory_id)
    assert seen["rule"] == rule
    if rule is None:
        assert seen["status"] == before
        return
    assert (seen["status"], seen["was"], seen["forget_at"]) == ("archived", before, None)
    ((action, detail),) = await store.events(memory_id)
    assert action == "archived"
    assert detail == {"rule": rule, "before": before, "run_id": str(seen["run_id"]), "reason": detail["reason"]}
    assert await store.sweep() == {}


async def test_one_memory_of_a_case_closes_it_for_all(store: Store) -> None:
    case: dict[str, Any] = {"kind": "task_state", "updated_at": days_ago(40), "metadata": {"case_id": "A102"}}
    opened = await store.add(**case, content="工单A102：退款审核中")
    other = await store.add(**case | {"metadata": {"case_id": "B7"}})
    assert await store.sweep() == {}
    closed = await store.add(**case, content="工单A102已解决")
    assert await store.sweep() == {opened: "task_closed", closed: "task_closed"}
    assert (await store.look(other))["status"] == "active"


async def test_use_puts_off_what_is_due_and_the_due_date_follows(store: Store) -> None:
    used = await store.add(forget_at=days_ago(1), last_accessed_at=days_ago(3), access_count=7, **IDLE)
    pinned = await store.add(forget_at=days_ago(1), pinned=True)
    gone = await store.add(forget_at=days_ago(1), status="deprecated", deprecated_at=days_ago(2))
    assert await store.sweep(dry_run=True) == {}
    assert (await store.look(used))["forget_at"] == days_ago(1)
    assert await store.sweep() == {}
    due = KINDS["interaction_history"].forget_at(3.0, 7, days_ago(3))
    assert (await store.look(used))["forget_at"] == due
    assert (await store.look(pinned))["forget_at"] is None
    assert (await store.look(gone))["forget_at"] is None
    assert await store.sweep(now=due + timedelta(seconds=1)) == {used: "faded", gone: "superseded"}


async def test_too_many_memories_the_least_recently_used_go_until_it_is_enough(store: Store) -> None:
    """Of 10 that a subject may have 8 are not too many; what is used, important or new stays even then."""
    await put_policy(store.database, store.tenant_id, {"subject_quota": 10}, CONFIG)
    old: dict[str, Any] = {"importance": 1.5, "created_at": days_ago(31)}
    idle = [await store.add(**old, last_accessed_at=days_ago(age)) for age in (3, 9, 6)]
    never = await store.add(**old | {"created_at": days_ago(40)})
    for fields in ({"access_count": 3}, {"importance": 2.0}, {"created_at": days_ago(29)}, {"pinned": True}):
        await store.add(**old | fields)
    for _ in range(2):
        await store.add(importance=4.0)
    wang = await store.add("wang", **old)
    assert await store.sweep(dry_run=True) == {never: "over_capacity", idle[1]: "over_capacity"}
    assert await store.sweep() == {never: "over_capacity", idle[1]: "over_capacity"}
    assert await store.sweep() == {}
    await put_policy(store.database, store.tenant_id, {"subject_quota": 0, "tenant_quota": 10}, CONFIG)
    assert await store.sweep() == {wang: "over_capacity"}, "of the whole tenant, least recently used first"


@pytest.mark.parametrize(("quota", "share", "line"), [(0, 0.8, 0), (1, 0.8, 1), (5, 0.1, 1), (10, 0.8, 8), (10, 1, 10)])
def test_the_smallest_quota_is_a_quota(quota: int, share: float, line: int) -> None:
    policy = policy_of({"rules": {"over_capacity": {"numbers": {"share": share}}}}, CONFIG)
    assert policy.quota_line(quota) == line


async def test_no_two_rules_take_one_memory_and_the_first_of_the_table_has_it(store: Store) -> None:
    both = await store.add(importance=1.0, expires_at=days_ago(1), forget_at=days_ago(1), **IDLE)
    assert await store.sweep(dry_run=True) == {both: "trivial"}
    assert await store.sweep() == {both: "trivial"}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(picks=st.lists(st.integers(0, len(CASES) - 1), max_size=12), quota=st.sampled_from([0, 3, 10_000]))
async def test_r37_a_dry_run_tells_exactly_what_a_real_run_then_does(
    store: Store, picks: list[int], quota: int
) -> None:
    await put_policy(store.database, store.tenant_id, {"subject_quota": quota}, CONFIG)
    for pick in picks:
        await store.add(**CASES[pick][1])
    dry, would = store.errand(dry_run=True)
    await forget(store.database, CONFIG, dry)
    real, did = store.errand()
    await forget(store.database, CONFIG, real)
    assert would == did
    assert dry.counts == real.counts


async def test_r37_a_run_while_users_write_takes_nothing_that_changed_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is amended, pinned, held or locked between being found and being archived stays."""
    amended, pinned, held, locked, other = [await store.add(importance=1.0, **IDLE) for _ in range(5)]
    names = {"tenant": store.tenant_id, "now": NOON}
    write = store.database.write

    @asynccontextmanager
    async def after_others(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async with write(store.tenant_id) as transaction:
            await transaction.execute(_TOUCH, memory=amended, **names)
            await transaction.execute(_PIN, memory=pinned, **names)
        monkeypatch.undo()
        await place_hold(store.database, store.caller, user_id=None, memory_id=held, reason="case 7", now=NOON)
        async with write(*arguments, **options) as transaction:
            yield transaction

    async with write(store.tenant_id) as holder:
        await holder.execute(_LOCK, memory=locked, **names)
        monkeypatch.setattr(store.database, "write", after_others)
        assert await store.sweep() == {other: "trivial"}
    assert await store.sweep() == {locked: "trivial"}


async def test_a_rule_that_is_off_or_has_other_numbers(store: Store) -> None:
    memory_id = await store.add(importance=1.0, updated_at=days_ago(9))
    off = {"rules": {"trivial": {"on": False}}}
    await put_policy(store.database, store.tenant_id, off, CONFIG)
    assert await store.sweep() == {}
    await put_policy(store.database, store.tenant_id, {"rules": {"trivial": {"numbers": {"days": 10}}}}, CONFIG)
    assert await store.sweep() == {}
    assert await store.sweep(now=NOON + timedelta(days=2)) == {memory_id: "trivial"}
    policy = await read_policy(store.database, store.tenant_id, CONFIG)
    assert policy["rules"]["trivial"] == {
        "on": True, "numbers": {"days": 10}, "reason": "importance 1 and unchanged for 10 days",
    }  # fmt: skip
    assert policy["own"] == ["rules.trivial"]
    assert list(policy["rules"]) == list(RULES)


@pytest.mark.parametrize(
    ("rules", "pointer"),
    [
        ({"bored": {"on": True}}, "/rules/bored"),
        ({"stale": {"numbers": {"weeks": 3}}}, "/rules/stale/numbers/weeks"),
        ({"stale": {"numbers": {"importance": 0.51}}}, "/rules/stale/numbers/importance"),
    ],
)
async def test_a_wrong_policy_is_refused_and_changes_nothing(store: Store, rules: dict[str, Any], pointer: str) -> None:
    before = await read_policy(store.database, store.tenant_id, CONFIG)
    with pytest.raises(Invalid) as refused:
        await put_policy(store.database, store.tenant_id, {"rules": rules}, CONFIG)
    assert [error.pointer for error in refused.value.errors] == [pointer]
    assert await read_policy(store.database, store.tenant_id, CONFIG) == before


async def test_the_order_of_precedence(store: Store) -> None:
    """A hold goes before a pin, a pin before the rules; see test_erase for what goes before a hold."""
    held_and_pinned, held, pinned, bare = [
        await store.add(importance=1.0, pinned=pin, **IDLE) for pin in (True, False, True, False)
    ]
    for memory_id in (held_and_pinned, held):
        await place_hold(store.database, store.caller, user_id=None, memory_id=memory_id, reason="case 7", now=NOON)
    assert await store.sweep() == {bare: "trivial"}
    unpin = sql("UPDATE memories SET pinned = false WHERE tenant_id = :tenant")
    async with store.database.write(store.tenant_id) as transaction:
        await transaction.execute(unpin, tenant=store.tenant_id)
    assert await store.sweep() == {pinned: "trivial"}


async def test_a_run_of_one_tenant_leaves_all_others(store: Store, database: Any) -> None:
    other = UUID("01900000-0000-7000-8000-00000000beef")
    mine = await store.add(importance=1.0, **IDLE)
    errand, told = Store(database, other).errand()
    assert await forget(database, CONFIG, errand) == 0
    assert told == []
    assert (await store.look(mine))["status"] == "active"


_LOCK = sql("SELECT 1 FROM memories WHERE tenant_id = :tenant AND memory_id = :memory FOR UPDATE")
_TOUCH = sql("UPDATE memories SET updated_at = :now WHERE tenant_id = :tenant AND memory_id = :memory")
_PIN = sql("UPDATE memories SET pinned = true WHERE tenant_id = :tenant AND memory_id = :memory")
