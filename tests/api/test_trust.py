"""How far a memory is to be believed: as far as the key that wrote it, which nobody can state in a request."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.api.conftest import MakeKey, Service, bearer

SAID = ("王芳对花生过敏，点餐要避开", "Wang Fang is allergic to peanuts")


@pytest.fixture
async def doubted(service: Service, make_key: MakeKey) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the tenant of `agent`, with a key that is trusted by 30."""
    headers = bearer(await make_key(trust=30))
    async with httpx2.AsyncClient(base_url=service.client.base_url, headers=headers, timeout=30) as client:
        yield client


async def write(client: httpx2.AsyncClient, content: str, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/memories", json={"user_id": "fang", "content": content} | fields)
    assert response.status_code in (200, 201), response.text
    memory: dict[str, Any] = response.json()["memory"]
    return memory


async def found(client: httpx2.AsyncClient, query: str, least: int, **fields: Any) -> list[str]:
    body = {"user_id": "fang", "query": query, "filters": {"min_trust": least}} | fields
    return [hit["memory"]["id"] for hit in (await client.post("/v1/memories:search", json=body)).json()["hits"]]


@pytest.mark.parametrize("text", SAID, ids=["zh", "en"])
async def test_what_a_key_writes_is_trusted_as_it_is_and_found_by_who_asks_for_so_much(
    agent: httpx2.AsyncClient, doubted: httpx2.AsyncClient, text: str
) -> None:
    memory = await write(doubted, text)
    assert memory["trust"] == 30
    assert (await agent.get(f"/v1/memories/{memory['id']}")).json()["trust"] == 30
    for _ in range(3):  # by SQL, then held in memory
        assert await found(agent, text, 0) == await found(agent, text, 30) == [memory["id"]]
        assert await found(agent, text, 31) == []
    body = {"user_id": "fang", "query": text, "filters": {"min_trust": 31}}
    asked = await agent.post("/v1/memories:search", json=body | {"why_not": [memory["id"]]})
    assert [(each["reason"], each["detail"]) for each in asked.json()["why_not"]] == [("filtered", "min_trust")]


async def test_whoever_is_believed_more_lends_it_to_what_both_say(
    agent: httpx2.AsyncClient, doubted: httpx2.AsyncClient
) -> None:
    first, second = await write(doubted, SAID[0]), await write(agent, SAID[1])
    again = await write(agent, SAID[0])
    assert (again["id"], again["trust"]) == (first["id"], 100)
    assert (await agent.get(f"/v1/memories/{first['id']}")).json()["trust"] == 100
    assert set(await found(agent, "花生 peanuts", 100)) == {first["id"], second["id"]}
    again = await write(doubted, SAID[1])
    assert (again["id"], again["trust"]) == (second["id"], 100), "and less takes nothing away"


async def test_an_edit_is_trusted_as_the_editor_and_a_touch_makes_nothing_more_credible(
    agent: httpx2.AsyncClient, doubted: httpx2.AsyncClient
) -> None:
    place = f"/v1/memories/{(await write(doubted, SAID[0]))['id']}"
    assert (await agent.patch(place, json={"tags": ["饮食"]})).json()["trust"] == 30
    assert (await agent.patch(place, json={"content": "王芳对花生和虾过敏"})).json()["trust"] == 100
    assert (await doubted.patch(place, json={"tags": ["饮食"]})).json()["trust"] == 100, "nothing changed"
    assert (await doubted.patch(place, json={"tags": ["健康"]})).json()["trust"] == 30
    history = (await agent.get(f"{place}/history")).json()["items"]
    assert [event["replaced"]["trust"] for event in history if event["replaced"]] == [30, 30, 100]


async def test_facts_of_a_conversation_are_trusted_as_who_brought_it(doubted: httpx2.AsyncClient) -> None:
    said = [{"role": "user", "content": "请记住：我对芒果过敏"}]
    body = {"user_id": "fang", "messages": said}
    operation = (await doubted.post("/v1/memories:extract?wait=true", json=body)).json()
    [fact] = operation["result"]["facts"]
    assert (await doubted.get(f"/v1/memories/{fact['memory_id']}")).json()["trust"] == 30


@pytest.mark.parametrize("body", [{"trust": 100}, {"trust": 0}])
async def test_no_request_states_it(agent: httpx2.AsyncClient, body: dict[str, Any]) -> None:
    refused = await agent.post("/v1/memories", json={"user_id": "fang", "content": SAID[0]} | body)
    assert refused.status_code == 422
    memory = await write(agent, SAID[0])
    assert (await agent.patch(f"/v1/memories/{memory['id']}", json=body)).status_code == 422


@pytest.mark.parametrize("least", [-1, 101, "50", 0.5, None])
async def test_a_least_trust_that_cannot_be_is_refused(agent: httpx2.AsyncClient, least: Any) -> None:
    body = {"user_id": "fang", "query": "花生", "filters": {"min_trust": least}}
    assert (await agent.post("/v1/memories:search", json=body)).status_code == 422
