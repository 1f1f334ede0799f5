"""A switch to another model as processes see it that have not followed yet, and one that starts with old settings."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from app import main
from app.cli import embedded, schema
from app.cli.switch import ensure_lacking_index, ensure_vector_index, switch
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database
from app.embed import EmbedConfig, begin_generation, load_embedder, other_generation
from app.errand import Errand
from app.language import TOKENIZER_VERSION
from app.recall import RecallConfig, tend_large_subjects
from app.remember import keep_up
from tests.api.conftest import Service, make_settings, run
from tests.conftest import TEMPLATE, administer

LARGE = RecallConfig(resident_mb=0, exact_scan_rows=100)
WAYS = {"by SQL": RecallConfig(resident_mb=0), "held in memory": RecallConfig(resident_after=1), "by index": LARGE}
QUESTIONS = ("杭州 大会", "芒果过敏", "printer of room 17", "delivery to Ghent")
TEXTS = ["我对芒果过敏，不能吃芒果", "国庆我要去杭州参加开发者大会", "The delivery to Ghent came late"]


@pytest.fixture
async def databases(cluster: embedded.EmbeddedServer) -> AsyncIterator[tuple[str, str]]:
    """URLs of service and owner of a database of this test alone."""
    name = f"switched_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    await asyncio.to_thread(administer, superuser, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    yield cluster.url(schema.LOGIN_ROLE, name), cluster.url(embedded.SUPERUSER, name)
    await asyncio.to_thread(administer, superuser, f"DROP DATABASE {name} WITH (FORCE)")


async def found(client: httpx2.AsyncClient, user: str) -> list[Any]:
    """Ids and scores of what similarity finds, and what was missing."""
    answers = []
    for question in QUESTIONS:
        body = {"user_id": user, "query": question, "fusion": "similarity", "top_k": 5}
        answer = (await client.post("/v1/memories:search", json=body)).json()
        answers.append(([(hit["memory"]["id"], round(hit["score"], 3)) for hit in answer["hits"]], answer["degraded"]))
    return answers


async def move(url: str, owner_url: str, data_dir: Path) -> None:
    """To the hashing model of another dimension, without any process but this one."""
    config = EmbedConfig(provider="hashing", dimension=256)
    embedder = load_embedder(config, data_dir)

    async def model_of(_: object) -> Any:
        return embedder

    database = await Database.connect(DatabaseConfig(url=SecretStr(url), pool_size=2))
    try:
        await tend_large_subjects(database, LARGE, now=now())
        source = config.source()
        await begin_generation(database, embedder.spec, TOKENIZER_VERSION, source, now(), only_used=False, rate=None)
        other = await other_generation(database)
        assert other is not None
        await ensure_lacking_index(owner_url, other)
        await keep_up(database, model_of, 7, Errand(now()))
        await ensure_vector_index(owner_url, other)
        await switch(owner_url, other.generation_id, now())
    finally:
        await database.close()


async def test_until_a_process_follows_it_finds_what_it_found_before(
    databases: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, owner_url = databases
    monkeypatch.setattr(main, "FOLLOW_SECONDS", 3600)
    settings = make_settings(url, tmp_path, required=False)
    async with AsyncExitStack() as stack:
        services: dict[str, Service] = {
            way: await stack.enter_async_context(run(settings.model_copy(update={"recall": recall})))
            for way, recall in WAYS.items()
        }
        first = services["by SQL"].client
        for user, texts in (("amy", TEXTS), ("large", [*TEXTS, *(f"Printer of room {n} is new" for n in range(120))])):
            for start in range(0, len(texts), 50):
                items = [{"user_id": user, "content": text} for text in texts[start : start + 50]]
                assert (await first.post("/v1/memories:batch", json={"items": items})).status_code in (200, 201)
        expected = {user: await found(first, user) for user in ("amy", "large")}
        assert all(hits for hits, _ in expected["amy"])
        await move(url, owner_url, tmp_path)
        for way, service in services.items():
            assert await found(service.client, "amy") == expected["amy"], way
            assert await found(service.client, "large") == expected["large"], way

        late = await stack.enter_async_context(run(settings))  # its settings still name the model that was left
        ready = (await late.client.get("/readyz?verbose")).json()
        assert (ready["checks"]["embedding"]["dim"], ready["checks"]["embedding"]["generation"]) == (256, 2)
        for user, before in expected.items():
            after = await found(late.client, user)
            assert [hits[0][0] for hits, _ in after[:2]] == [hits[0][0] for hits, _ in before[:2]]
            assert not any(missing for _, missing in after)
            assert after != before
