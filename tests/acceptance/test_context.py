"""Acceptance: the context with the bundled model, whose tokenizer counts, offline."""

from uuid import uuid4

import httpx2

from app.memory import SERVED_LABEL
from tests.api.conftest import Service

CONTENTS = (
    "我在杭州云栖科技做后端，主管是欧阳倩",
    "用 FastAPI 重写 billing 🚀，域名 demo-9.example",
    "Amy is allergic to peanuts; she carries an EpiPen®.",
    "𠮷野家的牛丼、ラーメンと김치",
    "订单 A-1024 的退款 ￥1,299.00 已于 2024-02-29 原路退回" * 5,
    "x" * 300,
)


async def test_r34_a_budget_is_kept_in_the_models_own_tokens_and_the_words_stay(
    client: httpx2.AsyncClient, product: Service
) -> None:
    user = f"user-{uuid4()}"
    items = [{"user_id": user, "content": content, "importance": 4, "session_id": "s1"} for content in CONTENTS]
    await client.post("/v1/memories:batch", json={"items": items})
    count = product.app.state.mneme.embedder.count_tokens
    ask = {"user_id": user, "query": "主管是谁？", "session_id": "s1"}
    shown = []
    last = ""
    for budget in (40, 80, 160, 320, 640, 1_280):
        for form in ("block", "brief"):
            body = {**ask, "max_memory_tokens": budget, "format": form}
            answer = (await client.post("/v1/context", json=body)).json()
            assert count(answer["text"]) == answer["tokens"] <= budget
            assert len(answer["items"]) + answer["left_out"]["count"] == len(CONTENTS)
            shown.append(len(answer["items"]))
            last = answer["text"]
            if form == "block":
                assert len(SERVED_LABEL.findall(last)) == len(answer["items"])
    assert shown[0] == 0
    assert shown[-1] == len(CONTENTS)
    assert all(content in last for content in CONTENTS)
