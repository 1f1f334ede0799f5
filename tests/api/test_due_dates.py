"""forget_at over HTTP: set by the write itself, moved by whatever says that a memory matters more, less or anew."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from app.database import Database, sql
from app.kinds import KINDS

_DUE = sql("SELECT forget_at FROM memory_usage WHERE tenant_id = :tenant AND memory_id = :memory")


class Dates:
    """A client whose memories' due dates can be looked at."""

    def __init__(self, agent: httpx2.AsyncClient, database: Database, tenant: UUID) -> None:
        self.agent, self._database, self._tenant = agent, database, tenant

    async def write(self, content: str, **fields: Any) -> dict[str, Any]:
        answer = await self.agent.post("/v1/memories", json={"user_id": "lin", "content": content} | fields)
        memory: dict[str, Any] = answer.json()["memory"]
        return memory

    async def due(self, memory: dict[str, Any]) -> datetime | None:
        async with self._database.read(self._tenant) as transaction:
            found = await transaction.fetch_value(_DUE, tenant=self._tenant, memory=UUID(memory["id"]))
        assert found is None or isinstance(found, datetime)
        return found

    async def certain(self, memory: dict[str, Any]) -> datetime:
        due = await self.due(memory)
        assert due is not None
        return due


@pytest.fixture
def dates(agent: httpx2.AsyncClient, database: Database, tenant: UUID) -> Dates:
    return Dates(agent, database, tenant)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_memory_is_due_when_the_curve_of_its_kind_says(dates: Dates, kind: str) -> None:
    memory = await dates.write("我住在杭州西湖边", kind=kind, importance=4)
    written = datetime.fromisoformat(memory["created_at"])
    assert await dates.due(memory) == KINDS[kind].forget_at(4.0, 0, written)


async def test_what_is_pinned_is_never_due_until_it_is_no_more(dates: Dates) -> None:
    memory = await dates.write("I live in Oslo", pinned=True)
    assert await dates.due(memory) is None
    place = f"/v1/memories/{memory['id']}"
    assert (await dates.agent.patch(place, json={"pinned": False})).status_code == 200
    assert await dates.due(memory) is not None
    await dates.agent.patch(place, json={"pinned": True})
    assert await dates.due(memory) is None


async def test_what_is_overruled_at_birth_or_kept_as_a_duplicate_has_no_date(dates: Dates) -> None:
    await dates.write("我的手机号是13800001111", key="profile.phone", event_at="2026-05-01T00:00:00Z")
    older = await dates.write("我的手机号是13900002222", key="profile.phone", event_at="2025-05-01T00:00:00Z")
    assert older["status"] == "deprecated"
    assert await dates.due(older) is None


async def test_an_edit_begins_a_new_life(dates: Dates) -> None:
    memory = await dates.write("I live in Oslo", importance=2)
    before = await dates.certain(memory)
    await dates.agent.patch(f"/v1/memories/{memory['id']}", json={"importance": 4})
    assert await dates.certain(memory) > before + timedelta(days=100)


async def test_useful_feedback_puts_it_off_and_a_complaint_brings_it_nearer(dates: Dates) -> None:
    memory = await dates.write("我对芒果过敏", kind="profile", importance=3)
    days = [await dates.certain(memory)]
    undo = ""
    for verdict in ("useful", "outdated"):
        answer = await dates.agent.post(f"/v1/memories/{memory['id']}:feedback", json={"verdict": verdict})
        undo = answer.json()["feedback_id"]
        days.append(await dates.certain(memory))
    assert days[1] > days[0] + timedelta(days=300)
    assert days[2] < days[0]
    await dates.agent.post(f"/v1/memories/{memory['id']}:undo-feedback", json={"feedback_id": undo})
    assert abs(await dates.certain(memory) - days[1]) < timedelta(minutes=5)
    pinned = await dates.write("I am allergic to mangoes", pinned=True)
    await dates.agent.post(f"/v1/memories/{pinned['id']}:feedback", json={"verdict": "useful"})
    assert await dates.due(pinned) is None


async def test_archived_by_hand_it_has_no_date_and_restored_a_new_one(dates: Dates) -> None:
    memory = await dates.write("I live in Oslo")
    first = await dates.certain(memory)
    assert (await dates.agent.delete(f"/v1/memories/{memory['id']}")).status_code == 204
    assert await dates.due(memory) is None
    assert (await dates.agent.post(f"/v1/memories/{memory['id']}:restore")).status_code == 200
    assert await dates.certain(memory) > first
