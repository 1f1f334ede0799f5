"""What the database undid whole is done again, in time, and never twice."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from app.again import MOST_TRIES, again
from app.clock import now
from app.database import Database, Transaction, counted_commits, sql
from app.errors import DatabaseUnavailable, DeadlineExceeded, StorageDamaged, Undone
from app.remember.group import Groups

NEW_SUBJECT = sql("""
    INSERT INTO subjects (tenant_id, subject_id, user_id, created_at) VALUES (:tenant_id, :subject_id, :user_id, :now)
""")
TOUCH = sql("UPDATE subjects SET ann = NOT ann WHERE subject_id = :subject_id")
FLAGS = sql("SELECT ann FROM subjects ORDER BY subject_id")
REPEATABLE = sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@pytest.fixture
async def pair(database: Database, tenant: UUID) -> tuple[UUID, UUID]:
    """Two rows to be in each other's way at."""
    first, second = uuid7(), uuid7()
    async with database.write(tenant) as transaction:
        for subject_id in (first, second):
            names = {"tenant_id": tenant, "subject_id": subject_id, "user_id": str(subject_id)}
            await transaction.execute(NEW_SUBJECT, **names, now=now())
    return first, second


async def flags(database: Database, tenant: UUID) -> list[bool]:
    async with database.read(tenant) as transaction:
        return [row["ann"] for row in await transaction.fetch(FLAGS)]


async def test_both_sides_of_a_deadlock_are_done_once(
    database: Database, tenant: UUID, pair: tuple[UUID, UUID]
) -> None:
    tries: list[UUID] = []
    both_hold_one = asyncio.Barrier(2)

    async def cross(one: UUID, other: UUID) -> None:
        async with database.write(tenant) as transaction:
            await transaction.execute(TOUCH, subject_id=one)
            if one not in tries:
                tries.append(one)
                await both_hold_one.wait()
            else:
                tries.append(one)
            await transaction.execute(TOUCH, subject_id=other)

    await asyncio.gather(again(database, lambda: cross(*pair)), again(database, lambda: cross(*reversed(pair))))
    assert len(tries) == 3  # the victim began twice
    assert await flags(database, tenant) == [False, False]  # each was touched twice


async def test_what_could_not_be_serialized_is_done_again(
    database: Database, tenant: UUID, pair: tuple[UUID, UUID]
) -> None:
    tries = 0

    async def faster() -> None:
        async with database.write(tenant) as transaction:
            await transaction.execute(TOUCH, subject_id=pair[0])

    async def touch() -> None:
        nonlocal tries
        tries += 1
        async with database.write(tenant) as transaction:
            await transaction.execute(REPEATABLE)
            await transaction.fetch(FLAGS)
            if tries == 1:
                with counted_commits():  # somebody else's, not of this work
                    await faster()
            await transaction.execute(TOUCH, subject_id=pair[0])

    await again(database, touch)
    assert tries == 2
    assert await flags(database, tenant) == [False, False]


async def failing(database: Database, error: Exception, before: Callable[[], Awaitable[object]], **how: bool) -> int:
    """How often work that commits `before` and then always fails is tried."""
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        await before()
        raise error

    with pytest.raises(type(error)):
        await again(database, work, **how)
    return tries


async def test_only_what_committed_nothing_is_tried_again_and_not_for_ever(database: Database, tenant: UUID) -> None:
    async def nothing() -> None:
        pass

    async def read() -> None:
        async with database.read(tenant) as transaction:
            await transaction.fetch(FLAGS)
        async with database.work(changes=False):
            pass

    async def write() -> None:
        async with database.write(tenant):
            pass

    async def undone_write() -> None:
        with pytest.raises(LookupError):
            async with database.write(tenant):
                raise LookupError

    async def group() -> None:
        async def work(_: Transaction, requests: object) -> list[str]:
            return ["done"]

        groups: Groups[str, str] = Groups(database, work)
        await groups.commit(tenant, "", locks=frozenset(), unlike=frozenset(), weight=1)

    for before, most in ((nothing, MOST_TRIES), (read, MOST_TRIES), (undone_write, MOST_TRIES), (write, 1), (group, 1)):
        assert await failing(database, Undone(), before) == most, before
    assert await failing(database, Undone(), write, resumes=True) == MOST_TRIES
    assert await failing(database, StorageDamaged(), nothing) == MOST_TRIES
    for other in (DatabaseUnavailable(), DeadlineExceeded(), LookupError()):
        assert await failing(database, other, nothing) == 1


async def test_no_try_begins_too_late(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing() -> None:
        pass

    monkeypatch.setattr(database, "statement_seconds", 0.0)
    assert await failing(database, Undone(), nothing) == 1
    assert await failing(database, Undone(), nothing, resumes=True) == MOST_TRIES
