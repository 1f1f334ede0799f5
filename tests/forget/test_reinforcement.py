"""What is hit again and again gains, within a bound; counting hits touches no index (a look into pg_stat)."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from app.database import sql
from app.forget import reinforce
from app.kinds import KINDS
from app.recall import Hit, RecallConfig, UsageBuffer
from app.recall import usage as usage_buffer
from app.recall.usage import Waiting
from tests.forget.conftest import NOON, Store

HISTORY, PROFILE = "interaction_history", "profile"


@pytest.fixture
def usage(store: Store) -> UsageBuffer:
    return UsageBuffer(store.database, RecallConfig(), lambda _: None)


def found(subject_id: UUID, ids: Sequence[UUID], kind: str = HISTORY) -> list[Hit]:
    return [Hit({"id": memory_id, "kind": kind}, subject_id, 0.5) for memory_id in ids]


async def search(store: Store, usage: UsageBuffer, *hits: UUID, kind: str = HISTORY, at: datetime = NOON) -> None:
    """A search that finds these; written down at once, as if by a process of its own."""
    subject_id = await _subject_of(store, hits[0])
    usage.add(store.tenant_id, found(subject_id, hits, kind), at)
    await usage.flush()


async def _subject_of(store: Store, memory_id: UUID) -> UUID:
    query = sql("SELECT subject_id FROM memories WHERE tenant_id = :tenant AND memory_id = :memory")
    async with store.database.read(store.tenant_id) as transaction:
        found = await transaction.fetch_value(query, tenant=store.tenant_id, memory=memory_id)
    assert isinstance(found, UUID)
    return found


async def test_only_hits_that_lead_make_a_row(store: Store, usage: UsageBuffer) -> None:
    """Every search asks for ten: what only fills up is counted as a hit and breaks its row, as if it was not found."""
    best, filler, second = [await store.add() for _ in range(3)]
    subject_id = await _subject_of(store, best)
    for number, leading in enumerate(
        [(best,), (best, second), (best, second), (best,), (best, second), (best, second)]
    ):
        hits = [hit._replace(leads=hit.memory["id"] in leading) for hit in found(subject_id, (best, filler, second))]
        usage.add(store.tenant_id, hits, minutes(number))
        if number in (1, 2, 4):
            await usage.flush()
    await usage.flush()
    seen = [await store.look(memory_id) for memory_id in (best, filler, second)]
    assert [row["hit_streak"] for row in seen] == [6, 0, 2]
    assert [row["access_count"] for row in seen] == [6, 6, 6]
    await reinforce(store.database, store.errand(now=minutes(9))[0])
    assert [(await store.look(one))["importance"] for one in (best, filler, second)] == [3.25, 3.0, 3.0]


def minutes(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


async def test_a_row_of_hits_is_broken_by_a_search_of_its_kind_without_it(store: Store, usage: UsageBuffer) -> None:
    one, other = [await store.add() for _ in range(2)]
    fact = await store.add(kind=PROFILE)
    for number in range(3):
        await search(store, usage, one, other, at=minutes(number))
    await search(store, usage, fact, kind=PROFILE, at=minutes(4))  # of another kind: breaks nothing
    await search(store, usage, one, at=minutes(5))
    await search(store, usage, one, other, at=minutes(6))
    rows = [(await store.look(memory_id))["hit_streak"] for memory_id in (one, other, fact)]
    assert rows == [5, 1, 1]
    assert (await store.look(other))["access_count"] == 4


@pytest.mark.parametrize("flushes", [(), (1,), (2, 4), (1, 2, 3, 4, 5, 6)])
async def test_rows_are_the_same_however_often_they_are_written(
    store: Store, usage: UsageBuffer, flushes: tuple[int, ...]
) -> None:
    one, other = [await store.add() for _ in range(2)]
    subject_id = await _subject_of(store, one)
    searches = [(one,), (one, other), (other,), (one, other), (one, other), (one, other), (one, other)]
    for number, hits in enumerate(searches):
        usage.add(store.tenant_id, found(subject_id, hits), minutes(number))
        if number in flushes:
            await usage.flush()
    await usage.flush()
    assert [(await store.look(memory_id))["hit_streak"] for memory_id in (one, other)] == [4, 6]


def test_what_could_not_be_written_is_joined_with_what_came_after() -> None:
    whole, parts = Waiting(), [Waiting(), Waiting()]
    ids = [UUID(int=number) for number in range(1, 4)]
    for number in range(8):
        hits = found(UUID(int=8), [one for one in ids if number % one.int == 0 or number > 4])
        hits = [hit._replace(leads=number != 6 or hit.memory["id"].int < 3) for hit in hits]
        whole.add(UUID(int=9), hits, minutes(number), 100)
        parts[number > 3].add(UUID(int=9), hits, minutes(number), 100)
    parts[0].followed_by(parts[1])
    assert parts[0] == whole


async def test_six_hits_in_a_row_and_not_five_gain_importance_and_a_later_due_date(
    store: Store, usage: UsageBuffer
) -> None:
    due = KINDS[HISTORY].forget_at(3.0, 0, NOON)
    memory_id = await store.add(forget_at=due)
    for number in range(5):
        await search(store, usage, memory_id, at=minutes(number))
    assert await reinforce(store.database, store.errand()[0]) == 0
    await search(store, usage, memory_id, at=minutes(6))
    errand, told = store.errand(now=minutes(7))
    assert await reinforce(store.database, errand) == 1
    seen = await store.look(memory_id)
    assert (seen["importance"], seen["hit_streak"], seen["gained"]) == (3.25, 0, 0.25)
    assert seen["forget_at"] == KINDS[HISTORY].forget_at(3.25, 6, minutes(7)) > due
    assert [(change.before, change.after) for change in told] == [("importance 3", "importance 3.25")]
    assert await store.events(memory_id) == [("reinforced", {"before": 3.0, "after": 3.25, "hits_in_a_row": 6})]


async def test_by_use_alone_a_memory_gains_once_a_day_and_at_most_one_step(store: Store, usage: UsageBuffer) -> None:
    weak, strong = await store.add(importance=1.0), await store.add(importance=4.9)
    pinned = await store.add(pinned=True)
    for day in range(6):
        for number in range(14):  # twice a day a row of hits
            await search(store, usage, weak, strong, pinned, at=minutes(1441 * day + number))
            if number in (6, 13):
                await reinforce(store.database, store.errand(now=minutes(1441 * day + number))[0])
    assert (await store.look(weak))["importance"] == 2.0
    assert (await store.look(strong))["importance"] == 5.0
    assert (await store.look(pinned))["forget_at"] is None


async def test_what_left_meanwhile_only_leaves_the_queue(store: Store, usage: UsageBuffer) -> None:
    memory_id = await store.add()
    for number in range(6):
        await search(store, usage, memory_id, at=minutes(number))
    archive = sql("UPDATE memories SET status = 'archived' WHERE tenant_id = :tenant")
    async with store.database.write(store.tenant_id) as transaction:
        await transaction.execute(archive, tenant=store.tenant_id)
    errand, told = store.errand()
    assert await reinforce(store.database, errand) == 1
    assert told == []
    assert (await store.look(memory_id))["importance"] == 3.0
    assert await reinforce(store.database, store.errand()[0]) == 0


async def test_writing_hits_touches_no_vector_and_no_index(store: Store) -> None:
    """Every update of a counter is heap-only: the new version of the row is in no index."""
    ids = [await store.add(forget_at=NOON + timedelta(days=9)) for _ in range(20)]
    subject_id = await _subject_of(store, ids[0])
    waiting = Waiting()
    for number in range(7):
        waiting.add(store.tenant_id, found(subject_id, ids), minutes(number), 100)
    done = sql("""
        SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables
        WHERE relname IN ('memories', 'memory_usage', 'reinforcement_queue')
    """)
    async with store.database.work() as transaction:  # which this connection's own count is of
        before = {row["relname"]: row[1:] for row in await transaction.fetch(done)}
        await transaction.execute(usage_buffer._FLUSH, **usage_buffer._columns(waiting))
        after = {row["relname"]: row[1:] for row in await transaction.fetch(done)}
    counted = {table: [now - then for now, then in zip(after[table], before[table], strict=True)] for table in after}
    assert counted["memories"] == [0, 0, 0]
    assert counted["reinforcement_queue"] == [20, 0, 0]
    assert counted["memory_usage"][:2] == [0, 20]
    assert counted["memory_usage"][2] >= 16, "an update in place needs room on the page, nothing else"
