"""Operations: what fails is tried again and fails alone with its reason, its input kept; nothing is written twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from app import work_metrics
from app.clock import now
from app.database import Database, sql
from app.extract import ExtractConfig
from app.guard import create_tenant
from app.llm import LlmConfig, load_language_model
from app.operations import OPERATION_KINDS, Operator, Queue, Tools, expire_operations
from app.operations.operator import wait_seconds
from app.operations.queue import OperationConfig
from tests.api.conftest import MakeKey, Service, bearer
from tests.embed.server import Answer, Endpoint, serving, status

ZH = "请记住：我对芒果过敏"
CONFIG = OperationConfig(lease_seconds=1)
ATTEMPTS = OPERATION_KINDS["extract"].attempts
DUE_NOW = sql("UPDATE operations SET due_at = clock_timestamp() WHERE tenant_id = :tenant_id AND state = 'queued'")
LEASE_OVER = sql("""
    UPDATE operations SET due_at = clock_timestamp() WHERE tenant_id = :tenant_id AND state = 'running'
""")
BROKEN = sql("""
    INSERT INTO operations (tenant_id, operation_id, kind, state, request, due_at, created_at, updated_at)
    VALUES (:tenant_id, :operation_id, 'extract', 'queued', '{"poison": 1}', clock_timestamp(), :now, :now)
""")
MANY = sql("""
    INSERT INTO operations (tenant_id, operation_id, kind, state, request, due_at, created_at, updated_at)
    SELECT :tenant_id, gen_random_uuid(), 'extract', 'queued', '{}', clock_timestamp() + number * interval '1 us', :now,
           :now
    FROM generate_series(1, cast(:count AS int)) AS number
""")
NONE = sql("DELETE FROM operations WHERE tenant_id = :tenant_id")
INPUT = sql("SELECT request FROM operations WHERE tenant_id = :tenant_id AND operation_id = :operation_id")


def says(text: str) -> Callable[[dict[str, Any]], Answer]:
    """A language model that always answers this."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return lambda _: (200, {}, {"choices": [choice]})


NO_FACTS = says('{"facts": []}')
FACT = says(json.dumps({"facts": [{"message": 0, "content": "我对芒果过敏", "kind": "profile"}]}))
GARBAGE = says("I have noted everything, thank you!")


@pytest.fixture
def model() -> Iterator[Endpoint]:
    with serving("/v1/chat/completions", FACT) as endpoint:
        yield endpoint


@pytest.fixture
async def operator(service: Service, model: Endpoint) -> AsyncIterator[Operator]:
    """A worker's operator whose language model is played by `model`, and must not be replaced by rules."""
    rememberer = service.app.state.mneme.rememberer
    config = LlmConfig(url=model.url.removesuffix("/chat/completions"), model="played", deadline_seconds=2)
    language_model = load_language_model(config)
    assert language_model is not None
    tools = Tools(rememberer, language_model, ExtractConfig(without_llm="fail"))
    operator = Operator(Queue(rememberer.database, rememberer.subscriptions, CONFIG), tools, CONFIG, clock=now)
    yield operator
    await operator.close()
    await language_model.close()


async def submit(client: httpx2.AsyncClient, content: str = ZH, user_id: str = "amy") -> str:
    """The place of an operation that nobody waits for."""
    body = {"user_id": user_id, "messages": [{"role": "user", "content": content}]}
    response = await client.post("/v1/memories:extract", json=body)
    assert response.status_code == 202
    return response.headers["Location"]


async def work_off(operator: Operator) -> None:
    while await operator.work_off():
        pass


async def count(client: httpx2.AsyncClient) -> int:
    return len((await client.get("/v1/memories", params={"user_id": "amy"})).json()["items"])


async def test_the_worker_finishes_what_was_accepted_and_drops_its_input(
    agent: httpx2.AsyncClient, operator: Operator, database: Database, tenant: UUID
) -> None:
    places = [await submit(agent, f"请记住：我的车牌是京A{number}") for number in range(12)]
    await work_off(operator)
    for place in places:
        shown = (await agent.get(place)).json()
        assert (shown["state"], shown["attempts"]) == ("succeeded", 1)
    async with database.read(tenant) as transaction:
        request = await transaction.fetch_value(
            INPUT, tenant_id=tenant, operation_id=UUID(places[0].rpartition("/")[2])
        )
    assert request == {"zone": "UTC", "session_id": None, "trust": 100}


async def test_r05_a_model_that_cannot_be_read_ends_as_failed_with_a_reason_and_the_input_is_kept_for_another_try(
    agent: httpx2.AsyncClient, operator: Operator, model: Endpoint, database: Database, tenant: UUID
) -> None:
    failed, found = (work_metrics.EXTRACTIONS.labels(outcome) for outcome in ("failed", "no_facts"))
    before = failed._value.get(), found._value.get()
    model.scripts = [GARBAGE]
    place, shown = await submit(agent), dict[str, Any]()
    for attempt in range(1, ATTEMPTS + 1):
        await work_off(operator)
        shown = (await agent.get(place)).json()
        assert (shown["attempts"], shown["error"]["code"]) == (attempt, "llm_answer_unusable")
        assert shown["state"] == ("failed" if attempt == ATTEMPTS else "queued")
        await work_off(operator)  # it is not due before its wait is over
        async with database.write(tenant) as transaction:
            await transaction.execute(DUE_NOW, tenant_id=tenant)
    assert (failed._value.get() - before[0], found._value.get() - before[1]) == (1, 0)
    assert await count(agent) == 0
    assert shown["finished_at"] is not None
    model.scripts = [FACT]
    again = await agent.post(f"{place}:retry")
    assert (again.status_code, again.json()["state"], again.json()["error"]) == (202, "queued", None)
    await work_off(operator)
    shown = (await agent.get(place)).json()
    assert (shown["state"], [fact["outcome"] for fact in shown["result"]["facts"]]) == ("succeeded", ["created"])
    assert await count(agent) == 1
    assert (await agent.post(f"{place}:retry")).status_code == 409


async def test_r05_a_busy_model_is_asked_again_and_the_memory_is_stored_once(
    agent: httpx2.AsyncClient, operator: Operator, model: Endpoint
) -> None:
    model.scripts = [status(429, retry_after="0"), status(429, retry_after="0"), FACT]
    place = await submit(agent)
    await work_off(operator)
    assert (await agent.get(place)).json()["state"] == "succeeded"
    assert await count(agent) == 1


async def test_r05_no_facts_is_another_answer_and_another_metric(
    agent: httpx2.AsyncClient, operator: Operator, model: Endpoint
) -> None:
    failed, found = (work_metrics.EXTRACTIONS.labels(outcome) for outcome in ("failed", "no_facts"))
    before = failed._value.get(), found._value.get()
    model.scripts = [NO_FACTS]
    place = await submit(agent, "今天天气不错，是吧？")
    await work_off(operator)
    shown = (await agent.get(place)).json()
    assert (shown["state"], shown["error"], shown["result"]["facts"]) == ("succeeded", None, [])
    assert (failed._value.get() - before[0], found._value.get() - before[1]) == (0, 1)


async def test_a_poisonous_input_fails_alone(
    agent: httpx2.AsyncClient, operator: Operator, database: Database, tenant: UUID
) -> None:
    poison = uuid4()
    async with database.write(tenant) as transaction:
        await transaction.execute(BROKEN, tenant_id=tenant, operation_id=poison, now=now())
    places = [await submit(agent, user_id=f"user {number}") for number in range(3)]
    for _ in range(ATTEMPTS):
        await work_off(operator)
        async with database.write(tenant) as transaction:
            await transaction.execute(DUE_NOW, tenant_id=tenant)
    assert [(await agent.get(place)).json()["state"] for place in places] == ["succeeded"] * 3
    shown = (await agent.get(f"/v1/operations/{poison}")).json()
    assert (shown["state"], shown["error"]["code"], shown["attempts"]) == ("failed", "internal", ATTEMPTS)


async def test_what_kills_every_process_that_tries_it_is_given_up(
    agent: httpx2.AsyncClient, operator: Operator, database: Database, tenant: UUID
) -> None:
    place = await submit(agent)
    for _ in range(ATTEMPTS):  # claimed, and then the process is no more
        assert len(await operator.queue.claim(now=now(), limit=9)) == 1
        assert await operator.queue.claim(now=now(), limit=9) == []
        async with database.write(tenant) as transaction:
            await transaction.execute(LEASE_OVER, tenant_id=tenant)
    await work_off(operator)
    shown = (await agent.get(place)).json()
    assert (shown["state"], shown["error"]["code"]) == ("failed", "worker_died")
    assert await count(agent) == 0


async def test_who_lost_the_lease_writes_nothing(
    agent: httpx2.AsyncClient, operator: Operator, database: Database, tenant: UUID
) -> None:
    place = await submit(agent)
    [late] = await operator.queue.claim(now=now(), limit=1)
    async with database.write(tenant) as transaction:
        await transaction.execute(LEASE_OVER, tenant_id=tenant)
    [taken] = await operator.queue.claim(now=now(), limit=1)
    assert (late.attempts, taken.attempts) == (1, 2)
    await operator.begin(late)
    assert (await count(agent), (await agent.get(place)).json()["state"]) == (0, "running")
    await operator.begin(taken)
    assert (await count(agent), (await agent.get(place)).json()["state"]) == (1, "succeeded")


async def test_a_cancelled_operation_writes_nothing_even_while_it_runs(
    agent: httpx2.AsyncClient, operator: Operator, model: Endpoint
) -> None:
    model.scripts = [model.silent]
    place = await submit(agent)
    working = asyncio.create_task(work_off(operator))
    assert await asyncio.to_thread(model.asked.acquire, timeout=60)
    assert (await agent.get(place)).json()["state"] == "running"
    cancelled = (await agent.post(f"{place}:cancel")).json()
    assert (cancelled["state"], cancelled["finished_at"] is not None) == ("cancelled", True)
    model.released.set()
    await working
    assert (await count(agent), (await agent.get(place)).json()["state"]) == (0, "cancelled")
    assert (await agent.post(f"{place}:cancel")).json() == cancelled
    await agent.post(f"{place}:retry")
    model.scripts = [FACT]
    await work_off(operator)
    assert await count(agent) == 1
    assert (await agent.post(f"{place}:cancel")).status_code == 409


async def test_a_long_attempt_keeps_its_lease_and_an_ending_process_gives_it_back(
    agent: httpx2.AsyncClient, operator: Operator, model: Endpoint
) -> None:
    model.scripts = [model.silent]
    place = await submit(agent)
    [claim] = await operator.queue.claim(now=now(), limit=1)
    operator.begin(claim)
    assert await asyncio.to_thread(model.asked.acquire, timeout=60)
    for _ in range(15):  # longer than the lease
        assert await operator.queue.claim(now=now(), limit=9) == []
        await asyncio.sleep(0.1)
    await operator.close()
    shown = (await agent.get(place)).json()
    assert (shown["state"], shown["attempts"]) == ("queued", 0)
    model.released.set()
    model.scripts = [FACT]
    await work_off(operator)
    assert await count(agent) == 1


async def test_a_tenant_with_ten_thousand_waiting_holds_up_no_other(
    agent: httpx2.AsyncClient, operator: Operator, database: Database, tenant: UUID
) -> None:
    async with database.write(tenant) as transaction:
        await transaction.execute(MANY, tenant_id=tenant, count=10_000, now=now())
    others = [(await create_tenant(database, f"{name} {tenant}", now=now())).tenant_id for name in ("b", "c")]
    for number, other in enumerate(others):
        async with database.write(other) as transaction:
            await transaction.execute(MANY, tenant_id=other, count=1 + 9 * number, now=now())
    first = [claim.tenant_id for claim in await operator.queue.claim(now=now(), limit=8)]
    assert [first.count(one) for one in (tenant, *others)] == [4, 1, 3]
    second = [claim.tenant_id for claim in await operator.queue.claim(now=now(), limit=8)]
    assert second.count(tenant) == second.count(others[1]) == 4, "who has less in hand comes first"
    assert {claim.tenant_id for claim in await operator.queue.claim(now=now(), limit=50)} == {tenant, others[1]}
    for one in (tenant, *others):
        async with database.write(one) as transaction:
            await transaction.execute(NONE, tenant_id=one)


async def test_operations_are_listed_by_what_they_are_newest_first(
    agent: httpx2.AsyncClient, operator: Operator, service: Service, make_key: MakeKey
) -> None:
    places = [await submit(agent, user_id=user) for user in ("amy", "bo", "王芳")]
    session = {"user_id": "amy", "session_id": "会话 1", "messages": [{"role": "user", "content": ZH}]}
    places.append((await agent.post("/v1/memories:extract", json=session)).headers["Location"])
    ids = [place.rpartition("/")[2] for place in places]
    await agent.post(f"{places[1]}:cancel")

    async def listed(client: httpx2.AsyncClient, **parameters: Any) -> list[str]:
        answer = await client.get("/v1/operations", params=parameters)
        assert answer.status_code == 200, answer.text
        return [item["id"] for item in answer.json()["items"]]

    assert await listed(agent) == ids[::-1]
    assert await listed(agent, state="cancelled") == [ids[1]]
    assert await listed(agent, state="queued", kind="extract") == [ids[3], ids[2], ids[0]]
    assert await listed(agent, session_id="会话 1") == [ids[3]]
    assert await listed(agent, user_id="王芳", state="queued") == [ids[2]]
    assert await listed(agent, state="failed") == []
    pages, cursor = [], None
    while True:
        page = (await agent.get("/v1/operations", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))).json()
        pages.append([item["id"] for item in page["items"]])
        if (cursor := page["next_cursor"]) is None:
            break
        last = cursor
    assert pages == [ids[:0:-1], ids[:1]]
    memories = (await agent.get("/v1/memories", params={"cursor": last})).status_code
    assert memories == 422, "a cursor belongs to one list"
    for wrong in (
        {"cursor": last, "state": "queued"},
        {"cursor": "💥"},
        {"state": "done"},
        {"kind": "x"},
        {"limit": 0},
    ):
        assert (await agent.get("/v1/operations", params=wrong)).status_code == 422
    bound = httpx2.AsyncClient(base_url=service.client.base_url, headers=bearer(await make_key(user_id="bo")))
    async with bound:
        assert await listed(bound) == [ids[1]]
        assert (await bound.get("/v1/operations", params={"user_id": "amy"})).status_code == 403
    await work_off(operator)
    assert await listed(agent, state="succeeded", session_id="会话 1") == [ids[3]]


async def test_operations_that_ended_are_forgotten_after_their_time(
    agent: httpx2.AsyncClient, operator: Operator, database: Database
) -> None:
    place, open_place = await submit(agent), await submit(agent, user_id="bo")
    await agent.post(f"{place}:cancel")
    assert (await agent.get(place)).status_code == 200
    while await expire_operations(database, CONFIG, now=now() + timedelta(days=7.1)):
        pass
    assert (await agent.get(place)).status_code == 404
    assert (await agent.get(open_place)).status_code == 200
    await work_off(operator)


def test_waits_grow_fourfold_up_to_the_longest() -> None:
    kind = OPERATION_KINDS["extract"]
    assert [wait_seconds(kind, attempts) for attempts in (1, 2, 3, 99)] == [2, 8, 32, 900]
