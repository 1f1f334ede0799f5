"""A real HTTP server that answers a chat completion well and in every wrong way (R05)."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY
from pydantic import BaseModel, SecretStr

from app.errors import LlmUnavailable, LlmUnusable, StartupRefused
from app.llm import LanguageModel, LlmConfig, load_language_model
from tests.embed.server import Answer, Endpoint, Script, serving, status


class Found(BaseModel):
    facts: list[str]
    note: str | None = None


def says(text: Any, finish: str = "stop") -> Script:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return lambda _: (200, {}, {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 10}})


def raw(answer: Any) -> Script:
    return lambda _: (200, {}, answer)


WELL = says('{"facts": ["我对芒果过敏"]}')
SECRET = "my password is 芝麻开门"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving("/v1", WELL) as endpoint:
        yield endpoint


def model(endpoint: Endpoint, **changes: Any) -> LanguageModel:
    return LanguageModel(LlmConfig(url=endpoint.url, model="qwen", **changes))


@pytest.fixture
async def llm(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LanguageModel]:
    monkeypatch.setattr("app.endpoint.FIRST_WAIT_SECONDS", 0.001)
    llm = model(endpoint, api_key=SecretStr("k"), input_price=2.0, output_price=10.0)
    yield llm
    await llm.close()


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"mneme_llm_{name}_total", labels) or 0.0


async def ask(llm: LanguageModel) -> Found:
    return await llm.ask("extract", "Find facts.", SECRET, Found)


async def test_the_request_is_openais_with_a_strict_schema(llm: LanguageModel, endpoint: Endpoint) -> None:
    assert (await ask(llm)).facts == ["我对芒果过敏"]
    (body,) = endpoint.bodies
    assert (endpoint.headers[0]["path"], endpoint.headers[0]["authorization"]) == ("/v1/chat/completions", "Bearer k")
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("qwen", 0, 2048)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == SECRET
    assert body["response_format"]["json_schema"]["schema"] == {
        "type": "object",
        "properties": {
            "facts": {"type": "array", "items": {"type": "string"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["facts", "note"],
        "additionalProperties": False,
    }


async def test_tokens_and_cost_are_counted(llm: LanguageModel) -> None:
    before = [sample("tokens", purpose="extract", direction=d) for d in ("input", "output")] + [sample("cost")]
    await ask(llm)
    after = [sample("tokens", purpose="extract", direction=d) for d in ("input", "output")] + [sample("cost")]
    assert [b - a for a, b in zip(before, after, strict=True)] == pytest.approx([100, 10, 0.0003])


@pytest.mark.parametrize("counts", [None, [], {"prompt_tokens": "9"}, {"prompt_tokens": -1}, {"prompt_tokens": 1e99}])
async def test_a_wrong_usage_costs_nothing_and_harms_nothing(
    llm: LanguageModel, endpoint: Endpoint, counts: Any
) -> None:
    choice = {"message": {"content": '{"facts": []}'}}
    endpoint.scripts = [raw({"choices": [choice], "usage": counts})]
    before = sample("cost")
    assert (await ask(llm)).facts == []
    assert sample("cost") == before


async def test_r05_well_wrapped_answers_are_read_at_once(llm: LanguageModel, endpoint: Endpoint) -> None:
    for text in ('```json\n{"facts": ["x"]}\n```', 'Notes {draft}: {"facts": ["x"]}'):
        endpoint.scripts = [says(text)]
        assert (await ask(llm)).facts == ["x"]
    assert len(endpoint.bodies) == 2


async def test_parts_of_a_message_are_put_together(llm: LanguageModel, endpoint: Endpoint) -> None:
    endpoint.scripts = [says([{"type": "text", "text": '{"facts": '}, {"type": "text", "text": '["x"]}'}])]
    assert (await ask(llm)).facts == ["x"]


BAD = {
    "cut off": says('{"facts": ["a", "b', "length"),
    "wrong shape": says('{"result": []}'),
    "empty": says(""),
    "null": says(None),
    "prose": says("Nothing to remember here."),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_r05_an_unreadable_answer_is_asked_for_again_and_then_is_a_failure(
    llm: LanguageModel, endpoint: Endpoint, bad: Script
) -> None:
    endpoint.scripts = [bad, WELL]
    assert (await ask(llm)).facts == ["我对芒果过敏"]
    assert "could not be used" in endpoint.bodies[1]["messages"][0]["content"]
    endpoint.scripts = [bad]
    with pytest.raises(LlmUnusable) as refusal:
        await ask(llm)
    assert len(endpoint.bodies) == 5
    assert (llm.state, "芝麻" in refusal.value.detail) == ("ready", False)


async def test_a_cut_off_answer_gets_more_room(llm: LanguageModel, endpoint: Endpoint) -> None:
    endpoint.scripts = [says('{"facts": ["a", "b', "length"), WELL]
    await ask(llm)
    assert [body["max_tokens"] for body in endpoint.bodies] == [2048, 4096]


@pytest.mark.parametrize(
    "answer",
    [b"<html>", [], {}, {"choices": []}, {"choices": [{"message": {"content": 7}}]}, {"choices": [{"message": "x"}]},
     {"choices": [{"message": {"content": ["x"]}}]}, b"x" * (10 << 20)],
    ids=["html", "list", "no choices", "none of them", "number", "no message", "odd parts", "10 MB"],
)  # fmt: skip
async def test_r05_what_is_no_chat_completion_is_a_failure(llm: LanguageModel, endpoint: Endpoint, answer: Any) -> None:
    endpoint.scripts = [raw(answer)]
    with pytest.raises(LlmUnusable):
        await ask(llm)
    assert (len(endpoint.bodies), llm.state) == (1, "ready")


def only(*forms: str) -> Script:
    """A server that understands only these forms of `response_format`."""

    def script(body: dict[str, Any]) -> Answer:
        form = body.get("response_format", {"type": "text"})["type"]
        return WELL(body) if form in forms and "max_tokens" in body else (400, {}, {"error": "unsupported"})

    return script


@pytest.mark.parametrize(("forms", "calls"), [(("json_object", "text"), 3), (("text",), 4)])
async def test_a_server_without_schemas_is_asked_more_simply_and_that_is_remembered(
    llm: LanguageModel, endpoint: Endpoint, forms: tuple[str, ...], calls: int
) -> None:
    endpoint.scripts = [only(*forms)]
    await ask(llm)
    assert len(endpoint.bodies) == calls
    await ask(llm)
    assert len(endpoint.bodies) == calls + 1
    assert '"facts"' in endpoint.bodies[-1]["messages"][0]["content"], "the schema stands in the instructions, too"


async def test_a_model_that_wants_the_newer_name_of_the_limit_keeps_its_schema(
    llm: LanguageModel, endpoint: Endpoint
) -> None:
    endpoint.scripts = [lambda body: WELL(body) if "max_completion_tokens" in body else status(400)(body)]
    await ask(llm)
    assert endpoint.bodies[-1]["response_format"]["type"] == "json_schema"
    assert "temperature" not in endpoint.bodies[-1]


async def test_a_question_that_no_dialect_takes_fails_alone(llm: LanguageModel, endpoint: Endpoint) -> None:
    for _ in range(6):
        endpoint.scripts = [status(400)]
        with pytest.raises(LlmUnusable, match="refuses the question"):
            await ask(llm)
    endpoint.scripts = [WELL]
    await ask(llm)
    assert (llm.state, endpoint.bodies[-1]["response_format"]["type"]) == ("ready", "json_schema")


async def test_r05_429_is_waited_out(llm: LanguageModel, endpoint: Endpoint) -> None:
    endpoint.scripts = [status(429, Retry_After="0"), status(429, Retry_After="0.2"), WELL]
    assert (await ask(llm)).facts == ["我对芒果过敏"]
    assert (len(endpoint.bodies), llm.state) == (3, "ready")


async def test_a_wait_beyond_the_deadline_is_handed_to_the_caller(llm: LanguageModel, endpoint: Endpoint) -> None:
    endpoint.scripts = [status(429, Retry_After="77")]
    with pytest.raises(LlmUnavailable) as refusal:
        await ask(llm)
    assert (refusal.value.retry_after_seconds, len(endpoint.bodies)) == (77.0, 1)


async def test_500_for_ever_and_a_wrong_key_are_unavailable(llm: LanguageModel, endpoint: Endpoint) -> None:
    for code, calls in ((500, 4), (401, 1)):
        endpoint.bodies.clear()
        endpoint.scripts = [status(code)]
        with pytest.raises(LlmUnavailable, match=str(code)):
            await ask(llm)
        assert len(endpoint.bodies) == calls


async def test_silence_ends_at_the_deadline_and_opens_the_breaker(endpoint: Endpoint) -> None:
    llm = model(endpoint, deadline_seconds=0.1)
    endpoint.scripts = [endpoint.silent]
    for _ in range(5):
        with pytest.raises(LlmUnavailable, match="in time"):
            await ask(llm)
    rejected = sample("requests", purpose="extract", outcome="rejected")
    asked = len(endpoint.bodies)
    with pytest.raises(LlmUnavailable, match="switched off"):
        await ask(llm)
    assert (llm.state, len(endpoint.bodies)) == ("open", asked)
    assert sample("requests", purpose="extract", outcome="rejected") == rejected + 1
    await llm.close()


async def test_nobody_at_the_address_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.endpoint.FIRST_WAIT_SECONDS", 0.001)
    llm = LanguageModel(LlmConfig(url="http://127.0.0.1:9/v1", model="m", deadline_seconds=5))
    with pytest.raises(LlmUnavailable, match="cannot be reached"):
        await ask(llm)
    await llm.close()


async def test_no_more_than_the_configured_calls_at_once(endpoint: Endpoint) -> None:
    llm = model(endpoint, concurrency=2)
    endpoint.scripts = [endpoint.silent]
    asking = [asyncio.create_task(ask(llm)) for _ in range(6)]
    for _ in range(2):
        assert await asyncio.to_thread(endpoint.asked.acquire, timeout=10)
    assert not await asyncio.to_thread(endpoint.asked.acquire, timeout=0.2)
    endpoint.released.set()
    assert len(await asyncio.gather(*asking)) == 6
    await llm.close()


async def test_logs_and_errors_quote_neither_question_nor_answer(
    llm: LanguageModel, endpoint: Endpoint, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for script in (says("芝麻开门"), status(500), raw(json.dumps({"choices": "芝麻开门"}).encode())):
        endpoint.scripts = [script]
        with pytest.raises((LlmUnusable, LlmUnavailable)) as refusal:
            await ask(llm)
        assert "芝麻" not in repr(refusal.value)
    assert "芝麻" not in caplog.text + "".join(capsys.readouterr())


def test_no_url_is_no_model_and_half_a_name_stops_the_start() -> None:
    assert load_language_model(LlmConfig()) is None
    with pytest.raises(StartupRefused, match="MNEME_LLM__MODEL"):
        load_language_model(LlmConfig(url="http://x/v1"))
