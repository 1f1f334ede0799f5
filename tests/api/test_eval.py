"""mneme eval against a real service: one small set, and a refusal."""

import pytest

from app.cli.eval.run import ARMS, FUSED, connected, evaluate_set
from app.cli.eval.sets import Question, RetrievalSet
from app.errors import Invalid
from tests.api.conftest import MakeKey, Service


async def test_a_small_set_over_http(service: Service, make_key: MakeKey) -> None:
    texts = {
        "a": "我对芒果过敏", "b": "年糕是一只银渐层猫", "c": "国庆去杭州参加开发者大会", "d": "我对芒果过敏。",
        "e": "The deadline is 15 October", "f": "Invoices go to demo-9.example",
    }  # fmt: skip
    memories = {name: {"user_id": "u", "content": text} for name, text in texts.items()}
    asked = {"芒果过敏": "ad", "银渐层": "b", "demo-9.example": "f", "deadline October": "e"}
    questions = [Question("u", text, frozenset(gold)) for text, gold in asked.items()]
    done: list[int] = []
    async with connected(str(service.client.base_url), await make_key(), 4) as api:
        outcome = await evaluate_set(api, RetrievalSet("small", memories, questions), "test", done.append)
        again = await evaluate_set(api, RetrievalSet("small", memories, questions), "other")
    assert outcome.stored == again.stored == {"created": 5, "duplicate": 1}
    assert sum(done) == len(memories) + len(questions)
    assert set(outcome.measures) == {*ARMS, FUSED}
    assert outcome.measures["keyword"].ndcg_10 == pytest.approx(1)
    assert outcome.measures["default"].mrr == pytest.approx(1)
    assert outcome.degraded == 0


async def test_a_refusal_is_told_by_its_code(service: Service, make_key: MakeKey) -> None:
    async with connected(str(service.client.base_url), await make_key(), 1) as api:
        with pytest.raises(Invalid, match="validation_failed"):
            await api.post("/v1/memories:search", {"query": ""})
        assert not await api.ready("00000000-0000-7000-8000-0000000000ff")
