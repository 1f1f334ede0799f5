"""why_not and the rules of choice over HTTP: every reason a memory may have, and none for what is not the caller's."""

from typing import Any

import httpx2
import pytest

from app.embed import Embedder
from app.guard import DEFAULT_TENANT_ID
from tests.api.conftest import UNKNOWN_ID, MakeKey, Service, bearer
from tests.api.test_search import KEYWORD_ONLY, SIMILARITY_ONLY, fill, ids, search


async def ask(agent: httpx2.AsyncClient, query: str, *memories: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"user_id": "amy", "query": query, "why_not": memories, **fields}
    response = await agent.post("/v1/memories:search", json=body)
    assert response.status_code == 200, response.text
    absences: list[dict[str, Any]] = response.json()["why_not"]
    assert [one["id"] for one in absences] == list(memories)
    return absences


async def reasons(agent: httpx2.AsyncClient, query: str, *memories: str, **fields: Any) -> list[tuple[str, Any]]:
    return [(one["reason"], one["detail"]) for one in await ask(agent, query, *memories, **fields)]


async def test_an_answer_has_no_why_not_unless_asked(agent: httpx2.AsyncClient) -> None:
    response = await agent.post("/v1/memories:search", json={"user_id": "amy", "query": "tea"})
    assert "why_not" not in response.json()


async def test_what_is_not_the_callers_is_as_unknown_as_what_does_not_exist(
    agent: httpx2.AsyncClient, service: Service, make_key: MakeKey
) -> None:
    [others] = await fill(agent, "Bo likes green tea", user_id="bo")
    async with httpx2.AsyncClient(
        base_url=service.client.base_url, headers=bearer(await make_key(DEFAULT_TENANT_ID)), timeout=30
    ) as stranger:
        [foreign] = await fill(stranger, "likes green tea")
    [private] = await fill(agent, "likes green tea in secret", agent_id="a2")
    answers = await ask(agent, "green tea", UNKNOWN_ID, others, foreign)
    assert [{**answer, "id": None} for answer in answers] == [{"id": None, "reason": "unknown", "detail": None}] * 3
    assert await reasons(agent, "green tea", private, agent_id="a1") == [("other_agent", None)]
    async with httpx2.AsyncClient(
        base_url=service.client.base_url, headers=bearer(await make_key(agent_id="a1")), timeout=30
    ) as bound:
        assert await reasons(bound, "green tea", private) == [("unknown", None)]


async def test_walls_before_the_measuring(agent: httpx2.AsyncClient) -> None:
    [old] = await fill(agent, "the office is in Rome", key="office")
    [new] = await fill(agent, "the office is in Oslo", key="office")
    [expired] = await fill(agent, "office party yesterday", expires_at="2020-01-01T00:00:00Z")
    [later] = await fill(agent, "office moves soon", valid_from="2099-01-01T00:00:00Z")
    [over] = await fill(agent, "office was closed", valid_to="2020-01-01T00:00:00Z")
    [erased] = await fill(agent, "office ghost")
    assert (await agent.delete(f"/v1/memories/{erased}")).status_code == 204
    [shared] = await fill(agent, "office rules for all", user_id=None)
    assert await reasons(agent, "office", old, new, expired, later, over, erased, shared, include_shared=False) == [
        ("wrong_status", "deprecated"),
        ("hit", None),
        ("expired", "expired 2020-01-01T00:00:00Z"),
        ("not_valid_then", "from 2099-01-01T00:00:00Z"),
        ("not_valid_then", "until 2020-01-01T00:00:00Z"),
        ("wrong_status", "archived"),
        ("filtered", "include_shared"),
    ]
    assert (await reasons(agent, "office", new, as_of="2020-01-01T00:00:00Z"))[0][0] == "not_yet_known"
    assert await reasons(agent, "office", old, include_deprecated=True) == [("hit", None)]


async def test_filters_are_named(agent: httpx2.AsyncClient) -> None:
    [tea] = await fill(agent, "likes green tea", tags=["drink"], session_id="s1")
    filters = {"tags": {"any": ["food"], "all": ["drink"]}, "session_id": "s2", "kinds": ["interaction_history"]}
    assert await reasons(agent, "tea", tea, filters=filters) == [("filtered", "tags_any, session_id")]


async def test_after_the_measuring_rank_and_score_are_told(agent: httpx2.AsyncClient) -> None:
    best, second, third = await fill(
        agent, "green tea from Hangzhou in the morning", "green tea in a blue cup", "a cup of black tea"
    )
    [stranger] = await fill(agent, "the invoice of March is paid")
    answers = await ask(agent, "green tea from Hangzhou", best, third, stranger, weights=KEYWORD_ONLY, top_k=1)
    assert [(one["reason"], one.get("rank")) for one in answers] == [
        ("hit", 1),
        ("below_top_k", 3),
        ("no_evidence", None),
    ]
    assert 0 < answers[1]["score"] < answers[0]["score"]
    assert answers[2]["score"] == 0
    assert answers[1]["signals"]["keyword"]["contribution"] == pytest.approx(answers[1]["score"])
    [below] = await ask(agent, "green tea from Hangzhou", second, weights=SIMILARITY_ONLY, similarity_threshold=1.0)
    assert below["reason"] == "below_threshold"
    assert below["detail"].endswith("is below 1.000")


async def test_one_source_has_no_more_than_its_share(agent: httpx2.AsyncClient) -> None:
    crm = await fill(agent, *(f"tea order {n} from the crm" for n in range(4)), source="crm")
    [chat] = await fill(agent, "tea", source="chat")
    bare = await fill(agent, "a tea without source", "other tea without source")
    fields: dict[str, Any] = {"weights": KEYWORD_ONLY, "diversity": 0.0}
    query = "tea order from the crm"
    assert set(ids(await search(agent, query, top_k=4, **fields))) == set(crm)
    hits = ids(await search(agent, query, top_k=4, max_share_per_source=0.5, **fields))
    assert len(set(hits) & set(crm)) == 2
    assert len(hits) == 4
    assert set(hits) & {chat, *bare}
    [gone, *_] = set(crm) - set(hits)
    found = await reasons(agent, query, gone, top_k=4, max_share_per_source=0.5, **fields)
    assert found == [("same_source", "at most 2 hits of one source")]


async def test_near_equal_hits_give_way_and_say_to_which(
    agent: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two texts whose vectors are nearly one, but whose numbers differ, so that both are stored."""
    plain = Embedder.embed_documents

    async def without_digits(embedder: Embedder, texts: Any) -> Any:
        return await plain(embedder, ["".join(c for c in text if not c.isdigit()) for text in texts])

    monkeypatch.setattr(Embedder, "embed_documents", without_digits)
    first, second = await fill(agent, "the parcel 17 was sent", "the parcel 18 was sent")
    [other] = await fill(agent, "a parcel came back broken")
    fields: dict[str, Any] = {"top_k": 2, "weights": {"similarity": 0.5, "time": 0, "importance": 0, "keyword": 0.5}}
    query = "parcel 17 was sent"
    assert ids(await search(agent, query, diversity=0.0, **fields)) == [first, second]
    assert ids(await search(agent, query, diversity=1.0, **fields)) == [first, other]
    found = await reasons(agent, query, second, diversity=1.0, **fields)
    assert found == [("displaced_by_diversity", f"says nearly the same as {first}")]
    assert ids(await search(agent, query, diversity=1.0, **{**fields, "top_k": 3})) == [first, second, other]
