"""The whole product with its real model: a database of its own (another embedding generation), real HTTP."""

import os
from collections.abc import AsyncIterator

import httpx2
import pytest

from app.cli import embedded, schema
from app.settings import Settings
from tests.api.conftest import Service, run
from tests.conftest import CLUSTER, TEMPLATE, administer


@pytest.fixture(scope="session")
def model_database_url(cluster: embedded.EmbeddedServer) -> str:
    name = f"mneme_model_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    administer(cluster.url(embedded.SUPERUSER, "postgres"), f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    return cluster.url(schema.LOGIN_ROLE, name)


@pytest.fixture(scope="session")
async def product(model_database_url: str, pytestconfig: pytest.Config) -> AsyncIterator[Service]:
    """The service with the bundled model, as it comes: no key, this machine only."""
    settings = Settings.model_validate(
        {
            "data_dir": pytestconfig.stash[CLUSTER],
            "database": {"url": model_database_url, "pool_size": 4},
            "remember": {"embedding_deadline_seconds": 60},
            "recall": {"embedding_deadline_seconds": 60},
        }
    )
    async with run(settings) as service:
        yield service


@pytest.fixture
def client(product: Service) -> httpx2.AsyncClient:
    return product.client
