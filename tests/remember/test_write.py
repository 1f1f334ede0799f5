"""remember() in a crowd: requests that share a transaction keep their own meaning, whatever their neighbours bring."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import REGISTRY
from uuid_utils.compat import uuid7

from app.clock import now
from app.database import Database, Transaction, sql
from app.embed import EmbedConfig, claim_generation, load_embedder
from app.errors import DatabaseUnavailable, IdempotencyReused, Invalid
from app.guard import Caller
from app.idempotency import Answer, Idempotency
from app.language import TOKENIZER_VERSION, words
from app.remember import NewMemory, RememberConfig, Rememberer, Written
from app.remember.store import LAST_ROWS, PARTED_ROWS, ROWS_AT_ONCE, _parts
from app.remember.write import Request

ROWS = sql("""
    SELECT m.content, m.status, m.key, m.created_at, e.actor, e.created_at AS noted_at,
           (SELECT count(*) FROM memory_events d WHERE d.tenant_id = m.tenant_id AND d.subject_id = m.subject_id
              AND d.memory_id = m.memory_id AND d.action = 'deprecated') AS ends
    FROM memories m JOIN memory_events e USING (tenant_id, subject_id, memory_id)
    WHERE m.tenant_id = :tenant_id AND e.action = 'created' ORDER BY m.content
""")
STORED_IN_PARTS = sql("""
    SELECT content, status, subject_id, metadata, pinned, event_at, word_count FROM memories
    WHERE tenant_id = :tenant_id
""")
TOLD_IN_PARTS = sql("""
    SELECT m.content, e.action, e.detail, by.content AS by_text
    FROM memory_events e JOIN memories m USING (tenant_id, subject_id, memory_id)
    LEFT JOIN memories by ON by.tenant_id = e.tenant_id AND by.memory_id::text = e.detail ->> 'by'
    WHERE e.tenant_id = :tenant_id
""")
FACTS = tuple(
    f"{who} {what} {where}"
    for who, what in (("Lin", "拍卖过一只花瓶，在"), ("Maria", "bought her bicycle in"), ("陈伟", "的牙医诊所在"))
    for where in ("Rome", "Oslo", "昆明", "Quito", "Lima", "喀什", "Perth", "Turin")
)


@pytest.fixture
async def two(database: Database, tmp_path: Path) -> AsyncIterator[tuple[Rememberer, Rememberer]]:
    """The write paths of two processes on one database."""
    embedder = load_embedder(EmbedConfig(provider="hashing"), tmp_path)
    await embedder.start()
    generation = await claim_generation(database, embedder.spec, TOKENIZER_VERSION, now())
    yield (
        Rememberer(database, embedder, generation, RememberConfig()),
        Rememberer(database, embedder, generation, RememberConfig()),
    )
    await embedder.close()


def caller_of(tenant: UUID) -> Caller:
    return Caller(tenant, UUID(str(uuid7())), None, None, frozenset())


def told(written: list[Written]) -> Answer:
    """What became of a request, as its answer."""
    return Answer(200, " ".join(f"{one.outcome}:{one.memory['id']}" for one in written if one.memory).encode())


def new(content: str, user_id: str | None = "amy", **fields: Any) -> NewMemory:
    return NewMemory(user_id=user_id, content=content, kind="profile", **fields)


async def rows(database: Database, tenant: UUID) -> list[Any]:
    async with database.read(tenant) as transaction:
        return await transaction.fetch(ROWS, tenant_id=tenant)


def transactions() -> float:
    return REGISTRY.get_sample_value("mneme_write_group_size_count") or 0.0


async def test_each_keeps_its_own_caller_and_time(
    two: tuple[Rememberer, Rememberer], database: Database, tenant: UUID
) -> None:
    began, before = now(), transactions()
    callers = [caller_of(tenant) for _ in FACTS]
    answers = await asyncio.gather(
        *(
            two[0].remember(caller, [new(fact, f"u{n % 5}")], told, now=began + timedelta(minutes=n))
            for n, (caller, fact) in enumerate(zip(callers, FACTS, strict=True))
        )
    )
    assert len({answer.body for answer in answers}) == len(FACTS)
    assert transactions() - before < len(FACTS) / 2
    found = {row["content"]: row for row in await rows(database, tenant)}
    for n, (caller, fact) in enumerate(zip(callers, FACTS, strict=True)):
        row = found[fact]
        assert (row["actor"], row["created_at"], row["noted_at"]) == (caller.actor, *[began + timedelta(minutes=n)] * 2)


async def test_twenty_equal_texts_in_two_processes_leave_one_row(
    two: tuple[Rememberer, Rememberer], database: Database, tenant: UUID
) -> None:
    answers = await asyncio.gather(
        *(two[n % 2].remember(caller_of(tenant), [new("我对芒果过敏")], told, now=now()) for n in range(20))
    )
    outcomes = [answer.body.decode().split(":") for answer in answers]
    assert sorted(outcome for outcome, _ in outcomes) == ["created"] + ["duplicate"] * 19
    assert len({memory_id for _, memory_id in outcomes}) == 1
    assert [row["status"] for row in await rows(database, tenant)] == ["active"]


async def test_r10_corrections_of_a_slot_in_two_processes_leave_one_and_tell_the_end_of_each_other(
    two: tuple[Rememberer, Rememberer], database: Database, tenant: UUID
) -> None:
    cities = ["Rome", "Oslo", "昆明", "Quito", "Lima", "喀什", "Perth", "Turin", "Kyoto", "厦门"]
    moment = now()
    await asyncio.gather(
        *(
            two[n % 2].remember(caller_of(tenant), [new(f"住在{city}", key="profile.city")], told, now=moment)
            for n, city in enumerate(cities)
        )
    )
    found = await rows(database, tenant)
    assert sorted(row["status"] for row in found) == ["active"] + ["deprecated"] * 9
    assert all(row["ends"] == (row["status"] == "deprecated") for row in found)


@pytest.mark.parametrize(("old", "correction"), [("我住在上海", "我搬到杭州了"), ("I live in Rome", "I moved to Oslo")])
async def test_r10_a_correction_that_breaks_off_half_way_leaves_the_old_one_as_it_was(
    two: tuple[Rememberer, Rememberer], database: Database, tenant: UUID, old: str, correction: str
) -> None:
    """The old one is retired and the new one stored when it breaks off: both or neither."""
    caller = caller_of(tenant)
    await two[0].remember(caller, [new(old)], told, now=now())

    async def break_off(_: Transaction, written: Sequence[Written]) -> None:
        assert [one.outcome for one in written] == ["superseded"]
        raise ConnectionAbortedError

    with pytest.raises(DatabaseUnavailable):
        await two[0].remember(caller, [new(correction)], told, now=now(), within=break_off)
    assert [(row["content"], row["status"], row["ends"]) for row in await rows(database, tenant)] == [
        (old, "active", 0)
    ]
    await two[1].remember(caller, [new(correction)], told, now=now())
    assert {row["content"]: row["status"] for row in await rows(database, tenant)} == {
        old: "deprecated", correction: "active",
    }  # fmt: skip


async def test_a_key_is_bound_to_one_request_in_two_processes(
    two: tuple[Rememberer, Rememberer], database: Database, tenant: UUID
) -> None:
    """Other subjects, other bodies, one key: only one of them is stored, and the others learn of it."""
    caller = caller_of(tenant)

    async def send(n: int) -> Answer:
        # Beside the door of the process, which would refuse a second one at once: two processes have two doors.
        keyed = Idempotency(caller.actor, "order-17", bytes([n % 3]) * 32)
        request = Request.of(caller, [new(FACTS[n % 3], f"u{n % 3}")], told, now(), keyed)
        await two[0]._embed(request.kept)
        return await two[n % 2]._groups.commit(
            tenant, request, locks=request.locks, unlike=request.slots, weight=len(request.items)
        )

    answers = await asyncio.gather(*(send(n) for n in range(30)), return_exceptions=True)
    stored = [answer for answer in answers if isinstance(answer, Answer)]
    assert {type(answer) for answer in answers} == {Answer, IdempotencyReused}
    assert len({answer.body for answer in stored}) == 1
    assert [answer.replayed for answer in stored].count(False) == 1
    assert len(stored) == 10
    assert len(await rows(database, tenant)) == 1


async def test_keys_of_many_requests_at_once_are_all_kept(
    two: tuple[Rememberer, Rememberer], database: Database, tenant: UUID
) -> None:
    caller = caller_of(tenant)

    async def send(n: int, fingerprint: int) -> Answer | BaseException:
        key = Idempotency(caller.actor, f"key-{n}", bytes([fingerprint]) * 32)
        return await two[n % 2].remember(caller, [new(FACTS[n], f"u{n}")], told, now=now(), idempotency=key)

    first = await asyncio.gather(*(send(n, n) for n in range(len(FACTS))))
    again = await asyncio.gather(*(send(n, n if n % 4 else n + 1) for n in range(len(FACTS))), return_exceptions=True)
    for n, (before, after) in enumerate(zip(first, again, strict=True)):
        if n % 4:
            assert isinstance(before, Answer)
            assert isinstance(after, Answer)
            assert (after.body, after.replayed, before.replayed) == (before.body, True, False)
        else:
            assert isinstance(after, IdempotencyReused)
    assert len(await rows(database, tenant)) == len(FACTS)


async def test_a_text_that_the_database_refuses_and_an_answer_that_refuses_fail_alone(
    two: tuple[Rememberer, Rememberer], database: Database, tenant: UUID
) -> None:
    def no(written: list[Written]) -> Answer:
        raise Invalid

    facts = list(FACTS[:12])
    sent = []
    for n, fact in enumerate(facts):
        poison = {3: "the door should have stopped this \0", 7: fact}.get(n, fact)
        answer = no if n == 7 else told
        sent.append(two[0].remember(caller_of(tenant), [new(poison, f"u{n % 3}")], answer, now=now()))
    answers = await asyncio.gather(*sent, return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if not isinstance(answer, Answer)] == [3, 7]
    assert isinstance(answers[7], Invalid)
    expected = sorted(fact for n, fact in enumerate(facts) if n not in (3, 7))
    assert sorted(row["content"] for row in await rows(database, tenant)) == expected
    assert {row["status"] for row in await rows(database, tenant)} == {"active"}


@pytest.mark.parametrize("count", [0, 1, PARTED_ROWS - 1, PARTED_ROWS, 74, 75, 100, 110, 250, 500])
def test_the_parts_of_a_batch_are_all_of_it_and_the_last_are_small(count: int) -> None:
    parts = _parts(count)
    sizes = [end - start for start, end in parts]
    assert [n for start, end in parts for n in range(start, end)] == list(range(count))
    assert len(parts) == (count > 0) or (sizes[-1] == LAST_ROWS[-1] and count >= PARTED_ROWS)
    assert all(LAST_ROWS[-1] <= size <= 1.5 * ROWS_AT_ONCE for size in sizes if size != count)


async def test_a_batch_is_stored_in_parts_and_is_one_batch_all_the_same(
    two: tuple[Rememberer, Rememberer], database: Database, tenant: UUID
) -> None:
    """Equal texts, values of a slot and columns that differ in the last part only, all of a subject that is new."""
    count = 2 * ROWS_AT_ONCE + 10
    moment = now()
    items = [new(f"Locker {n} holds {n * 7} keys.", metadata={"n": 1}) for n in range(count)]
    items[3] = new("Her desk is white.", key="desk")
    items[count - 2] = new("Her desk is black.", key="desk", metadata={"n": True}, pinned=True, event_at=moment)
    items[count - 1] = items[5]
    seen: list[Written] = []

    def keep(written: list[Written]) -> Answer:
        seen.extend(written)
        return told(written)

    await two[0].remember(caller_of(tenant), items, keep, now=moment)
    assert [one.outcome for one in seen[-2:]] == ["superseded", "duplicate"]
    assert [one.memory and one.memory["content"] for one in seen] == [item.content for item in items]
    async with database.read(tenant) as transaction:
        stored = await transaction.fetch(STORED_IN_PARTS, tenant_id=tenant)
        told_of = await transaction.fetch(TOLD_IN_PARTS, tenant_id=tenant)
    by_text = {row["content"]: row for row in stored}
    assert len(stored) == count - 1
    assert {row["subject_id"] for row in stored} == {stored[0]["subject_id"]}
    last = by_text["Her desk is black."]
    assert (last["metadata"], last["pinned"], last["event_at"]) == ({"n": True}, True, moment)
    assert [by_text[items[n].content]["status"] for n in (2, 3, count - 2)] == ["active", "deprecated", "active"]
    ends = [row for row in told_of if row["action"] == "deprecated"]
    assert [(row["content"], row["detail"]["reason"], row["by_text"]) for row in ends] == [
        ("Her desk is white.", "key", "Her desk is black.")
    ]
    assert seen[3].memory is not None
    assert (seen[3].memory["status"], seen[count - 2].related) == (
        "deprecated", ((seen[3].memory["id"], "supersedes"),),
    )  # fmt: skip
    first = by_text[items[0].content]
    assert (first["metadata"], first["pinned"], first["event_at"]) == ({"n": 1}, False, None)
    assert (last["metadata"]["n"], first["metadata"]["n"] is True) == (True, False)  # to Python 1 equals True
    assert all(row["word_count"] == len(words(row["content"])) for row in stored)
