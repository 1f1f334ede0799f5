"""Subjects held in memory: the same answers as by SQL, whatever is written, overruled, erased or used in between."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from app.clock import now
from app.database import Database, sql
from app.recall import RecallConfig, Residents
from tests.api.conftest import MakeKey, Service, bearer, make_settings, run

CONTENTS = (
    "我对芒果过敏，不能吃任何芒果相关的食物",
    "我养了一只叫年糕的银渐层猫，今年3岁，喜欢吃冻干",
    "国庆我要去杭州参加开发者大会，住西湖附近的酒店",
    "The router A-1024 in the cellar restarts every night",
    "The invoice 2024-117 was paid late, the customer apologised",
    "Prefers answers by e-mail, never by phone",
    "Prefers answers by e-mail, never by telephone",
    "资料库迁移到 demo-9.example 已经完成",
    "The garage needs a new door. " * 200,  # several windows
)
QUERIES = (
    "芒果过敏",
    "router A-1024",
    "how should we answer, by phone or e-mail?",
    "国庆去杭州要注意什么？还有猫吃什么？",
    "garage door",
    "demo-9.example",
    "what happened last Friday?",
)


@pytest.fixture
async def both(
    database_url: str, make_key: MakeKey, tmp_path: Path
) -> AsyncIterator[tuple[httpx2.AsyncClient, httpx2.AsyncClient, Service]]:
    """Clients of two processes on one database: one holds every subject it is asked about, one none."""
    settings = make_settings(database_url, tmp_path)
    held = settings.model_copy(update={"recall": RecallConfig(resident_after=1)})
    plain = settings.model_copy(update={"recall": RecallConfig(resident_mb=0)})
    headers = bearer(await make_key())
    async with (
        run(held) as one,
        run(plain) as other,
        httpx2.AsyncClient(base_url=one.client.base_url, headers=headers, timeout=30) as first,
        httpx2.AsyncClient(base_url=other.client.base_url, headers=headers, timeout=30) as second,
    ):
        yield first, second, one


async def ask(client: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/memories:search", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def assert_same(first: httpx2.AsyncClient, second: httpx2.AsyncClient, **fields: Any) -> None:
    """Hits, order, scores and their parts are the same, up to the rounding of halves."""
    for query in QUERIES:
        body = {"query": query, "user_id": "amy", "explain": True, "time_decay": {"per_hour": 0}} | fields
        held, plain = await ask(first, **body), await ask(second, **body)
        assert held["degraded"] == plain["degraded"]
        scores = [hit["score"] for hit in plain["hits"]]
        assert [hit["score"] for hit in held["hits"]] == pytest.approx(scores, abs=2e-3)
        by_id = {hit["memory"]["id"]: hit for hit in plain["hits"]}
        assert by_id.keys() == {hit["memory"]["id"] for hit in held["hits"]}, query
        for hit in held["hits"]:
            other = by_id[hit["memory"]["id"]]
            counts = ("access_count", "last_accessed_at")  # each process counts its own searches in the background
            assert {**hit["memory"], **dict.fromkeys(counts)} == {**other["memory"], **dict.fromkeys(counts)}
            for name, part in hit["signals"].items():
                assert part == pytest.approx(other["signals"][name], abs=2e-3), (query, name)


async def write(client: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/memories", json={"user_id": "amy"} | body)
    assert response.status_code in (200, 201), response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_what_is_held_answers_as_sql_does(
    both: tuple[httpx2.AsyncClient, httpx2.AsyncClient, Service], database: Database
) -> None:
    first, second, service = both
    for number, content in enumerate(CONTENTS):
        await write(second, content=content, session_id=f"s{number // 3}", importance=1 + number % 5, source="crm")
    await assert_same(first, second)
    held = service.app.state.mneme.recaller.residents
    assert len(held._held) == 2  # the user and, empty, what is shared

    moment = now()
    soon, past = (moment + timedelta(days=1)).isoformat(), (moment - timedelta(days=1)).isoformat()
    private = await write(second, content="Only agent seven knows: the cat likes garage doors", agent_id="a7")
    await write(second, content="The garage is closed until tomorrow", valid_from=soon)
    await write(second, content="The garage was open yesterday", valid_to=past)
    await write(second, content="仓库的门坏了 garage", user_id=None)  # shared, and from now on there is something
    await assert_same(first, second)
    await assert_same(first, second, agent_id="a7")
    await assert_same(first, second, agent_id="a8")
    await assert_same(first, second, include_shared=False)
    await assert_same(first, second, max_share_per_source=0.3, top_k=4)
    await assert_same(first, second, diversity=0.9, top_k=3)
    await assert_same(first, second, similarity_threshold=0.3)
    await assert_same(first, second, fusion="similarity")

    dog = await write(second, content="The dog is called Bello", key="pet.name")
    await assert_same(first, second)
    await write(second, content="The dog is called Rex", key="pet.name")
    changed = {"content": "The cat of agent seven sleeps in the garage"}
    assert (await second.patch(f"/v1/memories/{private['id']}", json=changed)).status_code == 200
    await assert_same(first, second)
    assert not any(hit["memory"]["id"] == dog["id"] for hit in (await ask(first, query="dog", user_id="amy"))["hits"])
    rated = await second.post(f"/v1/memories/{private['id']}:feedback", json={"verdict": "useful"})
    assert rated.status_code == 200, rated.text
    await assert_same(first, second)
    assert (await second.delete(f"/v1/memories/{private['id']}")).status_code in (200, 204)
    await assert_same(first, second)
    tenant_id = next(iter(held._held))[0]
    async with database.write(tenant_id) as transaction:
        await transaction.execute(  # whoever does it, and without a change of the version
            sql("UPDATE memories SET embedding = NULL, generation_id = NULL WHERE tenant_id = :tenant AND key = :key"),
            tenant=tenant_id, key="pet.name",
        )  # fmt: skip
    await assert_same(first, second)


async def test_the_very_next_search_finds_what_another_process_wrote(
    both: tuple[httpx2.AsyncClient, httpx2.AsyncClient, Service],
) -> None:
    first, second, _ = both
    await write(second, content="seed of the garden")
    for number in range(25):
        await ask(first, query="code", user_id="amy")
        written = await write(second, content=f"The code of door {number} is {number * 7919}-X")
        found = await ask(first, query=f"code of door {number}", user_id="amy", top_k=50)
        assert written["id"] in [hit["memory"]["id"] for hit in found["hits"]]


async def test_searches_among_writes_never_miss_and_never_fail(
    both: tuple[httpx2.AsyncClient, httpx2.AsyncClient, Service],
) -> None:
    first, second, _ = both
    await write(second, content="seed of the garden")

    async def write_then_search(number: int) -> bool:
        written = await write(first if number % 2 else second, content=f"parcel {number} lies at counter {number * 31}")
        found = await ask(first, query=f"where is parcel {number}", user_id="amy", top_k=100)
        return written["id"] in [hit["memory"]["id"] for hit in found["hits"]]

    assert all(await asyncio.gather(*(write_then_search(number) for number in range(40))))


async def test_access_counts_reach_what_is_held(both: tuple[httpx2.AsyncClient, httpx2.AsyncClient, Service]) -> None:
    first, second, service = both
    await write(second, content="The code of the safe is 4711")
    for _ in range(3):
        await ask(first, query="safe code", user_id="amy")
    await service.app.state.mneme.recaller.usage.flush()
    [hit] = (await ask(first, query="safe code", user_id="amy"))["hits"]
    assert hit["memory"]["access_count"] == 3
    assert hit["memory"]["last_accessed_at"] is not None


@pytest.mark.parametrize("config", [RecallConfig(resident_after=1), RecallConfig(resident_mb=0)])
async def test_use_strengthens_what_leads_an_answer_and_not_what_fills_it_up(
    database_url: str, database: Database, make_key: MakeKey, tmp_path: Path, config: RecallConfig
) -> None:
    settings = make_settings(database_url, tmp_path).model_copy(update={"recall": config})
    async with run(settings) as service:
        headers = bearer(await make_key())
        async with httpx2.AsyncClient(base_url=service.client.base_url, headers=headers, timeout=30) as client:
            ids = [(await write(client, content=content, importance=5))["id"] for content in CONTENTS[:6]]
            lead = (await write(client, content="The router A-1024 stands in the cellar", importance=1))["id"]
            asked = [await ask(client, query="Where does router A-1024 stand?", user_id="amy") for _ in range(3)]
            await service.app.state.mneme.recaller.usage.flush()
    rows = sql("SELECT memory_id, access_count, hit_streak FROM memory_usage WHERE memory_id = ANY (:ids)")
    async with database.work() as transaction:
        used = await transaction.fetch(rows, ids=[UUID(one) for one in (*ids, lead)])
    rows_of_hits = {str(row["memory_id"]): row["hit_streak"] for row in used if row["access_count"] == 3}
    assert len(rows_of_hits) > 3
    assert rows_of_hits == {hit["memory"]["id"]: 3 * (hit["memory"]["id"] == lead) for hit in asked[0]["hits"]}


@pytest.mark.parametrize("config", [RecallConfig(resident_after=1, resident_rows=3), RecallConfig(resident_after=4)])
async def test_too_large_or_too_rarely_asked_is_left_to_sql(
    database_url: str, make_key: MakeKey, tmp_path: Path, config: RecallConfig
) -> None:
    settings = make_settings(database_url, tmp_path).model_copy(update={"recall": config})
    async with run(settings) as service:
        headers = bearer(await make_key())
        async with httpx2.AsyncClient(base_url=service.client.base_url, headers=headers, timeout=30) as client:
            for content in CONTENTS[:5]:
                await write(client, content=content)
            for _ in range(3):
                assert (await ask(client, query="router", user_id="amy"))["hits"]
            residents: Residents = service.app.state.mneme.recaller.residents
            assert [key for key in residents._held if key[1] is not None] == []


async def test_the_least_recently_asked_leave_when_the_room_is_full(
    both: tuple[httpx2.AsyncClient, httpx2.AsyncClient, Service],
) -> None:
    first, second, service = both
    residents: Residents = service.app.state.mneme.recaller.residents
    residents._config = RecallConfig(resident_after=1, resident_mb=1)
    long = "word " * 400
    for user in ("u1", "u2", "u3"):
        items = [{"user_id": user, "content": f"{n} {long}"} for n in range(100)]
        assert (await second.post("/v1/memories:batch", json={"items": items})).status_code == 200
    for user in ("u1", "u2", "u3", "u1"):
        assert (await ask(first, query="word 7", user_id=user))["hits"]
    assert residents._size_bytes <= 1 << 20
    assert residents._size_bytes == sum(one.size_bytes for one in residents._held.values())
