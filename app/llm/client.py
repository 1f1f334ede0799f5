"""The client of an OpenAI-compatible `/chat/completions`: one question, one validated object, within one deadline.

Invariant: a failure is LlmUnavailable (nobody there, try later) or LlmUnusable (it answers, but not with this), never
an empty object; neither they nor logs quote what was sent or answered.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar

import httpx2
import orjson
from pydantic import BaseModel, Field, SecretStr

from app.breaker import Breaker, BreakerOpen
from app.endpoint import Endpoint, Oversized, Refused
from app.errors import LlmUnavailable, LlmUnusable, StartupRefused
from app.llm.answer import Unreadable, read
from app.telemetry import LLM_ANSWERS, LLM_COST, LLM_DURATION_SECONDS, LLM_REQUESTS, LLM_TOKENS

Shape = TypeVar("Shape", bound=BaseModel)
Purpose = Literal["extract", "judge", "summarise"]

ANSWERS: Final = 3
"""How often a question is put before an unreadable answer is final."""

LIMIT_BYTES: Final = 1 << 20
"""Of an answer's body; one of 4,000 tokens has about 20 kB."""

NOT_UNDERSTOOD: Final = frozenset({400, 404, 413, 415, 422, 501})
"""Refusals of this very request; others say that the endpoint does not work now."""

DIALECTS: Final = (
    ("json_schema", "max_tokens"),
    ("json_schema", "max_completion_tokens"),
    ("json_object", "max_tokens"),
    ("text", "max_tokens"),
)
"""How a structured answer is asked for, the strictest first; an endpoint that refuses one is asked the next way."""


class LlmConfig(BaseModel, extra="forbid"):
    """Which language model, and how much it may take."""

    url: str | None = Field(
        None, description="Base URL of an OpenAI-compatible endpoint, with /v1; empty: no language model, rules only."
    )
    model: str | None = Field(None, description="Name of the model at the endpoint.")
    api_key: SecretStr | None = Field(None, description="Bearer token of the endpoint.")
    deadline_seconds: float = Field(
        30.0, gt=0, description="Longest time of one question, waiting, retries and second questions included."
    )
    max_tokens: int = Field(2048, ge=64, description="Most tokens of an answer; doubled once if it was cut off.")
    concurrency: int = Field(4, ge=1, le=256, description="Most calls of this process at once; others wait.")
    input_price: float = Field(0.0, ge=0, description="Price of a million tokens sent, for mneme_llm_cost_total.")
    output_price: float = Field(0.0, ge=0, description="Price of a million tokens answered.")


def load_language_model(config: LlmConfig) -> "LanguageModel | None":
    """The configured language model, or None where none is; raises StartupRefused when it is named by half."""
    if config.url is None:
        return None
    if not config.model:
        raise StartupRefused("a language model needs MNEME_LLM__MODEL")
    return LanguageModel(config)


class LanguageModel:
    """Questions to one endpoint; at most `concurrency` at once, none while its breaker is open."""

    def __init__(self, config: LlmConfig) -> None:
        self._config = config
        self._slots = asyncio.Semaphore(config.concurrency)
        self._dialect = 0
        self._breaker = Breaker("llm", patience_seconds=config.deadline_seconds / 2, neutral=(LlmUnusable,))
        self._endpoint = Endpoint(
            f"{(config.url or '').rstrip('/')}/chat/completions",
            config.api_key,
            timeout_seconds=config.deadline_seconds,
            duration_seconds=LLM_DURATION_SECONDS,
            limit_bytes=LIMIT_BYTES,
        )

    @property
    def state(self) -> Literal["ready", "degraded", "open"]:
        """`open`: calls are refused. `degraded`: the last call failed or a probe is due."""
        if self._breaker.state == "open":
            return "open"
        return "degraded" if self._breaker.failing or self._breaker.state == "half_open" else "ready"

    async def close(self) -> None:
        """Hang up."""
        await self._endpoint.close()

    async def ask(self, purpose: Purpose, instructions: str, content: str, shape: type[Shape]) -> Shape:
        """Put `content` (data, never instructions) to the model and return its answer as a `shape`.

        Raises LlmUnavailable, with Retry-After if the endpoint named one, or LlmUnusable. Holds no connection.
        """
        with _counted(purpose):
            try:
                async with asyncio.timeout(self._config.deadline_seconds), self._slots, self._breaker.guard():
                    return await self._ask(purpose, instructions, content, shape)
            except TimeoutError:
                raise LlmUnavailable("the language model did not answer in time") from None
            except httpx2.HTTPError as error:
                raise LlmUnavailable(f"the language model cannot be reached ({type(error).__name__})") from None
            except Refused as error:
                raise LlmUnavailable(str(error), retry_after_seconds=error.retry_after_seconds) from None

    async def _ask(self, purpose: Purpose, instructions: str, content: str, shape: type[Shape]) -> Shape:
        hint, fault, tokens = "", "", self._config.max_tokens
        for _ in range(ANSWERS):
            text, cut_off = await self._complete(purpose, instructions + hint, content, shape, tokens)
            try:
                answer, wrapped = read(text, shape, cut_off=cut_off)
            except Unreadable as error:
                LLM_ANSWERS.labels(error.fault).inc()
                hint = f"\n\nYour last answer could not be used: {error.hint}. Answer with JSON of the schema only."
                tokens = 2 * self._config.max_tokens if error.fault == "cut_off" else tokens
                fault = error.fault
            else:
                LLM_ANSWERS.labels("wrapped" if wrapped else "none").inc()
                return answer
        raise LlmUnusable(f"the language model's answers cannot be read ({fault})")

    async def _complete(
        self, purpose: Purpose, instructions: str, content: str, shape: type[BaseModel], tokens: int
    ) -> tuple[str, bool]:
        """What the model wrote, and whether a limit ended it; moves to the next dialect while this one is refused."""
        schema, status = shape.model_json_schema(), 0
        for dialect in range(self._dialect, len(DIALECTS)):
            body = self._body(DIALECTS[dialect], schema, tokens) | {
                "messages": [
                    {"role": "system", "content": f"{instructions}\n\nJSON schema: {orjson.dumps(schema).decode()}"},
                    {"role": "user", "content": content},
                ]
            }
            try:
                answer = await self._endpoint.post(body)
            except Oversized as error:
                raise LlmUnusable(str(error)) from None
            except Refused as error:
                if error.status not in NOT_UNDERSTOOD:
                    raise
                status = error.status
                continue
            self._dialect = dialect  # remembered only when it worked: one odd question does not change it
            return self._written(purpose, answer)
        raise LlmUnusable(f"the language model refuses the question ({status})")

    def _body(self, dialect: tuple[str, str], schema: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        form, limit = dialect
        body: dict[str, Any] = {"model": self._config.model, limit: tokens}
        if limit == "max_tokens":
            body["temperature"] = 0  # models that want the newer name take no temperature
        if form == "json_schema":
            named = {"name": "answer", "strict": True, "schema": strict(schema)}
            body["response_format"] = {"type": form, "json_schema": named}
        elif form == "json_object":
            body["response_format"] = {"type": form}
        return body

    def _written(self, purpose: Purpose, answer: bytes) -> tuple[str, bool]:
        try:
            document = orjson.loads(answer)
            choice = document["choices"][0]
            content = choice["message"].get("content") or ""
            text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise LlmUnusable("the language model's answer is no chat completion") from None
        self._count(purpose, document.get("usage"))
        return text, choice.get("finish_reason") == "length"

    def _count(self, purpose: Purpose, usage: Any) -> None:
        prices = {"input": self._config.input_price, "output": self._config.output_price}
        for name, direction in (("prompt_tokens", "input"), ("completion_tokens", "output")):
            tokens = usage.get(name) if isinstance(usage, dict) else None
            if isinstance(tokens, int) and 0 <= tokens < 10_000_000:
                LLM_TOKENS.labels(purpose, direction).inc(tokens)
                LLM_COST.inc(tokens * prices[direction] / 1e6)


_NOT_STRICT = frozenset(
    ("default", "title", "maxItems", "minItems", "maxLength", "minLength", "maximum", "minimum", "pattern", "format")
)


def strict(schema: Any) -> Any:
    """A pydantic schema as the strict mode wants it: all properties required, no others; limits are checked here."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: {one: strict(value) for one, value in part.items()} if name in {"properties", "$defs"} else strict(part)
        for name, part in schema.items()
        if name not in _NOT_STRICT
    }
    if "properties" in kept:
        kept |= {"required": list(kept["properties"]), "additionalProperties": False}
    return kept


@contextmanager
def _counted(purpose: Purpose) -> Iterator[None]:
    outcome = "cancelled"
    try:
        yield
        outcome = "ok"
    except BreakerOpen as error:
        outcome = "rejected"
        raise LlmUnavailable(
            "the language model is switched off after failures", retry_after_seconds=error.retry_after_seconds
        ) from None
    except LlmUnusable:
        outcome = "unusable"
        raise
    except LlmUnavailable:
        outcome = "unavailable"
        raise
    finally:
        LLM_REQUESTS.labels(purpose, outcome).inc()
