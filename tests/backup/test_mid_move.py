"""A backup taken while a store cools, or moves to another model, is good; what comes of it is whole and goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from uuid_utils.compat import uuid7

from app.backup import Manifest, Wanted
from app.cli import embedded, schema
from app.cli.switch import ensure_lacking_index, ensure_vector_index, switch
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database
from app.embed import EmbedConfig, begin_generation, load_embedder, other_generation
from app.errand import Errand
from app.forget import tiers
from app.language import TOKENIZER_VERSION
from app.remember import keep_up, reembed
from tests.api.conftest import make_settings
from tests.backup.conftest import Site, product, tell
from tests.conftest import administer
from workers.context import Context
from workers.jobs import cooling, embed

LATER = timedelta(days=100)
TEXTS = [
    "聊到周末去爬山要带护膝", "Talked about hiking with knee pads", "打印机在七楼又卡纸了",
    "The delivery to Ghent came late", "订单 B-2044 换了收货地址", "Asked how to change the invoice address",
]  # fmt: skip


@dataclass
class Halfway(Errand):
    """An errand in which something happens after the first batch."""

    then: Callable[[], Coroutine[Any, Any, Any]] | None = None
    came: list[Any] = field(default_factory=list)

    async def pause(self) -> None:
        if self.then is not None and not self.came:
            self.came.append(await self.then())


@pytest.fixture
async def client(site: Site) -> AsyncIterator[httpx2.AsyncClient]:
    """The service of the first tenant, whose user ann has said a few things of little weight."""
    async with product(site.url, site.tenants[0], site.data_dir) as client:
        await tell(client, "ann", *({"content": text, "importance": 2} for text in TEXTS))
        yield client


@pytest.fixture
async def target(site: Site, cluster: embedded.EmbeddedServer, tmp_path: Path) -> AsyncIterator[Site]:
    """Where a whole backup is restored to."""
    name = f"mneme_back_{uuid7().hex[-8:]}"
    yield Site(
        cluster.url(schema.LOGIN_ROLE, name), cluster.url(embedded.SUPERUSER, name),
        cluster.url(schema.BACKUP_ROLE, name), site.tenants, tmp_path,
    )  # fmt: skip
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    await asyncio.to_thread(administer, superuser, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


async def found(client: httpx2.AsyncClient) -> dict[str, dict[str, float]]:
    """What similarity finds of each text, cold or not, with its score."""
    answers = {}
    for text in TEXTS:
        body = {"user_id": "ann", "query": text, "fusion": "similarity", "include_cold": True, "top_k": 20}
        answer = (await client.post("/v1/memories:search", json=body)).json()
        assert answer["hits"][0]["memory"]["content"] == text
        answers[text] = {hit["memory"]["content"]: round(hit["score"], 3) for hit in answer["hits"]}
    return answers


async def good(site: Site) -> Manifest:
    """A backup that was proved by restoring it aside, made this very moment."""
    made = await site.backups().create(version="1", now=now())
    await site.backups().verify(made.backup, now=now())
    return made


async def work(site: Site, *steps: Callable[[Context], Coroutine[Any, Any, Any]]) -> None:
    """Do as the worker of a site does."""
    settings = make_settings(site.url, site.data_dir)
    database = await Database.connect(settings.database)
    context = Context(settings, database)
    try:
        for step in steps:
            await step(context)
    finally:
        await context.close()
        await database.close()


async def cold(site: Site) -> int:
    """Every memory is warm with all, or cold with signs and nothing else; returns how many are cold."""
    query = """
        SELECT count(*) FILTER (WHERE cooled_by IS NOT NULL),
               bool_and((cooled_by IS NULL) = (embedding IS NOT NULL) AND (signs IS NULL) = (cooled_by IS NULL)),
               (SELECT count(*) FROM memory_windows w JOIN memories c USING (tenant_id, subject_id, memory_id)
                WHERE c.cooled_by IS NOT NULL)
        FROM memories WHERE status = 'active'
    """
    ((count, whole, windows),) = await site.ask(query)
    assert (whole, windows) == (True, 0)
    return int(count)


async def test_while_memories_are_made_cold(
    site: Site, target: Site, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "BATCH", 2)
    expected = await found(client)
    night = Halfway(now() + LATER, tenant_id=site.tenants[0], then=lambda: good(site))
    await work(site, lambda context: cooling(context, night))
    assert await cold(site) >= len(TEXTS)
    await site.backups().restore_all(night.came[0], target.owner_url)
    assert await cold(target) == 2, "as it was after the first batch"
    async with product(target.url, site.tenants[0], site.data_dir) as restored:
        assert await found(restored) == expected
    await work(target, lambda context: cooling(context, Errand(now() + LATER, tenant_id=site.tenants[0])))
    assert await cold(target) == await cold(site)


async def test_while_vectors_of_another_model_are_made(
    site: Site, target: Site, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restored, the move goes on where it was, and a single user comes back into a store that has moved since."""
    monkeypatch.setattr(reembed, "BATCH", 4)
    before = await found(client)
    config = EmbedConfig(provider="hashing", dimension=256)
    model = load_embedder(config, site.data_dir)

    async def model_of(_: object) -> Any:
        return model

    async def begin(context: Context) -> None:
        source = config.source()
        await begin_generation(
            context.database, model.spec, TOKENIZER_VERSION, source, now(), only_used=False, rate=None
        )
        other = await other_generation(context.database)
        assert other is not None
        await ensure_lacking_index(site.owner_url, other)

    night = Halfway(now(), then=lambda: good(site))
    await work(site, begin, lambda context: keep_up(context.database, model_of, 7, night))
    made = night.came[0]
    await site.backups().restore_all(made, target.owner_url)
    halfway = "SELECT count(*) FILTER (WHERE other_embedding IS NOT NULL) BETWEEN 1 AND count(*) - 1 FROM memories"
    assert await target.ask(halfway) == [(True,)]
    async with product(target.url, site.tenants[0], site.data_dir) as restored:
        assert await found(restored) == before, "search stays on the old model until the switch"
    after = []
    for place in (site, target):
        await work(place, lambda context: keep_up(context.database, model_of, 7, Errand(now())))
        assert await place.ask("SELECT count(*) FROM memories WHERE other_embedding IS NULL") == [(0,)]
        ((number,),) = await place.ask("SELECT generation_id FROM embedding_generations WHERE state = 'building'")
        other = await _other(place)
        await ensure_vector_index(place.owner_url, other)
        await switch(place.owner_url, number, now())
        async with product(place.url, site.tenants[0], site.data_dir) as moved:
            after.append(await found(moved))
    assert after[0] == after[1] != before
    async with product(site.url, site.tenants[0], site.data_dir) as moved:
        assert (await moved.delete("/v1/subjects/ann")).json()["memories"] == len(TEXTS)
        wanted = Wanted(site.tenants[0], one=True, user_id="ann", even_erased=True)
        database = await Database.connect(DatabaseConfig(url=SecretStr(site.url)))
        try:
            await site.backups().bring_back(made, database, wanted, migrate=schema.upgrade, now=now())
        finally:
            await database.close()
        await work(site, lambda context: embed(context, Errand(now())))
        assert await found(moved) == after[0]


async def _other(site: Site) -> Any:
    database = await Database.connect(DatabaseConfig(url=SecretStr(site.url)))
    try:
        return await other_generation(database)
    finally:
        await database.close()
