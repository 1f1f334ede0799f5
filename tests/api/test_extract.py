"""Extraction over HTTP: stored before it is answered, facts by the path of every memory, sources beside them (R06)."""

import asyncio
from typing import Any
from uuid import UUID

import httpx2
import pytest

from app.database import Database, sql
from tests.api.conftest import MakeKey, Service, bearer

SOURCES = sql("""
    SELECT m.content AS memory, s.number, s.reference, s.role, s.content, s.session_id, s.operation_id
    FROM memory_sources s JOIN memories m USING (tenant_id, subject_id, memory_id)
    WHERE s.tenant_id = :tenant_id ORDER BY s.number
""")
ZH = "请记住：我对芒果过敏"
EN = "Please remember that I prefer window seats"


async def extract(client: httpx2.AsyncClient, *said: tuple[str, str], **fields: Any) -> dict[str, Any]:
    """Wait for an extraction that succeeds and return its result."""
    messages = [{"role": role, "content": content} for role, content in said]
    response = await client.post("/v1/memories:extract?wait=true", json={"messages": messages} | fields)
    assert response.status_code == 200, response.text
    operation = response.json()
    assert (operation["state"], operation["error"]) == ("succeeded", None)
    result: dict[str, Any] = operation["result"]
    return result


async def memories_of(client: httpx2.AsyncClient, user_id: str = "amy") -> list[dict[str, Any]]:
    response = await client.get("/v1/memories", params={"user_id": user_id, "limit": 200})
    items: list[dict[str, Any]] = response.json()["items"]
    return items


@pytest.mark.parametrize("text", [ZH, EN], ids=["zh", "en"])
async def test_a_fact_becomes_a_memory_that_names_its_source(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID, text: str
) -> None:
    said = [{"role": "assistant", "content": "hello"}, {"role": "user", "content": text, "reference": "m-17"}]
    body = {"user_id": "amy", "session_id": "s9", "messages": said}
    operation = (await agent.post("/v1/memories:extract?wait=true", json=body)).json()
    [fact] = operation["result"]["facts"]
    assert (fact["outcome"], fact["message"], fact["role"], fact["trigger"]) == ("created", 1, "user", "request")
    assert operation["progress"] == {"done": 1, "total": 1}
    [memory] = await memories_of(agent)
    assert memory["id"] == fact["memory_id"]
    assert (memory["session_id"], memory["kind"]) == ("s9", fact["kind"])
    assert memory["metadata"]["extracted_from"] == {"operation_id": operation["id"], "message": 1, "role": "user"}
    async with database.read(tenant) as transaction:
        [source] = await transaction.fetch(SOURCES, tenant_id=tenant)
    assert dict(source) == {
        "memory": memory["content"], "number": 1, "reference": "m-17", "role": "user", "content": text,
        "session_id": "s9", "operation_id": UUID(operation["id"]),
    }  # fmt: skip


async def test_r06_the_same_conversation_twenty_times_leaves_the_count_of_the_first(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID
) -> None:
    context: str = ""
    counts = []
    for _ in range(20):
        said = [
            ("system", "You are a formal clerk. The user likes trail running."),
            ("user", f"{context}\nWho handles Mr. Lin's KPIs? My cousin Tao hates football."),
            ("assistant", "You might like trail running."),
            ("user", ZH),
            ("user", EN),
        ]
        result = await extract(agent, *said, user_id="amy")
        assert {fact["message"] for fact in result["facts"]} <= {1, 3, 4}
        asked = await agent.post("/v1/context", json={"user_id": "amy", "query": "芒果 window seat Tao football"})
        context = asked.json()["text"]
        assert context.startswith("<memory>")
        counts.append(len(await memories_of(agent)))
    assert set(counts) == {counts[0]}
    texts = [memory["content"] for memory in await memories_of(agent)]
    assert not [text for text in texts if "trail running" in text or "formal clerk" in text or "KPI" in text]
    assert all("Tao" in text for text in texts if "football" in text)
    async with database.read(tenant) as transaction:
        sources = await transaction.fetch(SOURCES, tenant_id=tenant)
    assert len(sources) == counts[0]
    assert all(source["role"] == "user" for source in sources)


async def test_nothing_worth_keeping_is_a_result_and_not_a_failure(agent: httpx2.AsyncClient) -> None:
    result = await extract(agent, ("user", "你好"), ("assistant", "Hello! How can I help?"), user_id="amy")
    assert result["facts"] == []
    assert {one["message"] for one in result["skipped"]} == {0, 1}
    assert await memories_of(agent) == []


async def test_a_conversation_is_kept_when_its_user_wants_it(agent: httpx2.AsyncClient) -> None:
    for role, content in (("user", ZH), ("assistant", "好的，我记下了"), ("user", EN)):
        said = {"user_id": "amy", "role": role, "content": content, "extract": "never"}
        assert (await agent.post("/v1/sessions/s/messages", json=said)).status_code == 201
    first = await agent.post("/v1/sessions/s:extract?wait=true", json={"user_id": "amy"})
    assert [fact["outcome"] for fact in first.json()["result"]["facts"]] == ["created", "created"]
    ended = await agent.delete("/v1/sessions/s", params={"user_id": "amy", "keep": "true"})
    assert ended.status_code == 202
    assert (await agent.get("/v1/sessions/s/messages?user_id=amy")).json()["messages"] == []
    assert (await agent.post("/v1/sessions/s:extract", json={"user_id": "amy"})).status_code == 404
    assert (await agent.delete("/v1/sessions/s?user_id=amy&keep=true")).status_code == 404
    assert (await agent.delete("/v1/sessions/s?user_id=amy")).status_code == 204
    # No worker runs here: the input waits in the operation, and the user can still change their mind.
    place = ended.headers["Location"]
    assert (await agent.get(place)).json()["state"] == "queued"
    assert (await agent.post(f"{place}:cancel")).json()["state"] == "cancelled"
    assert {memory["session_id"] for memory in await memories_of(agent)} == {"s"}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ([("user", "我在备孕"), ("user", f"还有，{ZH}")], ["对芒果过敏"]),
        ([("user", "My desk is 14B"), ("user", f"{EN}, thanks")], ["prefer window seats"]),
        ([("user", "My badge number is 4417"), ("assistant", "ok"), ("user", "Please remember that.")], ["4417"]),
        ([("user", "我住在杭州"), ("assistant", "请记住：明天下雨"), ("user", "别记这个")], []),
    ],
)
async def test_what_a_user_asks_to_remember_outlives_the_conversation_and_nothing_else_does(
    agent: httpx2.AsyncClient, said: list[tuple[str, str]], kept: list[str], service: Service
) -> None:
    operations = []
    for number, (role, content) in enumerate(said):
        message = {"user_id": "amy", "role": role, "content": content, "reference": str(number)}
        answers = [(await agent.post("/v1/sessions/s/messages", json=message)).json() for _ in range(2)]
        assert answers[1]["operation_id"] is None  # a retry asks for nothing new
        operations += [answers[0]["operation_id"]] if answers[0]["operation_id"] else []
    assert len(operations) == len(kept)
    assert (await agent.delete("/v1/sessions/s?user_id=amy")).status_code == 204
    operator = service.app.state.mneme.operations.operator
    while await operator.work_off():
        pass
    texts = [memory["content"] for memory in await memories_of(agent)]
    assert len(texts) == len(kept)
    assert all(part in text for part, text in zip(kept, texts, strict=True))


async def test_without_waiting_it_is_accepted_and_with_a_key_only_once(agent: httpx2.AsyncClient) -> None:
    body = {"user_id": "amy", "messages": [{"role": "user", "content": ZH}]}
    key = {"Idempotency-Key": "turn-5"}
    first = await agent.post("/v1/memories:extract", json=body, headers=key)
    assert (first.status_code, first.json()["state"]) == (202, "queued")
    assert first.headers["Location"] == f"/v1/operations/{first.json()['id']}"
    again = await agent.post("/v1/memories:extract", json=body, headers=key)
    assert (again.json()["id"], again.headers["Idempotency-Replayed"]) == (first.json()["id"], "true")
    other = body | {"user_id": "bo"}
    assert (await agent.post("/v1/memories:extract", json=other, headers=key)).json()[
        "code"
    ] == "idempotency_key_reused"
    assert (await agent.post(f"{first.headers['Location']}:cancel")).status_code == 200


async def test_twenty_equal_requests_at_once_with_one_key_are_one_operation(agent: httpx2.AsyncClient) -> None:
    body = {"user_id": "amy", "messages": [{"role": "user", "content": ZH}]}

    async def ask() -> httpx2.Response:
        return await agent.post("/v1/memories:extract?wait=true", json=body, headers={"Idempotency-Key": "k"})

    answers = await asyncio.gather(*(ask() for _ in range(20)))
    ids = {answer.json()["id"] for answer in answers if answer.status_code == 200}
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len(ids) == 1
    assert len(await memories_of(agent)) == 1


async def test_bound_keys_extract_for_their_user_and_see_their_operations_only(
    service: Service, agent: httpx2.AsyncClient, make_key: MakeKey
) -> None:
    amy, bo = bearer(await make_key(user_id="amy")), bearer(await make_key(user_id="bo"))
    body = {"messages": [{"role": "user", "content": ZH}]}
    hers = await agent.post("/v1/memories:extract?wait=true", json=body, headers=amy)
    assert hers.json()["user_id"] == "amy"
    assert (await agent.post("/v1/memories:extract", json=body | {"user_id": "amy"}, headers=bo)).status_code == 403
    place = f"/v1/operations/{hers.json()['id']}"
    assert (await agent.get(place, headers=amy)).json() == hers.json()
    for method, path in (("GET", place), ("POST", f"{place}:cancel"), ("POST", f"{place}:retry")):
        assert (await agent.request(method, path, headers=bo)).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "user", "content": "  "}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": "x"}], "timezone": "Mars/Olympus"},
        {"messages": [{"role": "user", "content": "x"}] * 101},
        {"messages": [{"role": "user", "content": "x", "unknown": 1}]},
    ],
)
async def test_what_is_no_conversation_is_refused(agent: httpx2.AsyncClient, body: dict[str, Any]) -> None:
    response = await agent.post("/v1/memories:extract?wait=true", json=body)
    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")
