"""A tiny real CrossEncoder of three labels: its probabilities in both directions, and models that are none."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from app.embed import Nli, NliConfig, NliUnavailable, load_nli
from app.errors import StartupRefused
from tests.embed.tiny import save_cross_encoder

NEW = "我不喜欢狗"
OLD = ["我喜欢狗", "我喜欢咖啡", "the dog is a dog", "客户的订单退款"]
LABELS = {0: "entailment", 1: "Contradiction", 2: "neutral"}


def labelled(folder: Path, labels: dict[int, str], *, count: int = 3) -> Path:
    save_cross_encoder(folder, labels=count, seed=7)  # of whose pairs some contradict
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["id2label"] = {str(number): label for number, label in labels.items()}
    config["label2id"] = {label: number for number, label in labels.items()}
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def config(folder: Path, **changes: Any) -> NliConfig:
    given = {"deadline_seconds": 30.0, "least_probability": 0.51, **changes}
    return NliConfig(provider="local", model=str(folder), precision="float32", **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled(tmp_path_factory.mktemp("nli"), LABELS)


@pytest.fixture
async def nli(folder: Path) -> AsyncIterator[Nli]:
    nli = load_nli(config(folder), threads=1)
    assert nli is not None
    yield nli
    await nli.close()


def probabilities(folder: Path) -> list[float]:
    """That of contradiction, the smaller one of both directions, as the library gives it."""
    model = CrossEncoder(str(folder), device="cpu")
    pairs = [pair for old in OLD for pair in ((old, NEW), (NEW, old))]
    found = model.predict(pairs, apply_softmax=True)[:, 1].reshape(-1, 2).min(axis=1)
    return [float(one) for one in found]


async def test_both_directions_must_say_so(folder: Path, nli: Nli) -> None:
    expected = probabilities(folder)
    assert await nli.contradicted(NEW, OLD) == [share >= 0.51 for share in expected] == [True, False, True, False]
    for least in sorted(expected):
        if least <= 0.5:
            continue
        strict = load_nli(config(folder, least_probability=least - 1e-4), threads=1)
        assert strict is not None
        assert await strict.contradicted(NEW, OLD) == [share >= least - 1e-4 for share in expected]
        await strict.close()


async def test_what_fails_is_unavailable_and_never_no(folder: Path) -> None:
    slow = load_nli(config(folder, deadline_seconds=1e-6), threads=1)
    assert slow is not None
    with pytest.raises(NliUnavailable):
        await slow.contradicted(NEW, OLD)
    await slow.close()
    with pytest.raises(NliUnavailable):
        await slow.contradicted(NEW, OLD)


async def test_a_score_that_is_no_number_is_unavailable(nli: Nli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def encode(pairs: list[Any], _: str) -> list[Any]:
        return [np.full((1, 3), np.nan, np.float32) for _ in pairs]

    monkeypatch.setattr(nli._batcher, "encode", encode)
    with pytest.raises(NliUnavailable):
        await nli.contradicted(NEW, OLD)


@pytest.mark.parametrize(
    ("labels", "count"),
    [({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}, 3), ({0: "entailment", 1: "contradiction"}, 2), ({0: "LABEL_0"}, 1)],
)
def test_a_model_that_is_none_is_refused_at_the_start(tmp_path: Path, labels: dict[int, str], count: int) -> None:
    with pytest.raises(StartupRefused, match="no model of NLI"):
        load_nli(config(labelled(tmp_path / "other", labels, count=count)), threads=1)


def test_none_is_loaded_unless_it_is_named(tmp_path: Path) -> None:
    assert load_nli(NliConfig(), threads=1) is None
    with pytest.raises(StartupRefused, match="MNEME_NLI__MODEL"):
        load_nli(NliConfig(provider="local"), threads=1)
    with pytest.raises(StartupRefused, match="cannot be loaded"):
        load_nli(config(tmp_path / "nowhere"), threads=1)
