"""No route without a wall, one answer for every bad key, and nothing of anybody else's, on every verb."""

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
from fastapi import FastAPI

from app.api.deps import Reader, WalledRoute, walled_router
from app.clock import now
from app.database import Database
from app.guard import SCOPES, create_tenant, list_keys, revoke_key
from tests.api.conftest import PROBES, UNKNOWN_ID, MakeKey, Service, bearer, without_ids

CONTENT = "我对芒果过敏，不能吃任何芒果相关的食物"
OF_A_MEMORY = (
    ("GET", "/v1/memories/{memory_id}"),
    ("GET", "/v1/memories/{memory_id}?include=vector"),
    ("GET", "/v1/memories/{memory_id}/history"),
    ("GET", "/v1/memories/{memory_id}/lineage"),
    ("PATCH", "/v1/memories/{memory_id}"),
    ("DELETE", "/v1/memories/{memory_id}"),
    ("POST", "/v1/memories/{memory_id}:feedback"),
    ("POST", "/v1/memories/{memory_id}:undo-feedback"),
    ("POST", "/v1/memories/{memory_id}:restore"),
)
BODIES = {
    "/v1/memories/{memory_id}": {"importance": 5},
    "/v1/memories/{memory_id}:feedback": {"verdict": "wrong"},
    "/v1/memories/{memory_id}:undo-feedback": {"feedback_id": UNKNOWN_ID},
    "/v1/memories/{memory_id}:restore": {},
}


def unwalled(app: FastAPI) -> set[str]:
    """Paths that anybody may ask."""
    return {getattr(route, "path", "?") for route in app.routes if not isinstance(route, WalledRoute)}


async def call(service: Service, method: str, path: str, key: str | None = None, **options: Any) -> httpx2.Response:
    """Call a route template with an id that nobody has."""
    if method in ("POST", "PATCH") and "content" not in options:
        options.setdefault("json", {})
    url = re.sub(r"\{\w+(:path)?\}", UNKNOWN_ID, path)
    return await service.client.request(
        method, url, headers=[] if key is None else [(b"X-API-Key", key.encode("latin-1"))], **options
    )


def test_only_the_probes_have_no_wall(service: Service) -> None:
    assert unwalled(service.app) == PROBES


def test_a_plain_route_is_noticed(service: Service) -> None:
    app = FastAPI(routes=[*service.app.routes])
    app.add_api_route("/v1/forgotten", lambda: None)
    assert "/v1/forgotten" in unwalled(app)


def test_a_walled_route_without_a_wall_cannot_be_declared() -> None:
    router = walled_router()

    @router.get("/with")
    async def with_wall(caller: Reader) -> None: ...

    with pytest.raises(TypeError, match="/without has no wall"):

        @router.get("/without")
        async def without_wall() -> None: ...


BadKey = Callable[[str, UUID, UUID], Awaitable[str | None]]


async def bad_keys(make_key: MakeKey, database: Database, tenant: UUID) -> dict[str, str | None]:
    """Every kind of key that opens nothing."""
    good, other = (
        await make_key(),
        await make_key((await create_tenant(database, f"other {tenant}", now=now())).tenant_id),
    )
    expired = await make_key(made_at=now() - timedelta(days=2), expires_at=now() - timedelta(days=1))
    revoked = await make_key()
    for record in await list_keys(database, tenant):
        if record.expires_at is None and record.key_id == (await list_keys(database, tenant))[-1].key_id:
            await revoke_key(database, tenant, record.key_id, now=now())
    return {
        "missing": None,
        "empty": "",
        "another shape": "secret",
        "cut": good[:-1],
        "another secret": good[:-1] + ("a" if good[-1] != "a" else "b"),
        "unknown key id": good[:26] + "0" * 22 + good[48:],
        "unknown tenant": "mnk_" + "0" * 22 + good[26:],
        "another tenant's id": other[:26] + good[26:],
        "another tenant's secret": good[:49] + other[49:],
        "id beyond 128 bits": "mnk_" + "z" * 22 + good[26:],
        "expired": expired,
        "revoked": revoked,
        "not ASCII": good[:-1] + "é",
    }


async def test_every_bad_key_gets_the_same_401_on_every_route(
    service: Service, make_key: MakeKey, database: Database, tenant: UUID
) -> None:
    expected = None
    for name, key in (await bad_keys(make_key, database, tenant)).items():
        for method, path in service.routes():
            response = await call(service, method, path, key)
            assert response.status_code == 401, (name, method, path)
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
            expected = expected or without_ids(response.json())
            assert without_ids(response.json()) == expected, (name, method, path)


async def test_the_wall_stands_before_the_body(service: Service) -> None:
    for method, path in service.routes():
        if method in ("POST", "PATCH"):
            response = await call(service, method, path, content=b"\xff{" * 1_000_000)
            assert response.status_code == 401, (method, path)


@pytest.mark.parametrize(
    "header", ["Authorization: Basic {}", "Authorization: {}", "Authorization: Bearer", "X-API-Key: "]
)
async def test_credentials_in_another_dress(service: Service, make_key: MakeKey, header: str) -> None:
    name, _, value = header.format(await make_key()).partition(": ")
    assert (await service.client.get("/version", headers={name: value})).status_code == 401


async def test_both_headers_carry_a_key(service: Service, make_key: MakeKey) -> None:
    key = await make_key()
    for headers in ({"X-API-Key": key}, {"Authorization": f"bearer {key}"}, bearer(key)):
        assert (await service.client.get("/version", headers=headers)).status_code == 200


async def test_each_route_asks_for_exactly_its_scope(service: Service, make_key: MakeKey) -> None:
    keys = {scope: await make_key(scopes=frozenset({scope})) for scope in SCOPES}
    document = service.app.openapi()
    for method, path in service.routes():
        passed = {scope for scope, key in keys.items() if (await call(service, method, path, key)).status_code != 403}
        if path in ("/version", "/openapi.json") or path.startswith("/docs"):
            assert passed == set(SCOPES)
        else:
            assert len(passed) == 1, (method, path, passed)
            documented = document["paths"][path.replace(":path", "")][method.lower()]
            assert f"Scope: `{passed.pop()}`" in documented["description"]


# --- what belongs to somebody else -------------------------------------------------------------------------


async def store(service: Service, key: str, **fields: Any) -> str:
    response = await service.client.post("/v1/memories", json={"content": CONTENT} | fields, headers=bearer(key))
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def answers(service: Service, key: str, memory_id: str) -> list[tuple[int, dict[str, Any]]]:
    """What a key gets to hear about a memory, on every verb and sub-resource."""
    found = []
    for method, path in OF_A_MEMORY:
        options: dict[str, Any] = {"json": BODIES[path]} if method in ("PATCH", "POST") else {}
        response = await service.client.request(
            method, path.format(memory_id=memory_id), headers=bearer(key), **options
        )
        found.append((response.status_code, without_ids(response.json()) if response.content else {}))
    return found


def test_the_verbs_above_are_all_there_are(service: Service) -> None:
    of_a_memory = {route for route in service.routes() if "{memory_id}" in route[1]}
    assert of_a_memory == {(method, path.partition("?")[0]) for method, path in OF_A_MEMORY}


@pytest.mark.parametrize("case", ["another tenant", "another user", "another agent", "another user of the same agent"])
async def test_somebody_elses_memory_is_answered_like_an_unknown_one(
    service: Service, make_key: MakeKey, database: Database, tenant: UUID, case: str
) -> None:
    owner = await make_key()
    bonds = {
        "another user": {"user_id": "bo"},
        "another agent": {"agent_id": "a2"},
        "another user of the same agent": {"user_id": "bo", "agent_id": "a1"},
    }
    if case == "another tenant":
        key = await make_key((await create_tenant(database, f"b {tenant}", now=now())).tenant_id)
    else:
        key = await make_key(**bonds[case])
    memory_id = await store(service, owner, user_id="amy", agent_id="a1")
    before = await service.client.get(f"/v1/memories/{memory_id}", headers=bearer(owner))

    about_hers = await answers(service, key, memory_id)

    assert about_hers == await answers(service, key, UNKNOWN_ID)
    assert {status for status, _ in about_hers} == {404}
    after = await service.client.get(f"/v1/memories/{memory_id}", headers=bearer(owner))
    assert after.json() == before.json()


async def test_a_bound_key_reads_shared_memories_but_does_not_change_them(service: Service, make_key: MakeKey) -> None:
    owner, amy = await make_key(), await make_key(user_id="amy")
    memory_id = await store(service, owner)
    assert [status for status, _ in await answers(service, amy, memory_id)] == [200] * 4 + [404] * 5


@pytest.mark.parametrize("bond", ["user_id", "agent_id"])
async def test_a_bound_key_never_sees_anybody_else(service: Service, make_key: MakeKey, bond: str) -> None:
    owner, bound = await make_key(), await make_key(**{bond: "bo"})
    hers = await store(service, owner, user_id="amy", agent_id="a1", tags=["t"])
    user = {"user_id": "amy"} if bond == "agent_id" else {}
    searches = [
        await service.client.post(path, json={"query": CONTENT, **fields}, headers=bearer(bound))
        for path, fields in (
            ("/v1/memories:search", {"top_k": 100, **user}),
            ("/v1/memories:search", {"fusion": "similarity", **user}),
            ("/v1/memories:search", {"weights": {"similarity": 0}, "include_deprecated": True, **user}),
        )
    ]
    listed = [
        await service.client.get("/v1/memories", params={**parameters, **user}, headers=bearer(bound))
        for parameters in ({}, {"tag": "t"}, {"shared": "true"} if not user else {"limit": 200})
    ]
    for response in (*searches, *listed):
        assert response.status_code == 200, response.text
        assert hers not in response.text


@pytest.mark.parametrize(
    ("method", "path", "fields"),
    [
        ("POST", "/v1/memories", {"content": CONTENT, "user_id": "amy"}),
        ("POST", "/v1/memories:search", {"query": CONTENT, "user_id": "amy"}),
        ("POST", "/memory/add", {"content": CONTENT, "user_id": "amy"}),
        ("POST", "/memory/retrieve", {"query": CONTENT, "user_id": "amy"}),
        ("POST", "/v1/context", {"query": CONTENT, "user_id": "amy"}),
        ("POST", "/v1/memories:extract", {"messages": [{"role": "user", "content": CONTENT}], "user_id": "amy"}),
        ("POST", "/v1/sessions/s/messages", {"role": "user", "content": CONTENT, "user_id": "amy"}),
        ("POST", "/v1/sessions/s:extract", {"user_id": "amy"}),
        ("GET", "/v1/sessions/s/messages?user_id=amy", None),
        ("DELETE", "/v1/sessions/s?user_id=amy&keep=true", None),
        ("GET", "/v1/memories?user_id=amy", None),
        ("GET", "/v1/subjects/amy/profile", None),
    ],
)
async def test_naming_another_user_is_forbidden_whether_or_not_it_exists(
    service: Service, make_key: MakeKey, method: str, path: str, fields: dict[str, Any] | None
) -> None:
    bo = await make_key(user_id="bo")
    unknown = await service.client.request(method, path, json=fields, headers=bearer(bo))
    await store(service, await make_key(), user_id="amy")
    known = await service.client.request(method, path, json=fields, headers=bearer(bo))
    assert known.status_code == 403
    assert without_ids(known.json()) == without_ids(unknown.json())


async def test_a_batch_refuses_only_the_items_of_others(service: Service, make_key: MakeKey) -> None:
    items = [{"content": "Bo likes tea", "user_id": "bo"}, {"content": "Amy likes tea", "user_id": "amy"}]
    response = await service.client.post(
        "/v1/memories:batch", json={"items": items}, headers=bearer(await make_key(user_id="bo"))
    )
    assert [item["status"] for item in response.json()["items"]] == [201, 403]


async def test_a_bound_key_writes_for_its_user_and_agent_when_the_body_names_none(
    service: Service, make_key: MakeKey
) -> None:
    key = await make_key(user_id="bo", agent_id="a2")
    memory = await service.client.get(f"/v1/memories/{await store(service, key)}", headers=bearer(key))
    assert (memory.json()["user_id"], memory.json()["agent_id"]) == ("bo", "a2")
