"""The profile over HTTP: what comes first, how fresh, for whom, and by which index."""

import re
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest
from uuid_utils.compat import uuid7

from app.clock import now
from app.database import Database, sql
from app.guard import create_tenant
from app.recall.profile import PROFILE_ROWS, READS
from tests.api.conftest import MakeKey, Service, bearer
from tests.api.test_memories import write

PROFILE, SHARED = "/v1/subjects/amy/profile", "/v1/shared/profile"


async def profile(agent: httpx2.AsyncClient, path: str = PROFILE, **parameters: Any) -> dict[str, Any]:
    response = await agent.get(path, params=parameters)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def ids(answer: dict[str, Any]) -> dict[str, list[str]]:
    return {name: [entry["memory"]["id"] for entry in group] for name, group in answer["groups"].items()}


async def test_pinned_then_keyed_then_by_importance(agent: httpx2.AsyncClient, service: Service) -> None:
    common = await write(agent, "问过一次物流", importance=1.5)
    dear = await write(agent, "对芒果过敏", importance=5)
    keyed = await write(agent, "在云栖科技上班", key="profile.job", importance=2)
    pinned = await write(agent, "只收普通发票", pinned=True, importance=1)
    both = await write(agent, "VIP", key="vip", pinned=True, importance=1)
    await write(agent, "过期的事", importance=5, expires_at="2020-01-01T00:00:00Z")
    await write(agent, "还没开始的事", importance=5, valid_from="2099-01-01T00:00:00Z")
    await write(agent, "Bo likes tea", importance=5, user_id="bo")

    answer = await profile(agent)

    assert ids(answer) == {
        "pinned": [both["id"], pinned["id"]],
        "keyed": [keyed["id"]],
        "important": [dear["id"], common["id"]],
    }
    assert [entry["memory"] for entry in answer["groups"]["keyed"]] == [keyed["memory"]]
    entries = [entry for group in answer["groups"].values() for entry in group]
    assert [f"| {entry['citation']}] {entry['memory']['content']}" in answer["text"] for entry in entries] == [True] * 5
    assert (answer["user_id"], answer["language"]) == ("amy", "zh")
    assert answer["left_out"] == {"count": 0, "ids": [], "more": False}
    assert service.app.state.mneme.embedder.count_tokens(answer["text"]) == answer["tokens"] <= 1_000


async def test_the_budget_keeps_the_best(agent: httpx2.AsyncClient) -> None:
    items = [{"user_id": "amy", "content": f"likes tea number {n}", "importance": 1 + n / 10} for n in range(40)]
    written = (await agent.post("/v1/memories:batch", json={"items": items})).json()["items"]
    by_importance = [item["id"] for item in reversed(written)]
    shown: list[str] = []
    for most in (1, 30, 100, 400):
        answer = await profile(agent, max_tokens=most)
        shown = ids(answer)["important"]
        assert answer["tokens"] <= most
        assert shown == by_importance[: len(shown)]
        assert answer["left_out"]["ids"] == by_importance[len(shown) :]
    assert 5 < len(shown) < 40


async def test_a_profile_is_as_fresh_as_the_last_commit(agent: httpx2.AsyncClient) -> None:
    old = await write(agent, "lives in Rome", key="profile.city")
    new = await write(agent, "lives in Bern", key="profile.city")
    assert ids(await profile(agent))["keyed"] == [new["id"]]
    await agent.patch(f"/v1/memories/{new['id']}", json={"pinned": True})
    assert ids(await profile(agent))["pinned"] == [new["id"]]
    await agent.delete(f"/v1/memories/{new['id']}")
    assert ids(await profile(agent)) == {"pinned": [], "keyed": [], "important": []}
    assert (await agent.get(f"/v1/memories/{old['id']}")).json()["status"] == "deprecated"


async def test_more_says_that_not_all_were_considered(agent: httpx2.AsyncClient) -> None:
    items = [{"user_id": "amy", "content": f"fact {n}"} for n in range(PROFILE_ROWS + 1)]
    await agent.post("/v1/memories:batch", json={"items": items[:-1]})
    assert (await profile(agent))["left_out"]["more"] is False
    await agent.post("/v1/memories:batch", json={"items": items[-1:]})
    answer = await profile(agent, max_tokens=32_000)
    assert (answer["left_out"]["more"], len(ids(answer)["important"])) == (True, PROFILE_ROWS)


async def test_of_whom_a_caller_may_ask(
    agent: httpx2.AsyncClient, service: Service, make_key: MakeKey, database: Database, tenant: UUID
) -> None:
    private = await write(agent, "angry about invoices", agent_id="a1")
    common = await write(agent, "pays late")
    shared = await write(agent, "Our office is in Bern", user_id=None)

    async def seen(key: str, path: str = PROFILE, **parameters: Any) -> tuple[int, set[str]]:
        response = await service.client.get(path, params=parameters, headers=bearer(key))
        groups = response.json().get("groups", {})
        return response.status_code, {entry["memory"]["id"] for group in groups.values() for entry in group}

    assert await seen(await make_key()) == (200, {private["id"], common["id"]})
    assert await seen(await make_key(), agent_id="a2") == (200, {common["id"]})
    assert await seen(await make_key(user_id="amy", agent_id="a2")) == (200, {common["id"]})
    assert await seen(await make_key(agent_id="a2"), agent_id="a1") == (403, set())
    assert await seen(await make_key(user_id="bo")) == (403, set())
    assert await seen(await make_key(), "/v1/subjects/nobody/profile") == (200, set())
    assert await seen(await make_key(), SHARED) == (200, {shared["id"]})
    assert await seen(await make_key(user_id="bo"), SHARED) == (200, {shared["id"]})
    stranger = await make_key((await create_tenant(database, f"stranger {tenant}", now=now())).tenant_id)
    assert await seen(stranger) == await seen(stranger, SHARED) == (200, set())


@pytest.mark.parametrize("user_id", ["a/b", "https://id.example/users/7", "欧阳 倩", "profile", "a:b", "100%", ".."])
async def test_every_user_id_can_stand_in_the_path(agent: httpx2.AsyncClient, user_id: str) -> None:
    kept = await write(agent, "likes tea", user_id=user_id)
    path = "".join(f"%{byte:02X}" for byte in user_id.encode())
    answer = await profile(agent, f"/v1/subjects/{path}/profile")
    assert (answer["user_id"], ids(answer)["important"]) == (user_id, [kept["id"]])


@pytest.mark.parametrize(
    "path",
    [f"{PROFILE}?max_tokens=0", f"{PROFILE}?max_tokens=x", f"{PROFILE}?timezone=Mars", f"{PROFILE}?user=amy",
     "/v1/subjects/%20/profile", f"/v1/subjects/{'x' * 256}/profile", f"{SHARED}?language=fr"],
)  # fmt: skip
async def test_a_wrong_request_is_refused(agent: httpx2.AsyncClient, path: str) -> None:
    response = await agent.get(path)
    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")


# --- plans ---------------------------------------------------------------------------------------------------


FILL = sql("""
    WITH memory AS (
        INSERT INTO memories (
            tenant_id, subject_id, memory_id, status, content, content_type, kind, key, importance, tags, metadata,
            session_id, pinned, version, created_at, updated_at, content_hash, keywords, word_count, tokenizer_version
        )
        SELECT :tenant_id, :subject_id, gen_random_uuid(), 'active', 'fact ' || n, 'text', 'interaction_history',
               CASE WHEN n % 100 = 0 THEN 'key ' || n END, 1 + n % 5, '{}', '{}', 's' || n % 100, n % 500 = 0, 1, now(),
               now(), decode(md5(n::text), 'hex'), '{1:1}/1000000000', 1, 1
        FROM generate_series(1, cast(:rows AS int)) AS n
        RETURNING memory_id
    )
    INSERT INTO memory_usage (tenant_id, subject_id, memory_id, access_count, hit_streak)
    SELECT :tenant_id, :subject_id, memory_id, 0, 0 FROM memory
""")
SUBJECT = sql("INSERT INTO subjects (tenant_id, subject_id, user_id, created_at) VALUES (:tenant_id, :id, :user, :now)")


async def plans(database: Database, mode: str, **subject: Any) -> dict[str, str]:
    """The plans of the very statements that are sent, as the service's role and with row security."""
    found = {}
    arguments = {"agent_id": None, "session_id": "s7", "now": now(), **subject}
    async with database.read(subject["tenant_id"], ordered=True) as transaction:
        assert await transaction.fetch_value(sql("SELECT current_user")) == "mneme_app"
        await transaction.execute(sql(f"SET LOCAL plan_cache_mode = {mode}"))
        for part, statement in READS.items():
            explain = sql(f"EXPLAIN {statement.sql}")
            explain.names = statement.names
            found[part] = "\n".join(row[0] for row in await transaction.fetch(explain, **arguments))
    return found


@pytest.mark.parametrize(("rows", "user_id"), [(60, "amy"), (6_000, "amy"), (6_000, None)])
async def test_every_part_is_read_in_the_order_of_an_index(
    database: Database, tenant: UUID, owner_url: str, rows: int, user_id: str | None
) -> None:
    subject_id = tenant if user_id is None else UUID(str(uuid7()))
    async with database.write(tenant) as transaction:
        await transaction.execute(SUBJECT, tenant_id=tenant, id=subject_id, user=user_id, now=now())
        await transaction.execute(FILL, tenant_id=tenant, subject_id=subject_id, rows=rows)
    for analysed in (False, True):
        if analysed:
            owner = await asyncpg.connect(owner_url.replace("postgresql+asyncpg", "postgresql"))
            await owner.execute("ANALYZE memories, memory_usage, subjects")
            await owner.close()
        for mode in ("force_custom_plan", "force_generic_plan"):
            found = await plans(database, mode, tenant_id=tenant, user_id=user_id)
            assert "Backward using memories_profile_idx" in found["profile"], found["profile"]
            assert "Sort" not in found["profile"]
            if not analysed:
                continue
            assert "Backward using memories_session_idx" in found["session"], found["session"]
            for part in ("tasks", "recent"):
                # Where the tenant has this subject alone, the index of ids is as good as that of the subject's ids.
                assert re.search(r"Backward using memories_(pkey|id_idx) on memories ", found[part]), found[part]
            for plan in found.values():
                assert "Sort" not in plan, plan
                assert "Seq Scan on memories" not in plan, plan
    async with database.write(tenant) as transaction:  # jobs look for subjects of this size, in every tenant
        await transaction.execute(sql("DELETE FROM subjects WHERE tenant_id = :tenant_id"), tenant_id=tenant)
