"""A start with a kept model imports no torch; one that is damaged or cannot be kept costs time, no vector."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from app.embed import EmbedConfig, Embedder, bundled, kept, load_embedder, prepare_model
from app.embed.kept import find, folder_of, make, make_apart
from app.embed.packed import PackedEncoder
from app.embed.source import Source
from app.embed.torch_model import PaddedEncoder
from app.errors import StartupRefused
from tests.embed.test_local import MINILM, model_of
from tests.embed.tiny import encoder

TEXTS = ["我对芒果过敏，不能吃任何芒果", "the order and the refund of a dog", "快递"]
START = """
import asyncio, json, sys
from pathlib import Path
import app.cli.root, app.main, workers.context
from app.embed import EmbedConfig, load_embedder, prepare_model

HEAVY = {"torch", "transformers", "sentence_transformers"}

async def start(config, data_dir):
    prepare_model(config, data_dir)
    embedder = load_embedder(config, data_dir)
    if config.provider != "remote":
        await embedder.start()
        vectors = [(await embedder.embed_query(text)).tolist() for text in json.loads(sys.argv[3])]
        await embedder.close()
    else:
        vectors = []
    return vectors

vectors = asyncio.run(start(EmbedConfig(**json.loads(sys.argv[1])), Path(sys.argv[2])))
print(json.dumps({"vectors": vectors, "heavy": sorted(HEAVY & sys.modules.keys())}))
"""


def started(data_dir: Path, environment: dict[str, str] | None = None, **config: Any) -> Any:
    """What a process of its own tells of its start."""
    command = [sys.executable, "-c", START, json.dumps(config), str(data_dir), json.dumps(TEXTS)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture
def tiny(tmp_path: Path) -> Source:
    """A model of 20 kB in a folder."""
    return Source(save(tmp_path / "tiny"), "tiny")


def save(folder: Path, architecture: str = "Bert", **options: Any) -> str:
    encoder(folder.with_name(f"{folder.name}-parts"), architecture, **options).save(str(folder))
    return str(folder)


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "data" / "models"


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Models are written in this process, which has torch already; the folders in which they were."""
    written: list[Path] = []
    write = kept.write

    def counted(model: Any, source: Source, identity: str, folder: Path) -> None:
        written.append(folder)
        write(model, source, identity, folder)

    def here(source: Source, shelf: Path) -> bool:
        make(source, shelf)
        return True

    monkeypatch.setattr(kept, "write", counted)
    monkeypatch.setattr(kept, "make_apart", here)
    return written


async def vectors_of(embedder: Embedder) -> np.ndarray[Any, Any]:
    await embedder.start()
    try:
        return np.array([await embedder.embed_query(text) for text in TEXTS])
    finally:
        await embedder.close()


@pytest.mark.parametrize(
    "config",
    [
        {"precision": "float32"},
        {"provider": "local", "model": MINILM, "precision": "float32"},
        {"provider": "hashing"},
        {"provider": "remote", "url": "http://127.0.0.1:9/v1", "model": "m", "dimension": 8},
    ],
    ids=["bundled", "MiniLM", "hashing", "remote"],
)
async def test_no_start_but_the_first_imports_torch(
    config: dict[str, Any], embedder: Embedder, model_dir: Path
) -> None:
    told = started(model_dir, **config)
    assert told["heavy"] == []
    if config == {"precision": "float32"}:
        np.testing.assert_allclose(told["vectors"], [await embedder.embed_query(text) for text in TEXTS], atol=1e-5)


async def test_not_even_the_first_start_keeps_torch_in_its_process(tiny: Source, tmp_path: Path) -> None:
    told = started(tmp_path / "data", provider="local", model=tiny.path, precision="float32")
    assert told["heavy"] == []
    by_torch = load_embedder(
        EmbedConfig(provider="local", model=tiny.path, precision="bfloat16", threads=1), tmp_path / "other"
    )
    assert isinstance(model_of(by_torch).forward, PaddedEncoder)
    assert not (tmp_path / "other").exists()  # bfloat16 is torch's alone
    products = np.einsum("td,td->t", told["vectors"], await vectors_of(by_torch))
    assert products.min() > 0.99


async def test_a_model_of_the_hub_is_kept_by_the_commit_in_its_cache(
    tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    home = tmp_path / "hub" / "models--somebody--tiny"
    shutil.copytree(tiny.path, home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    environment = {"HF_HUB_CACHE": str(home.parent), "HF_HUB_OFFLINE": "1"}
    told = started(tmp_path / "data", environment, provider="local", model="somebody/tiny", precision="float32")
    assert told["heavy"] == []
    assert [path.name for path in (tmp_path / "data" / "models").glob("tiny-*")] == [f"tiny-{commit[:12]}-packed"]
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(home.parent))
    assert Source("somebody/tiny", "somebody/tiny").identity() == commit
    assert Source("somebody/tiny", "somebody/tiny", "another").identity() is None


def test_the_bundled_model_needs_only_what_is_kept(embedder: Embedder, model_dir: Path, tmp_path: Path) -> None:
    source = bundled.source(model_dir)
    assert source.known_identity is not None
    there = folder_of(source, source.known_identity, bundled.shelf_of(model_dir))
    bundled.shelf_of(tmp_path).mkdir()
    (bundled.shelf_of(tmp_path) / there.name).symlink_to(there)
    config = EmbedConfig(precision="float32", threads=1)
    prepare_model(config, tmp_path)
    assert load_embedder(config, tmp_path).spec == embedder.spec
    assert [path.name for path in bundled.shelf_of(tmp_path).iterdir()] == [there.name]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def of_another(field: str, value: object) -> Callable[[Path], None]:
    return lambda path: (path.write_text(json.dumps(json.loads(path.read_text()) | {field: value})), None)[1]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.bin", cut),
        ("model.bin", flip),
        ("model.bin", Path.unlink),
        ("tokenizer.json", flip),
        ("expected.npy", flip),
        ("manifest.json", cut),
        ("manifest.json", Path.unlink),
        ("manifest.json", of_another("engine", "4.0.0")),
        ("manifest.json", of_another("layout", 0)),
        ("manifest.json", of_another("identity", "another")),
    ],
)
def test_what_is_damaged_or_of_another_version_is_made_again(
    name: str, damage: Callable[[Path], None], tiny: Source, shelf: Path, made_here: list[Path]
) -> None:
    first = find(tiny, shelf, "float32", 1)
    (folder,) = shelf.glob("tiny-*")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    find(tiny, shelf, "float32", 1)
    assert len(made_here) == 1
    damage(folder / name)
    again = find(tiny, shelf, "float32", 1)
    assert len(made_here) == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert first is not None
    assert again is not None
    assert again.facts == first.facts


def test_another_model_under_the_same_name_is_kept_beside_it(
    tiny: Source, shelf: Path, tmp_path: Path, made_here: list[Path]
) -> None:
    find(tiny, shelf, "float32", 1)
    config = Path(tiny.path) / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"prompts": {"query": "ask "}}))
    found = find(tiny, shelf, "float32", 1)
    assert found is not None
    assert found.facts.prompts["query"] == "ask "
    moved = Source(str(Path(tiny.path).rename(tmp_path / "moved")), "tiny")
    find(moved, shelf, "float32", 1)
    assert len(made_here) == len(list(shelf.glob("tiny-*"))) == 2


def test_that_only_torch_can_compute_a_model_is_kept_too(shelf: Path, tmp_path: Path, made_here: list[Path]) -> None:
    source = Source(save(tmp_path / "distil", "DistilBert"), "distil")
    for _ in range(2):
        found = find(source, shelf, "float32", 1)
        assert found is not None
        assert (found.encoder, found.reason) == (None, "unknown architecture or pooling")
    assert len(made_here) == 1
    config = EmbedConfig(provider="local", model=source.path, precision="float32", threads=1)
    with capture_logs() as logs:
        assert isinstance(model_of(load_embedder(config, shelf.parent)).forward, PaddedEncoder)
    assert [entry["event"] for entry in logs] == ["embedding_model_runs_in_torch"]


def test_many_starts_at_once_write_it_once(tiny: Source, shelf: Path, made_here: list[Path]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: make(tiny, shelf), range(4)))
    assert len(made_here) == 1
    assert len(list(shelf.glob("tiny-*"))) == 1


async def test_a_data_directory_that_takes_nothing_costs_a_warning(
    tiny: Source, tmp_path: Path, made_here: list[Path]
) -> None:
    kept_well = load_embedder(EmbedConfig(provider="local", model=tiny.path, precision="float32", threads=1), tmp_path)
    assert len(made_here) == 1
    (tmp_path / "file").touch()
    await unkept_gives_the_same(tiny, tmp_path / "file", kept_well)


@pytest.mark.parametrize("program", [shutil.which("false"), "/nowhere/python"])
async def test_a_process_that_cannot_keep_the_model_costs_a_warning(
    program: str, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tiny, tmp_path / "models")
    kept_well = load_embedder(EmbedConfig(provider="local", model=tiny.path, precision="float32", threads=1), tmp_path)
    monkeypatch.setattr(sys, "executable", program)
    await unkept_gives_the_same(tiny, tmp_path / "empty", kept_well)


async def unkept_gives_the_same(source: Source, data_dir: Path, kept_well: Embedder) -> None:
    with pytest.MonkeyPatch.context() as patch, capture_logs() as logs:
        patch.setattr(kept, "make_apart", make_apart)
        config = EmbedConfig(provider="local", model=source.path, precision="float32", threads=1)
        embedder = load_embedder(config, data_dir)
    assert isinstance(model_of(embedder).forward, PackedEncoder)
    assert [entry["event"] for entry in logs] == ["embedding_model_not_kept"]
    assert embedder.spec == kept_well.spec
    np.testing.assert_allclose(await vectors_of(embedder), await vectors_of(kept_well), atol=1e-6)


def test_a_model_that_cannot_be_loaded_stops_the_preparation(tmp_path: Path) -> None:
    config = EmbedConfig(provider="local", model=str(tmp_path / "nowhere"), precision="float32")
    with pytest.raises(StartupRefused, match="MNEME_EMBED__MODEL") as refusal:
        prepare_model(config, tmp_path / "data")
    assert refusal.value.exit_code == 4
