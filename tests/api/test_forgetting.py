"""Policy, holds, erasure. R01: "delete mine" deletes nobody else's. R20: what is over crowds nothing."""

import json
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from app.clock import now
from app.database import Database, sql
from app.guard import create_tenant
from tests.api.conftest import UNKNOWN_ID, MakeKey, Service, bearer

MARKER = "斑马纹的雨伞 zebra-striped umbrella"


async def write(client: httpx2.AsyncClient, key: str, user_id: str | None, *contents: str, **fields: Any) -> list[str]:
    items = [{"user_id": user_id, "content": content, "importance": 3, **fields} for content in contents]
    answer = (await client.post("/v1/memories:batch", json={"items": items}, headers=bearer(key))).json()["items"]
    assert [item["status"] for item in answer] == [201] * len(contents)
    return [item["id"] for item in answer]


async def count(client: httpx2.AsyncClient, key: str, user_id: str) -> int:
    answer = await client.get("/v1/memories", params={"user_id": user_id}, headers=bearer(key))
    return len(answer.json()["items"])


async def test_r01_delete_mine_never_deletes_anybody_elses(
    service: Service, make_key: MakeKey, database: Database, tenant: UUID
) -> None:
    first = await make_key()
    second = await make_key((await create_tenant(database, f"b {tenant}", now=now())).tenant_id)
    for key, user in ((first, "amy"), (first, "bo"), (second, "amy")):
        await write(service.client, key, user, "I live in Oslo", "我对花生过敏", "My dog is called Rex")
    await write(service.client, first, None, "We open at nine")

    async def erase(path: str) -> httpx2.Response:
        return await service.client.delete(path, headers=bearer(first))

    for path in ("/v1/subjects", "/v1/subjects/", "/v1/subjects/%20", "/v1/subjects/%00"):
        assert 400 <= (await erase(path)).status_code < 500, path
    unknown = await erase("/v1/subjects/nobody")
    assert (unknown.status_code, set(unknown.json().values())) == (200, {0})
    assert [await count(service.client, first, user) for user in ("amy", "bo")] == [3, 3]

    erased = await erase("/v1/subjects/amy")
    assert (erased.status_code, erased.json()["memories"]) == (200, 3)
    left = [(first, "amy", 0), (first, "bo", 3), (second, "amy", 3)]
    assert [await count(service.client, key, user) for key, user, _ in left] == [there for *_, there in left]
    shared = await service.client.get("/v1/memories", params={"shared": True}, headers=bearer(first))
    assert len(shared.json()["items"]) == 1
    assert (await erase("/v1/subjects/amy")).json()["memories"] == 0


@pytest.mark.parametrize("bond", [{"user_id": "bo"}, {"agent_id": "a1"}])
async def test_a_bound_key_erases_nobody_else(service: Service, make_key: MakeKey, bond: dict[str, str]) -> None:
    owner, bound = await make_key(), await make_key(**bond)
    await write(service.client, owner, "amy", "I live in Oslo", agent_id="a1")
    answer = await service.client.delete("/v1/subjects/amy", headers=bearer(bound))
    assert answer.status_code == 403
    assert await count(service.client, owner, "amy") == 1


async def test_a_user_with_an_unusual_name_can_be_erased(agent: httpx2.AsyncClient) -> None:
    for name, path in (("李 雷/1", "%E6%9D%8E%20%E9%9B%B7/1"), ("a%b?", "a%25b%3F")):
        await agent.post("/v1/memories", json={"user_id": name, "content": "I live in Oslo"})
        assert (await agent.delete(f"/v1/subjects/{path}")).json()["memories"] == 1


async def test_an_erased_user_leaves_no_text_in_any_table(
    service: Service, make_key: MakeKey, owner_url: str, tenant: UUID
) -> None:
    """Not in rows, versions, windows of conversations, operations, stored answers or queues; ids and actions stay."""
    key = await make_key()
    client = service.client
    headers = bearer(key) | {"Idempotency-Key": "once"}
    said = {"user_id": "amy", "content": f"I always carry a {MARKER}", "importance": 3}
    memory_id = (await client.post("/v1/memories", json=said, headers=headers)).json()["id"]
    change = {"content": f"I never carry a {MARKER}"}
    assert (await client.patch(f"/v1/memories/{memory_id}", json=change, headers=bearer(key))).status_code == 200
    message = {"role": "user", "content": f"请记住：我有一把{MARKER}"}
    spoken = {"user_id": "amy", "messages": [message]}
    assert (await client.post("/v1/sessions/s1/messages", json=spoken, headers=bearer(key))).status_code < 300
    assert (await client.post("/v1/memories:extract", json=spoken, headers=bearer(key))).status_code == 202
    hold = {"user_id": "amy", "reason": "case 7"}
    assert (await client.post("/v1/holds", json=hold, headers=bearer(key))).status_code == 201
    assert await rows_with(owner_url, MARKER)

    erased = (await client.delete("/v1/subjects/amy", headers=bearer(key))).json()
    there = {name for name, number in erased.items() if number}
    assert there == {"memories", "sessions", "operations", "answers", "holds"}
    assert await rows_with(owner_url, MARKER) == []
    assert await rows_with(owner_url, f'"{tenant}"', "amy") == []
    history = await client.get(f"/v1/memories/{memory_id}/history", headers=bearer(key))
    assert history.status_code == 404
    again = await client.post("/v1/memories", json=said, headers=bearer(key))
    assert again.json()["outcome"] == "created", "who comes back begins anew"
    async with service.app.state.mneme.database.read(tenant) as transaction:
        rows = await transaction.fetch(_TRAIL, tenant=tenant, memory=UUID(memory_id))
    actions = [row["action"] for row in rows]
    assert (actions[0], actions[-1]) == ("created", "erased")


async def rows_with(owner_url: str, *texts: str) -> list[tuple[str, str]]:
    """Every row of every table in which all these texts stand."""
    connection = await asyncpg.connect(owner_url.replace("postgresql+asyncpg", "postgresql"))
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = []
        for (table,) in tables:
            for row in await connection.fetch(f"SELECT to_jsonb(t) AS line FROM {table} t"):
                line = _decoded(row["line"])
                if all(text in line for text in texts):
                    found.append((table, line))
        return found
    finally:
        await connection.close()


def _decoded(line: str) -> str:
    """A row as text, its bytea columns (which JSON shows in hex) included."""
    document = json.loads(line)
    hidden = [value for value in document.values() if isinstance(value, str) and value.startswith("\\x")]
    shown = [bytes.fromhex(value[2:]).decode("utf-8", "replace") for value in hidden]
    return "\n".join([json.dumps(document, ensure_ascii=False), *shown])


async def test_the_policy_is_shown_replaced_and_given_back(agent: httpx2.AsyncClient) -> None:
    before = (await agent.get("/v1/policy")).json()
    assert before["rules"]["stale"]["numbers"] == {"days": 180, "importance": 0.3}
    assert (before["grace_days"], before["own"]) == (30, [])
    own = {
        "rules": {"stale": {"on": False}, "trivial": {"numbers": {"days": 3}}},
        "grace_days": 90,
        "tenant_quota": 500,
    }
    replaced = (await agent.put("/v1/policy", json=own)).json()
    assert replaced["rules"]["stale"]["on"] is False
    assert replaced["rules"]["trivial"]["reason"] == "importance 1 and unchanged for 3 days"
    assert replaced["own"] == ["grace_days", "rules.stale", "rules.trivial", "tenant_quota"]
    assert (await agent.get("/v1/policy")).json() == replaced
    assert (await agent.put("/v1/policy", json={"rules": {}})).json() == before


@pytest.mark.parametrize(
    ("own", "pointer"),
    [
        ({"rules": {"bored": {}}}, "/rules/bored"),
        ({"rules": {"stale": {"numbers": {"days": 0}}}}, "/rules/stale/numbers/days"),
        ({"rules": {"stale": {"days": 3}}}, "/rules/stale/days"),
        ({"rules": {}, "grace_days": -1}, "/grace_days"),
        ({}, "/rules"),
    ],
)
async def test_a_wrong_policy_names_its_fault(agent: httpx2.AsyncClient, own: dict[str, Any], pointer: str) -> None:
    refused = await agent.put("/v1/policy", json=own)
    assert refused.status_code == 422
    assert [error["pointer"] for error in refused.json()["errors"]] == [pointer]


async def test_holds_are_placed_listed_and_released(agent: httpx2.AsyncClient) -> None:
    memory_id = (await agent.post("/v1/memories", json={"user_id": "amy", "content": "I live in Oslo"})).json()["id"]
    await agent.post("/v1/memories", json={"content": "We open at nine"})
    placed = [
        (await agent.post("/v1/holds", json=body | {"reason": "案件 7"})).json()
        for body in ({"memory_id": memory_id}, {"user_id": "amy"}, {"shared": True})
    ]
    assert [(hold["memory_id"], hold["user_id"]) for hold in placed] == [
        (memory_id, "amy"),
        (None, "amy"),
        (None, None),
    ]
    assert (await agent.get("/v1/holds")).json()["items"] == placed
    for hold in placed:
        assert (await agent.delete(f"/v1/holds/{hold['id']}")).status_code == 204
        assert (await agent.delete(f"/v1/holds/{hold['id']}")).status_code == 404
    assert (await agent.get("/v1/holds")).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422), ({"user_id": "amy"}, 422), ({"reason": "x"}, 422), ({"reason": "x", "shared": False}, 422),
        ({"reason": "x", "user_id": "amy", "shared": True}, 422), ({"reason": " ", "user_id": "amy"}, 422),
        ({"reason": "x", "user_id": "nobody"}, 404), ({"reason": "x", "memory_id": UNKNOWN_ID}, 404),
    ],
)  # fmt: skip
async def test_a_hold_is_of_exactly_one_thing_that_is_there(
    agent: httpx2.AsyncClient, body: dict[str, Any], status: int
) -> None:
    assert (await agent.post("/v1/holds", json=body)).status_code == status
    assert (await agent.get("/v1/holds")).json()["items"] == []


async def test_r20_what_expired_is_found_by_no_search_before_any_job_ran(agent: httpx2.AsyncClient) -> None:
    """Nor revived by one."""
    body = {"user_id": "amy", "content": "The meeting is in room 7", "expires_at": "2026-01-01T00:00:00Z"}
    memory_id = (await agent.post("/v1/memories", json=body)).json()["id"]
    query = {"user_id": "amy", "query": "Which room is the meeting in?"}
    assert (await agent.post("/v1/memories:search", json=query)).json()["hits"] == []
    read = (await agent.get(f"/v1/memories/{memory_id}")).json()
    assert (read["status"], read["access_count"]) == ("active", 0)


_TRAIL = sql("""
    SELECT action FROM memory_events WHERE tenant_id = :tenant AND memory_id = :memory ORDER BY created_at, event_id
""")


@pytest.mark.parametrize("user_id", ["lin", None])
async def test_beyond_a_quota_writes_are_refused_only_where_the_policy_says_so(
    agent: httpx2.AsyncClient, service: Service, user_id: str | None
) -> None:
    def body(number: int) -> dict[str, Any]:
        return {"user_id": user_id, "content": f"第 {number} 次聊到去爬山, hike {number}"}

    async def write(number: int) -> httpx2.Response:
        service.app.state.mneme.quotas._policies.clear()  # as if its seconds were over
        return await agent.post("/v1/memories", json=body(number))

    policy = {"rules": {}, "subject_quota": 2}
    assert (await agent.put("/v1/policy", json=policy)).json()["refuse_at_quota"] is False
    assert {(await write(number)).status_code for number in range(3)} == {201}
    policy |= {"subject_quota": 4, "refuse_at_quota": True}
    assert (await agent.put("/v1/policy", json=policy)).json()["own"] == ["refuse_at_quota", "subject_quota"]
    service.app.state.mneme.quotas._policies.clear()
    items = [body(3), body(4), {"user_id": "wang", "content": "王也去爬山"}]
    batch = (await agent.post("/v1/memories:batch", json={"items": items})).json()["items"]
    assert [item["status"] for item in batch] == [201, 409, 201]
    assert batch[1]["problem"]["code"] == "quota_exceeded"
    refused = await write(5)
    assert (refused.status_code, refused.json()["code"]) == (409, "quota_exceeded")
    memory_id = batch[0]["id"]
    assert (await agent.patch(f"/v1/memories/{memory_id}", json={"importance": 4})).status_code == 200
    assert (await agent.delete(f"/v1/memories/{memory_id}")).status_code == 204
    service.app.state.mneme.quotas._counts.clear()
    assert (await write(6)).status_code == 201, "there is room again"
    policy |= {"subject_quota": 0, "tenant_quota": 5}
    await agent.put("/v1/policy", json=policy)
    assert (await write(7)).status_code == 409, "the tenant is full"
