"""What was accepted without a vector is finished by workers: claimed once, judged by the same rules, never lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from app.clock import now
from app.database import Database, sql
from app.embed import EmbedConfig, Embedder, Generation, claim_generation, load_embedder
from app.errors import EmbeddingUnavailable
from app.guard import Caller
from app.idempotency import Answer
from app.language import TOKENIZER_VERSION
from app.remember import Filler, NewMemory, RememberConfig, Rememberer, Written, backlog

STATES = sql("""
    SELECT m.content, m.status, m.embedding IS NOT NULL AS embedded, m.window_count,
           count(q.memory_id) AS queued, max(q.attempts) AS attempts
    FROM memories m LEFT JOIN embedding_queue q USING (tenant_id, subject_id, memory_id)
    WHERE m.tenant_id = :tenant_id GROUP BY m.tenant_id, m.subject_id, m.memory_id ORDER BY m.memory_id
""")


class Moody(Embedder):
    """An embedder that fails for texts with a word in them, or for all."""

    def __init__(self, inner: Embedder) -> None:
        self._inner, self.refuses = inner, ""
        self.spec = inner.spec

    async def embed_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        if any(self.refuses in text for text in texts):
            raise EmbeddingUnavailable
        return await self._inner.embed_documents(texts)


@pytest.fixture
async def moody(tmp_path: Path) -> AsyncIterator[Moody]:
    embedder = load_embedder(EmbedConfig(provider="hashing"), tmp_path)
    await embedder.start()
    yield Moody(embedder)
    await embedder.close()


@pytest.fixture
async def generation(database: Database, moody: Moody) -> Generation:
    return await claim_generation(database, moody.spec, TOKENIZER_VERSION, now())


async def write(database: Database, moody: Moody, generation: Generation, tenant: UUID, *texts: str) -> list[Written]:
    written: list[Written] = []

    def answer(what: list[Written]) -> Answer:
        written.extend(what)
        return Answer(200, b"")

    caller = Caller(tenant, None, None, None, frozenset())
    items = [NewMemory(user_id="amy", content=text, kind="profile") for text in texts]
    rememberer = Rememberer(database, moody, generation, RememberConfig())
    await rememberer.remember(caller, items, answer, now=now())
    return written


async def states(database: Database, tenant: UUID) -> list[Any]:
    async with database.read(tenant) as transaction:
        return await transaction.fetch(STATES, tenant_id=tenant)


async def drain(filler: Filler, moment: Any) -> int:
    total = 0
    while claimed := await filler.fill_pending(now=moment, limit=7):
        total += claimed
    return total


async def test_pending_memories_are_filled_once_by_many_workers(
    database: Database, moody: Moody, generation: Generation, tenant: UUID
) -> None:
    await drain(Filler(database, moody, generation, RememberConfig()), now())
    moody.refuses = ""
    with pytest.MonkeyPatch.context() as away:
        away.setattr(moody, "embed_documents", _refuse)
        await write(database, moody, generation, tenant, *(f"fact number {n}" for n in range(25)))
    assert all(row["queued"] == 1 and not row["embedded"] for row in await states(database, tenant))
    waiting, oldest_seconds = await backlog(database, now=now() + timedelta(seconds=60))
    assert waiting >= 25
    assert oldest_seconds >= 59
    moody.refuses = "never there"
    fillers = [Filler(database, moody, generation, RememberConfig()) for _ in range(4)]
    claimed = await asyncio.gather(*(drain(filler, now()) for filler in fillers))
    assert sum(claimed) == 25
    assert all(row["queued"] == 0 and row["embedded"] for row in await states(database, tenant))


async def test_a_text_that_fails_waits_longer_and_takes_no_other_with_it(
    database: Database, moody: Moody, generation: Generation, tenant: UUID
) -> None:
    with pytest.MonkeyPatch.context() as away:
        away.setattr(moody, "embed_documents", _refuse)
        await write(database, moody, generation, tenant, "a poisonous text", "a healthy text")
    moody.refuses = "poison"
    filler = Filler(database, moody, generation, RememberConfig())
    start = now()
    await drain(filler, start)
    poisonous, healthy = await states(database, tenant)
    assert (poisonous["embedded"], poisonous["queued"], poisonous["attempts"]) == (False, 1, 1)
    assert (healthy["embedded"], healthy["queued"]) == (True, 0)
    await drain(filler, start + timedelta(seconds=1))
    assert (await states(database, tenant))[0]["attempts"] == 1
    moody.refuses = "never there"
    await drain(filler, start + timedelta(hours=2))
    assert (await states(database, tenant))[0]["embedded"]


async def test_near_duplicates_are_found_when_the_vector_comes(
    database: Database, moody: Moody, generation: Generation, tenant: UUID
) -> None:
    moody.refuses = "never there"
    [first] = await write(database, moody, generation, tenant, "用户喜欢在早上喝一杯热的黑咖啡，不加糖")
    with pytest.MonkeyPatch.context() as away:
        away.setattr(moody, "embed_documents", _refuse)
        [late] = await write(database, moody, generation, tenant, "用户喜欢在早上喝一杯热的黑咖啡，不加糖呢")
    assert (first.outcome, late.outcome) == ("created", "created")
    await drain(Filler(database, moody, generation, RememberConfig()), now())
    assert [row["status"] for row in await states(database, tenant)] == ["active", "duplicate"]


async def test_a_claim_whose_worker_died_is_due_again(
    database: Database, moody: Moody, generation: Generation, tenant: UUID
) -> None:
    moody.refuses = "never there"
    filler = Filler(database, moody, generation, RememberConfig())
    await drain(filler, now())
    with pytest.MonkeyPatch.context() as away:
        away.setattr(moody, "embed_documents", _refuse)
        await write(database, moody, generation, tenant, "left behind")
        away.setattr(moody, "embed_documents", _die)
        with pytest.raises(KeyboardInterrupt):
            await filler.fill_pending(now=now())
    assert await filler.fill_pending(now=now()) == 0
    assert await filler.fill_pending(now=now() + timedelta(minutes=5)) == 1
    assert (await states(database, tenant))[0]["embedded"]


async def test_a_claim_of_a_worker_that_is_told_to_end_is_due_at_once(
    database: Database, moody: Moody, generation: Generation, tenant: UUID
) -> None:
    moody.refuses = "never there"
    filler = Filler(database, moody, generation, RememberConfig())
    await drain(filler, now())
    begun = asyncio.Event()

    async def hang(_: Sequence[str]) -> list[np.ndarray]:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.MonkeyPatch.context() as away:
        away.setattr(moody, "embed_documents", _refuse)
        await write(database, moody, generation, tenant, "left behind", "left behind as well")
        away.setattr(moody, "embed_documents", hang)
        filling = asyncio.create_task(filler.fill_pending(now=now()))
        await begun.wait()
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
    assert [row["attempts"] for row in await states(database, tenant)] == [0, 0]
    assert await filler.fill_pending(now=now()) == 2
    assert all(row["embedded"] for row in await states(database, tenant))


async def _refuse(_: Sequence[str]) -> list[np.ndarray]:
    raise EmbeddingUnavailable


async def _die(_: Sequence[str]) -> list[np.ndarray]:
    raise KeyboardInterrupt
