"""R11: what a model that reads may retire: only what rules offered it, at most so much, and nothing when it fails."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from app.clock import now
from app.database import Database, sql
from app.embed import EmbedConfig, Embedder, Generation, NliUnavailable, claim_generation, load_embedder
from app.errors import LlmUnavailable, LlmUnusable
from app.guard import Caller
from app.idempotency import Answer
from app.language import TOKENIZER_VERSION
from app.llm import LanguageModel, LlmConfig
from app.remember import LlmOpinion, NewMemory, Opinion, RememberConfig, Rememberer, Written
from tests.embed.server import Endpoint, serving

ACTIVE = sql("SELECT content FROM memories WHERE tenant_id = :tenant_id AND status = 'active' ORDER BY memory_id")
REASONS = sql(
    "SELECT detail ->> 'reason' AS reason FROM memory_events WHERE tenant_id = :tenant_id AND action = 'deprecated'"
)
DANA = ["Dana works at Acme", "Dana lives in Berlin", "Dana is a vegetarian", "Dana has a cat called Milo"]


class Reader:
    """A stub that reads: it says yes to what it is told to, or raises."""

    def __init__(self, source: Literal["nli", "llm"], says: Callable[[str], bool] | Exception) -> None:
        self.source: Literal["nli", "llm"] = source
        self._says, self.asked = says, list[tuple[str, list[str]]]()

    async def contradicted(self, new: str, old: Sequence[str]) -> list[bool]:
        self.asked.append((new, list(old)))
        if isinstance(self._says, Exception):
            raise self._says
        return [self._says(text) for text in old]


def everything(_: str) -> bool:
    return True


@pytest.fixture
async def embedder(tmp_path: Path) -> AsyncIterator[Embedder]:
    embedder = load_embedder(EmbedConfig(provider="hashing"), tmp_path)
    await embedder.start()
    yield embedder
    await embedder.close()


Remember = Callable[..., Any]


@pytest.fixture
async def remember(database: Database, tenant: UUID, embedder: Embedder) -> Remember:
    """Write texts, one request each, with some opinions at hand; gives what became of the last."""
    generation: Generation = await claim_generation(database, embedder.spec, TOKENIZER_VERSION, now())

    async def write(*texts: str, opinions: Sequence[Opinion] = (), **settings: Any) -> Written:
        written: list[Written] = []

        def answer(what: list[Written]) -> Answer:
            written[:] = what
            return Answer(200, b"")

        caller = Caller(tenant, None, None, None, frozenset())
        rememberer = Rememberer(database, embedder, generation, RememberConfig(**settings), opinions)
        for text in texts:
            item = NewMemory(user_id="amy", content=text, kind="profile")
            await rememberer.remember(caller, [item], answer, now=now())
        return written[0]

    return write


async def contents(database: Database, tenant: UUID) -> list[str]:
    async with database.read(tenant) as transaction:
        return [row["content"] for row in await transaction.fetch(ACTIVE, tenant_id=tenant)]


def degraded(reason: str) -> float:
    return REGISTRY.get_sample_value("mneme_judgement_degraded_total", {"reason": reason}) or 0.0


async def test_a_model_sees_only_the_same_person_and_attribute(
    database: Database, tenant: UUID, remember: Remember
) -> None:
    await remember(*DANA, "I work at Acme", "Dana's boss works at Acme")
    reader = Reader("nli", everything)
    new = await remember("Dana works at Orchid Labs", opinions=[reader])
    assert reader.asked == [("Dana works at Orchid Labs", ["Dana works at Acme"])]
    assert new.outcome == "superseded"
    assert "Dana works at Acme" not in await contents(database, tenant)
    async with database.read(tenant) as transaction:
        assert [row["reason"] for row in await transaction.fetch(REASONS, tenant_id=tenant)] == ["nli"]


async def test_r11_what_is_added_is_not_even_asked_about(database: Database, tenant: UUID, remember: Remember) -> None:
    await remember(*DANA)
    reader = Reader("llm", everything)
    assert (await remember("Dana also runs the payroll committee", opinions=[reader])).outcome == "created"
    assert reader.asked == []
    assert await contents(database, tenant) == [*DANA, "Dana also runs the payroll committee"]


async def test_r11_a_model_that_contradicts_all_is_held_back(
    database: Database, tenant: UUID, remember: Remember
) -> None:
    old = [f"我在{place}工作" for place in ("腾讯", "阿里", "百度", "京东")]
    await remember(*old)
    new = await remember("我在字节跳动工作", opinions=[Reader("llm", everything)])
    assert new.outcome == "created"
    assert [relation for _, relation in new.related if relation != "candidate"] == ["review"] * 4
    assert await contents(database, tenant) == [*old, "我在字节跳动工作"]
    allowed = await remember("我在美团工作", opinions=[Reader("llm", everything)], most_retired=8)
    assert allowed.outcome == "superseded"
    assert await contents(database, tenant) == ["我在美团工作"]


async def test_the_first_source_that_says_so_counts_and_the_next_is_asked_the_rest(remember: Remember) -> None:
    await remember("我在腾讯工作", "我在阿里工作")
    first, second = Reader("nli", lambda text: "腾讯" in text), Reader("llm", everything)
    new = await remember("我在京东工作", opinions=[first, second])
    assert [texts for _, texts in second.asked] == [["我在阿里工作"]]
    assert new.outcome == "superseded"


@pytest.mark.parametrize(
    ("source", "error", "reason"),
    [
        ("nli", NliUnavailable(), "nli_unavailable"),
        ("llm", LlmUnavailable(), "llm_unavailable"),
        ("llm", LlmUnusable(), "llm_unusable"),
    ],
)
async def test_without_the_model_rules_judge_and_the_answer_says_so(
    database: Database, tenant: UUID, remember: Remember, source: Literal["nli", "llm"], error: Exception, reason: str
) -> None:
    before = degraded(reason)
    await remember("我住在上海", "我在腾讯工作")
    told = await remember("我在阿里工作", opinions=[Reader(source, error)])
    assert (told.outcome, told.degraded) == ("created", (reason,))
    assert degraded(reason) == before + 1
    by_rule = await remember("我搬到杭州了", opinions=[Reader(source, error)])
    assert by_rule.outcome == "superseded"
    assert await contents(database, tenant) == ["我在腾讯工作", "我在阿里工作", "我搬到杭州了"]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving("/v1", says([])) as endpoint:
        yield endpoint


def says(numbers: list[Any]) -> Any:
    text = json.dumps({"contradicted": numbers})
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return lambda _: (200, {}, {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 9}})


async def test_a_language_model_names_numbers_of_what_it_was_shown(endpoint: Endpoint) -> None:
    model = LanguageModel(LlmConfig(url=endpoint.url, model="qwen"))
    opinion = LlmOpinion(model)
    try:
        for numbers, expected in (([], [False, False]), ([2], [False, True]), ([1, 2, 2], [True, True])):
            endpoint.scripts = [says(numbers)]
            assert await opinion.contradicted("我住在杭州", ["我住在上海", "我住在\\u4e2d"]) == expected
        for strange in ([3], [0], [-1]):
            endpoint.scripts = [says(strange)]
            with pytest.raises(LlmUnusable):
                await opinion.contradicted("我住在杭州", ["我住在上海", "我住在南京"])
    finally:
        await model.close()
