"""An erasure goes before everything, and nothing that was under way brings the user back."""

from datetime import timedelta
from uuid import UUID

from app.database import sql
from app.forget import erase_subject, place_hold
from app.recall import Hit, RecallConfig, UsageBuffer
from tests.forget.conftest import NOON, Store


async def subject_of(store: Store, user_id: str) -> UUID:
    query = sql("SELECT subject_id FROM subjects WHERE tenant_id = :tenant AND user_id = :user")
    async with store.database.read(store.tenant_id) as transaction:
        found = await transaction.fetch_value(query, tenant=store.tenant_id, user=user_id)
    assert isinstance(found, UUID)
    return found


async def test_an_erasure_goes_before_a_hold_and_a_pin(store: Store) -> None:
    """Erasure request > legal hold > pin > rules; see test_rules for the rest of the order."""
    pinned, archived = await store.add(pinned=True), await store.add(status="archived")
    other = await store.add("wang", pinned=True)
    caller = store.caller
    await place_hold(store.database, caller, user_id="lin", memory_id=None, reason="case 7", now=NOON)
    await place_hold(store.database, caller, user_id=None, memory_id=pinned, reason="case 8", now=NOON)
    erased = await erase_subject(store.database, caller, "lin", now=NOON)
    assert (erased.memories, erased.holds) == (2, 2)
    assert [await store.look(memory_id) for memory_id in (pinned, archived)] == [{}, {}]
    assert (await store.look(other))["status"] == "active"
    assert [action for action, _ in await store.events(pinned)] == ["held", "erased"]


async def test_an_erasure_is_written_down_to_be_repeated_on_a_backup(store: Store) -> None:
    await store.add()
    subject_id = await subject_of(store, "lin")
    await erase_subject(store.database, store.caller, "lin", now=NOON)
    query = sql("SELECT subject_id, actor, counts, created_at FROM erasures WHERE tenant_id = :tenant")
    async with store.database.read(store.tenant_id) as transaction:
        (row,) = await transaction.fetch(query, tenant=store.tenant_id)
    assert (row["subject_id"], row["actor"], row["counts"]["memories"], row["created_at"]) == (
        subject_id, "open", 1, NOON,
    )  # fmt: skip


async def test_hits_that_are_written_after_the_erasure_leave_nothing(store: Store) -> None:
    usage = UsageBuffer(store.database, RecallConfig(), lambda _: None)
    memory_id = await store.add()
    subject_id = await subject_of(store, "lin")
    for number in range(7):
        usage.add(
            store.tenant_id,
            [Hit({"id": memory_id, "kind": "profile"}, subject_id, 0.5)],
            NOON + timedelta(minutes=number),
        )
    await erase_subject(store.database, store.caller, "lin", now=NOON)
    await usage.flush()
    for table in ("kind_searches", "reinforcement_queue", "memory_usage", "subjects"):
        async with store.database.read(store.tenant_id) as transaction:
            assert await transaction.fetch(sql(f"SELECT 1 FROM {table}")) == [], table


async def test_ten_thousand_memories_go_in_one_statement_and_the_trail_stays(store: Store) -> None:
    await store.add()
    await store.multiply(9_999)
    erased = await erase_subject(store.database, store.caller, "lin", now=NOON)
    assert erased.memories == 10_000
    trail = sql("SELECT count(*) FROM memory_events WHERE tenant_id = :tenant AND action = 'erased'")
    async with store.database.read(store.tenant_id) as transaction:
        assert await transaction.fetch_value(trail, tenant=store.tenant_id) == 10_000
