"""Reranked searches over HTTP: the order of a real endpoint or model, and the fused order whenever that fails."""

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import REGISTRY

from app.embed import Embedder
from app.recall import Hit
from app.settings import Settings
from tests.api.conftest import MakeKey, Service, bearer, make_settings, run
from tests.embed.server import Answer, Endpoint, Script, serving, status
from tests.embed.tiny import save_cross_encoder

TEXTS = [
    "客户对芒果过敏，不能吃芒果",
    "客户喜欢在芒果树下喝咖啡",
    "客户上周订购了芒果干",
    "The customer asked about mango juice 芒果",
]
QUERY = "客户能吃芒果吗？"


def scoring(score: Callable[[str], float]) -> Script:
    """An endpoint that judges a text by a function of it."""

    def script(body: dict[str, Any]) -> Answer:
        scores = [{"index": at, "relevance_score": score(text)} for at, text in enumerate(body["documents"])]
        best = sorted(scores, key=lambda one: -one["relevance_score"])[: body["top_n"]]
        return 200, {}, {"id": "r", "results": best}

    return script


def results(*pairs: tuple[Any, Any]) -> Script:
    answer = [{"index": index, "relevance_score": score} for index, score in pairs]
    return lambda _: (200, {}, {"results": answer})


longest_last = scoring(lambda text: 1 / len(text))


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    with serving("/v1", longest_last) as endpoint:
        yield endpoint


@pytest.fixture
def endpoint(server: Endpoint) -> Endpoint:
    server.scripts, server.bodies, server.headers = [longest_last], [], []
    return server


def reranking(database: str, folder: Path, **rerank: Any) -> Settings:
    settings = make_settings(database, folder)
    return settings.model_copy(
        update={"rerank": type(settings.rerank).model_validate({"deadline_seconds": 5.0, **rerank})}
    )


@asynccontextmanager
async def client(settings: Settings, make_key: MakeKey) -> AsyncIterator[tuple[Service, httpx2.AsyncClient]]:
    async with run(settings) as service:
        headers = bearer(await make_key())
        async with httpx2.AsyncClient(base_url=service.client.base_url, headers=headers, timeout=30) as agent:
            items = [{"user_id": "amy", "content": text} for text in TEXTS]
            answer = (await agent.post("/v1/memories:batch", json={"items": items})).json()["items"]
            assert {item["status"] for item in answer} == {201}
            yield service, agent


@pytest.fixture
async def agent(
    endpoint: Endpoint, database_url: str, tmp_path: Path, make_key: MakeKey
) -> AsyncIterator[httpx2.AsyncClient]:
    settings = reranking(database_url, tmp_path, provider="remote", url=endpoint.url, model="m", api_key="k")
    async with client(settings, make_key) as (_, agent):
        yield agent


async def search(agent: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await agent.post("/v1/memories:search", json={"user_id": "amy", "query": QUERY, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def contents(answer: dict[str, Any]) -> list[str]:
    return [hit["memory"]["content"] for hit in answer["hits"]]


def scores(answer: dict[str, Any]) -> list[float]:
    return [hit["score"] for hit in answer["hits"]]


async def test_the_order_is_the_rerankers_and_its_request_is_the_usual_one(
    agent: httpx2.AsyncClient, endpoint: Endpoint
) -> None:
    fused = contents(await search(agent, rerank=False))
    assert endpoint.bodies == []
    assert set(fused) == set(TEXTS)
    answer = await search(agent)
    assert contents(answer) == sorted(TEXTS, key=len) != fused
    assert scores(answer) == [1 / len(text) for text in contents(answer)]  # shares stay as they are
    assert answer["degraded"] == []
    assert endpoint.bodies == [{"model": "m", "query": QUERY, "documents": fused, "top_n": len(TEXTS)}]
    assert endpoint.headers[0]["path"] == "/v1/rerank"
    assert endpoint.headers[0]["authorization"] == "Bearer k"
    assert contents(await search(agent, rerank=True, top_k=2)) == sorted(TEXTS, key=len)[:2]
    assert len(endpoint.bodies[-1]["documents"]) == len(TEXTS)  # the best for the reranker may stand behind top_k


async def test_what_leads_is_what_the_reranker_says(
    endpoint: Endpoint, database_url: str, tmp_path: Path, make_key: MakeKey
) -> None:
    """What it did not rank fills up, whatever the signals say of it."""
    settings = reranking(database_url, tmp_path, provider="remote", url=endpoint.url, model="m", keep=3)
    async with client(settings, make_key) as (service, agent):
        endpoint.scripts = [results((1, 0.9), (2, 0.85), (0, 0.5))]
        told: list[Hit] = []
        service.app.state.mneme.recaller.usage.add = lambda _, hits, __: told.extend(hits)
        assert contents(await search(agent)) == [hit.memory["content"] for hit in told]
        assert [hit.leads for hit in told] == [True, True, False, False]


async def test_negative_logits_rank_and_equal_scores_keep_the_fused_order(
    agent: httpx2.AsyncClient, endpoint: Endpoint
) -> None:
    fused = contents(await search(agent, rerank=False))
    endpoint.scripts = [results((0, -8.0), (1, -3), (2, 2.0), (3, -11.5))]
    answer = await search(agent, explain=True)
    assert contents(answer) == [fused[place] for place in (2, 1, 0, 3)]
    assert scores(answer) == pytest.approx([1 / (1 + math.exp(-logit)) for logit in (2, -3, -8, -11.5)])
    parts = [hit["signals"]["rerank"] for hit in answer["hits"]]
    assert [part["value"] for part in parts] == scores(answer)
    assert [part["rank_before"] for part in parts] == [3, 2, 1, 4]
    for hit in answer["hits"]:
        shares = sum(part["contribution"] for name, part in hit["signals"].items() if name != "rerank")
        assert shares == pytest.approx(hit["signals"]["rerank"]["fused_score"])
    endpoint.scripts = [scoring(lambda _: 0.5)]
    equal = await search(agent)
    assert contents(equal) == fused
    # This endpoint gives logits, as it has shown, though these could be shares.
    assert scores(equal) == pytest.approx([1 / (1 + math.exp(-0.5))] * len(TEXTS))


async def test_thresholds_are_in_calibrated_similarity_with_and_without_reranking(
    agent: httpx2.AsyncClient, endpoint: Endpoint
) -> None:
    everything = await search(agent, rerank=False, explain=True)
    similarity = sorted(hit["signals"]["similarity"]["calibrated"] for hit in everything["hits"])
    for threshold in (similarity[1], similarity[-1]):
        plain = await search(agent, rerank=False, similarity_threshold=threshold)
        reranked = await search(agent, similarity_threshold=threshold)
        assert set(contents(plain)) == set(contents(reranked))
        assert contents(reranked) == sorted(contents(plain), key=len)


BROKEN: dict[str, Script] = {
    "500": status(500),
    "401": status(401),
    "no JSON": lambda _: (200, {}, b"<html>"),
    "a list": lambda _: (200, {}, [1, 2]),
    "no results": lambda _: (200, {}, {"data": []}),
    "fewer": results((0, 0.9), (1, 0.8)),
    "one twice": results((0, 0.9), (0, 0.8), (1, 0.7), (2, 0.6)),
    "one that was not sent": results((0, 0.9), (1, 0.8), (2, 0.7), (4, 0.6)),
    "before the first": results((0, 0.9), (1, 0.8), (2, 0.7), (-1, 0.6)),
    "index as text": results(("0", 0.9), (1, 0.8), (2, 0.7), (3, 0.6)),
    "score as text": results((0, "0.9"), (1, 0.8), (2, 0.7), (3, 0.6)),
    "no number": lambda _: (200, {}, b'{"results": [{"index": 0, "relevance_score": NaN}]}'),
    "null": results((0, None), (1, 0.8), (2, 0.7), (3, 0.6)),
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
async def test_a_failing_endpoint_leaves_the_fused_order(
    agent: httpx2.AsyncClient, endpoint: Endpoint, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.endpoint.FIRST_WAIT_SECONDS", 0.001)
    fused = await search(agent, rerank=False)
    before = degraded()
    endpoint.scripts = [script]
    answer = await search(agent)
    assert contents(answer) == contents(fused)
    assert scores(answer) == pytest.approx(scores(fused), abs=1e-4)
    assert answer["degraded"] == ["rerank_unavailable"]
    assert degraded() == before + 1
    endpoint.scripts = [longest_last]
    assert (await search(agent))["degraded"] == []


def degraded() -> float:
    return REGISTRY.get_sample_value("mneme_search_degraded_total", {"reason": "rerank_unavailable"}) or 0.0


async def test_a_silent_endpoint_costs_its_deadline_holds_no_connection_and_opens_the_breaker(
    endpoint: Endpoint, database_url: str, tmp_path: Path, make_key: MakeKey
) -> None:
    settings = reranking(database_url, tmp_path, provider="remote", url=endpoint.url, model="m", deadline_seconds=0.2)
    async with client(settings, make_key) as (service, agent):
        held: list[int] = []

        def silent(body: dict[str, Any]) -> Answer:
            held.append(service.app.state.mneme.database.checked_out)
            return endpoint.silent(body)

        endpoint.scripts = [silent]
        for _ in range(5):
            answer = await search(agent)
            assert answer["degraded"] == ["rerank_unavailable"]
            assert set(contents(answer)) == set(TEXTS)
        assert len(endpoint.bodies) == 5
        assert min(held) == 0  # hits of the search before may be written at one of these moments, not at all
        started = time.perf_counter()
        assert (await search(agent))["degraded"] == ["rerank_unavailable"]
        assert len(endpoint.bodies) == 5, "an open breaker lets nobody wait"
        assert time.perf_counter() - started < 5
        checks = (await agent.get("/readyz?verbose")).json()["checks"]
        assert checks["rerank"] == {"state": "open"}
        endpoint.released.set()


async def test_whoever_asks_for_a_reranker_that_is_not_there_is_told(
    endpoint: Endpoint, database_url: str, tmp_path: Path, make_key: MakeKey
) -> None:
    async with client(reranking(database_url, tmp_path), make_key) as (_, agent):
        assert (await search(agent))["degraded"] == []
        answer = await search(agent, rerank=True)
        assert answer["degraded"] == ["rerank_unavailable"]
        assert contents(answer) == contents(await search(agent))


async def test_only_the_best_are_sent_and_only_the_kept_are_moved(
    endpoint: Endpoint, database_url: str, tmp_path: Path, make_key: MakeKey
) -> None:
    settings = reranking(
        database_url, tmp_path, provider="remote", url=endpoint.url, model="m", candidates=3, keep=2, by_default=False
    )
    async with client(settings, make_key) as (_, agent):
        fused = contents(await search(agent))
        assert endpoint.bodies == []
        endpoint.scripts = [results((2, 0.3), (1, 0.2))]
        answer = await search(agent, rerank=True, explain=True)
        assert endpoint.bodies[0]["documents"] == fused[:3]
        assert endpoint.bodies[0]["top_n"] == 2
        assert contents(answer) == [fused[2], fused[1], fused[0], fused[3]]
        assert scores(answer)[:2] == [0.3, 0.2]
        assert scores(answer) == sorted(scores(answer), reverse=True)
        assert [hit["signals"]["rerank"]["value"] for hit in answer["hits"]] == [0.3, 0.2, None, None]
        left_out = await search(agent, rerank=True, top_k=1, why_not=[(await search(agent))["hits"][0]["memory"]["id"]])
        assert left_out["why_not"][0]["reason"] == "below_top_k"
        assert "from place 1 to 3" in left_out["why_not"][0]["detail"]


async def test_near_equal_memories_give_way_in_the_order_of_the_reranker(
    agent: httpx2.AsyncClient, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Embedder.embed_documents

    async def without_digits(embedder: Embedder, texts: Any) -> Any:
        return await plain(embedder, ["".join(c for c in text if not c.isdigit()) for text in texts])

    monkeypatch.setattr(Embedder, "embed_documents", without_digits)
    twins = ["芒果订单 4711 已经发货了，请注意查收", "芒果订单 4712 已经发货了，请注意查收"]
    items = [{"user_id": "amy", "content": text} for text in twins]
    await agent.post("/v1/memories:batch", json={"items": items})
    endpoint.scripts = [scoring(lambda text: 0.9 if text in twins else 0.8 + 1 / len(text) / 10)]
    assert set(contents(await search(agent, top_k=2, diversity=0.0))) == set(twins)
    answer = await search(agent, top_k=2, diversity=0.9)
    assert contents(answer) == [contents(answer)[0], min(TEXTS, key=len)]
    assert contents(answer)[0] in twins


async def test_a_real_cross_encoder_orders_the_hits_and_one_that_is_away_is_found_later(
    database_url: str, tmp_path: Path, make_key: MakeKey
) -> None:
    folder = tmp_path / "model"
    settings = reranking(
        database_url, tmp_path, provider="local", model=str(folder), precision="float32", deadline_seconds=20.0
    )
    async with client(settings, make_key) as (_, agent):
        fused = contents(await search(agent, rerank=False))
        answer = await search(agent)
        assert answer["degraded"] == ["rerank_unavailable"], "the folder is not there yet"
        assert contents(answer) == fused
        save_cross_encoder(folder)
        answer = await search(agent)
        assert answer["degraded"] == []
        model = pytest.importorskip("sentence_transformers").CrossEncoder(str(folder), device="cpu")
        expected = dict(zip(TEXTS, model.predict([(QUERY, text) for text in TEXTS]), strict=True))
        assert contents(answer) == sorted(TEXTS, key=lambda text: -expected[text])
        assert scores(answer) == pytest.approx([float(expected[text]) for text in contents(answer)], abs=1e-4)
