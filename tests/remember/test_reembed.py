"""A store moves to another model and back: every memory gets its vectors, whoever is killed, edited or refused."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID
from zlib import crc32

import asyncpg
import numpy as np
import pytest
from pydantic import SecretStr
from uuid_utils.compat import uuid7

from app.cli import embedded, schema
from app.cli.switch import ensure_lacking_index, ensure_vector_index, switch
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database, sql
from app.embed import (
    OTHER,
    Embedder,
    Generation,
    Known,
    ModelSpec,
    active_generation_id,
    begin_generation,
    claim_generation,
    known_generations,
    other_generation,
)
from app.errand import Errand
from app.errors import Conflict, EmbeddingUnavailable, StartupRefused
from app.guard import Caller
from app.idempotency import Answer
from app.indexes import PARTS, ann_index
from app.remember import Filler, NewMemory, Refill, RememberConfig, Rememberer, Shelf, keep_up
from app.remember.reembed import _lacking
from tests.conftest import TEMPLATE, administer

OLD = ModelSpec("old", "r1", 16, "", "", 512, (0.0, 1.0), (0.0, 1.0))
NEW = ModelSpec("new", "r1", 24, "", "", 512, (0.1, 0.9), (0.0, 1.0))
SHORT, LONG = (
    "我住在杭州",
    "她在云启科技做产品经理，负责客服系统，每周一开例会，每月去一次上海，喜欢喝龙井茶，不吃香菜。",
)
TEXTS = [SHORT, LONG, "Her flight to Oslo leaves at nine", *(f"订单 {n} 已经发货" for n in range(40))]
ROWS = sql("""
    SELECT m.memory_id, m.content, m.status, m.generation_id, m.embedding, m.window_count,
           m.other_generation_id, m.other_embedding, m.other_window_count,
           (SELECT count(*) FROM memory_windows w WHERE w.memory_id = m.memory_id) AS own,
           (SELECT count(*) FROM other_windows w WHERE w.memory_id = m.memory_id) AS others
    FROM memories m WHERE m.tenant_id = :tenant_id ORDER BY m.memory_id
""")

_NEW_TENANT = sql("INSERT INTO tenants (tenant_id, name, created_at) VALUES (:tenant_id, 'mine', now())")


class Model(Embedder):
    """Gives each text a window for every `characters`; its vectors are known by text, so that all can be compared."""

    def __init__(self, spec: ModelSpec, characters: int) -> None:
        self.spec, self.characters = spec, characters
        self.asked: list[str] = []
        self.refuses = ""
        self.before_answer: Any = None

    def vectors(self, text: str) -> np.ndarray:
        count = -(-len(text) // self.characters)
        seed = crc32((self.spec.model + text).encode())
        drawn = np.random.default_rng(seed).standard_normal((count, self.spec.dimension), dtype=np.float32)
        return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))

    async def embed_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self.refuses and any(self.refuses in text for text in texts):
            raise EmbeddingUnavailable
        self.asked += texts
        if self.before_answer is not None:
            await self.before_answer()
        return [self.vectors(text) for text in texts]


@dataclass
class Store:
    """A database of its own, its two models, and what is done with them."""

    database: Database
    owner_url: str
    old: Model = field(default_factory=lambda: Model(OLD, 20))
    new: Model = field(default_factory=lambda: Model(NEW, 30))
    tenant: UUID = field(default_factory=lambda: UUID(str(uuid7())))

    async def served(self) -> tuple[Model, Generation]:
        """The model of the active generation, as a process that has followed has it."""
        known = {one.generation_id: one for one in await known_generations(self.database)}
        active = await active_generation_id(self.database)
        model = self.old if active is None or known[active].model == "old" else self.new
        return model, await claim_generation(self.database, model.spec, 1, now(), source={"model": model.spec.model})

    async def write(self, *texts: str, model: Model | None = None, generation: Generation | None = None) -> list[UUID]:
        served, active = await self.served()
        rememberer = Rememberer(self.database, model or served, generation or active, RememberConfig())
        ids: list[UUID] = []

        def answer(what: list[Any]) -> Answer:
            ids.extend(one.memory["id"] for one in what)
            return Answer(200, b"")

        caller = Caller(self.tenant, None, None, None, frozenset())
        items = [NewMemory(user_id=f"u{n % 3}", content=text, kind="profile") for n, text in enumerate(texts)]
        await rememberer.remember(caller, items, answer, now=now())
        return ids

    async def begin(self, *, only_used: bool = False, rate: float | None = None) -> Known:
        model = self.new if (await self.served())[0] is self.old else self.old
        source = {"model": model.spec.model}
        await begin_generation(self.database, model.spec, 1, source, now(), only_used=only_used, rate=rate)
        other = await other_generation(self.database)
        assert other is not None
        await ensure_lacking_index(self.owner_url, other)
        return other

    async def model_of(self, generation: Known) -> Model:
        return self.old if generation.model == "old" else self.new

    async def keep_up(self, *, rest: bool = False, days: float = 7, errand: Errand | None = None) -> Errand:
        errand = errand or Errand(now())
        await keep_up(self.database, self.model_of, days, errand, rest=rest)
        return errand

    async def switch(self) -> None:
        other = await other_generation(self.database)
        assert other is not None
        await ensure_vector_index(self.owner_url, other)
        await switch(self.owner_url, other.generation_id, now())

    async def rows(self) -> list[Any]:
        async with self.database.read(self.tenant) as transaction:
            return await transaction.fetch(ROWS, tenant_id=self.tenant)

    async def ask(self, statement: str, *values: Any) -> Any:
        connection = await asyncpg.connect(self.owner_url.replace("postgresql+asyncpg", "postgresql"))
        try:
            return await connection.fetchval(statement, *values)
        finally:
            await connection.close()

    async def check(self) -> None:
        """Every memory has the served model's vectors under the served names, and the other's under the others."""
        served, generation = await self.served()
        other = await other_generation(self.database)
        for row in await self.rows():
            await self._check_side(row, served, generation.generation_id, ("generation_id", "embedding"))
            assert (row["window_count"], row["own"]) == (len(served.vectors(row["content"])), row["window_count"] - 1)
            if other is not None:
                beside = await self.model_of(other)
                await self._check_side(row, beside, other.generation_id, ("other_generation_id", "other_embedding"))
                count = len(beside.vectors(row["content"]))
                assert (row["other_window_count"], row["others"]) == (count, count - 1)

    async def _check_side(self, row: Any, model: Model, generation_id: int, names: tuple[str, str]) -> None:
        assert row[names[0]] == generation_id
        assert np.allclose(row[names[1]], model.vectors(row["content"])[0], atol=2e-3)


@pytest.fixture
async def store(cluster: embedded.EmbeddedServer) -> AsyncIterator[Store]:
    """A store with memories of the old model: generations belong to a whole database."""
    name = f"reembed_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    await asyncio.to_thread(administer, superuser, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    config = DatabaseConfig(url=SecretStr(cluster.url(schema.LOGIN_ROLE, name)), pool_size=4)
    database = await Database.connect(config)
    store = Store(database, cluster.url(embedded.SUPERUSER, name))
    try:
        async with database.write(store.tenant) as transaction:
            await transaction.execute(_NEW_TENANT, tenant_id=store.tenant)
        await store.write(*TEXTS)
        yield store
    finally:
        await database.close()
        await asyncio.to_thread(administer, superuser, f"DROP DATABASE {name} WITH (FORCE)")


async def test_there_and_back_with_other_dimensions_and_windows(store: Store) -> None:
    await store.check()
    other = await store.begin()
    errand = await store.keep_up()
    assert (errand.counts["embedded"], sorted(store.new.asked)) == (len(TEXTS), sorted(TEXTS))
    await store.check()
    await store.switch()
    assert await active_generation_id(store.database) == other.generation_id
    await store.check()
    await store.write("她的新办公室在苏州", "Their warehouse is in Ghent")
    assert (await store.keep_up()).counts["embedded"] == 2  # the model that was left is kept up
    await store.check()
    await store.switch()
    assert (await store.served())[0] is store.old
    await store.check()
    assert (await store.keep_up()).counts["embedded"] == 0


async def test_whoever_is_killed_is_followed_where_it_was(store: Store) -> None:
    await store.begin()

    async def die() -> None:
        if len(store.new.asked) > 32:
            raise asyncio.CancelledError

    store.new.before_answer = die
    with pytest.raises(asyncio.CancelledError):
        await store.keep_up()
    done = [row["content"] for row in await store.rows() if row["other_generation_id"] is not None]
    assert 0 < len(done) < len(TEXTS)
    store.new.before_answer, store.new.asked = None, []
    assert (await store.keep_up()).counts["embedded"] == len(TEXTS) - len(done)
    assert set(store.new.asked).isdisjoint(done)
    await store.check()


async def test_what_is_edited_meanwhile_keeps_no_vector_of_its_old_text(store: Store) -> None:
    other = await store.begin()
    await store.keep_up()
    served, generation = await store.served()
    shelf = Shelf(store.database, served, generation, RememberConfig())
    caller = Caller(store.tenant, None, None, None, frozenset({"write"}))
    rows = {row["content"]: row["memory_id"] for row in await store.rows()}
    await shelf.amend(caller, rows[LONG], {"content": "她换了工作"}, now=now())
    assert await Refill(store.database, other).lacking() == 1

    async def edit() -> None:
        store.new.before_answer = None
        await shelf.amend(caller, rows[LONG], {"content": LONG + "她又换了一次工作。"}, now=now())

    store.new.before_answer = edit
    assert (await store.keep_up()).counts["embedded"] == 0
    assert (await store.keep_up()).counts["embedded"] == 1
    await store.check()


async def test_a_text_that_the_model_refuses_keeps_no_other_waiting(store: Store) -> None:
    other = await store.begin()
    store.new.refuses = "Oslo"
    assert (await store.keep_up()).counts["embedded"] == len(TEXTS) - 1
    assert await Refill(store.database, other).lacking() == 1
    known = await other_generation(store.database)
    assert known is not None
    assert known.lacking == 1
    store.new.refuses = ""
    await store.keep_up()
    await store.check()


async def test_what_waits_in_the_queue_is_judged_before_it_is_moved(store: Store) -> None:
    other = await store.begin()
    store.old.refuses = "绿茶"
    await store.write("我喜欢喝绿茶")
    assert (await store.keep_up()).counts["embedded"] == len(TEXTS)
    await store.switch()
    waiting = [row for row in await store.rows() if row["content"] == "我喜欢喝绿茶"]
    assert [(row["generation_id"], row["other_generation_id"]) for row in waiting] == [(None, None)]
    filler = Filler(store.database, *await store.served(), RememberConfig())
    assert await filler.fill_pending(now=now() + timedelta(hours=1)) == 1
    store.old.refuses = ""
    assert (await store.keep_up()).counts["embedded"] == 1
    await store.check()
    assert (await store.served())[1].generation_id == other.generation_id


async def test_what_is_cold_stays_without_vectors(store: Store) -> None:
    await store.ask(
        "UPDATE memories SET cooled_by = gen_random_uuid(), embedding = NULL, generation_id = NULL"
        " WHERE content LIKE '%Oslo%'"
    )
    other = await store.begin()
    assert (await store.keep_up()).counts["embedded"] == len(TEXTS) - 1
    assert await Refill(store.database, other).lacking() == 0


async def test_who_has_not_followed_yet_writes_nothing_wrong(store: Store) -> None:
    """A process that still serves the old model after a switch, and a run that began before it."""
    stale_model, stale = await store.served()
    await store.begin()
    await store.keep_up()
    old_refill = Refill(store.database, (await store.begin()))
    await store.switch()
    before = await store.ask("SELECT md5(string_agg(m::text, '' ORDER BY memory_id)) FROM memories m")
    await store.ask("UPDATE memories SET embedding = NULL, generation_id = NULL WHERE memory_id IN "
                    "(SELECT memory_id FROM memories LIMIT 5)")  # fmt: skip
    lost = await store.ask("SELECT md5(string_agg(m::text, '' ORDER BY memory_id)) FROM memories m")
    assert lost != before
    await old_refill.run(store.new, Errand(now()))  # believes that its model still stands beside the served one
    assert await store.ask("SELECT md5(string_agg(m::text, '' ORDER BY memory_id)) FROM memories m") == lost
    await store.write("迟到的一句话", model=stale_model, generation=stale)
    await store.keep_up()
    await store.check()


async def test_only_what_is_used_moves_first_and_the_rest_once_a_week(store: Store) -> None:
    async with store.database.write(store.tenant) as transaction:
        await transaction.execute(
            sql("""
            UPDATE memory_usage u SET access_count = 3 FROM memories m
            WHERE m.tenant_id = u.tenant_id AND m.memory_id = u.memory_id AND m.content LIKE '%Oslo%'
        """)
        )
        await transaction.execute(sql("UPDATE memories SET pinned = true WHERE content = '我住在杭州'"))
    await store.begin(only_used=True)
    await store.write("搬家之后的第一句话")
    assert (await store.keep_up()).counts["embedded"] == 3
    assert sorted(store.new.asked) == sorted([SHORT, TEXTS[2], "搬家之后的第一句话"])
    await store.switch()
    assert (await store.keep_up()).counts["embedded"] == 0
    assert (await store.keep_up(rest=True)).counts["embedded"] == len(TEXTS) - 2
    await store.check()
    assert not any(one.only_used for one in await known_generations(store.database))


async def test_a_model_that_was_left_long_ago_goes(store: Store) -> None:
    first = (await store.served())[1].generation_id
    second = (await store.begin()).generation_id
    await store.keep_up()
    await store.switch()
    with pytest.raises(Conflict, match="still kept"):
        await store.begin()
    assert (await store.keep_up(days=8, errand=Errand(now() + timedelta(days=7)))).counts["purged"] == 0
    gone = await store.keep_up(days=7, errand=Errand(now() + timedelta(days=7)))
    assert gone.counts["purged"] == len(TEXTS)
    assert await store.ask("SELECT count(*) FROM memories WHERE other_embedding IS NOT NULL") == 0
    assert await store.ask("SELECT count(*) FROM other_windows") == 0
    indexes = await store.ask(
        "SELECT array_agg(indexname ORDER BY indexname) FROM pg_indexes WHERE indexname ~ '_g[0-9]+'"
    )
    assert indexes == [*(ann_index(second, part) for part in range(PARTS)), f"memories_lacking_g{second}"]
    with pytest.raises(StartupRefused, match="beside"):
        await switch(store.owner_url, first, now())
    again = await store.begin()  # a new generation of a model that was there before
    assert again.generation_id not in (first, second)
    await store.keep_up()
    await store.switch()
    assert (await store.served())[0] is store.old
    await store.check()


async def test_a_rate_is_kept_and_models_do_not_mix(store: Store) -> None:
    await store.begin(rate=200)
    started = asyncio.get_running_loop().time()
    await store.keep_up()
    assert asyncio.get_running_loop().time() - started >= len(TEXTS) / 200
    third = Model(replace(NEW, model="third"), 30)
    with pytest.raises(Conflict, match="on its way to new"):
        await begin_generation(store.database, third.spec, 1, {}, now(), only_used=False, rate=None)
    with pytest.raises(Conflict, match="already"):
        await begin_generation(store.database, OLD, 1, {}, now(), only_used=False, rate=None)


async def test_what_lacks_its_vector_is_found_by_an_index(store: Store) -> None:
    other = await store.begin()
    await store.keep_up()
    found = _lacking(OTHER, other.generation_id, "all")
    explain = copy(found)
    explain.sql = f"EXPLAIN {found.sql}"
    nowhere = dict.fromkeys(("after_subject", "after", "since"), UUID(int=0))
    async with store.database.read(store.tenant) as transaction:
        await transaction.execute(sql("SET LOCAL enable_seqscan = off"))
        plan = await transaction.fetch(explain, tenant_id=store.tenant, limit=32, **nowhere)
    assert f"memories_lacking_g{other.generation_id}" in "".join(row[0] for row in plan)
