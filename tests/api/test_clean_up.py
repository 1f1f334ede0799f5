"""The clean-up from outside: over HTTP, by the command that cron calls, and by a worker that was asked over HTTP."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from app.clock import now
from app.database import Database, sql
from app.guard import create_tenant
from app.settings import Settings
from tests.api.conftest import UNKNOWN_ID, MakeKey, Service, bearer
from tests.conftest import POOLER
from workers.context import Context
from workers.runner import Runner

AGE = sql(
    "UPDATE memories SET updated_at = updated_at - interval '1 year' WHERE tenant_id = :tenant AND memory_id = :id"
)


async def write(agent: httpx2.AsyncClient, content: str, **fields: Any) -> str:
    answer = await agent.post("/v1/memories", json={"user_id": "lin", "content": content} | fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def found(agent: httpx2.AsyncClient, query: str) -> list[str]:
    answer = await agent.post("/v1/memories:search", json={"user_id": "lin", "query": query, "top_k": 10})
    return [hit["memory"]["id"] for hit in answer.json()["hits"]]


async def age(database: Database, tenant: UUID, memory_id: str) -> None:
    async with database.write(tenant) as transaction:
        assert await transaction.execute(AGE, tenant=tenant, id=UUID(memory_id)) == 1


async def clean_up(database_url: str, directory: Path, *options: str) -> tuple[int, str]:
    """`mneme jobs run forget --once` in a process of its own, as cron calls it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MNEME_") or name == POOLER}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.cli", "jobs", "run", "forget", "--once", *options,
        env=environment | {"MNEME_DATABASE__URL": database_url, "PYTHONPATH": str(Path.cwd())}, cwd=directory,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_a_year_untouched_and_cleaned_up_it_is_archived_and_no_search_returns_it(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID, database_url: str, tmp_path: Path
) -> None:
    """Also when the subject is held in memory by then: it was searched again and again."""
    old = await write(agent, "昨天聊到周末去爬山")
    kept = await write(agent, "周末爬山要带上膝盖护具", importance=5)
    for _ in range(4):
        assert set(await found(agent, "周末爬山")) == {old, kept}
    for memory_id in (old, kept):
        await age(database, tenant, memory_id)
    code, out = await clean_up(database_url, tmp_path, "--tenant", str(tenant))
    assert code == 0
    (line,) = out.splitlines()
    assert line == f"{old}  active -> archived  stale: unchanged for 180 days and importance below 0.3 of 1"
    assert await found(agent, "周末爬山") == [kept]
    assert (await agent.get(f"/v1/memories/{old}")).status_code == 404
    archived = (await agent.get(f"/v1/memories/{old}/history")).json()["items"][-1]
    assert (archived["action"], archived["detail"]["rule"]) == ("archived", "stale")
    assert (await agent.post(f"/v1/memories/{old}:restore", json={})).status_code == 200
    assert set(await found(agent, "周末爬山")) == {old, kept}


@pytest.fixture
def runner(database: Database) -> Runner:
    return Runner(Context(Settings(), database), timedelta(seconds=60))


async def work_off(runner: Runner) -> None:
    """Begin what was asked for; before it may be what other tests left behind."""
    for _ in range(5):
        await runner.tick_asked()
        await runner.drain(20)


async def test_a_run_is_asked_for_over_http_done_by_a_worker_looked_at_and_undone(
    agent: httpx2.AsyncClient, runner: Runner, database: Database, tenant: UUID
) -> None:
    await runner.register()
    old = await write(agent, "Yesterday we talked about hiking")
    await age(database, tenant, old)

    async def run_it(*, dry_run: bool) -> tuple[str, dict[str, Any]]:
        asked = await agent.post("/v1/admin/jobs/forget:run", json={"dry_run": dry_run})
        assert (asked.status_code, asked.json()["state"], asked.json()["dry_run"]) == (202, "queued", dry_run)
        place = asked.headers["Location"]
        assert (await agent.get(place)).json() == asked.json()
        await work_off(runner)
        run = (await agent.get(place)).json()
        assert (run["state"], run["tenant_id"], run["counts"]) == ("succeeded", str(tenant), {"rows": 1, "stale": 1})
        return place, run

    dry, _ = await run_it(dry_run=True)
    assert (await agent.get(f"{dry}/memories")).json()["items"] == []
    assert await found(agent, "hiking") == [old]
    place, run = await run_it(dry_run=False)
    assert await found(agent, "hiking") == []
    (archived,) = (await agent.get(f"{place}/memories")).json()["items"]
    assert archived | {"at": ""} == {
        "memory_id": old, "user_id": "lin", "agent_id": None, "kind": "interaction_history", "rule": "stale",
        "reason": "unchanged for 180 days and importance below 0.3 of 1", "before": "active", "after": "archived",
        "other_id": None, "at": "",
    }  # fmt: skip
    assert (await agent.post(f"{place}:undo")).json() == {"restored": 1, "left": 0}
    assert (await agent.post(f"{place}:undo")).json() == {"restored": 0, "left": 0}
    assert await found(agent, "hiking") == [old]
    jobs = {job["job"]: job for job in (await agent.get("/v1/admin/jobs")).json()["items"]}
    assert jobs["forget"]["schedule"] == "0 3 * * * (Asia/Shanghai)"
    assert jobs["forget"]["last_run"]["run_id"] == run["run_id"]
    runs = (await agent.get("/v1/admin/jobs/forget/runs")).json()["items"]
    assert [one["dry_run"] for one in runs[:2]] == [False, True]


async def test_no_tenant_hears_of_or_touches_the_runs_of_another(
    service: Service, agent: httpx2.AsyncClient, make_key: MakeKey, runner: Runner, database: Database, tenant: UUID
) -> None:
    await runner.register()
    old = await write(agent, "Yesterday we talked about hiking")
    await age(database, tenant, old)
    other = bearer(await make_key((await create_tenant(database, f"b {tenant}", now=now())).tenant_id))
    client = service.client
    asked = (await client.post("/v1/admin/jobs/forget:run", json={"dry_run": False}, headers=other)).json()
    await work_off(runner)
    assert await found(agent, "hiking") == [old]
    place = f"/v1/admin/runs/{asked['run_id']}"
    assert (await client.get(place, headers=other)).json()["state"] == "succeeded"
    assert (await agent.get(place)).status_code == 404
    seen = (await agent.get("/v1/admin/jobs/forget/runs")).json()["items"]
    assert asked["run_id"] not in [run["run_id"] for run in seen]
    mine = (await agent.post("/v1/admin/jobs/forget:run", json={"dry_run": False})).json()
    await work_off(runner)
    undone = await client.post(f"/v1/admin/runs/{mine['run_id']}:undo", headers=other)
    assert undone.json() == {"restored": 0, "left": 0}
    assert await found(agent, "hiking") == []


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("no_such_job", {"dry_run": False}, 404), ("gauges", {"dry_run": False}, 409), ("forget", {}, 422),
        ("forget", {"dry_run": "yes"}, 422),
    ],
)  # fmt: skip
async def test_runs_that_cannot_be_asked_for(
    agent: httpx2.AsyncClient, runner: Runner, name: str, body: dict[str, Any], status: int
) -> None:
    await runner.register()
    assert (await agent.post(f"/v1/admin/jobs/{name}:run", json=body)).status_code == status
    assert (await agent.get(f"/v1/admin/runs/{UNKNOWN_ID}")).status_code == 404
