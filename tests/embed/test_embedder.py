"""What the verbs rely on: checked unit vectors, the query cache, one kind of error, and a state for operations."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from prometheus_client import REGISTRY

from app.embed import Embedder, ModelSpec
from app.embed.embedder import Kind, QueueFull, Vectors
from app.errors import EmbeddingUnavailable

SPEC = ModelSpec("test", "1", 4, "q: ", "d: ", 16, (0.0, 1.0), (0.0, 1.0))
GOOD = np.array([[3.0, 0.0, 4.0, 0.0]], np.float32)


class Scripted:
    """An engine that answers every text with the same windows, or raises."""

    spec = SPEC

    def __init__(self, answer: Vectors | Exception) -> None:
        self.answer = answer
        self.calls: list[tuple[tuple[str, ...], Kind]] = []

    async def encode(self, texts: Sequence[str], kind: Kind) -> list[Vectors]:
        self.calls.append((tuple(texts), kind))
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer for _ in texts]

    def count_tokens(self, text: str) -> int:
        return len(text)

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def make(answer: Vectors | Exception, cache: int = 2) -> tuple[Embedder, Scripted]:
    engine = Scripted(answer)
    return Embedder(engine, query_cache_size=cache), engine


def sample(metric: str, /, **labels: str) -> float:
    return REGISTRY.get_sample_value(metric, labels) or 0.0


def counted(kind: str, outcome: str) -> Callable[[], float]:
    return lambda: sample("mneme_embedding_requests_total", kind=kind, outcome=outcome)


async def test_vectors_come_back_as_float32_of_unit_length() -> None:
    embedder, _ = make(np.array([[3, 0, 4, 0], [0, 0, 0, 1e-3]], np.float64))
    (windows,) = await embedder.embed_documents(["two windows"])
    assert windows.dtype == np.float32
    np.testing.assert_allclose(windows, np.array([[0.6, 0, 0.8, 0], [0, 0, 0, 1]]), atol=1e-6)


async def test_a_query_of_several_windows_is_their_mean_at_unit_length() -> None:
    embedder, _ = make(np.array([[1, 0, 0, 0], [0, 1, 0, 0]], np.float32))
    np.testing.assert_allclose(await embedder.embed_query("long"), [0.5**0.5, 0.5**0.5, 0, 0], atol=1e-6)


async def test_no_text_asks_for_nothing() -> None:
    embedder, engine = make(GOOD)
    assert await embedder.embed_documents([]) == []
    assert engine.calls == []


BAD_VECTORS = {
    "zero": [[0.0, 0.0, 0.0, 0.0]],
    "almost zero": [[1e-9, 0.0, 0.0, 0.0]],
    "NaN": [[1.0, float("nan"), 0.0, 0.0]],
    "infinite": [[1.0, float("inf"), 0.0, 0.0]],
    "too short": [[1.0, 0.0, 0.0]],
    "too long": [[1.0, 0.0, 0.0, 0.0, 0.0]],
    "no window": np.empty((0, 4)),
    "flat": [1.0, 0.0, 0.0, 0.0],
    "one good and one zero window": [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
}


@pytest.mark.parametrize("bad", BAD_VECTORS.values(), ids=BAD_VECTORS.keys())
async def test_r40_a_bad_vector_is_refused_and_never_cached(bad: object) -> None:
    embedder, engine = make(np.array(bad, np.float32))
    failed = counted("query", "failed")
    before = failed()
    for _ in range(2):
        with pytest.raises(EmbeddingUnavailable) as refusal:
            await embedder.embed_query("text that must not be quoted")
        assert "quoted" not in refusal.value.detail
    with pytest.raises(EmbeddingUnavailable):
        await embedder.embed_documents(["text"])
    assert len(engine.calls) == 3
    assert failed() - before == 2


async def test_query_vectors_are_cached_least_recently_used_first_out_and_read_only() -> None:
    embedder, engine = make(GOOD, cache=2)
    hits = sample("mneme_embedding_cache_total", result="hit")
    for text in ("a", "b", "a", "c", "a", "b"):
        vector = await embedder.embed_query(text)
        assert not vector.flags.writeable
    assert [texts[0] for texts, _ in engine.calls] == ["a", "b", "c", "b"]
    assert sample("mneme_embedding_cache_total", result="hit") - hits == 2


async def test_a_document_is_never_answered_from_the_query_cache() -> None:
    embedder, engine = make(GOOD)
    await embedder.embed_query("same")
    await embedder.embed_documents(["same"])
    assert engine.calls == [(("same",), "query"), (("same",), "document")]


async def test_failures_open_the_breaker_and_operations_see_it() -> None:
    embedder, engine = make(ConnectionError("secret host"))
    assert embedder.state == "ready"
    states, refusals = [], []
    for _ in range(6):
        with pytest.raises(EmbeddingUnavailable) as refusal:
            await embedder.embed_query("x")
        refusals.append(refusal.value)
        states.append(embedder.state)
    assert all("secret" not in refusal.detail for refusal in refusals)
    assert states == ["degraded"] * 4 + ["open"] * 2
    assert len(engine.calls) == 5
    assert refusals[-1].retry_after_seconds is not None
    assert sample("mneme_circuit_breaker_state", name="embedding") == 2


async def test_a_full_queue_is_refused_with_its_time_and_is_no_failure() -> None:
    embedder, engine = make(QueueFull(7.0))
    rejected = counted("document", "rejected")
    before = rejected()
    for _ in range(10):
        with pytest.raises(EmbeddingUnavailable) as refusal:
            await embedder.embed_documents(["x"])
        assert refusal.value.retry_after_seconds == 7.0
    assert (embedder.state, len(engine.calls), rejected() - before) == ("ready", 10, 10)


async def test_a_caller_that_leaves_counts_as_cancelled() -> None:
    embedder, engine = make(GOOD)
    engine.encode = lambda texts, kind: asyncio.Event().wait()  # type: ignore[method-assign,assignment,return-value]
    cancelled = counted("query", "cancelled")
    before = cancelled()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await embedder.embed_query("x")
    assert (cancelled() - before, embedder.state) == (1, "ready")
