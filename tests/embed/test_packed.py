"""CTranslate2 gives the vectors of torch for every architecture that it takes; what it does not take runs in torch."""

import os
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli.bench import texts
from app.embed import EmbedConfig, Embedder, kept, load_embedder, local, packed
from app.embed.kept import Kept, open_once
from app.embed.packed import PackedEncoder
from app.embed.processor import has_narrow_int8, processor_flags
from app.embed.source import Source
from app.embed.torch_model import Facts, PaddedEncoder
from app.errors import StartupRefused
from tests.embed.test_local import model_of
from tests.embed.tiny import encoder

FACTS = Facts(revision="", dimension=384, max_tokens=512, prompts={})
VNNI = "avx512_vnni" in processor_flags()
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
    forward = open_once(model, Source(str(tmp_path), "tiny"), "float32", threads).encoder
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
def test_what_it_does_not_know_is_left_to_torch(architecture: str, options: dict[str, Any], tmp_path: Path) -> None:
    found = open_once(encoder(tmp_path, architecture, **options), Source(str(tmp_path), "tiny"), "float32", 1)
    assert (found.encoder, found.reason) == (None, "unknown architecture or pooling")


def test_a_model_that_it_would_get_wrong_is_left_to_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, source = encoder(tmp_path, "XLMRoberta"), Source(str(tmp_path), "tiny")
    assert isinstance(open_once(model, source, "float32", 1).encoder, PackedEncoder)
    monkeypatch.setitem(packed._PADDED_POSITIONS, "XLMRobertaModel", False)  # positions off by two
    found = open_once(model, source, "float32", 1)
    assert (found.encoder, found.reason) == (None, "other vectors than torch")


def test_vectors_that_are_no_numbers_are_not_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept, "_alike", lambda *_: float("nan"))
    assert open_once(encoder(tmp_path, "Bert"), Source(str(tmp_path), "tiny"), "float32", 1).encoder is None


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        (packed._WIDE_VECTORS | {"avx2"}, {"CT2_FORCE_CPU_ISA": "AVX512"}),
        ((packed._WIDE_VECTORS | {"avx2"}) - {"avx512bw"}, {}),
        ({"avx2"}, {"CT2_USE_MKL": "0"}),
    ],
)
def test_the_kernels_are_those_that_were_measured(
    flags: set[str], chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    packed.choose_kernels(frozenset(flags))
    assert environment == chosen


def test_a_model_whose_vectors_int8_does_not_keep_is_read_in_float32(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, source = encoder(tmp_path, "Bert"), Source(str(tmp_path), "tiny")
    monkeypatch.setitem(kept.ALIKE, "int8", 1.01)
    forward = open_once(model, source, "int8", 1).encoder
    assert forward is not None
    np.testing.assert_allclose(cosines(forward(RAGGED), PaddedEncoder(model)(RAGGED)), 1.0, atol=1e-5)


def test_without_room_for_its_file_the_start_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = encoder(tmp_path, "Bert")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StartupRefused, match="TMPDIR"):
        open_once(model, Source(str(tmp_path), "tiny"), "float32", 1)


async def test_the_bundled_model_is_packed(embedder: Embedder) -> None:
    assert isinstance(model_of(embedder).forward, PackedEncoder)


@pytest.mark.parametrize(
    ("engine", "least"),
    [
        pytest.param(
            PackedEncoder, 0.998 if VNNI else 0.996,
            marks=pytest.mark.skipif(not (VNNI or has_narrow_int8(processor_flags())), reason="no int8 here"),
        ),
        pytest.param(PaddedEncoder, 0.998, marks=pytest.mark.skipif(not VNNI, reason="this processor has no VNNI")),
    ],
)  # fmt: skip
def test_int8_keeps_the_vectors(
    engine: type, least: float, embedder: Embedder, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred memories and questions, with the engine that takes the bundled model and with the other one."""
    if engine is PaddedEncoder:
        monkeypatch.setattr(local, "find", lambda *_: Kept(FACTS, None, None, "a test"))
    count = 150 if engine is PackedEncoder else 25
    int8 = model_of(load_embedder(EmbedConfig(precision="int8", threads=1), model_dir))
    assert isinstance(int8.forward, engine)
    exact = model_of(embedder)
    windows = [exact.split(text, "document")[0] for text in islice(texts.memories("int8"), count)]
    windows += [exact.split(text, "query")[0] for text in islice(texts.questions("int8"), count)]
    windows.sort(key=len)
    assert cosines(int8.forward(windows), exact.forward(windows)).min() >= least
