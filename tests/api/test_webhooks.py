"""Webhooks from registration to receiver: a real HTTP server that hears well, fails, is slow, redirects or is gone."""

import base64
import hmac
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from app.clock import now
from app.database import Database, sql
from app.guard import create_tenant
from app.webhooks import Courier, WebhookConfig, secret_of
from tests.api.conftest import EVERYTHING, PEPPER, UNKNOWN_ID, MakeKey, Service, bearer, make_settings, run
from tests.embed.server import Endpoint, serving, status

TRUSTING = WebhookConfig(allow_private_targets=True, timeout_seconds=1.0, attempts=3)
HEARD = status(204)
SECRET_WORDS = ("芒果", "mango")
WRITES = (
    {"user_id": "王芳", "key": "profile.allergy", "content": "我对芒果过敏"},
    {"user_id": "王芳", "key": "profile.allergy", "content": "mango is fine again"},
)
OUTBOX = sql("SELECT count(*) FROM outbox WHERE tenant_id = :tenant_id")


@pytest.fixture(scope="session")
async def inside(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service that also tells webhooks of this machine."""
    settings = make_settings(database_url, tmp_path_factory.mktemp("inside"))
    settings.webhooks = TRUSTING
    async with run(settings) as service:
        yield service


@pytest.fixture
async def client(inside: Service, make_key: MakeKey) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        base_url=inside.client.base_url, headers=bearer(await make_key()), timeout=30
    ) as client:
        yield client
        for webhook in (await client.get("/v1/webhooks")).json()["items"]:  # nothing stays due in this database
            assert (await client.delete(f"/v1/webhooks/{webhook['id']}")).status_code == 204


@pytest.fixture
async def courier(database: Database) -> AsyncIterator[Courier]:
    courier = Courier(database, partial(secret_of, PEPPER.encode()), TRUSTING)
    yield courier
    await courier.close()


@pytest.fixture
def receiver() -> Iterator[Endpoint]:
    with serving("/hook?token=4711", HEARD) as endpoint:
        yield endpoint


async def register(client: httpx2.AsyncClient, url: str, *events: str) -> dict[str, Any]:
    response = await client.post("/v1/webhooks", json={"url": url} | ({"events": list(events)} if events else {}))
    assert response.status_code == 201, response.text
    document: dict[str, Any] = response.json()
    return document


async def write(client: httpx2.AsyncClient, *memories: dict[str, Any]) -> list[str]:
    answers = [await client.post("/v1/memories", json=memory) for memory in memories]
    assert {answer.status_code for answer in answers} == {201}
    return [answer.json()["id"] for answer in answers]


async def deliver(courier: Courier, moment: datetime | None = None) -> None:
    while await courier.deliver(now=moment or now()):
        pass


async def log_of(client: httpx2.AsyncClient, webhook: dict[str, Any], **parameters: Any) -> list[dict[str, Any]]:
    response = await client.get(f"/v1/webhooks/{webhook['id']}/deliveries", params=parameters)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


def verified(secret: str, endpoint: Endpoint) -> list[tuple[str, dict[str, Any]]]:
    """Ids and bodies received, each with a signature that its secret gives."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    for raw, headers in zip(endpoint.raw, endpoint.headers, strict=True):
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + raw
        expected = base64.b64encode(hmac.new(key, signed, "sha256").digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        assert abs(int(headers["webhook-timestamp"]) - now().timestamp()) < 120
    return [(headers["webhook-id"], body) for headers, body in zip(endpoint.headers, endpoint.bodies, strict=True)]


async def test_what_happens_to_memories_is_told_signed_and_without_text(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    webhook = await register(client, receiver.url)
    first, second = await write(client, *WRITES)
    await deliver(courier)
    received = [body for _, body in verified(webhook["secret"], receiver)]
    whose = {"user_id": "王芳", "agent_id": None}
    kind = {"kind": "interaction_history", "key": "profile.allergy"}
    assert [(body["type"], body["data"]) for body in received] == [
        ("memory.created", {"memory_id": first, **kind, **whose}),
        ("memory.created", {"memory_id": second, **kind, **whose}),
        ("memory.deprecated", {"memory_id": first, "superseded_by": second, **whose}),
    ]
    assert not any(word.encode() in raw for word in SECRET_WORDS for raw in receiver.raw)
    assert {headers["path"] for headers in receiver.headers} == {"/hook?token=4711"}
    log = await log_of(client, webhook)
    assert [(entry["event"], entry["state"], entry["attempts"], entry["last_status"]) for entry in log] == [
        ("memory.deprecated", "delivered", 1, 204),
        ("memory.created", "delivered", 1, 204),
        ("memory.created", "delivered", 1, 204),
    ]


async def test_only_the_events_that_are_wanted_are_told_and_repeats_are_none(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    await register(client, receiver.url, "memory.deprecated")
    await write(client, *WRITES)
    repeat = await client.post("/v1/memories", json=WRITES[1])
    assert repeat.json()["outcome"] == "duplicate"
    await deliver(courier)
    assert [body["type"] for body in receiver.bodies] == ["memory.deprecated"]


async def test_what_a_restored_memory_pushes_out_and_what_comes_too_late_is_told_too(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    await register(client, receiver.url)
    first, second = await write(client, *WRITES)
    assert (await client.post(f"/v1/memories/{first}:restore")).status_code == 200
    late = WRITES[1] | {"content": "芒果过敏已治愈", "event_at": "2020-01-01T00:00:00Z"}
    old = (await client.post("/v1/memories", json=late)).json()
    assert old["outcome"] == "outdated"
    await deliver(courier)
    told = [(body["type"], body["data"]["memory_id"], body["data"].get("superseded_by")) for body in receiver.bodies]
    assert sorted(told) == sorted(
        [
            ("memory.created", first, None), ("memory.created", second, None),
            ("memory.deprecated", first, second), ("memory.deprecated", second, first),
            ("memory.deprecated", old["id"], first),
        ]
    )  # fmt: skip


async def test_what_makes_no_new_memory_and_overrules_none_is_no_event(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    [memory] = await write(client, {"user_id": "王芳", "content": "我对芒果过敏"})
    await register(client, receiver.url)
    place = f"/v1/memories/{memory}"
    for verdict in ("outdated", "wrong", "useful"):
        assert (await client.post(f"{place}:feedback", json={"verdict": verdict})).status_code == 200
    assert (await client.patch(place, json={"content": "我对芒果和腰果过敏"})).status_code == 200
    for content, outcome in (("我对芒果和腰果过敏", "duplicate"), ("谢谢！", "filtered")):
        answer = await client.post("/v1/memories", json={"user_id": "王芳", "content": content})
        assert answer.json()["outcome"] == outcome
    assert (await client.post("/v1/memories:search", json={"user_id": "王芳", "query": "过敏"})).status_code == 200
    assert (await client.delete(place)).status_code == 204
    assert (await client.post(f"{place}:restore")).status_code == 200
    await deliver(courier)
    assert receiver.bodies == []


async def test_an_accepted_review_is_told_as_the_end_of_the_older_memory(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    pinned, moved = await write(
        client,
        {"user_id": "王芳", "content": "我住在上海", "pinned": True},
        {"user_id": "王芳", "content": "我搬到杭州了"},
    )
    await register(client, receiver.url, "memory.deprecated")
    body = {"newer_id": moved, "older_id": pinned}
    assert (await client.post("/v1/reviews:accept", json=body)).status_code == 200
    await deliver(courier)
    assert [body["data"] for body in receiver.bodies] == [
        {"memory_id": pinned, "superseded_by": moved, "user_id": "王芳", "agent_id": None}
    ]


async def test_without_a_webhook_nothing_is_written(
    client: httpx2.AsyncClient, database: Database, tenant: UUID
) -> None:
    await write(client, *WRITES)
    async with database.read(tenant) as transaction:
        assert await transaction.fetch_value(OUTBOX, tenant_id=tenant) == 0


async def test_every_process_knows_of_a_webhook_before_its_registration_is_answered(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint, database_url: str, tmp_path: Path
) -> None:
    async with (
        run(make_settings(database_url, tmp_path)) as second,
        httpx2.AsyncClient(base_url=second.client.base_url, headers=client.headers, timeout=30) as other,
    ):
        await write(other, {"user_id": "amy", "content": "before anybody listens"})
        await register(client, receiver.url)
        await write(other, {"user_id": "amy", "content": "right after the answer"})
    await deliver(courier)
    assert [body["type"] for body in receiver.bodies] == ["memory.created"]


async def test_a_failure_is_tried_again_later_under_the_same_id_until_it_is_heard(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    receiver.scripts = [status(500), HEARD]
    webhook = await register(client, receiver.url)
    await write(client, WRITES[0])
    await deliver(courier)
    [entry] = await log_of(client, webhook, state="pending")
    assert (entry["attempts"], entry["last_status"], entry["last_error"]) == (1, 500, "status")
    wait = datetime.fromisoformat(entry["next_attempt_at"]) - now()
    assert timedelta(seconds=2) < wait < timedelta(seconds=7)
    assert (await client.get(f"/v1/webhooks/{webhook['id']}")).json()["failing_since"] is not None
    await deliver(courier)
    assert len(receiver.bodies) == 1
    await deliver(courier, now() + timedelta(seconds=8))
    (first, _), (second, _) = verified(webhook["secret"], receiver)
    assert first == second == entry["event_id"]
    [entry] = await log_of(client, webhook)
    assert (entry["state"], entry["attempts"], entry["next_attempt_at"]) == ("delivered", 2, None)
    assert (await client.get(f"/v1/webhooks/{webhook['id']}")).json()["failing_since"] is None


@pytest.mark.parametrize(
    ("script", "error"),
    [(status(500), "status"), (status(404), "status"), (status(302, location="/elsewhere"), "redirect")],
    ids=["500", "404", "redirect"],
)
async def test_after_its_attempts_an_event_is_given_up_and_no_redirect_is_followed(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint, script: Any, error: str
) -> None:
    receiver.scripts = [script]
    webhook = await register(client, receiver.url)
    await write(client, WRITES[0])
    for day in range(6):
        await deliver(courier, now() + timedelta(hours=12 * day))
    assert {headers["path"] for headers in receiver.headers} == {"/hook?token=4711"}
    assert len(receiver.bodies) == TRUSTING.attempts
    [entry] = await log_of(client, webhook)
    assert (entry["state"], entry["attempts"], entry["last_error"]) == ("failed", 3, error)


async def test_a_slow_receiver_times_out_and_holds_up_nobody_else(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    with serving("/slow", HEARD) as slow:
        slow.scripts = [slow.silent]
        slow_hook, quick_hook = await register(client, slow.url), await register(client, receiver.url)
        await write(client, *WRITES)
        while any(entry["state"] == "pending" for entry in await log_of(client, quick_hook)):
            await courier.deliver(now=now())
        assert {entry["state"] for entry in await log_of(client, slow_hook)} == {"pending"}
        await deliver(courier)
        assert {entry["last_error"] for entry in await log_of(client, slow_hook)} == {"timeout"}
        slow.released.set()
    assert len(receiver.bodies) == 3


async def test_a_receiver_that_nobody_serves_and_one_that_is_gone(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    receiver.scripts = [status(410)]
    nobody, gone = await register(client, "http://127.0.0.1:1/"), await register(client, receiver.url)
    await write(client, WRITES[0])
    await deliver(courier)
    [entry] = await log_of(client, nobody)
    assert (entry["state"], entry["last_error"], entry["last_status"]) == ("pending", "connection", None)
    assert (await client.get(f"/v1/webhooks/{gone['id']}")).json()["disabled_reason"] == "gone"
    await write(client, WRITES[1])
    await deliver(courier, now() + timedelta(hours=1))
    assert len(receiver.bodies) == 1


async def test_after_a_long_failure_a_webhook_is_switched_off_and_can_be_switched_on_again(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    receiver.scripts = [status(503), status(503), HEARD]
    webhook = await register(client, receiver.url)
    await write(client, WRITES[0])
    await deliver(courier)
    await deliver(courier, now() + timedelta(hours=73))
    shown = (await client.get(f"/v1/webhooks/{webhook['id']}")).json()
    assert shown["disabled_reason"] == "failing"
    await deliver(courier, now() + timedelta(hours=99))
    assert len(receiver.bodies) == 2
    enabled = (await client.post(f"/v1/webhooks/{webhook['id']}:enable")).json()
    assert (enabled["disabled_at"], enabled["failing_since"]) == (None, None)
    await deliver(courier, now() + timedelta(hours=99))
    assert len(receiver.bodies) == 3
    assert [entry["state"] for entry in await log_of(client, webhook)] == ["delivered"]


async def test_what_a_killed_worker_had_in_hand_is_sent_by_another(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    await register(client, receiver.url)
    await write(client, WRITES[0])
    assert len(await courier._claim(now(), 9)) == 1  # and then nothing more is heard of it
    await deliver(courier)
    assert receiver.bodies == []
    await deliver(courier, now() + timedelta(seconds=60))
    assert len(receiver.bodies) == 1


async def test_what_a_worker_has_in_hand_when_it_is_told_to_end_is_sent_by_another_at_once(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    receiver.scripts = [receiver.silent, HEARD]
    webhook = await register(client, receiver.url)
    await write(client, *WRITES)
    ending = Courier(courier.database, courier.secret, courier.config)
    while not receiver.bodies:
        await ending.deliver(now=now())
    await ending.close()
    await deliver(courier)
    receiver.released.set()
    assert {(entry["attempts"], entry["state"]) for entry in await log_of(client, webhook)} == {(1, "delivered")}


async def test_private_targets_are_refused_at_registration_and_at_delivery(
    service: Service, make_key: MakeKey, client: httpx2.AsyncClient, database: Database, receiver: Endpoint
) -> None:
    key = bearer(await make_key())
    for url in ("http://example.com/", "https://127.0.0.1/", "https://localhost/", "https://169.254.169.254/latest"):
        response = await service.client.post("/v1/webhooks", json={"url": url}, headers=key)
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/url")
    webhook = await register(client, receiver.url)
    await write(client, WRITES[0])
    strict = Courier(database, partial(secret_of, PEPPER.encode()), WebhookConfig())
    await deliver(strict)
    await strict.close()
    assert [entry["last_error"] for entry in await log_of(client, webhook)] == ["private_target"]
    assert receiver.bodies == []


async def test_the_secret_is_shown_once_and_webhooks_are_the_tenants_own(
    client: httpx2.AsyncClient, service: Service, make_key: MakeKey, database: Database, tenant: UUID
) -> None:
    webhook = await register(client, "http://127.0.0.1:1/", "operation.finished")
    assert webhook["secret"].startswith("whsec_")
    shown = await client.get(f"/v1/webhooks/{webhook['id']}")
    assert shown.json() == {name: value for name, value in webhook.items() if name != "secret"}
    assert (await client.get("/v1/webhooks")).json()["items"] == [shown.json()]
    other = await create_tenant(database, f"w {tenant}", now=now())
    strangers = {
        404: bearer(await make_key(other.tenant_id)),
        403: bearer(await make_key(scopes=EVERYTHING - {"admin"})),
    }
    bound = bearer(await make_key(user_id="amy"))
    place = f"/v1/webhooks/{webhook['id']}"
    for method, path in (
        ("GET", place),
        ("DELETE", place),
        ("POST", f"{place}:enable"),
        ("GET", f"{place}/deliveries"),
    ):
        for code, headers in strangers.items():
            assert (await service.client.request(method, path, headers=headers)).status_code == code
        assert (await service.client.request(method, path, headers=bound)).status_code == 403
        unknown = path.replace(webhook["id"], UNKNOWN_ID)
        assert (await client.request(method, unknown)).status_code == 404


@pytest.mark.parametrize(
    "body", [{}, {"url": ""}, {"url": "http://127.0.0.1/", "events": []}, {"url": "http://127.0.0.1/", "events": ["x"]},
             {"url": "http://127.0.0.1/", "events": ["memory.created", "memory.created"]}]
)  # fmt: skip
async def test_what_is_no_webhook_is_refused(client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
    assert (await client.post("/v1/webhooks", json=body)).status_code == 422


async def test_the_log_of_deliveries_comes_in_pages(
    client: httpx2.AsyncClient, courier: Courier, receiver: Endpoint
) -> None:
    webhook = await register(client, receiver.url)
    await write(client, *({"user_id": "amy", "content": f"Fact number {number}"} for number in range(5)))
    await deliver(courier)
    assert len(receiver.bodies) == 5
    seen, before = [], None
    while True:
        parameters = {"limit": "2"} | ({} if before is None else {"before": before})
        page = (await client.get(f"/v1/webhooks/{webhook['id']}/deliveries", params=parameters)).json()
        seen += [entry["event_id"] for entry in page["items"]]
        before = page["next_before"]
        if before is None:
            break
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 5
