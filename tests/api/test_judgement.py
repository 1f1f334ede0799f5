"""Judgement over HTTP: what overrules what, in any order and at once, how far one write may go, and taking it back."""

import asyncio
from typing import Any

import httpx2
import pytest

from app import telemetry
from app.remember import RememberConfig
from tests.api.conftest import UNKNOWN_ID, MakeKey, Service, bearer
from tests.api.test_memories import write


async def active(agent: httpx2.AsyncClient, user_id: str = "amy") -> list[str]:
    listed = (await agent.get("/v1/memories", params={"user_id": user_id})).json()["items"]
    return [memory["content"] for memory in reversed(listed)]


async def read(agent: httpx2.AsyncClient, memory_id: str) -> dict[str, Any]:
    memory: dict[str, Any] = (await agent.get(f"/v1/memories/{memory_id}")).json()
    return memory


async def events(agent: httpx2.AsyncClient, memory_id: str) -> list[tuple[str, dict[str, Any]]]:
    items = (await agent.get(f"/v1/memories/{memory_id}/history")).json()["items"]
    return [(item["action"], item["detail"]) for item in items]


async def restore(agent: httpx2.AsyncClient, memory_id: str, status: int = 200) -> dict[str, Any]:
    response = await agent.post(f"/v1/memories/{memory_id}:restore")
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def lineage(agent: httpx2.AsyncClient, memory_id: str, **parameters: Any) -> dict[str, Any]:
    response = await agent.get(f"/v1/memories/{memory_id}/lineage", params=parameters)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize(
    ("old", "new"), [("我住在上海", "我搬到杭州了"), ("I love spicy food", "I can't stand spicy food any more")]
)
async def test_r10_a_correction_overrules_and_links(agent: httpx2.AsyncClient, old: str, new: str) -> None:
    first, second = await write(agent, old), await write(agent, new)
    assert second["outcome"] == "superseded"
    assert second["related"] == [{"id": first["id"], "relation": "supersedes"}]
    assert await active(agent) == [new]
    assert (await read(agent, first["id"]))["status"] == "deprecated"
    assert await events(agent, first["id"]) == [
        ("created", {}),
        ("deprecated", {"reason": "update_words", "by": second["id"]}),
    ]
    for query in (old, new):
        found = (await agent.post("/v1/memories:search", json={"user_id": "amy", "query": query})).json()["hits"]
        assert [hit["memory"]["content"] for hit in found] == [new]


@pytest.mark.parametrize("key", [None, "profile.city"])
async def test_r10_of_two_corrections_at_once_one_is_active(agent: httpx2.AsyncClient, key: str | None) -> None:
    corrections = ["我搬到杭州了", "我搬到苏州了"]
    for user in ("amy", "bo"):
        await write(agent, "我住在上海", user_id=user, key=key)
        written = await asyncio.gather(*(write(agent, text, user_id=user, key=key) for text in corrections))
        [last] = await active(agent, user)
        assert last in corrections
        statuses = {(await read(agent, one["id"]))["status"] for one in written}
        assert statuses == {"active", "deprecated"}
        corrections.reverse()


async def test_r10_within_one_batch_the_last_word_counts_and_each_end_is_told(agent: httpx2.AsyncClient) -> None:
    texts = ["我住在上海", "我搬到杭州了", "我每天喝咖啡", "我搬到苏州了"]
    answer = await agent.post("/v1/memories:batch", json={"items": [{"user_id": "amy", "content": t} for t in texts]})
    ids = [item["id"] for item in answer.json()["items"]]
    assert await active(agent) == texts[2:]
    told = [await events(agent, memory_id) for memory_id in ids]
    assert [[action for action, _ in each] for each in told] == [
        ["created", "deprecated"], ["created", "deprecated"], ["created"], ["created"],
    ]  # fmt: skip
    assert [told[0][1][1]["by"], told[1][1][1]["by"]] == [ids[1], ids[3]]


async def test_r10_a_correction_by_id_leaves_one_active_row_as_well(agent: httpx2.AsyncClient) -> None:
    memory = await write(agent, "Stack: Postgres")
    assert (await agent.patch(f"/v1/memories/{memory['id']}", json={"content": "Stack: MySQL"})).status_code == 200
    changed = await write(agent, "Stack changed to SQLite")
    assert changed["related"] == [{"id": memory["id"], "relation": "supersedes"}]
    assert await active(agent) == ["Stack changed to SQLite"]


async def test_r11_an_added_fact_retires_none_of_ten(agent: httpx2.AsyncClient) -> None:
    facts = [
        "Dana works at Acme", "Dana is a payroll analyst", "Dana lives in Berlin", "Dana eats no fish",
        "Dana's cat is called Milo", "Dana speaks German", "Dana drives a red car", "Dana plays chess",
        "Dana was born in May", "Dana likes jazz",
    ]  # fmt: skip
    for fact in facts:
        await write(agent, fact)
    added = await write(agent, "Dana also runs the payroll committee")
    assert added["outcome"] == "created"
    assert await active(agent) == [*facts, "Dana also runs the payroll committee"]


async def test_r11_more_than_one_write_may_retire_goes_to_review(agent: httpx2.AsyncClient) -> None:
    most = RememberConfig().most_retired
    old = [await write(agent, f"我住在{city}") for city in ("上海", "南京", "广州", "深圳", "成都")[: most + 1]]
    before = telemetry.CONFLICTS.labels("update_words", "review")._value.get()
    new = await write(agent, "我搬到杭州了")
    assert new["outcome"] == "created"
    reviewed = {link["id"] for link in new["related"] if link["relation"] == "review"}
    assert reviewed == {one["id"] for one in old}
    assert len(await active(agent)) == most + 2
    assert (await events(agent, new["id"]))[0][1] == {"review": dict.fromkeys(reviewed, "update_words")}
    assert telemetry.CONFLICTS.labels("update_words", "review")._value.get() == before + most + 1
    await agent.delete(f"/v1/memories/{old[0]['id']}")
    again = await write(agent, "我搬到苏州了")  # overrules the rest and 我搬到杭州了
    assert again["outcome"] == "created"


async def test_r11_what_is_pinned_waits_for_review(agent: httpx2.AsyncClient) -> None:
    old = await write(agent, "I live in Shanghai", pinned=True)
    new = await write(agent, "I moved to Hangzhou")
    assert (new["outcome"], new["related"]) == ("created", [{"id": old["id"], "relation": "review"}])
    assert (await read(agent, old["id"]))["status"] == "active"


@pytest.mark.parametrize("key", [None, "profile.city"])
async def test_an_older_event_that_comes_later_overrules_nothing(agent: httpx2.AsyncClient, key: str | None) -> None:
    new = await write(agent, "我搬到杭州了", event_at="2026-05-01T08:00:00Z", key=key)
    old = await write(agent, "我住在上海", event_at="2020-05-01T08:00:00Z", key=key)
    assert (old["outcome"], old["memory"]["status"]) == ("outdated", "deprecated")
    assert old["related"] == [{"id": new["id"], "relation": "superseded_by"}]
    assert await events(agent, old["id"]) == [("created", {}), ("deprecated", {"reason": "older", "by": new["id"]})]
    moved = await write(agent, "我搬到苏州了", event_at="2019-05-01T08:00:00Z", key=key)
    assert moved["outcome"] == "outdated"
    assert await active(agent) == ["我搬到杭州了"]


async def test_a_plan_of_later_was_made_when_it_was_said(agent: httpx2.AsyncClient) -> None:
    """An event in the future is no reason to distrust what is said about it today."""
    await write(agent, "会议在周五下午3点", event_at="2099-05-08T07:00:00Z")
    moved = await write(agent, "会议改到周三下午4点", event_at="2099-05-06T08:00:00Z")
    assert moved["outcome"] == "superseded"


async def test_r11_one_call_undoes_a_retirement_and_the_text_is_found_again(agent: httpx2.AsyncClient) -> None:
    old, new = await write(agent, "我住在上海"), await write(agent, "我搬到杭州了")
    restored = await restore(agent, old["id"])
    assert (restored["was"], restored["deprecated"], restored["memory"]["status"]) == ("deprecated", [], "active")
    assert sorted(await active(agent)) == sorted(["我住在上海", "我搬到杭州了"])
    found = (await agent.post("/v1/memories:search", json={"user_id": "amy", "query": "住在上海"})).json()["hits"]
    assert found[0]["memory"]["id"] == old["id"]
    assert (await events(agent, old["id"]))[-1] == (
        "restored", {"was": "deprecated", "deprecated": [], "unlinked": {new["id"]: "supersedes"}},
    )  # fmt: skip
    assert (await lineage(agent, old["id"]))["links"] == []
    assert (await restore(agent, old["id"]))["was"] == "active"
    assert (await events(agent, old["id"]))[-2][0] == "deprecated"  # nothing happened the second time


async def test_a_restored_value_of_a_slot_takes_the_place_of_the_other(agent: httpx2.AsyncClient) -> None:
    old = await write(agent, "公司名称是云启科技", key="profile.company_name")
    new = await write(agent, "公司名称是云图科技", key="profile.company_name")
    restored = await restore(agent, old["id"])
    assert restored["deprecated"] == [new["id"]]
    assert await active(agent) == ["公司名称是云启科技"]
    assert (await events(agent, new["id"]))[-1] == ("deprecated", {"reason": "restored", "by": old["id"]})
    [link] = (await lineage(agent, new["id"]))["links"]
    assert (link["from"], link["relation"], link["to"]) == (old["id"], "supersedes", new["id"])


async def test_a_duplicate_can_be_restored_but_no_text_twice(agent: httpx2.AsyncClient) -> None:
    kept = await write(agent, "用户喜欢靠窗的座位")
    merged = await write(agent, "用户喜欢靠窗座位")
    [link] = merged["related"]
    assert (merged["id"], link["relation"]) == (kept["id"], "duplicate")
    assert (await restore(agent, link["id"]))["was"] == "duplicate"
    assert sorted(await active(agent)) == sorted(["用户喜欢靠窗的座位", "用户喜欢靠窗座位"])
    slot = await write(agent, "我住在上海", key="profile.city")
    await write(agent, "我住在杭州", key="profile.city")
    await write(agent, "我住在上海")
    assert (await restore(agent, slot["id"], 409))["code"] == "duplicate_content"


async def test_what_is_deleted_comes_back_for_an_administrator_only(
    service: Service, agent: httpx2.AsyncClient, make_key: MakeKey
) -> None:
    memory = await write(agent, "I live in Shanghai")
    await agent.delete(f"/v1/memories/{memory['id']}")
    path = f"/v1/memories/{memory['id']}:restore"
    writer = bearer(await make_key(scopes=frozenset({"read", "write", "delete"})))
    assert (await service.client.post(path, headers=writer)).status_code == 404
    assert (await restore(agent, memory["id"]))["was"] == "archived"
    assert await active(agent) == ["I live in Shanghai"]
    reader = bearer(await make_key(scopes=frozenset({"read"})))
    assert (await service.client.post(path, headers=reader)).status_code == 403
    bound = bearer(await make_key(user_id="bo"))
    assert (await service.client.post(path, headers=bound)).status_code == 404
    assert (await restore(agent, UNKNOWN_ID, 404))["code"] == "not_found"


async def test_lineage_walks_both_ways_and_says_when_there_is_more(
    service: Service, agent: httpx2.AsyncClient, make_key: MakeKey
) -> None:
    cities = ["上海", "杭州", "苏州", "成都"]
    moves = [await write(agent, f"我住在{cities[0]}")] + [await write(agent, f"我搬到{city}了") for city in cities[1:]]
    ids = [move["id"] for move in moves]
    for start in ids:
        found = await lineage(agent, start)
        assert [memory["id"] for memory in found["memories"]] == ids
        assert [(link["from"], link["relation"], link["to"]) for link in found["links"]] == [
            (ids[number + 1], "supersedes", ids[number]) for number in range(3)
        ]
        assert (found["sources"], found["truncated"]) == ([], False)
    near = await lineage(agent, ids[0], depth=1)
    assert ([memory["id"] for memory in near["memories"]], near["truncated"]) == (ids[:2], False)
    await agent.delete(f"/v1/memories/{ids[1]}")
    left = await lineage(agent, ids[3])
    assert ids[1] not in {memory["id"] for memory in left["memories"]}
    stranger = bearer(await make_key(user_id="bo"))
    assert (await service.client.get(f"/v1/memories/{ids[0]}/lineage", headers=stranger)).status_code == 404
    assert (await agent.get(f"/v1/memories/{ids[0]}/lineage", params={"depth": 99})).status_code == 422


async def test_what_may_be_the_same_is_stored_and_linked_as_candidate(agent: httpx2.AsyncClient) -> None:
    first = await write(agent, "我的同事每个周末都喜欢在家附近的公园里打篮球")
    second = await write(agent, "我的同事每个周末都喜欢在家附近的公园里踢足球和打篮球")
    assert second["outcome"] == "created"
    assert second["related"] == [{"id": first["id"], "relation": "candidate"}]
    [link] = (await lineage(agent, first["id"]))["links"]
    assert (link["from"], link["relation"]) == (second["id"], "candidate")


async def test_r40_a_blank_line_sinks_no_batch_and_a_repeat_gives_the_same_ids(agent: httpx2.AsyncClient) -> None:
    texts = [f"第{n}号柜子里放着{n}把伞" for n in range(1, 10)]
    items = [{"user_id": "amy", "content": text} for text in [*texts[:4], "  \n ", *texts[4:]]]
    first, again = [
        (await agent.post("/v1/memories:batch", json={"items": items})).json()["items"] for _ in range(2)
    ]  # fmt: skip
    assert [item["status"] for item in first] == [201] * 4 + [422] + [201] * 5
    assert [item.get("id") for item in again] == [item.get("id") for item in first]
    assert {item["outcome"] for item in again if item["status"] != 422} == {"duplicate"}
    assert await active(agent) == texts
