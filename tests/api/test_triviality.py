"""Over HTTP: small talk is answered `filtered`, what has importance 1 expires, importance has two forms."""

from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest

from app.clock import now


async def write(agent: httpx2.AsyncClient, content: str, **fields: Any) -> httpx2.Response:
    return await agent.post("/v1/memories", json={"user_id": "amy", "content": content, **fields})


@pytest.mark.parametrize(
    ("content", "reason"), [("好的，谢谢您！", "thanks"), ("Hello there", "greeting"), ("3*4=12", "calculation")]
)
async def test_small_talk_is_filtered_with_its_reason(agent: httpx2.AsyncClient, content: str, reason: str) -> None:
    response = await write(agent, content)
    answer = response.json()
    assert (response.status_code, answer["outcome"], answer["reason"]) == (200, "filtered", reason)
    assert (answer["id"], answer["memory"], answer["related"]) == (None, None, [])
    listed = await agent.get("/v1/memories", params={"user_id": "amy"})
    assert listed.json()["items"] == []


@pytest.mark.parametrize(
    "fields",
    [{"pinned": True}, {"key": "profile.motto"}, {"importance": 2}, {"if_trivial": "keep"}, {"if_trivial": "expire"}],
)
async def test_small_talk_is_stored_where_its_writer_wants_it(
    agent: httpx2.AsyncClient, fields: dict[str, Any]
) -> None:
    answer = (await write(agent, "好的，谢谢您！", **fields)).json()
    assert (answer["outcome"], answer["reason"]) == ("created", None)
    assert (answer["memory"]["expires_at"] is not None) == (fields.get("if_trivial") == "expire")


async def test_in_a_batch_only_the_small_talk_is_filtered(agent: httpx2.AsyncClient) -> None:
    items = [{"user_id": "amy", "content": content} for content in ("您好", "我对芒果过敏", "thanks!", "I like tea")]
    answer = (await agent.post("/v1/memories:batch", json={"items": items})).json()["items"]
    assert [(item["status"], item["outcome"]) for item in answer] == [
        (200, "filtered"), (201, "created"), (200, "filtered"), (201, "created"),
    ]  # fmt: skip
    assert [item["reason"] for item in answer] == ["greeting", None, "thanks", None]


async def test_what_is_kept_at_importance_one_expires_after_seven_days(agent: httpx2.AsyncClient) -> None:
    before = now()
    kept = (await write(agent, "今天天气真好，中午吃了黄焖鸡米饭", importance=1)).json()["memory"]
    expires_at = datetime.fromisoformat(kept["expires_at"])
    assert before + timedelta(days=7) <= expires_at <= now() + timedelta(days=7)
    assert (kept["importance"], kept["importance_score"]) == (1.0, 0.0)
    stated = (await write(agent, "午饭吃了米饭", importance=1, expires_at="2099-01-01T00:00:00Z")).json()["memory"]
    assert stated["expires_at"] == "2099-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("content", "kind", "importance", "score"),
    [
        ("我喜欢喝茶", "user_preference", 3.0, 0.5),
        ("请记住我的公司名称是云启科技", "interaction_history", 4.0, 0.75),
        ("Remember that I'm allergic to nuts", "profile", 5.0, 1.0),
        ("The refund has not arrived", "interaction_history", 2.25, 0.3125),
    ],
)
async def test_importance_by_rule_in_both_forms_and_everywhere_the_same(
    agent: httpx2.AsyncClient, content: str, kind: str, importance: float, score: float
) -> None:
    memory = (await write(agent, content, kind=kind)).json()["memory"]
    assert (memory["importance"], memory["importance_score"]) == (importance, score)
    assert (await agent.get(f"/v1/memories/{memory['id']}")).json() == memory
    found = await agent.post("/v1/memories:search", json={"user_id": "amy", "query": content})
    assert found.json()["hits"][0]["memory"]["importance_score"] == score
    changed = await agent.patch(f"/v1/memories/{memory['id']}", json={"importance": 1.4})
    assert changed.json()["importance_score"] == 0.1
    past = {"user_id": "amy", "query": content, "as_of": memory["created_at"]}
    then = (await agent.post("/v1/memories:search", json=past)).json()["hits"][0]["memory"]
    assert (then["importance"], then["importance_score"]) == (importance, score)


async def test_the_tutorial_stores_everything_and_only_a_stated_importance_of_one_expires(
    agent: httpx2.AsyncClient,
) -> None:
    async def expiry(body: dict[str, Any]) -> Any:
        memory_id = (await agent.post("/memory/add", json={"user_id": "amy", **body})).json()
        return (await agent.get(f"/v1/memories/{memory_id}")).json()["expires_at"]

    assert await expiry({"content": "今天天气真好，中午吃了黄焖鸡米饭", "importance": 1.0}) is not None
    assert await expiry({"content": "谢谢", "importance": 1.0}) is not None
    assert await expiry({"content": "你好"}) is None
    assert await expiry({"content": "我对芒果过敏", "importance": 5.0}) is None
