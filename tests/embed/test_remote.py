"""A real HTTP server that answers like OpenAI, and then in every wrong way."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY
from pydantic import SecretStr

from app.embed import EmbedConfig, Embedder, load_embedder
from app.errors import EmbeddingUnavailable, StartupRefused
from tests.embed.server import Answer, Endpoint, Script, serving, status

DIMENSION = 8


def vector(text: str) -> list[float]:
    """Distinct for distinct lengths and first letters; not of unit length."""
    values = [0.0] * DIMENSION
    values[len(text) % DIMENSION] = 2.0
    values[ord(text[0]) % DIMENSION] += 1.0
    return values


def well(body: dict[str, Any]) -> Answer:
    data = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(body["input"])]
    return 200, {}, {"object": "list", "model": body["model"], "data": data}


def with_vectors(change: Callable[[list[dict[str, Any]]], Any]) -> Script:
    def script(body: dict[str, Any]) -> Answer:
        return 200, {}, {"data": change(well(body)[2]["data"])}

    return script


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving("/v1", well) as endpoint:
        yield endpoint


def config(endpoint: Endpoint, **changes: Any) -> EmbedConfig:
    return EmbedConfig(provider="remote", model="m", url=endpoint.url, dimension=DIMENSION, batch_size=4, **changes)


@pytest.fixture
async def embedder(endpoint: Endpoint) -> AsyncIterator[Embedder]:
    embedder = load_embedder(
        config(endpoint, api_key=SecretStr("k"), query_prompt="q: ", document_prompt="d: "), Path("unused")
    )
    await embedder.start()
    yield embedder
    await embedder.close()


def unit(text: str) -> np.ndarray:
    values = np.array(vector(text), np.float32)
    return values / np.linalg.norm(values)


async def test_the_request_is_openais_and_the_answer_is_normalised(embedder: Embedder, endpoint: Endpoint) -> None:
    np.testing.assert_allclose(await embedder.embed_query("芒果"), unit("q: 芒果"), atol=1e-6)
    assert endpoint.bodies == [{"model": "m", "input": ["q: 芒果"], "encoding_format": "float"}]
    assert endpoint.headers[0]["path"] == "/v1/embeddings"
    assert endpoint.headers[0]["authorization"] == "Bearer k"


async def test_documents_go_in_batches_and_come_back_in_order(embedder: Embedder, endpoint: Endpoint) -> None:
    texts = ["x" * length for length in range(1, 11)]
    answers = await embedder.embed_documents(texts)
    assert sorted(len(body["input"]) for body in endpoint.bodies) == [2, 4, 4]
    for text, windows in zip(texts, answers, strict=True):
        np.testing.assert_allclose(windows, [unit("d: " + text)], atol=1e-6)


async def test_the_index_of_the_answer_decides_not_its_order(embedder: Embedder, endpoint: Endpoint) -> None:
    endpoint.scripts = [with_vectors(lambda data: data[::-1])]
    for text, windows in zip(("a", "bb", "ccc"), await embedder.embed_documents(["a", "bb", "ccc"]), strict=True):
        np.testing.assert_allclose(windows, [unit("d: " + text)], atol=1e-6)


@pytest.mark.parametrize(
    "first", [status(429, Retry_After="0"), status(500), status(503, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT")]
)
async def test_what_may_pass_is_retried(embedder: Embedder, endpoint: Endpoint, first: Script) -> None:
    endpoint.scripts = [first, first, well]
    await embedder.embed_query("x")
    assert (len(endpoint.bodies), embedder.state) == (3, "ready")


async def test_retry_after_is_waited_for(embedder: Embedder, endpoint: Endpoint) -> None:
    endpoint.scripts = [status(429, Retry_After="0.6"), well]
    started = time.monotonic()
    await embedder.embed_query("x")
    assert time.monotonic() - started >= 0.6


async def test_a_wait_beyond_the_deadline_is_handed_to_the_caller(embedder: Embedder, endpoint: Endpoint) -> None:
    endpoint.scripts = [status(429, Retry_After="77")]
    with pytest.raises(EmbeddingUnavailable) as refusal:
        await embedder.embed_query("x")
    assert (refusal.value.retry_after_seconds, len(endpoint.bodies)) == (77.0, 1)


WRONG = {
    "500 for ever": (status(500), 4),
    "401": (status(401), 1),
    "400": (status(400), 1),
    "a redirect": (status(302, Location="/elsewhere"), 1),
    "no JSON": (lambda _: (200, {}, b"<html>"), 1),
    "no data": (lambda _: (200, {}, {"object": "list"}), 1),
    "a list": (lambda _: (200, {}, [1, 2]), 1),
    "null data": (lambda _: (200, {}, {"data": None}), 1),
    "too few vectors": (with_vectors(lambda data: data[:-1]), 1),
    "too many vectors": (with_vectors(lambda data: [*data, {"index": 9, "embedding": data[0]["embedding"]}]), 1),
    "an index twice": (with_vectors(lambda data: [dict(item, index=0) for item in data]), 1),
    "text for numbers": (with_vectors(lambda data: [dict(item, embedding="AAAA") for item in data]), 1),
    "numbers for vectors": (with_vectors(lambda data: [dict(item, embedding=1.0) for item in data]), 1),
    "ragged vectors": (
        with_vectors(lambda data: [dict(item, embedding=[1.0] * (at + 1)) for at, item in enumerate(data)]), 1,
    ),
    "wrong dimension": (with_vectors(lambda data: [dict(item, embedding=[1.0, 2.0]) for item in data]), 1),
    "NaN": (with_vectors(lambda data: [dict(item, embedding=[float("nan")] * DIMENSION) for item in data]), 1),
    "null numbers": (with_vectors(lambda data: [dict(item, embedding=[None] * DIMENSION) for item in data]), 1),
    "beyond float32": (with_vectors(lambda data: [dict(item, embedding=[1e39] * DIMENSION) for item in data]), 1),
    "zero vectors": (with_vectors(lambda data: [dict(item, embedding=[0.0] * DIMENSION) for item in data]), 1),
}  # fmt: skip


@pytest.mark.parametrize(("script", "calls"), WRONG.values(), ids=WRONG.keys())
async def test_a_wrong_answer_is_an_unavailable_embedder(
    endpoint: Endpoint, script: Script, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = load_embedder(config(endpoint), Path("unused"))
    endpoint.scripts = [script]
    monkeypatch.setattr("app.endpoint.FIRST_WAIT_SECONDS", 0.001)
    with pytest.raises(EmbeddingUnavailable) as refusal:
        await embedder.embed_documents(["secret text", "other"])
    assert "secret" not in refusal.value.detail
    assert (len(endpoint.bodies), embedder.state) == (calls, "degraded")
    await embedder.close()


async def test_a_silent_endpoint_ends_at_the_deadline_and_opens_the_breaker(endpoint: Endpoint) -> None:
    embedder = load_embedder(config(endpoint, timeout_seconds=0.05), Path("unused"))
    endpoint.scripts = [endpoint.silent]
    for _ in range(5):
        with pytest.raises(EmbeddingUnavailable):
            await embedder.embed_query("x")
    assert embedder.state == "open"
    asked = len(endpoint.bodies)
    with pytest.raises(EmbeddingUnavailable):
        await embedder.embed_query("x")
    assert len(endpoint.bodies) == asked
    await embedder.close()


async def test_nobody_at_the_address_is_an_unavailable_embedder(endpoint: Endpoint) -> None:
    closed = EmbedConfig(provider="remote", model="m", url="http://127.0.0.1:9/v1", dimension=8, timeout_seconds=0.5)
    embedder = load_embedder(closed, Path("unused"))
    await embedder.start()  # the service starts without it
    with pytest.raises(EmbeddingUnavailable):
        await embedder.embed_query("x")
    await embedder.close()


async def test_queries_do_not_wait_for_documents_and_a_full_queue_refuses(endpoint: Endpoint) -> None:
    embedder = load_embedder(config(endpoint, queue_limit=41), Path("unused"))
    endpoint.scripts = [endpoint.silent] * 4 + [well]
    documents = asyncio.create_task(embedder.embed_documents([f"document {number}" for number in range(40)]))
    for _ in range(4):
        assert await asyncio.to_thread(endpoint.asked.acquire, timeout=10)
    await embedder.embed_query("x")
    assert not documents.done()
    more = asyncio.create_task(embedder.embed_documents(["one more"]))
    await asyncio.sleep(0)
    with pytest.raises(EmbeddingUnavailable, match="queue is full") as refusal:
        await embedder.embed_query("y")
    assert refusal.value.retry_after_seconds == 1.0
    endpoint.released.set()
    assert len(await documents) == 40
    assert len(await more) == 1
    await embedder.close()


async def test_a_long_text_goes_in_windows_that_cover_it_and_overlap(endpoint: Endpoint) -> None:
    embedder = load_embedder(config(endpoint, max_tokens=100), Path("unused"))
    text = "".join(chr(0x4E00 + at) for at in range(500))
    (windows,) = await embedder.embed_documents([text])
    sent = [window for body in sorted(endpoint.bodies, key=lambda body: body["input"][0]) for window in body["input"]]
    assert len(sent) == len(windows) > 5
    assert all(embedder.count_tokens(window) <= 100 for window in sent)
    assert text.startswith(sent[0])
    assert text.endswith(sent[-1])
    for before, after in pairwise(sent):
        assert before[-5:] in after
    await embedder.close()


async def test_a_query_beyond_four_windows_is_cut_and_counted(endpoint: Endpoint) -> None:
    embedder = load_embedder(config(endpoint, max_tokens=100), Path("unused"))
    before = REGISTRY.get_sample_value("mneme_embedding_truncated_total")
    await embedder.embed_query("字" * 200)
    assert REGISTRY.get_sample_value("mneme_embedding_truncated_total") == before
    await embedder.embed_query("字" * 2000)
    assert REGISTRY.get_sample_value("mneme_embedding_truncated_total") == (before or 0) + 1
    await embedder.close()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"model": "m", "dimension": 8}, "MNEME_EMBED__URL"),
        ({"url": "http://x/v1", "dimension": 8}, "MNEME_EMBED__MODEL"),
        ({"url": "http://x/v1", "model": "unheard-of"}, "MNEME_EMBED__DIMENSION"),
    ],
)
def test_an_incomplete_configuration_stops_the_start_and_names_itself(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(StartupRefused, match=named):
        load_embedder(EmbedConfig(provider="remote", **wrong), Path("unused"))


def test_a_known_model_brings_its_dimension_and_calibration() -> None:
    spec = load_embedder(EmbedConfig(provider="remote", url="http://x/v1", model="text-embedding-3-small"), Path()).spec
    assert (spec.dimension, spec.max_tokens, spec.query_window) == (1536, 8191, (0.10, 0.70))
