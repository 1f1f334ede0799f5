"""The real bundled model, prepared once a machine and loaded once a test process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.embed import EmbedConfig, Embedder, load_embedder


@pytest.fixture(scope="session")
def model_dir(pytestconfig: pytest.Config) -> Path:
    """A data directory that outlives the run: writing the model takes longer than all tests of it."""
    return pytestconfig.cache.mkdir("bundled-model")


@pytest.fixture(scope="session")
async def embedder(model_dir: Path) -> AsyncIterator[Embedder]:
    """The bundled model in float32, so that vectors can be compared exactly."""
    embedder = load_embedder(EmbedConfig(precision="float32", threads=1), model_dir)
    await embedder.start()
    yield embedder
    await embedder.close()
