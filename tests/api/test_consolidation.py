"""Consolidation from outside: asked for over HTTP, seen in search, undone; no summary tells an old place."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from app.clock import now
from app.database import Database
from app.errand import Errand
from app.settings import Settings
from tests.api.conftest import make_settings
from tests.api.test_memories import write
from workers.context import Context
from workers.jobs import summarising
from workers.runner import Runner

TRIPS = {
    "杭州": (
        "第一次讨论杭州出差的酒店和行程", "第二次讨论杭州出差的酒店价格和行程", "再次讨论杭州出差的行程和高铁",
        "最后确认杭州出差的行程和酒店",
    ),
    "Boston": (
        "Talked about the hotel of the Boston trip", "Talked again about the price of the Boston trip",
        "Booked a train for the Boston trip", "Confirmed hotel and train of the Boston trip",
    ),
}  # fmt: skip


@pytest.fixture
async def context(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[Context]:
    settings: Settings = make_settings(database_url, tmp_path)
    settings.consolidate.summary_similarity = 0.2
    context = Context(settings, database)
    yield context
    await context.close()


async def told(context: Context, tenant: UUID, days: float) -> int:
    """A run of the job in so many days."""
    return await summarising(context, Errand(now() + timedelta(days=days), tenant_id=tenant))


async def everything(agent: httpx2.AsyncClient, query: str) -> str:
    """All that anybody is shown of a user without asking for its past."""
    user = {"user_id": "lin"}
    answers: list[Any] = [
        await agent.post("/v1/memories:search", json=user | {"query": query, "top_k": 50}),
        await agent.post("/v1/context", json=user | {"query": query}),
        await agent.get("/v1/memories", params=user),
        await agent.get("/v1/subjects/lin/profile"),
    ]
    assert {answer.status_code for answer in answers} == {200}
    return "".join(json.dumps(answer.json(), ensure_ascii=False) for answer in answers)


@pytest.mark.parametrize(("old", "new"), [("杭州", "苏州"), ("Boston", "Denver")])
async def test_a_corrected_place_is_told_nowhere_any_more(
    agent: httpx2.AsyncClient, context: Context, tenant: UUID, old: str, new: str
) -> None:
    """Neither at once, when the summary is gone, nor the next night, when there is another one."""
    sources = [await write(agent, text, user_id="lin", kind="interaction_history") for text in TRIPS[old]]
    assert await told(context, tenant, 100) == 4
    before = await everything(agent, old)
    summaries = (await agent.get("/v1/memories", params={"user_id": "lin", "kind": "summary"})).json()["items"]
    assert len(summaries) == 1
    assert summaries[0]["content"] in before
    lineage = (await agent.get(f"/v1/memories/{summaries[0]['id']}/lineage")).json()
    assert {link["to"] for link in lineage["links"]} == {source["id"] for source in sources}
    for source, text in zip(sources, TRIPS[old], strict=True):
        corrected = {"content": text.replace(old, new)}
        answer = await agent.patch(f"/v1/memories/{source['id']}", json=corrected)
        assert answer.status_code == 200, answer.text
        if source is sources[0]:
            listed = (await agent.get("/v1/memories", params={"user_id": "lin", "kind": "summary"})).json()["items"]
            assert listed == [], "one corrected source is enough"
    assert old not in await everything(agent, new)
    assert await told(context, tenant, 101) == 4
    after = await everything(agent, new)
    assert old not in after
    (summary,) = (await agent.get("/v1/memories", params={"user_id": "lin", "kind": "summary"})).json()["items"]
    assert new in summary["content"]
    assert (await agent.delete("/v1/subjects/lin")).status_code in (200, 204)
    assert new not in await everything(agent, new), "and an erasure takes the summary, too"


async def test_a_run_is_asked_for_over_http_and_undone(
    agent: httpx2.AsyncClient, context: Context, tenant: UUID
) -> None:
    runner = Runner(context, timedelta(seconds=60))
    await runner.register()
    over = await write(agent, "Lin is on holiday until yesterday", valid_to="2026-01-01T00:00:00Z")

    async def status() -> str:
        return str((await agent.get(f"/v1/memories/{over['id']}")).json()["status"])

    place = ""
    for dry_run, expected in ((True, "active"), (False, "deprecated")):
        asked = await agent.post("/v1/admin/jobs/deprecate:run", json={"dry_run": dry_run})
        assert asked.status_code == 202, asked.text
        await runner.tick_asked()
        await runner.drain(20)
        place = asked.headers["Location"]
        run = (await agent.get(place)).json()
        assert (run["state"], run["counts"]["validity_ended"]) == ("succeeded", 1)
        assert await status() == expected
    undone = await agent.post(f"{place}:undo")
    assert undone.json() == {"restored": 1, "left": 0}
    assert await status() == "active"
