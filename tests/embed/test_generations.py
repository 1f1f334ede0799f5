"""Vectors of two models never meet: the generation is claimed once and compared at every start."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from app.cli import embedded, schema
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database
from app.embed import ModelSpec, claim_generation, store_calibration, stored_calibration
from app.errors import StartupRefused
from tests.conftest import TEMPLATE, administer

SPEC = ModelSpec("bundled", "r1", 384, "query: ", "passage: ", 512, (0.75, 0.95), (0.8, 0.98))


@pytest.fixture
async def own_database(cluster: embedded.EmbeddedServer) -> AsyncIterator[Database]:
    """A database of this test alone: the generation belongs to the whole database."""
    name = f"generations_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    await asyncio.to_thread(administer, superuser, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    database = await Database.connect(DatabaseConfig(url=SecretStr(cluster.url(schema.LOGIN_ROLE, name))))
    yield database
    await database.close()
    await asyncio.to_thread(administer, superuser, f"DROP DATABASE {name}")


CHANGES: list[dict[str, Any]] = [
    {"model": "BAAI/bge-small-zh-v1.5"},
    {"revision": "r2"},
    {"dimension": 512},
    {"query_prompt": ""},
    {"document_prompt": "query: "},
]


async def test_the_first_start_claims_and_every_other_model_is_refused(own_database: Database) -> None:
    claims = await asyncio.gather(*(claim_generation(own_database, SPEC, 1, now()) for _ in range(5)))
    assert {claim.generation_id for claim in claims} == {1}
    assert claims[0].spec == SPEC
    longer = replace(SPEC, max_tokens=256)  # cuts texts elsewhere, but its vectors can be compared
    assert (await claim_generation(own_database, longer, 1, now())).generation_id == 1
    for change in CHANGES:
        with pytest.raises(StartupRefused, match="mneme reembed") as refusal:
            await claim_generation(own_database, replace(SPEC, **change), 1, now())
        assert next(iter(change)) in refusal.value.message
    with pytest.raises(StartupRefused, match="tokenizer_version stored 1, configured 2"):
        await claim_generation(own_database, SPEC, 2, now())


async def test_the_stored_calibration_wins_over_every_default(own_database: Database) -> None:
    assert await stored_calibration(own_database, SPEC) == SPEC
    await claim_generation(own_database, SPEC, 1, now())
    fitted = replace(SPEC, query_window=(0.7, 0.9), pair_window=(0.8, 1.0))
    await store_calibration(own_database, fitted, 1, now())
    assert await stored_calibration(own_database, SPEC) == fitted
    assert (await claim_generation(own_database, SPEC, 1, now())).spec == fitted
    another = replace(SPEC, query_window=(0.1, 0.2), max_tokens=256)  # the default of a later release
    assert (await claim_generation(own_database, another, 1, now())).spec == replace(fitted, max_tokens=256)
    with pytest.raises(StartupRefused, match="mneme reembed"):
        await store_calibration(own_database, replace(fitted, revision="r2"), 1, now())
    assert await stored_calibration(own_database, replace(SPEC, revision="r2")) == replace(SPEC, revision="r2")


async def test_a_window_that_the_settings_state_is_refused_until_it_is_stored(own_database: Database) -> None:
    await claim_generation(own_database, SPEC, 1, now())
    stated = replace(SPEC, query_window=(0.6, 0.9), stated=frozenset({"query_window"}))
    refused = r"MNEME_EMBED__QUERY_WINDOW is \(0.6, 0.9\), but the stored .* \(0.75, 0.95\).*calibrate --write"
    with pytest.raises(StartupRefused, match=refused):
        await claim_generation(own_database, stated, 1, now())
    await store_calibration(own_database, stated, 1, now())
    assert (await claim_generation(own_database, stated, 1, now())).spec == stated


async def test_an_empty_database_may_be_calibrated_before_the_first_start(own_database: Database) -> None:
    fitted = replace(SPEC, query_window=(0.7, 0.9))
    await store_calibration(own_database, fitted, 1, now())
    assert (await claim_generation(own_database, SPEC, 1, now())).spec == fitted
