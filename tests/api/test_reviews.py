"""Reviews over HTTP: what a write would have overruled waits in a list, and somebody's decision is final or undone."""

from typing import Any

import httpx2
import pytest

from app import telemetry
from tests.api.conftest import UNKNOWN_ID, MakeKey, Service, bearer
from tests.api.test_judgement import active, events, lineage, read, restore
from tests.api.test_memories import write

PINNED = [("我住在上海", "我搬到杭州了"), ("I live in Shanghai", "I moved to Hangzhou")]


async def reviews(agent: httpx2.AsyncClient, **parameters: Any) -> list[dict[str, Any]]:
    response = await agent.get("/v1/reviews", params=parameters)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def decide(agent: httpx2.AsyncClient, verdict: str, newer: str, older: str, status: int = 200) -> dict[str, Any]:
    response = await agent.post(f"/v1/reviews:{verdict}", json={"newer_id": newer, "older_id": older})
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def open_one(agent: httpx2.AsyncClient, old: str, new: str, user_id: str = "amy") -> tuple[str, str]:
    """Ids of the newer and the older memory of a review that is open."""
    older = await write(agent, old, user_id=user_id, pinned=True)
    newer = await write(agent, new, user_id=user_id)
    assert newer["related"] == [{"id": older["id"], "relation": "review"}]
    return newer["id"], older["id"]


@pytest.mark.parametrize(("old", "new"), PINNED)
async def test_r11_an_accepted_review_retires_with_its_reason_and_is_undone_by_one_call(
    agent: httpx2.AsyncClient, old: str, new: str
) -> None:
    newer, older = await open_one(agent, old, new)
    [review] = await reviews(agent, user_id="amy")
    assert (review["newer"]["id"], review["older"]["id"], review["reason"]) == (newer, older, "update_words")
    accepted = telemetry.CONFLICTS.labels("update_words", "accepted")
    before = accepted._value.get()
    decided = await decide(agent, "accept", newer, older)
    assert (decided["older"]["status"], accepted._value.get()) == ("deprecated", before + 1)
    assert await active(agent) == [new]
    assert (await events(agent, older))[-1] == (
        "deprecated", {"reason": "update_words", "by": newer, "review": "accepted"},
    )  # fmt: skip
    links = [(link["from"], link["relation"], link["to"]) for link in (await lineage(agent, older))["links"]]
    assert links == [(newer, "supersedes", older)]
    assert await reviews(agent) == []
    assert await decide(agent, "accept", newer, older) == decided
    assert (await decide(agent, "reject", newer, older, status=409))["code"] == "review_decided"
    assert (accepted._value.get(), len(await events(agent, older))) == (before + 1, 2)
    assert (await restore(agent, older))["was"] == "deprecated"
    assert await active(agent) == [old, new]
    for verdict in ("accept", "reject"):  # what was undone is decided no more
        await decide(agent, verdict, newer, older, status=404)


@pytest.mark.parametrize(("old", "new"), PINNED)
async def test_r11_a_rejected_review_is_closed_and_both_stay(agent: httpx2.AsyncClient, old: str, new: str) -> None:
    newer, older = await open_one(agent, old, new)
    decided = await decide(agent, "reject", newer, older)
    assert decided["older"]["status"] == "active"
    assert (await active(agent), await reviews(agent)) == ([old, new], [])
    assert (await events(agent, older))[-1] == ("kept", {"reason": "update_words", "against": newer})
    assert (await lineage(agent, older))["links"] == []
    assert await decide(agent, "reject", newer, older) == decided
    assert (await decide(agent, "accept", newer, older, status=409))["code"] == "review_decided"
    assert [action for action, _ in await events(agent, older)].count("kept") == 1
    assert await active(agent) == [old, new]


async def test_r11_of_more_than_one_write_may_retire_each_is_decided_alone(agent: httpx2.AsyncClient) -> None:
    old = [(await write(agent, f"我住在{city}"))["id"] for city in ("上海", "南京", "广州", "深圳")]
    new = (await write(agent, "我搬到杭州了"))["id"]
    assert {review["older"]["id"] for review in await reviews(agent)} == set(old)
    await decide(agent, "accept", new, old[0])
    await decide(agent, "reject", new, old[1])
    await agent.delete(f"/v1/memories/{old[2]}")  # of what is gone nothing is to be decided
    assert [review["older"]["id"] for review in await reviews(agent)] == [old[3]]
    await decide(agent, "accept", new, old[2], status=404)
    assert await active(agent) == ["我住在南京", "我住在深圳", "我搬到杭州了"]
    assert (await read(agent, old[0]))["status"] == "deprecated"


async def test_reviews_come_in_pages_of_one_user_or_of_all(agent: httpx2.AsyncClient) -> None:
    opened = [
        await open_one(agent, *PINNED[number % 2], user_id=user) for number, user in enumerate(["amy", "bo", "陈"])
    ]
    seen: list[tuple[str, str]] = []
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = (await agent.get("/v1/reviews", params={"limit": 1, **more})).json()
        seen += [(review["newer"]["id"], review["older"]["id"]) for review in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == opened[::-1]
    assert [review["newer"]["id"] for review in await reviews(agent, user_id="bo")] == [opened[1][0]]
    assert await reviews(agent, user_id="nobody") == []
    first = (await agent.get("/v1/reviews", params={"limit": 1})).json()["next_cursor"]
    for wrong in ({"cursor": first, "user_id": "amy"}, {"cursor": "x"}, {"limit": 0}, {"usr": "amy"}):
        assert (await agent.get("/v1/reviews", params=wrong)).status_code == 422


async def test_reviews_are_their_users_own(service: Service, make_key: MakeKey, agent: httpx2.AsyncClient) -> None:
    newer, older = await open_one(agent, *PINNED[0])
    bo = httpx2.AsyncClient(base_url=service.client.base_url, headers=bearer(await make_key(user_id="bo")))
    reader = httpx2.AsyncClient(
        base_url=service.client.base_url, headers=bearer(await make_key(scopes=frozenset({"read"})))
    )
    async with bo, reader:
        assert await reviews(bo) == []
        assert (await bo.get("/v1/reviews", params={"user_id": "amy"})).status_code == 403
        for verdict in ("accept", "reject"):
            await decide(bo, verdict, newer, older, status=404)
            await decide(reader, verdict, newer, older, status=403)
            for one, other in ((older, newer), (newer, newer), (UNKNOWN_ID, older), (newer, UNKNOWN_ID)):
                await decide(agent, verdict, one, other, status=404)
    assert len(await reviews(agent)) == 1
