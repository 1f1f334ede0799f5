"""Nothing that anybody said, asked or kept secret reaches a log line, a metric or the answer of an error."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import structlog

from app import telemetry
from tests.api.conftest import UNKNOWN_ID, MakeKey, Service, bearer

SECRET = "芒果暗号QZX"  # in every text, name and value that the test sends

MESSAGE = {"role": "user", "content": f"请记住：{SECRET}是我的代号", "tool": SECRET, "reference": SECRET}


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Log lines so far, parsed; each call takes the ones since the last."""
    telemetry.configure_logging(service="mneme-test", version="9", level="DEBUG")

    def taken() -> list[dict[str, Any]]:
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    yield taken
    structlog.reset_defaults()
    logging.basicConfig(handlers=[], force=True)


async def conversations(client: httpx2.AsyncClient, key: dict[str, str]) -> list[Any]:
    """A session window and extractions, full of the secret."""
    return [
        await client.post(
            f"/v1/sessions/{SECRET}/messages", json=MESSAGE | {"user_id": SECRET, "extract": "never"}, headers=key
        ),
        await client.get(f"/v1/sessions/{SECRET}/messages", params={"user_id": SECRET}, headers=key),
        await client.post(
            f"/v1/sessions/{SECRET}:extract?wait=true",
            json={"user_id": SECRET},
            headers=key | {"Idempotency-Key": "QZX2"},
        ),
        await client.delete(f"/v1/sessions/{SECRET}", params={"user_id": SECRET}, headers=key),
        await client.post(
            "/v1/memories:extract?wait=true", json={"messages": [MESSAGE], "user_id": SECRET}, headers=key
        ),
    ]


async def everything(service: Service, key: dict[str, str]) -> list[Any]:
    """Requests of every kind, good and bad, full of the secret; their error answers."""
    memory = {
        "content": SECRET, "user_id": f"u-{SECRET}", "agent_id": f"a-{SECRET}", "key": f"k-{SECRET}", "tags": [SECRET],
        "metadata": {SECRET: SECRET}, "source": SECRET, "session_id": SECRET,
    }  # fmt: skip
    client = service.client
    created = await client.post("/v1/memories", json=memory, headers=key | {"Idempotency-Key": "QZX"})
    place = f"/v1/memories/{created.json()['id']}"
    answers = [
        created,
        await client.post("/v1/memories:batch", json={"items": [memory, {"content": "", SECRET: SECRET}]}, headers=key),
        await client.post("/v1/memories:search", json={"query": SECRET, "user_id": f"u-{SECRET}"}, headers=key),
        await client.get("/v1/memories", params={"user_id": f"u-{SECRET}", "tag": SECRET}, headers=key),
        await client.get(place, headers=key),
        await client.get(f"{place}/history", headers=key),
        await client.patch(place, json={"content": f"{SECRET} 2"}, headers=key),
        await client.delete(place, headers=key),
        await client.post("/memory/add", json={"content": SECRET, "user_id": SECRET}, headers=key),
        await client.post("/memory/retrieve", json={"query": SECRET, "user_id": SECRET}, headers=key),
        *await conversations(client, key),
    ]
    assert [answer.status_code for answer in answers] == [
        201,
        200,
        200,
        200,
        200,
        200,
        200,
        204,
        200,
        200,
        201,
        200,
        200,
        204,
        200,
    ]
    cut = f'{{"content": "{SECRET}'.encode()
    errors = [
        await client.post("/v1/memories", json=memory | {"importance": SECRET}, headers=key),
        await client.post("/v1/memories", json=memory | {"event_at": SECRET, "kind": SECRET}, headers=key),
        await client.post("/v1/memories", content=cut, headers=key | {"Content-Type": "application/json"}),
        await client.post("/v1/memories:search", json={"query": SECRET, "fusion": SECRET}, headers=key),
        await client.get(f"/v1/memories/{SECRET}", headers=key),
        await client.get(f"/{SECRET}", headers=key),
        await client.get("/v1/memories", params={"cursor": SECRET}, headers=key),
        await client.get("/v1/memories", headers=[(b"X-API-Key", SECRET.encode())]),
        await client.get("/v1/memories", headers=[(b"X-Request-ID", SECRET.encode())]),
        await client.get(f"/v1/memories/{UNKNOWN_ID}", headers=key),
        await client.post(f"/v1/sessions/{SECRET}/messages", json=MESSAGE | {"role": SECRET}, headers=key),
    ]  # fmt: skip
    assert all(400 <= answer.status_code < 500 for answer in errors)
    return errors


async def test_no_text_in_logs_metrics_or_errors(service: Service, make_key: MakeKey, lines: Any) -> None:
    text = await make_key()
    errors = await everything(service, bearer(text))
    written = lines()
    assert len([line for line in written if line["event"] == "request"]) == 26
    metrics = (await service.client.get("/metrics", headers=bearer(text))).text
    for place in (json.dumps(written, ensure_ascii=False), metrics, *(error.text for error in errors)):
        for secret in (SECRET, "QZX", text, text[50:]):
            assert secret not in place


async def test_the_access_line(service: Service, make_key: MakeKey, lines: Any) -> None:
    key = bearer(await make_key())
    created = await service.client.post(
        "/v1/memories", json={"content": "Amy lives in Oslo", "user_id": "amy"}, headers=key | {"X-Request-ID": "r-1"}
    )
    await service.client.post("/v1/memories:search", json={"query": "Oslo", "user_id": "amy"}, headers=key)
    write, search = [line for line in lines() if line["event"] == "request"]
    assert write["ts"].endswith("Z")
    assert (write["level"], write["service"], write["version"], write["request_id"]) == (
        "info",
        "mneme-test",
        "9",
        "r-1",
    )
    assert (write["operation"], write["memory_id"], write["status"]) == ("write", created.json()["id"], 201)
    assert (write["method"], write["route"]) == ("POST", "/v1/memories")
    assert write["duration_ms"] > 0
    assert {"tenant_id", "key_id"} <= set(write)
    assert (search["operation"], search["hits"]) == ("search", 1)


async def test_probes_are_silent_while_all_is_well(service: Service, lines: Any) -> None:
    await service.client.get("/livez")
    await service.client.get("/readyz")
    assert lines() == []


async def test_an_unknown_failure_is_500_and_only_its_place_is_logged(
    service: Service, make_key: MakeKey, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr("app.recall.search.find", fail)
    response = await service.client.post(
        "/v1/memories:search", json={"query": SECRET, "user_id": "amy"}, headers=bearer(await make_key())
    )
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    failure, access = lines()
    assert (failure["event"], failure["level"], failure["error"]) == ("internal", "error", "builtins.ValueError")
    assert any("test_logs.py" in frame for frame in failure["frames"])
    assert failure["request_id"] == access["request_id"] == response.json()["request_id"]
    assert access["status"] == 500
    assert SECRET not in response.text + json.dumps([failure, access], ensure_ascii=False)


def test_other_libraries_log_without_what_they_quote(lines: Any) -> None:
    try:
        int(SECRET)
    except ValueError:
        logging.getLogger("some.library").exception("failed: %s", SECRET)
    logging.getLogger("asyncio").error(f"Task exception was never retrieved\nfuture: {SECRET}")  # noqa: G004
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    first, second, third = lines()
    assert (first["event"], first["error"]) == ("failed: %s", "builtins.ValueError")
    assert second["event"] == "Task exception was never retrieved"
    assert (third["event"], third["level"]) == ("Started server process [7]", "info")


async def test_notes_stay_with_their_request(lines: Any) -> None:
    async def one(number: int) -> tuple[str, Any]:
        note = telemetry.begin_request(f"r{number}")
        await asyncio.sleep(0)
        telemetry.annotate(hits=number)
        telemetry.log().info("inside")
        return str(telemetry.request_id()), note["hits"]

    notes = await asyncio.gather(*(asyncio.create_task(one(number)) for number in range(20)))
    assert notes == [(f"r{number}", number) for number in range(20)]
    assert sorted(line["request_id"] for line in lines()) == sorted(name for name, _ in notes)
    telemetry.annotate(hits=1)
    assert telemetry.request_id() is None


def test_a_broken_stdout_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def write(self, _: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Broken())
    telemetry.write_line({"event": "x"})
