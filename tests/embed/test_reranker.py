"""A tiny real CrossEncoder behind the batcher: its scores, long texts, many callers, and models that are none."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY
from sentence_transformers import CrossEncoder

from app.embed import RerankConfig, Reranker, RerankUnavailable, load_reranker
from app.embed.cross_encoder import PairModel
from app.errors import StartupRefused
from tests.embed.tiny import save_cross_encoder

QUERY = "芒果过敏"
TEXTS = ["我喜欢咖啡", "我对芒果过敏，不能吃任何芒果", "the dog is a dog", "客户的订单退款"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_cross_encoder(tmp_path_factory.mktemp("tiny"))


def config(folder: Path, **changes: Any) -> RerankConfig:
    return RerankConfig(provider="local", model=str(folder), precision="float32", deadline_seconds=30.0, **changes)


@pytest.fixture(scope="module")
async def reranker(folder: Path) -> AsyncIterator[Reranker]:
    reranker = load_reranker(config(folder), threads=1)
    await reranker.start()
    yield reranker
    await reranker.close()


@pytest.fixture(scope="module")
def judge(folder: Path) -> CrossEncoder:
    return CrossEncoder(str(folder), device="cpu")


def requests(outcome: str) -> float:
    return REGISTRY.get_sample_value("mneme_rerank_requests_total", {"outcome": outcome}) or 0.0


async def test_scores_are_the_librarys_and_the_order_is_theirs(reranker: Reranker, judge: CrossEncoder) -> None:
    assert reranker.state == "ready"
    assert reranker.by_default
    expected = judge.predict([(QUERY, text) for text in TEXTS])
    ranked = await reranker.rank(QUERY, TEXTS)
    assert [position for position, _ in ranked] == list(np.argsort(-expected))
    assert [score for _, score in ranked] == pytest.approx([expected[position] for position, _ in ranked], abs=1e-5)


async def test_many_searches_at_once_share_passes_and_get_their_own_answers(
    reranker: Reranker, judge: CrossEncoder
) -> None:
    queries = [text[: 3 + number % 4] for number, text in enumerate(TEXTS * 3)]
    answers = await asyncio.gather(*(reranker.rank(query, TEXTS) for query in queries))
    for query, ranked in zip(queries, answers, strict=True):
        expected = judge.predict([(query, text) for text in TEXTS])
        for position, score in ranked:
            assert score == pytest.approx(float(expected[position]), abs=1e-4)


async def test_the_tail_of_a_long_text_counts(reranker: Reranker, judge: CrossEncoder) -> None:
    filler = "我喜欢咖啡，" * 30
    windows = [filler[:40], "芒果过敏不能吃芒果"]
    low, high = judge.predict([(QUERY, window) for window in windows])
    if low > high:  # random weights like either; the better one goes last
        filler, tail = "芒果过敏不能吃芒果" * 20, filler[:40]
    else:
        tail = windows[1]
    [(_, whole)] = await reranker.rank(QUERY, [filler + tail])
    [cut] = judge.predict([(QUERY, filler + tail)])
    assert whole >= float(cut) - 1e-5
    parts = PairModel(judge, 512).split((QUERY, filler + tail), "query")
    assert parts[-1].texts[1].endswith(tail[-5:])
    assert whole == pytest.approx(max(float(judge.predict([part.texts])[0]) for part in parts), abs=1e-4)


def test_windows_fit_overlap_and_lose_nothing(judge: CrossEncoder) -> None:
    model = PairModel(judge, 512)
    text = "".join(TEXTS) * 9
    parts = model.split((QUERY, text), "query")
    assert len(parts) > 3
    together = parts[0].texts[1]
    for part in parts[1:]:
        overlap = next(size for size in range(len(part.texts[1]), 0, -1) if together.endswith(part.texts[1][:size]))
        together += part.texts[1][overlap:]
    assert together == text
    for part in parts:
        assert len(judge.tokenizer(*part.texts)["input_ids"]) <= 64


def test_a_query_is_cut_at_half_of_the_room_and_counted(judge: CrossEncoder) -> None:
    before = REGISTRY.get_sample_value("mneme_rerank_truncated_total") or 0.0
    [pair] = PairModel(judge, 512).split(("芒" * 100, "咖啡"), "query")
    assert 0 < len(pair.texts[0]) <= 32
    assert pair.texts[1] == "咖啡"
    assert REGISTRY.get_sample_value("mneme_rerank_truncated_total") == before + 1


async def test_a_full_queue_refuses_and_is_no_failure(folder: Path) -> None:
    reranker = load_reranker(config(folder, queue_limit=1), threads=1)
    await reranker.start()
    rejected, failed = requests("rejected"), requests("failed")
    answers = await asyncio.gather(*(reranker.rank(QUERY, TEXTS) for _ in range(12)), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, RerankUnavailable)]
    assert isinstance(answers[0], list)
    assert len(refused) >= 8
    assert (requests("rejected") - rejected, requests("failed")) == (len(refused), failed)
    assert reranker.state == "ready"
    await reranker.close()
    with pytest.raises(RerankUnavailable):
        await reranker.rank(QUERY, TEXTS)


async def test_a_slow_model_costs_the_deadline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = load_reranker(config(folder).model_copy(update={"deadline_seconds": 0.05}), threads=1)
    await reranker.start()
    released = asyncio.Event()

    async def stuck(*_: Any) -> Any:
        await released.wait()

    monkeypatch.setattr(reranker._engine, "compare", stuck)
    for _ in range(5):
        with pytest.raises(RerankUnavailable, match="TimeoutError"):
            await reranker.rank(QUERY, TEXTS)
    assert reranker.state == "open"
    with pytest.raises(RerankUnavailable, match="open"):
        await reranker.rank(QUERY, TEXTS)
    await reranker.close()


async def test_a_model_of_several_scores_is_no_reranker(tmp_path: Path) -> None:
    reranker = load_reranker(config(save_cross_encoder(tmp_path / "three", labels=3)), threads=1)
    with pytest.raises(StartupRefused, match="3 scores a pair"):
        await reranker.start()


@pytest.mark.parametrize(
    ("changes", "named"), [({"provider": "local"}, "MODEL"), ({"provider": "remote", "model": "m"}, "URL")]
)
def test_incomplete_settings_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(StartupRefused, match=f"MNEME_RERANK__{named}"):
        load_reranker(RerankConfig(**changes), threads=None)


async def test_without_a_reranker_whoever_asks_is_told() -> None:
    reranker = load_reranker(RerankConfig(), threads=None)
    await reranker.start()
    assert not reranker.by_default
    assert reranker.state == "none"
    with pytest.raises(RerankUnavailable, match="no reranker"):
        await reranker.rank(QUERY, TEXTS)
    await reranker.close()
