"""Group commit: who shares a transaction, and that nobody pays for another's fault, lock or hanging up."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from pydantic import SecretStr

from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database, Transaction, sql
from app.errors import DatabaseUnavailable, DeadlineExceeded, Invalid, MnemeError, PoolExhausted
from app.remember.group import LIGHT, MOST_WEIGHT, Groups
from tests.conftest import administer

KEEP = sql("""
    INSERT INTO idempotency_keys (tenant_id, scope, key, fingerprint, status, response, created_at)
    VALUES (:tenant_id, 'test', :name, '', 0, '', :now)
""")
KEPT = sql("SELECT key FROM idempotency_keys WHERE tenant_id = :tenant_id AND scope = 'test' ORDER BY key")
FORGET = sql("DELETE FROM idempotency_keys WHERE tenant_id = :tenant_id AND key = ANY (:names)")
PID = sql("SELECT pg_backend_pid()")


class Recorder:
    """Work that stores the names of requests, and notes which of them shared a transaction."""

    def __init__(self, tenant: UUID) -> None:
        self.tenant = tenant
        self.groups: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuses: Callable[[str], bool] = lambda name: False
        self.breaks: Callable[[Sequence[str]], bool] = lambda names: False
        self.then: Callable[[Transaction], Any] | None = None

    async def __call__(self, transaction: Transaction, names: Sequence[str]) -> list[str | MnemeError]:
        self.groups.append(list(names))
        await self.gate.wait()
        answers: list[str | MnemeError] = []
        for name in names:
            if self.refuses(name):
                answers.append(Invalid())
            else:
                await transaction.execute(KEEP, tenant_id=self.tenant, name=name, now=now())
                answers.append(name.upper())
        if self.breaks(names):
            raise LookupError
        if self.then is not None:
            await self.then(transaction)
        return answers

    async def kept(self, database: Database) -> list[str]:
        async with database.read(self.tenant) as transaction:
            return [row["key"] for row in await transaction.fetch(KEPT, tenant_id=self.tenant)]


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Database]:
    """A pool of few connections."""
    database = await Database.connect(
        DatabaseConfig(url=SecretStr(database_url), pool_size=6, pool_timeout_seconds=20, lock_timeout_ms=20_000)
    )
    yield database
    await database.close()


@pytest.fixture
async def hasty(database_url: str) -> AsyncIterator[Database]:
    """A pool without patience."""
    database = await Database.connect(
        DatabaseConfig(url=SecretStr(database_url), pool_timeout_seconds=0.3, lock_timeout_ms=500)
    )
    yield database
    await database.close()


@pytest.fixture
def work(tenant: UUID) -> Recorder:
    return Recorder(tenant)


@pytest.fixture
def groups(pool: Database, work: Recorder) -> Groups[str, str]:
    return Groups(pool, work)


async def send(groups: Groups[str, str], work: Recorder, name: str, *locks: int, **more: Any) -> str:
    unlike = frozenset(more.get("unlike", ()))
    return await groups.commit(work.tenant, name, locks=frozenset(locks), unlike=unlike, weight=more.get("weight", 1))


async def settled(database: Database) -> None:
    """No connection stays out, also for members whose callers have gone."""
    async with asyncio.timeout(5):
        while database.checked_out:  # noqa: ASYNC110 - a pool has no event
            await asyncio.sleep(0.01)


async def begun(work: Recorder, transactions: int) -> None:
    """So many transactions have begun."""
    async with asyncio.timeout(10):
        while len(work.groups) < transactions:  # noqa: ASYNC110 - whoever begins tells nobody
            await asyncio.sleep(0.01)


async def test_alone_a_write_has_its_own_transaction_and_a_crowd_shares_a_few(
    groups: Groups[str, str], work: Recorder, pool: Database
) -> None:
    assert await send(groups, work, "a", 1) == "A"
    assert work.groups == [["a"]]
    names = [f"n{number:03}" for number in range(100)]
    answers = await asyncio.gather(*(send(groups, work, name, number) for number, name in enumerate(names)))
    assert answers == [name.upper() for name in names]
    assert await work.kept(pool) == ["a", *names]
    assert sorted(name for group in work.groups[1:] for name in group) == names
    assert 3 <= len(work.groups) <= 8
    assert max(map(len, work.groups)) <= MOST_WEIGHT


async def test_a_heavy_request_goes_by_itself(groups: Groups[str, str], work: Recorder) -> None:
    weights = [LIGHT, LIGHT + 1, LIGHT, 500, 1]
    await asyncio.gather(*(send(groups, work, f"n{n}", n, weight=weight) for n, weight in enumerate(weights)))
    assert ["n1"] in work.groups
    assert ["n3"] in work.groups


async def test_members_of_one_lock_keep_their_order_and_unlike_ones_do_not_meet(
    groups: Groups[str, str], work: Recorder
) -> None:
    chance = random.Random(3)
    places = [chance.randrange(4) for _ in range(120)]
    slots = [chance.randrange(30) for _ in places]
    await asyncio.gather(
        *(
            send(groups, work, f"{n:03}", place, unlike=[slot])
            for n, (place, slot) in enumerate(zip(places, slots, strict=True))
        )
    )
    for place in range(4):
        done = [int(name) for group in work.groups for name in group if places[int(name)] == place]
        assert done == sorted(done)
    for group in work.groups:
        assert len({slots[int(name)] for name in group}) == len(group)
    assert len(work.groups) < len(places)


async def test_who_is_refused_takes_no_other_with_it(groups: Groups[str, str], work: Recorder, pool: Database) -> None:
    work.refuses = lambda name: name.startswith("bad")
    names = ["a", "bad1", "b", "c", "bad2", "d"]
    answers = await asyncio.gather(*(send(groups, work, name, 7) for name in names), return_exceptions=True)
    assert [answer if isinstance(answer, str) else type(answer) for answer in answers] == [
        "A", Invalid, "B", "C", Invalid, "D",
    ]  # fmt: skip
    assert await work.kept(pool) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("same_lock", [True, False])
async def test_one_that_breaks_the_transaction_fails_alone(
    groups: Groups[str, str], work: Recorder, pool: Database, same_lock: bool
) -> None:
    work.breaks = lambda names: "poison" in names
    work.gate.clear()
    names = ["a", "b", "poison", "c", "d", "e"]
    sent = [asyncio.create_task(send(groups, work, name, 7 if same_lock else n)) for n, name in enumerate(names)]
    await asyncio.sleep(0)
    work.gate.set()
    answers = await asyncio.gather(*sent, return_exceptions=True)
    assert [answer if isinstance(answer, str) else type(answer) for answer in answers] == [
        "A", "B", LookupError, "C", "D", "E",
    ]  # fmt: skip
    assert await work.kept(pool) == ["a", "b", "c", "d", "e"]
    assert work.groups[-1] != names  # the group was taken apart
    if same_lock:
        assert [name for [name] in (group for group in work.groups if len(group) == 1)][-5:] == names[1:]


async def test_r18_who_hangs_up_cancels_no_other(groups: Groups[str, str], work: Recorder, pool: Database) -> None:
    work.gate.clear()
    names = [f"n{number:02}" for number in range(40)]
    sent = [asyncio.create_task(send(groups, work, name, n % 5)) for n, name in enumerate(names)]
    await begun(work, 1)  # the others wait
    chance = random.Random(5)
    gone = set(chance.sample(range(40), 15)) | {0}
    for number in gone:
        sent[number].cancel()
    work.gate.set()
    answers = await asyncio.gather(*sent, return_exceptions=True)
    for number, answer in enumerate(answers):
        assert isinstance(answer, asyncio.CancelledError) if number in gone else answer == names[number].upper()
    await settled(pool)
    kept = await work.kept(pool)
    assert set(kept) >= {name for number, name in enumerate(names) if number not in gone}
    assert len(kept) == len(set(kept))


async def test_a_lock_that_another_process_holds_stalls_its_own_members_only(
    groups: Groups[str, str], work: Recorder, pool: Database, database: Database
) -> None:
    async with database.write(work.tenant, 10, 11, 12):
        stuck = [asyncio.create_task(send(groups, work, f"stuck{n}", 10 + n % 3)) for n in range(6)]
        await asyncio.sleep(0.02)
        others = [send(groups, work, f"free{n}", 100 + n) for n in range(20)]
        assert len(await asyncio.gather(*others)) == 20
        assert await send(groups, work, "late", 99) == "LATE"
        assert not any(task.done() for task in stuck)
        assert not any(name.startswith("stuck") for name in await work.kept(pool))
    assert await asyncio.gather(*stuck) == [f"STUCK{n}" for n in range(6)]
    order = [name for group in work.groups for name in group]
    assert all(order.index(f"stuck{n}") < order.index(f"stuck{n + 3}") for n in range(3))


async def test_a_lock_that_never_comes_is_a_deadline(work: Recorder, hasty: Database, database: Database) -> None:
    groups = Groups(hasty, work)
    async with database.write(work.tenant, 13):
        stuck = [asyncio.create_task(send(groups, work, f"stuck{n}", 13)) for n in range(3)]
        answers = await asyncio.gather(*stuck, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DeadlineExceeded] * 3
    await settled(hasty)
    assert await work.kept(hasty) == []
    assert await send(groups, work, "after", 13) == "AFTER"


async def test_a_row_that_another_holds_stalls_its_own_member_only(
    groups: Groups[str, str], work: Recorder, database: Database, pool: Database
) -> None:
    """Names that another transaction is about to store: whoever stores them, too, waits for that one's end."""
    names = ["held0", "held1", "held2"]
    async with database.write(work.tenant) as transaction:
        for name in names:
            await transaction.execute(KEEP, tenant_id=work.tenant, name=name, now=now())
        held = [asyncio.create_task(send(groups, work, name, n)) for n, name in enumerate(names)]
        others = [asyncio.create_task(send(groups, work, f"free{n}", 100 + n)) for n in range(20)]
        assert len(await asyncio.gather(*others)) == 20
        assert not any(task.done() for task in held)
        await transaction.execute(FORGET, tenant_id=work.tenant, names=names)
    assert await asyncio.gather(*held) == ["HELD0", "HELD1", "HELD2"]


async def test_a_connection_lost_before_commit_is_made_good(
    groups: Groups[str, str], work: Recorder, pool: Database, owner_url: str
) -> None:
    lost: list[int] = []

    async def lose(transaction: Transaction) -> None:
        if not lost:
            lost.append(await transaction.fetch_value(PID))
            await asyncio.to_thread(administer, owner_url, f"SELECT pg_terminate_backend({lost[0]}, 5000)")
            await transaction.fetch(PID)

    work.then = lose
    names = ["a", "b", "c", "d"]
    assert await asyncio.gather(*(send(groups, work, name, n) for n, name in enumerate(names))) == ["A", "B", "C", "D"]
    assert await work.kept(pool) == names


async def test_after_a_commit_of_unknown_outcome_nothing_is_tried_again(
    groups: Groups[str, str], work: Recorder, pool: Database, owner_url: str
) -> None:
    async def lose(transaction: Transaction) -> None:
        work.then = None
        pid = await transaction.fetch_value(PID)
        await asyncio.to_thread(administer, owner_url, f"SELECT pg_terminate_backend({pid}, 5000)")

    work.then = lose
    names = ["a", "b", "c", "d"]
    sent = [asyncio.create_task(send(groups, work, name, 5)) for name in names]
    answers = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DatabaseUnavailable] * len(work.groups[0]) + [str] * (
        4 - len(work.groups[0])
    )
    assert sorted(name for group in work.groups for name in group) == names  # each was tried once
    assert await send(groups, work, "after", 5) == "AFTER"


async def test_a_group_that_takes_its_time_lets_another_begin(
    groups: Groups[str, str], work: Recorder, pool: Database
) -> None:
    work.gate.clear()
    slow = asyncio.create_task(send(groups, work, "slow", 1))
    await begun(work, 1)
    few = [asyncio.create_task(send(groups, work, f"few{n}", 2 + n)) for n in range(3)]
    await begun(work, 2)  # nobody else comes, and the first is still under way
    assert work.groups == [["slow"], ["few0", "few1", "few2"]]
    work.gate.set()
    assert await asyncio.gather(slow, *few) == ["SLOW", "FEW0", "FEW1", "FEW2"]


async def test_who_waits_for_too_long_is_told_so(work: Recorder, hasty: Database) -> None:
    groups = Groups(hasty, work)
    work.gate.clear()
    busy = []
    for number in range(2):
        busy.append(asyncio.create_task(send(groups, work, f"busy{number}", number)))
        await begun(work, number + 1)
    same, other = await asyncio.gather(
        send(groups, work, "same", 0), send(groups, work, "other", 9), return_exceptions=True
    )
    assert isinstance(same, DeadlineExceeded)
    assert isinstance(other, PoolExhausted)
    work.gate.set()
    assert await asyncio.gather(*busy) == ["BUSY0", "BUSY1"]
    assert await work.kept(hasty) == ["busy0", "busy1"]


async def test_whatever_happens_each_is_answered_once_and_stored_exactly_if_told_so(
    groups: Groups[str, str], work: Recorder, pool: Database
) -> None:
    chance = random.Random(11)
    names = [f"{number:03}" + chance.choice(["", "", "", "", "!", "?"]) for number in range(150)]
    work.refuses = lambda name: name.endswith("?")
    work.breaks = lambda names: any(name.endswith("!") for name in names)

    async def one(number: int) -> str:
        await asyncio.sleep(chance.random() * 0.1)
        return await send(groups, work, names[number], *{chance.randrange(12) for _ in range(chance.choice([1, 1, 2]))})

    sent = [asyncio.create_task(one(number)) for number in range(150)]
    for number in chance.sample(range(150), 20):
        await asyncio.sleep(0.002)
        sent[number].cancel()
    answers = await asyncio.gather(*sent, return_exceptions=True)
    await settled(pool)
    kept = set(await work.kept(pool))
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, asyncio.CancelledError):
            continue  # may be stored or not
        expected = {"!": LookupError, "?": Invalid}.get(name[-1], str)
        assert isinstance(answer, expected), name
        assert (name in kept) == (expected is str)
    assert groups._lines == {}
