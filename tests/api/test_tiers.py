"""Cold memories from outside: out of search, found when asked for, whole again once used; nothing they say is lost."""

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
from app.errand import Change, Errand
from app.errors import EmbeddingUnavailable
from app.recall import RecallConfig, tend_large_subjects
from app.settings import Settings
from tests.api.conftest import Service, make_settings
from workers.context import Context
from workers.jobs import cooling, embed

TRIP = ("国庆去杭州住西湖边的酒店", "杭州的酒店订在西湖附近，两晚", "Lin asked about the hotel near the West Lake",
        "The parcel with the red shoes was lost", "红色的鞋子寄丢了，要求退款", "聊到周末去爬山")  # fmt: skip
QUERIES = ("杭州 酒店", "hotel near the lake", "red shoes", "鞋子退款", "周末爬山")
ROW = sql("""
    SELECT m.cooled_by, m.signs IS NOT NULL AS signs, m.embedding IS NULL AS bare, m.ann, m.window_count,
           CAST(m.keywords AS text) LIKE '{}/%' AS wordless, u.last_accessed_at, (
               SELECT count(*) FROM memory_terms t WHERE t.tenant_id = m.tenant_id AND t.memory_id = m.memory_id
           ) AS terms, (
               SELECT count(*) FROM memory_windows w WHERE w.tenant_id = m.tenant_id AND w.memory_id = m.memory_id
           ) AS windows
    FROM memories m JOIN memory_usage u USING (tenant_id, subject_id, memory_id)
    WHERE m.tenant_id = :tenant AND m.memory_id = :id
""")
USED = sql("UPDATE memory_usage SET last_accessed_at = :at WHERE tenant_id = :tenant AND memory_id = :id")


class House:
    """One tenant's service and its worker, to which any day may come."""

    def __init__(self, agent: httpx2.AsyncClient, service: Service, context: Context, tenant: UUID) -> None:
        self.agent, self.service, self.context, self.tenant = agent, service, context, tenant

    async def write(self, content: str, **fields: Any) -> str:
        body = {"user_id": "lin", "content": content, "importance": 2} | fields
        answer = await self.agent.post("/v1/memories", json=body)
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    async def hits(self, query: str, **fields: Any) -> dict[str, float]:
        body = {"user_id": "lin", "query": query, "top_k": 10} | fields
        answer = await self.agent.post("/v1/memories:search", json=body)
        assert answer.status_code == 200, answer.text
        return {hit["memory"]["id"]: round(hit["score"], 3) for hit in answer.json()["hits"]}

    async def cool(self, *, days: float = 100, dry_run: bool = False) -> tuple[list[str], Errand]:
        """A night in so many days: what it made cold, in order."""
        told: list[Change] = []
        errand = Errand(
            now() + timedelta(days=days), tenant_id=self.tenant, dry_run=dry_run, tell=lambda _, one: told.append(one)
        )
        assert await cooling(self.context, errand) == len(told)
        assert {(one.rule, one.before, one.after) for one in told} <= {("cooled", "warm", "cold")}
        return [str(one.memory_id) for one in told], errand

    async def work_off(self) -> None:
        """What was seen is written, and the worker makes vectors."""
        await self.service.app.state.mneme.recaller.usage.flush()
        await embed(self.context, Errand(now()))

    async def state(self, memory_id: str) -> str:
        """As a list shows it: which uses nothing."""
        listed = (await self.agent.get("/v1/memories", params={"user_id": "lin", "limit": 100})).json()["items"]
        return next((str(memory["embedding"]) for memory in listed if memory["id"] == memory_id), "not active")

    async def row(self, memory_id: str) -> dict[str, Any]:
        async with self.context.database.read(self.tenant) as transaction:
            row = await transaction.fetch_row(ROW, tenant=self.tenant, id=UUID(memory_id))
        assert row is not None
        return dict(row)


@pytest.fixture
async def context(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[Context]:
    settings: Settings = make_settings(database_url, tmp_path)
    context = Context(settings, database)
    yield context
    await context.close()


@pytest.fixture
def house(agent: httpx2.AsyncClient, service: Service, context: Context, tenant: UUID) -> House:
    return House(agent, service, context, tenant)


async def test_what_is_cold_is_found_only_when_asked_for_and_then_exactly_as_before(house: House) -> None:
    """Held in memory or not: each score is the one that it had when it was warm."""
    ids = [await house.write(text) for text in TRIP]
    warm: dict[str, dict[str, float]] = {}
    for _ in range(3):
        warm = {query: await house.hits(query, time_decay={"per_hour": 0}) for query in QUERIES}
    assert all(warm.values())
    cooled, _ = await house.cool()
    assert set(cooled) == set(ids)
    assert [await house.hits(query) for query in QUERIES] == [{}] * len(QUERIES)
    asked = {query: await house.hits(query, time_decay={"per_hour": 0}, include_cold=True) for query in QUERIES}
    assert asked == warm
    await house.work_off()
    assert {query: await house.hits(query, time_decay={"per_hour": 0}) for query in QUERIES} == warm


@pytest.mark.parametrize("text", ["聊到周末去爬山要带护膝", "Lin talked about hiking with knee pads"])
@pytest.mark.parametrize("use", ["by id", "search", "again", "useful", "context of then"])
async def test_whatever_uses_it_makes_it_whole(house: House, text: str, use: str) -> None:
    memory_id = await house.write(text)
    assert (await house.cool())[0] == [memory_id]
    row = await house.row(memory_id)
    assert (row["signs"], row["bare"], row["wordless"]) == (True, True, True)
    place = f"/v1/memories/{memory_id}"
    if use == "by id":
        answer = await house.agent.get(place)
        assert (answer.status_code, answer.json()["content"], answer.json()["embedding"]) == (200, text, "cold")
    elif use == "search":
        assert list(await house.hits(text, include_cold=True)) == [memory_id]
    elif use == "again":
        answer = await house.agent.post("/v1/memories", json={"user_id": "lin", "content": text})
        assert (answer.status_code, answer.json()["outcome"], answer.json()["id"]) == (200, "duplicate", memory_id)
    elif use == "useful":
        assert (await house.agent.post(f"{place}:feedback", json={"verdict": "useful"})).status_code == 200
    else:  # to look back is not to use
        assert list(await house.hits(text, as_of=now().isoformat())) == [memory_id]
    await house.work_off()
    if use == "context of then":
        assert await house.state(memory_id) == "cold"
        return
    row = await house.row(memory_id)
    assert (row["cooled_by"], row["signs"], row["bare"], row["wordless"]) == (None, False, False, False)
    assert list(await house.hits(text)) == [memory_id]
    assert (await house.cool(days=80))[0] == [], "it was used just now"
    history = (await house.agent.get(f"{place}/history")).json()["items"]
    assert "warmed" in [event["action"] for event in history]


async def test_an_edit_makes_it_whole_at_once(house: House) -> None:
    memory_id = await house.write("聊到周末去爬山")
    await house.cool()
    edited = await house.agent.patch(f"/v1/memories/{memory_id}", json={"importance": 2.5})
    assert (edited.status_code, edited.json()["embedding"]) == (200, "ready")
    assert list(await house.hits("周末爬山")) == [memory_id]


async def test_what_matters_is_used_or_new_stays_warm(house: House, tenant: UUID) -> None:
    kept = [
        await house.write("对花生过敏", importance=3), await house.write("公司叫云启", key="profile.company"),
        await house.write("每周一开会", pinned=True), await house.write("Lin likes tea"),
        await house.write("案子在法院"),
    ]  # fmt: skip
    async with house.context.database.write(tenant) as transaction:
        await transaction.execute(USED, tenant=tenant, id=UUID(kept[3]), at=now() + timedelta(days=50))
    hold = {"memory_id": kept[4], "reason": "case 7"}
    assert (await house.agent.post("/v1/holds", json=hold)).status_code == 201
    assert (await house.cool())[0] == []
    old = await house.write("聊到周末去爬山")
    assert (await house.cool(days=89))[0] == [], "not long enough"
    assert (await house.agent.put("/v1/policy", json={"rules": {}, "cold_days": 0})).json()["cold_days"] == 0
    assert (await house.cool())[0] == [], "switched off"
    assert (await house.agent.put("/v1/policy", json={"rules": {}, "cold_days": 10})).json()["own"] == ["cold_days"]
    assert (await house.cool(days=11))[0] == [old]


async def test_a_dry_run_is_what_a_real_one_does_and_a_run_is_undone(house: House) -> None:
    ids = {await house.write(text) for text in TRIP}
    rehearsed, _ = await house.cool(dry_run=True)
    assert {await house.state(one) for one in ids} == {"ready"}
    done, errand = await house.cool()
    assert rehearsed == done
    assert set(done) == ids
    assert (await house.cool())[0] == [], "what is cold stays so"
    place = f"/v1/admin/runs/{errand.run_id}"
    page = (await house.agent.get(f"{place}/memories", params={"limit": 4})).json()
    rest = (await house.agent.get(f"{place}/memories", params={"after": page["next_after"]})).json()
    listed = [*page["items"], *rest["items"]]
    assert {one["memory_id"] for one in listed} == ids
    assert {(one["rule"], one["before"], one["after"]) for one in listed} == {("cooled", "warm", "cold")}
    assert (await house.agent.post(f"{place}:undo")).json() == {"restored": len(ids), "left": 0}
    await house.work_off()
    assert {await house.state(one) for one in ids} == {"ready"}
    assert (await house.agent.get(f"{place}/memories")).json()["items"] == []


async def test_two_workers_cool_each_memory_once(house: House) -> None:
    ids = {await house.write(f"第 {n} 次聊到爬山") for n in range(30)}
    runs = await asyncio.gather(house.cool(), house.cool())
    assert sorted(one for cooled, _ in runs for one in cooled) == sorted(ids)


@pytest.mark.parametrize(("old", "new"), [("我住在上海", "我搬到杭州了"), ("I live in Boston", "I moved to Denver")])
async def test_what_was_overruled_while_it_was_cold_does_not_come_back_as_true(
    house: House, old: str, new: str
) -> None:
    before = await house.write(old)
    await house.cool()
    after = await house.write(new)
    assert set(await house.hits(old, include_cold=True)) == {before, after}
    await house.work_off()
    assert (await house.agent.get(f"/v1/memories/{before}")).json()["status"] == "deprecated"
    assert list(await house.hits(old)) == [after]


async def test_why_not_says_cold_and_a_cold_one_is_nobodys_but_its_users(house: House) -> None:
    memory_id = await house.write("聊到周末去爬山")
    await house.cool()
    body = {"user_id": "lin", "query": "周末爬山", "why_not": [memory_id]}
    answer = (await house.agent.post("/v1/memories:search", json=body)).json()
    assert [(one["reason"], one["detail"]) for one in answer["why_not"]] == [("cold", "include_cold finds it")]
    untrusted: dict[str, Any] = body | {"include_cold": True, "filters": {"min_trust": 50}}
    async with house.context.database.write(house.tenant) as transaction:
        await transaction.execute(sql("UPDATE memories SET trust = 49 WHERE tenant_id = :tenant"), tenant=house.tenant)
    answer = (await house.agent.post("/v1/memories:search", json=untrusted)).json()
    assert (answer["hits"], answer["why_not"][0]["detail"]) == ([], "min_trust")
    answer = (await house.agent.post("/v1/memories:search", json=body | {"include_cold": True})).json()
    assert [one["reason"] for one in answer["why_not"]] == ["hit"]
    assert await house.hits("周末爬山", include_cold=True, user_id="wang") == {}
    assert (await house.agent.delete("/v1/subjects/lin")).json()["memories"] == 1
    assert await house.hits("周末爬山", include_cold=True) == {}


async def test_filters_and_agents_hold_for_cold_ones_too(house: House) -> None:
    tagged = await house.write("聊到周末去爬山", tags=["爬山"])
    private = await house.write("周末爬山要带水", agent_id="bot-a")
    await house.cool()
    asked: dict[str, Any] = {"query": "周末爬山", "include_cold": True}
    assert list(await house.hits(**asked, filters={"tags": {"any": ["爬山"]}})) == [tagged]
    assert list(await house.hits(**asked, agent_id="bot-b")) == [tagged]
    assert set(await house.hits(**asked, agent_id="bot-a")) == {tagged, private}


async def test_a_large_subject_loses_postings_and_index_entries_and_gets_them_back(
    house: House, database: Database
) -> None:
    ids = [await house.write(f"case-{n} 的发票已经送到 {city}") for n in range(60) for city in ("杭州", "Rome")]
    await tend_large_subjects(database, RecallConfig(exact_scan_rows=100), now=now())
    large = house.service.app.state.mneme.recaller.large
    large._known.clear()
    try:
        assert (await house.row(ids[7]))["terms"] > 0
        assert ids[7] in await house.hits("case-3 发票 Rome")
        assert len((await house.cool())[0]) == len(ids)
        row = await house.row(ids[7])
        assert (row["terms"], row["ann"]) == (0, False)
        await tend_large_subjects(database, RecallConfig(exact_scan_rows=100), now=now())
        assert (await house.row(ids[7]))["terms"] == 0, "what is cold is not indexed"
        assert await house.hits("case-3 发票 Rome") == {}
        assert next(iter(await house.hits("case-3 发票 Rome", include_cold=True))) == ids[7]
        await house.work_off()
        row = await house.row(ids[7])
        assert (row["ann"], row["terms"] > 0) == (True, True)
        assert next(iter(await house.hits("case-3 发票 Rome"))) == ids[7]
    finally:
        large._known.clear()


async def test_without_a_model_words_find_what_is_cold_and_the_answer_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_id = await house.write("聊到周末去爬山")
    await house.cool()

    async def refuse(_: Any) -> Any:
        raise EmbeddingUnavailable

    monkeypatch.setattr(house.service.app.state.mneme.embedder, "embed_documents", refuse)
    body = {"user_id": "lin", "query": "周末爬山", "include_cold": True}
    answer = (await house.agent.post("/v1/memories:search", json=body)).json()
    assert [hit["memory"]["id"] for hit in answer["hits"]] == [memory_id]
    assert answer["degraded"] == ["embedding_pending"]


async def test_archived_while_it_was_cold_it_is_restored_and_made_whole(house: House) -> None:
    memory_id = await house.write("聊到周末去爬山")
    await house.cool()
    assert (await house.agent.delete(f"/v1/memories/{memory_id}")).status_code == 204
    assert await house.hits("周末爬山", include_cold=True) == {}
    assert (await house.agent.post(f"/v1/memories/{memory_id}:restore", json={})).status_code == 200
    await house.work_off()
    assert list(await house.hits("周末爬山")) == [memory_id]
