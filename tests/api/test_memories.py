"""Memories over HTTP: write, batch, duplicates, keys, edits, lists, history, idempotency."""

import asyncio
from typing import Any
from uuid import UUID

import httpx2
import pytest

from app.database import Database, sql
from app.memory import Memory
from tests.api.conftest import UNKNOWN_ID

COUNT = sql("SELECT status, count(*) AS rows FROM memories WHERE tenant_id = :tenant_id GROUP BY status")


async def rows_by_status(database: Database, tenant: UUID) -> dict[str, int]:
    async with database.read(tenant) as transaction:
        return {row["status"]: row["rows"] for row in await transaction.fetch(COUNT, tenant_id=tenant)}


async def write(agent: httpx2.AsyncClient, content: str, **fields: Any) -> dict[str, Any]:
    response = await agent.post("/v1/memories", json={"user_id": "amy", "content": content, **fields})
    assert response.status_code in {200, 201}, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_memory_comes_back_as_it_was_written(agent: httpx2.AsyncClient) -> None:
    sent = {
        "user_id": "amy",
        "agent_id": "a1",
        "content": "我在杭州云栖科技做后端 🚀，主管是欧阳倩",
        "kind": "profile",
        "key": "profile.job",
        "importance": 4.5,
        "tags": ["工作", 'a"b\\c', "x"],
        "metadata": {"n": 2, "深": {"x": [1, None]}},
        "source": "chat",
        "session_id": "s1",
        "event_at": "2024-02-29T08:30:00+08:00",
        "valid_from": "2024-01-01T00:00:00Z",
        "valid_to": "2099-01-01T00:00:00Z",
        "pinned": True,
    }
    response = await agent.post("/v1/memories", json=sent)
    assert response.status_code == 201
    answer = response.json()
    assert answer["outcome"] == "created"
    assert answer["related"] == []
    assert UUID(answer["id"]).version == 7
    assert response.headers["location"] == f"/v1/memories/{answer['id']}"
    got = (await agent.get(f"/v1/memories/{answer['id']}")).json()
    assert got == answer["memory"]
    assert list(got) == [name for name in Memory.model_fields if name != "vector"]
    assert {name: got[name] for name in sent} == sent | {"event_at": "2024-02-29T00:30:00Z"}
    assert (got["version"], got["access_count"], got["embedding"], got["status"]) == (1, 0, "ready", "active")
    Memory.model_validate(got)
    assert b"\\u" not in response.content


async def test_twenty_parallel_equal_writes_leave_one_row(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID
) -> None:
    answers = await asyncio.gather(*(write(agent, "Amy is allergic to peanuts") for _ in range(20)))
    assert len({answer["id"] for answer in answers}) == 1
    assert sorted(answer["outcome"] for answer in answers) == ["created"] + ["duplicate"] * 19
    assert await rows_by_status(database, tenant) == {"active": 1}
    assert (await agent.get(f"/v1/memories/{answers[0]['id']}")).json()["access_count"] == 19


@pytest.mark.parametrize(
    "repeat", [" amy is allergic to PEANUTS ", "Amy is allergic to peanuts.", "Ａｍｙ is  allergic to peanuts"]
)
async def test_r07_one_text_on_every_path_is_one_memory(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID, repeat: str
) -> None:
    first = await write(agent, "Amy is allergic to peanuts")
    again = await write(agent, repeat)
    assert (again["outcome"], again["id"]) == ("duplicate", first["id"])
    items = [{"user_id": "amy", "content": repeat}] * 5
    batch = (await agent.post("/v1/memories:batch", json={"items": items})).json()["items"]
    assert [(item["status"], item["outcome"], item["id"]) for item in batch] == [(200, "duplicate", first["id"])] * 5
    added = await agent.post("/memory/add", json={"user_id": "amy", "content": repeat})
    assert added.json() == first["id"]
    assert await rows_by_status(database, tenant) == {"active": 1}


async def test_a_near_duplicate_is_kept_linked_and_reported(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID
) -> None:
    first = await write(agent, "用户喜欢在早上喝一杯热的黑咖啡，不加糖")
    again = await write(agent, "用户喜欢在早上喝一杯热的黑咖啡，不加糖呢")
    assert (again["outcome"], again["id"]) == ("duplicate", first["id"])
    [kept] = again["related"]
    assert kept["relation"] == "duplicate"
    stored = (await agent.get(f"/v1/memories/{kept['id']}")).json()
    assert (stored["status"], stored["content"]) == ("duplicate", "用户喜欢在早上喝一杯热的黑咖啡，不加糖呢")
    assert await rows_by_status(database, tenant) == {"active": 1, "duplicate": 1}
    found = (await agent.post("/v1/memories:search", json={"user_id": "amy", "query": "咖啡"})).json()
    assert [hit["memory"]["id"] for hit in found["hits"]] == [first["id"]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Deadline is 15 October", "Deadline is 16 October"),
        ("Amy eats meat", "Amy does not eat meat"),
        ("会议改到周三下午3点", "会议改到周三下午4点"),
        ("他同意了", "他没同意"),
    ],
)
async def test_r08_a_fact_that_differs_in_one_sign_is_another_memory(
    agent: httpx2.AsyncClient, first: str, second: str
) -> None:
    old, new = await write(agent, first), await write(agent, second)
    assert (old["outcome"], new["id"]) == ("created", new["memory"]["id"])
    assert new["outcome"] in {"created", "superseded"}  # 改到 says that it overrules
    texts = [(await agent.get(f"/v1/memories/{one['id']}")).json()["content"] for one in (old, new)]
    assert texts == [first, second]


async def test_scopes_are_apart(agent: httpx2.AsyncClient) -> None:
    text = "喜欢靠窗的座位"
    answers = [
        await write(agent, text),
        await write(agent, text, agent_id="a1"),
        await write(agent, text, agent_id="a2"),
        await write(agent, text, user_id="bo"),
        await write(agent, text, user_id=None),
    ]
    assert [answer["outcome"] for answer in answers] == ["created"] * 5


async def test_a_new_value_of_a_key_supersedes_the_old_one(agent: httpx2.AsyncClient) -> None:
    old = await write(agent, "我的公司是云启科技", key="profile.company_name")
    new = await write(agent, "我的公司是云图科技", key="profile.company_name")
    assert new["outcome"] == "superseded"
    assert new["related"] == [{"id": old["id"], "relation": "supersedes"}]
    assert (await agent.get(f"/v1/memories/{old['id']}")).json()["status"] == "deprecated"
    listed = (await agent.get("/v1/memories", params={"user_id": "amy", "key": "profile.company_name"})).json()
    assert [item["id"] for item in listed["items"]] == [new["id"]]
    back = await write(agent, "我的公司是云启科技", key="profile.company_name")
    assert back["outcome"] == "superseded"
    assert back["id"] != old["id"]


async def test_two_values_at_once_leave_one_active_row(agent: httpx2.AsyncClient) -> None:
    await asyncio.gather(*(write(agent, f"I live in city number {n}", key="profile.city") for n in range(12)))
    listed = (await agent.get("/v1/memories", params={"user_id": "amy", "key": "profile.city"})).json()
    assert len(listed["items"]) == 1
    deprecated = (await agent.get("/v1/memories", params={"user_id": "amy", "status": "deprecated"})).json()
    assert len(deprecated["items"]) == 11


async def test_in_a_batch_each_item_stands_or_falls_alone(agent: httpx2.AsyncClient) -> None:
    items: list[Any] = [
        {"user_id": "amy", "content": "likes tea"},
        {"user_id": "amy", "content": "  "},
        {"user_id": "amy", "content": "likes hiking", "colour": "red"},
        "no object",
        {"user_id": "bo", "content": "likes tea"},
        {"user_id": "amy", "content": "LIKES TEA!"},
        {"user_id": "amy", "content": "city: Rome", "key": "city"},
        {"user_id": "amy", "content": "city: Oslo", "key": "city"},
    ]
    answer = (await agent.post("/v1/memories:batch", json={"items": items})).json()["items"]
    assert [item["index"] for item in answer] == list(range(8))
    assert [item["status"] for item in answer] == [201, 422, 422, 422, 201, 200, 201, 201]
    assert answer[1]["problem"]["code"] == "validation_failed"
    assert answer[1]["problem"]["errors"][0]["pointer"] == "/content"
    assert answer[5]["id"] == answer[0]["id"]
    assert answer[7]["outcome"] == "superseded"
    repeated = (await agent.post("/v1/memories:batch", json={"items": [items[0], items[4], items[7]]})).json()["items"]
    assert [item["id"] for item in repeated] == [answer[0]["id"], answer[4]["id"], answer[7]["id"]]


async def test_r16_after_an_edit_search_finds_the_new_words_and_not_the_old(agent: httpx2.AsyncClient) -> None:
    memory_id = (await write(agent, "Maya works at Acme"))["id"]
    edited = await agent.patch(
        f"/v1/memories/{memory_id}", json={"content": "Maya works at Orchid Labs"}, headers={"If-Match": '"v1"'}
    )
    assert edited.status_code == 200
    assert edited.headers["etag"] == '"v2"'
    fresh = await write(agent, "Maya works at Orchid Labs", user_id="bo")
    vectors = [
        (await agent.get(f"/v1/memories/{each}", params={"include": "vector"})).json()["vector"]
        for each in (memory_id, fresh["id"])
    ]
    assert vectors[0] == vectors[1]
    only_keywords = {"similarity": 0.0, "time": 0.0, "importance": 0.0, "keyword": 1.0}
    for query, hits in (("Orchid", [memory_id]), ("Acme", [])):
        body = {"user_id": "amy", "query": query, "weights": only_keywords}
        found = (await agent.post("/v1/memories:search", json=body)).json()["hits"]
        assert [hit["memory"]["id"] for hit in found] == hits
    assert (await write(agent, "Maya works at Acme"))["outcome"] == "created"
    history = (await agent.get(f"/v1/memories/{memory_id}/history")).json()["items"]
    assert [entry["action"] for entry in history] == ["created", "amended"]
    assert history[1]["replaced"]["content"] == "Maya works at Acme"


async def test_if_match_guards_edits_and_deletes(agent: httpx2.AsyncClient) -> None:
    memory_id = (await write(agent, "likes tea"))["id"]
    for stale in ('"v2"', '"x"', "v1", '"v' + "9" * 30 + '"'):
        for request in (
            agent.patch(f"/v1/memories/{memory_id}", json={"importance": 5}, headers={"If-Match": stale}),
            agent.delete(f"/v1/memories/{memory_id}", headers={"If-Match": stale}),
        ):
            response = await request
            assert (response.status_code, response.json()["code"]) == (412, "version_conflict")
    edits = [
        agent.patch(f"/v1/memories/{memory_id}", json={"importance": n}, headers={"If-Match": '"v1"'}) for n in (1, 5)
    ]
    assert sorted(response.status_code for response in await asyncio.gather(*edits)) == [200, 412]
    assert (await agent.delete(f"/v1/memories/{memory_id}", headers={"If-Match": '"v2"'})).status_code == 204
    assert (await agent.get(f"/v1/memories/{memory_id}")).status_code == 404
    assert (await agent.delete(f"/v1/memories/{memory_id}")).status_code == 404
    assert [entry["action"] for entry in (await agent.get(f"/v1/memories/{memory_id}/history")).json()["items"]] == [
        "created", "amended", "archived",
    ]  # fmt: skip


async def test_an_edit_into_an_existing_memory_is_a_conflict(agent: httpx2.AsyncClient) -> None:
    await write(agent, "likes tea", key="drink")
    other = (await write(agent, "plays chess on Sundays"))["id"]
    for change, code in (({"content": "Likes TEA"}, "duplicate_content"), ({"key": "drink"}, "key_taken")):
        response = await agent.patch(f"/v1/memories/{other}", json=change)
        assert (response.status_code, response.json()["code"]) == (409, code)
    assert (await agent.get(f"/v1/memories/{other}")).json()["version"] == 1


async def test_null_clears_and_what_is_left_out_stays(agent: httpx2.AsyncClient) -> None:
    memory = (await write(agent, "likes tea", key="drink", tags=["a"], source="chat"))["memory"]
    changed = (await agent.patch(f"/v1/memories/{memory['id']}", json={"key": None, "source": None})).json()
    assert changed == memory | {
        "key": None, "source": None, "version": 2, "updated_at": changed["updated_at"],
    }  # fmt: skip
    for bad in ({}, {"content": None}, {"tags": None}, {"user_id": "bo"}, {"importance": 6}):
        assert (await agent.patch(f"/v1/memories/{memory['id']}", json=bad)).status_code == 422


async def test_a_list_pages_without_gap_or_repeat(agent: httpx2.AsyncClient) -> None:
    items = [{"user_id": f"user{n % 2}", "content": f"fact number {n}", "tags": [f"t{n % 3}"]} for n in range(23)]
    written = (await agent.post("/v1/memories:batch", json={"items": items})).json()["items"]
    newest_first = [item["id"] for item in reversed(written)]

    async def pages(**parameters: Any) -> list[str]:
        seen: list[str] = []
        cursor = None
        while True:
            more: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            page = (await agent.get("/v1/memories", params={"limit": 5, **parameters, **more})).json()
            seen += [item["id"] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return seen

    assert await pages() == newest_first
    assert await pages(user_id="user1") == [i for i in newest_first if i in {w["id"] for w in written[1::2]}]
    assert await pages(tag="t0") == [i for i in newest_first if i in {w["id"] for w in written[0::3]}]
    assert await pages(user_id="nobody") == []


async def test_a_cursor_is_signed_for_its_own_list(agent: httpx2.AsyncClient) -> None:
    for n in range(3):
        await write(agent, f"fact number {n}")
    cursor = (await agent.get("/v1/memories", params={"limit": 1, "user_id": "amy"})).json()["next_cursor"]
    tampered = ("A" if cursor[0] != "A" else "B") + cursor[1:]
    wrong_lists: tuple[dict[str, Any], ...] = (
        {"user_id": "amy", "cursor": tampered},
        {"user_id": "bo", "cursor": cursor},
        {"cursor": cursor},
        {"user_id": "amy", "cursor": "💥"},
        {"user_id": "amy", "cursor": "x"},
        {"user_id": "amy", "limit": 0},
        {"user_id": "amy", "limti": 5},
        {"user_id": " "},
    )
    for wrong in wrong_lists:
        assert (await agent.get("/v1/memories", params=wrong)).status_code == 422, wrong


async def test_an_idempotency_key_replays_the_stored_answer(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID
) -> None:
    body = {"user_id": "amy", "content": "buys 3 tickets"}
    headers = {"Idempotency-Key": "order-17"}
    first = await agent.post("/v1/memories", json=body, headers=headers)
    again = await agent.post("/v1/memories", json=body, headers=headers)
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    other = await agent.post("/v1/memories", json=body | {"content": "buys 4 tickets"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert await rows_by_status(database, tenant) == {"active": 1}
    for bad in ("", "x" * 256):
        assert (await agent.post("/v1/memories", json=body, headers={"Idempotency-Key": bad})).status_code == 422


async def test_twenty_parallel_repeats_of_one_key_write_once(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID
) -> None:
    async def send() -> httpx2.Response:
        return await agent.post(
            "/v1/memories", json={"user_id": "amy", "content": "once only"}, headers={"Idempotency-Key": "k"}
        )

    responses = await asyncio.gather(*(send() for _ in range(20)))
    assert {response.status_code for response in responses} <= {201, 409}
    assert {response.json().get("code") for response in responses if response.status_code == 409} <= {
        "idempotency_in_progress"
    }
    assert (await send()).status_code == 201
    assert len({response.json()["id"] for response in responses if response.status_code == 201}) == 1
    assert await rows_by_status(database, tenant) == {"active": 1}


async def test_a_batch_is_replayed_too(agent: httpx2.AsyncClient) -> None:
    body = {"items": [{"user_id": "amy", "content": f"fact {n}"} for n in range(3)]}
    answers = [await agent.post("/v1/memories:batch", json=body, headers={"Idempotency-Key": "b"}) for _ in range(2)]
    assert answers[0].content == answers[1].content


async def test_unknown_and_malformed_ids(agent: httpx2.AsyncClient) -> None:
    for method, path in (
        ("GET", f"/v1/memories/{UNKNOWN_ID}"),
        ("GET", f"/v1/memories/{UNKNOWN_ID}/history"),
        ("DELETE", f"/v1/memories/{UNKNOWN_ID}"),
    ):
        assert (await agent.request(method, path)).status_code == 404
    assert (await agent.get("/v1/memories/7")).status_code == 422


@pytest.mark.parametrize(
    "wrong",
    [
        {"content": ""},
        {"content": " \n\t"},
        {"content": "\u200b\u200b"},
        {"content": "x" * 8001},
        {"content": "中" * 8001},
        {},
        {"content": 7},
        {"content": "x", "user_id": ""},
        {"content": "x", "user_id": "  "},
        {"content": "x", "importance": 0},
        {"content": "x", "importance": 5.1},
        {"content": "x", "importance": True},
        {"content": "x", "importance": "3"},
        {"content": "x", "kind": "gossip"},
        {"content": "x", "content_type": "smell"},
        {"content": "x", "event_at": "2026-03-08T02:30:00"},
        {"content": "x", "valid_from": "2026-03-08T00:00:00Z", "valid_to": "2026-03-07T00:00:00Z"},
        {"content": "x", "tags": ["t"] * 65},
        {"content": "x", "metadata": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": 1}}}}}}}}}},
        {"content": "x", "tenant_id": UNKNOWN_ID},
    ],
)
async def test_r40_bad_input_is_refused_and_nothing_is_stored(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID, wrong: dict[str, Any]
) -> None:
    response = await agent.post("/v1/memories", json={"user_id": "amy", **wrong})
    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")
    assert response.json()["errors"]
    assert await rows_by_status(database, tenant) == {}


async def test_limits_count_characters_in_every_language(agent: httpx2.AsyncClient) -> None:
    for text in ("x" * 8000, "中" * 8000):
        assert (await write(agent, text))["outcome"] == "created"
