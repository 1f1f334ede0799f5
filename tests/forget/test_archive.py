"""What was archived comes back as it was, one by one or by run, until the grace time is over; then it is gone (R37)."""

from datetime import timedelta
from uuid import UUID

import pytest

from app.database import sql
from app.forget import place_hold, purge, put_policy, release_hold, undo_run
from app.kinds import KINDS
from app.remember import restore
from app.runs import touched
from tests.forget.conftest import CONFIG, NOON, Store, days_ago

LATER = NOON + timedelta(days=3)


async def run_id_of(store: Store, memory_id: UUID) -> UUID:
    run_id = (await store.look(memory_id))["run_id"]
    assert isinstance(run_id, UUID)
    return run_id


async def archive_some(store: Store) -> dict[str, UUID]:
    ids = {
        "trivial": await store.add(importance=1.0, updated_at=days_ago(8)),
        "expired": await store.add("wang", expires_at=days_ago(1)),
        "superseded": await store.add(status="deprecated", deprecated_at=days_ago(200)),
        "stale": await store.add("wang", importance=2.0, updated_at=days_ago(200), kind="profile"),
    }
    assert await store.sweep() == {memory_id: rule for rule, memory_id in ids.items()}
    return ids


async def test_a_run_is_undone_as_a_whole(store: Store) -> None:
    ids = await archive_some(store)
    run_id = await run_id_of(store, ids["stale"])
    listed = await touched(store.database, store.tenant_id, run_id)
    assert {row["memory_id"]: row["rule"] for row in listed} == {memory_id: rule for rule, memory_id in ids.items()}
    assert {row["user_id"] for row in listed} == {"lin", "wang"}
    undone = await undo_run(store.database, store.tenant_id, run_id, actor="key:1", now=LATER)
    assert (undone.restored, undone.left) == (4, 0)
    for rule, memory_id in ids.items():
        seen = await store.look(memory_id)
        assert (seen["status"], seen["rule"]) == ("deprecated" if rule == "superseded" else "active", None)
        assert [action for action, _ in await store.events(memory_id)] == ["archived", "restored"]
    assert (await store.look(ids["superseded"]))["deprecated_at"] == days_ago(200)
    assert (await store.look(ids["superseded"]))["forget_at"] is None
    assert (await store.look(ids["expired"]))["expires_at"] is None, "or it would expire again at once"
    assert (await store.look(ids["stale"]))["forget_at"] == KINDS["profile"].forget_at(2.0, 0, LATER)
    assert await touched(store.database, store.tenant_id, run_id) == []
    assert await store.sweep(now=LATER) == {ids["superseded"]: "superseded"}, "the others have begun anew"


async def test_what_a_quota_took_is_left_alone_after_its_return_as_long_as_a_new_one(store: Store) -> None:
    """Though its user has as much as before, and it was written as long ago."""
    await put_policy(store.database, store.tenant_id, {"subject_quota": 2}, CONFIG)
    await store.add()
    ids = [await store.add(importance=1.5, created_at=days_ago(age), updated_at=days_ago(age)) for age in (40, 50)]
    assert set(await store.sweep()) == set(ids)
    await restore(store.database, store.caller, ids[0], now=LATER)
    await undo_run(store.database, store.tenant_id, await run_id_of(store, ids[1]), actor="t", now=LATER)
    assert await store.sweep(now=LATER + timedelta(days=29)) == {}
    assert set(await store.sweep(now=LATER + timedelta(days=31))) == set(ids)


async def test_one_memory_comes_back_by_the_verb_of_all_restores(store: Store) -> None:
    memory_id = await store.add(importance=1.0, updated_at=days_ago(8), expires_at=days_ago(1))
    await store.sweep()
    restored = await restore(store.database, store.caller, memory_id, now=LATER)
    assert (restored.was, restored.memory["status"]) == ("archived", "active")
    seen = await store.look(memory_id)
    assert (seen["rule"], seen["expires_at"]) == (None, None)
    assert seen["forget_at"] == KINDS["interaction_history"].forget_at(1.0, 0, LATER)
    assert await store.sweep(now=LATER) == {}


async def test_what_comes_back_drives_nobody_out(store: Store) -> None:
    """A slot that another memory holds by now stays with that one."""
    memory_id = await store.add(importance=1.0, updated_at=days_ago(8), key="profile.city")
    await store.sweep()
    run_id = await run_id_of(store, memory_id)
    holder = await store.add(key="profile.city")
    undone = await undo_run(store.database, store.tenant_id, run_id, actor="key:1", now=LATER)
    assert (undone.restored, undone.left) == (0, 1)
    assert (await store.look(memory_id))["status"] == "archived"
    assert (await store.look(holder))["status"] == "active"


async def test_a_run_is_undone_only_within_its_tenant(store: Store) -> None:
    ids = await archive_some(store)
    run_id = await run_id_of(store, ids["stale"])
    stranger = UUID("01900000-0000-7000-8000-00000000beef")
    undone = await undo_run(store.database, stranger, run_id, actor="key:2", now=LATER)
    assert undone.restored == 0
    assert (await store.look(ids["stale"]))["status"] == "archived"


async def test_the_purge_waits_for_the_grace_time_and_leaves_the_trail(store: Store) -> None:
    ids = await archive_some(store)
    early, told = store.errand(now=NOON + timedelta(days=30))
    assert await purge(store.database, CONFIG, early) == 0
    dry, would = store.errand(now=NOON + timedelta(days=30, seconds=1), dry_run=True)
    assert await purge(store.database, CONFIG, dry) == 4
    assert (await store.look(ids["stale"]))["status"] == "archived"
    real, told = store.errand(now=NOON + timedelta(days=30, seconds=1))
    assert await purge(store.database, CONFIG, real) == 4
    assert would == told
    for memory_id in ids.values():
        assert await store.look(memory_id) == {}
        events = await store.events(memory_id)
        assert [action for action, _ in events] == ["archived", "purged"]
    assert await purge(store.database, CONFIG, store.errand(now=NOON + timedelta(days=99))[0]) == 0


@pytest.mark.parametrize("grace_days", [0, 100])
async def test_a_tenant_has_its_own_grace_time(store: Store, grace_days: float) -> None:
    await archive_some(store)
    await put_policy(store.database, store.tenant_id, {"grace_days": grace_days}, CONFIG)
    for days, purged in ((grace_days - 0.1, 0), (grace_days + 0.1, 4)):
        errand, _ = store.errand(now=NOON + timedelta(days=days), dry_run=True)
        assert await purge(store.database, CONFIG, errand) == purged


async def test_what_is_held_is_never_purged_and_has_no_due_date(store: Store) -> None:
    """Also what the user has yet to write; after the release the rules see it as if it had never been held."""
    written = await store.add(importance=1.0, updated_at=days_ago(8), forget_at=days_ago(1))
    due = NOON + timedelta(days=1)
    one = await store.add("wang", updated_at=NOON, forget_at=due)
    caller = store.caller
    all_of_lin = await place_hold(store.database, caller, user_id="lin", memory_id=None, reason="case 7", now=NOON)
    only_one = await place_hold(store.database, caller, user_id=None, memory_id=one, reason="案件七", now=NOON)
    later = await store.add(importance=1.0, updated_at=days_ago(9), forget_at=days_ago(1))
    assert await store.sweep() == {}
    for memory_id in (written, one, later):
        assert (await store.look(memory_id))["forget_at"] is None
    assert [action for action, _ in await store.events(one)] == ["held"]
    archive = sql("UPDATE memories SET status = 'archived' WHERE tenant_id = :tenant")
    note = sql("""
        INSERT INTO memory_archive (tenant_id, subject_id, memory_id, was, rule, archived_at)
        SELECT tenant_id, subject_id, memory_id, 'active', 'asked', :then FROM memories WHERE tenant_id = :tenant
    """)
    back = sql("UPDATE memories SET status = 'active' WHERE tenant_id = :tenant")
    away = sql("DELETE FROM memory_archive WHERE tenant_id = :tenant")
    async with store.database.write(store.tenant_id) as transaction:
        await transaction.execute(archive, tenant=store.tenant_id)
        await transaction.execute(note, tenant=store.tenant_id, then=days_ago(60))
    assert await purge(store.database, CONFIG, store.errand()[0]) == 0
    async with store.database.write(store.tenant_id) as transaction:
        await transaction.execute(back, tenant=store.tenant_id)
        await transaction.execute(away, tenant=store.tenant_id)
    for hold in (all_of_lin, only_one):
        await release_hold(store.database, caller, hold["id"], now=LATER)
    assert (await store.look(one))["forget_at"] == KINDS["interaction_history"].forget_at(3.0, 0, NOON)
    assert await store.sweep() == {written: "trivial", later: "trivial"}
