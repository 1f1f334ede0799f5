"""CTranslate2 gives the vectors of torch for every architecture that it takes; what it does not take runs in torch."""

import os
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli.bench import texts
from app.embed import EmbedConfig, Embedder, load_embedder, local, packed
from app.embed.local import PaddedEncoder, _encoder, _processor_flags
from app.embed.packed import PackedEncoder, pack
from app.errors import StartupRefused
from tests.embed.test_local import model_of
from tests.embed.tiny import encoder

RAGGED = [[7, 9, 11], [5, 6, 7, 8, 9], list(range(5, 35)), list(range(5, 45)), [*range(5, 60), *range(5, 8)]]


def cosines(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    product: np.ndarray[Any, Any] = (
        np.einsum("td,td->t", one, other) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    )
    return product


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize(
    ("architecture", "activation"),
    [("Bert", "gelu"), ("Bert", "gelu_new"), ("Bert", "relu"), ("XLMRoberta", "gelu"), ("Roberta", "gelu")],
)
def test_it_gives_the_vectors_of_torch(
    architecture: str, activation: str, pooling: str, threads: int, tmp_path: Path
) -> None:
    model = encoder(tmp_path, architecture, pooling=pooling, hidden_act=activation)
    forward = pack(model, "float32", threads, frozenset())
    assert forward is not None
    for windows in (RAGGED, RAGGED[:1], RAGGED[:2]):
        np.testing.assert_allclose(cosines(forward(windows), PaddedEncoder(model)(windows)), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("DistilBert", {}),
        ("Bert", {"pooling": "max"}),
        ("Bert", {"hidden_act": "silu"}),
        ("Bert", {"is_decoder": True}),
    ],
)
def test_what_it_does_not_know_runs_in_torch(architecture: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = encoder(tmp_path, architecture, **options)
    assert pack(model, "float32", 1, frozenset()) is None
    assert isinstance(_encoder(model, "tiny", "float32"), PaddedEncoder)


def test_a_model_that_it_would_get_wrong_runs_in_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = encoder(tmp_path, "XLMRoberta")
    assert isinstance(_encoder(model, "tiny", "float32"), PackedEncoder)
    monkeypatch.setitem(packed._PADDED_POSITIONS, "XLMRobertaModel", False)  # positions off by two
    assert isinstance(_encoder(model, "tiny", "float32"), PaddedEncoder)


def test_bfloat16_runs_in_torch(tmp_path: Path) -> None:
    assert isinstance(_encoder(encoder(tmp_path, "Bert"), "tiny", "bfloat16"), PaddedEncoder)


@pytest.mark.parametrize(("missing", "isa"), [(None, "AVX512"), ("avx512bw", None)])
def test_wide_vectors_are_asked_for_where_the_processor_has_them(
    missing: str | None, isa: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packed, "_understood", lambda _: False)
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    pack(encoder(tmp_path, "Bert"), "float32", 1, packed._WIDE_VECTORS - {missing})
    assert environment.get("CT2_FORCE_CPU_ISA") == isa


def test_without_room_for_its_file_the_start_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = encoder(tmp_path, "Bert")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StartupRefused, match="TMPDIR"):
        _encoder(model, "tiny", "float32")


async def test_the_bundled_model_is_packed(embedder: Embedder) -> None:
    assert isinstance(model_of(embedder).forward, PackedEncoder)


@pytest.mark.skipif("avx512_vnni" not in _processor_flags(), reason="this processor has no VNNI")
@pytest.mark.parametrize("engine", [PackedEncoder, PaddedEncoder])
def test_int8_keeps_the_vectors(
    engine: type, embedder: Embedder, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred memories and questions, with the engine that takes the bundled model and with the other one."""
    if engine is PaddedEncoder:
        monkeypatch.setattr(local, "pack", lambda *_: None)
    count = 150 if engine is PackedEncoder else 25
    int8 = model_of(load_embedder(EmbedConfig(precision="int8", threads=1), model_dir))
    assert isinstance(int8.forward, engine)
    exact = model_of(embedder)
    windows = [exact.split(text, "document")[0] for text in islice(texts.memories("int8"), count)]
    windows += [exact.split(text, "query")[0] for text in islice(texts.questions("int8"), count)]
    windows.sort(key=len)
    assert cosines(int8.forward(windows), exact.forward(windows)).min() >= 0.998
