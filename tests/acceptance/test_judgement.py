"""The field reports on duplicates and conflicts, told to the product with its real model."""

import asyncio
from typing import Any

import httpx2
import pytest

R08 = [
    ("Deadline is 15 October", "Deadline is 16 October"),
    ("API v2.3 is live", "API v2.4 is live"),
    ("Amy eats meat", "Amy does not eat meat"),
    ("Chen is CEO", "Kim is CTO"),
    ("会议改到周三下午3点", "会议改到周三下午4点"),
    ("他同意了", "他没同意"),
]
R10 = [
    ("I love spicy food", "I can't stand spicy food any more"),
    ("Stack: Postgres", "Stack changed to MySQL"),
    ("我住在上海", "我搬到杭州了"),
]
DANA = [
    "Dana works at Acme", "Dana is a payroll analyst", "Dana lives in Berlin", "Dana is a vegetarian",
    "Dana has a cat called Milo", "Dana speaks German and Italian", "Dana drives a red car", "Dana plays chess",
    "Dana was born in May", "Dana likes jazz",
]  # fmt: skip


async def write(client: httpx2.AsyncClient, user_id: str, content: str, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/memories", json={"user_id": user_id, "content": content, **fields})
    assert response.status_code in {200, 201}, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def active(client: httpx2.AsyncClient, user_id: str) -> list[str]:
    listed = (await client.get("/v1/memories", params={"user_id": user_id})).json()["items"]
    return [memory["content"] for memory in reversed(listed)]


async def test_r07_one_text_by_every_path_is_one_row(client: httpx2.AsyncClient) -> None:
    text = "Amy is allergic to peanuts"
    written = await asyncio.gather(*(write(client, "r07", text) for _ in range(20)))
    batch = [{"user_id": "r07", "content": line} for line in [text] * 5 + [" amy is allergic to PEANUTS "]]
    items = (await client.post("/v1/memories:batch", json={"items": batch})).json()["items"]
    [outcome] = {item["outcome"] for item in items}
    assert outcome == "duplicate"
    assert {one["id"] for one in [*written, *items]} == {written[0]["id"]}
    assert await active(client, "r07") == [text]
    assert (await client.get(f"/v1/memories/{written[0]['id']}")).json()["access_count"] == 25


@pytest.mark.parametrize(
    "paraphrases",
    [
        ["我喜欢坐靠窗的座位", "我特别喜欢靠窗的座位", "我偏好靠窗座位", "靠窗的座位我很喜欢"],
        ["I prefer window seats", "I really like window seats", "I love window seats", "Window seats are what I like"],
    ],
)  # fmt: skip
async def test_r07_four_paraphrases_are_at_most_two_rows(client: httpx2.AsyncClient, paraphrases: list[str]) -> None:
    user_id = f"r07-{paraphrases[0]}"
    for text in paraphrases:
        await write(client, user_id, text)
    assert len(await active(client, user_id)) <= 2


@pytest.mark.parametrize(("first", "second"), R08)
async def test_r08_both_texts_exist_or_the_older_is_overruled(
    client: httpx2.AsyncClient, first: str, second: str
) -> None:
    user_id = f"r08-{first}"
    old, new = await write(client, user_id, first), await write(client, user_id, second)
    assert new["outcome"] in {"created", "superseded"}
    assert second in await active(client, user_id)
    kept = (await client.get(f"/v1/memories/{old['id']}")).json()
    assert kept["content"] == first
    overruled = {"id": old["id"], "relation": "supersedes"} in new["related"]
    assert kept["status"] == ("deprecated" if overruled else "active")


@pytest.mark.parametrize(("old", "new"), R10)
async def test_r10_search_finds_the_new_fact_and_not_the_old(client: httpx2.AsyncClient, old: str, new: str) -> None:
    user_id = f"r10-{old}"
    first, second = await write(client, user_id, old), await write(client, user_id, new)
    assert second["related"] == [{"id": first["id"], "relation": "supersedes"}]
    for query in (old, new):
        found = (await client.post("/v1/memories:search", json={"user_id": user_id, "query": query})).json()["hits"]
        assert [hit["memory"]["content"] for hit in found] == [new]
    history = (await client.get(f"/v1/memories/{first['id']}/history")).json()["items"]
    assert history[-1]["action"] == "deprecated"


async def test_r11_nothing_of_ten_facts_is_retired_by_an_eleventh(client: httpx2.AsyncClient) -> None:
    for fact in DANA:
        await write(client, "r11", fact)
    assert (await write(client, "r11", "Dana also runs the payroll committee"))["outcome"] == "created"
    assert await active(client, "r11") == [*DANA, "Dana also runs the payroll committee"]


async def test_r16_after_an_edit_the_old_text_is_a_new_memory(client: httpx2.AsyncClient) -> None:
    memory = await write(client, "r16", "Maya works at Acme")
    await client.patch(f"/v1/memories/{memory['id']}", json={"content": "Maya works at Orchid Labs"})
    again = await write(client, "r16", "Maya works at Acme")
    assert (again["outcome"], again["id"] != memory["id"]) == ("created", True)


async def test_r34_chinese_names_and_mixed_texts_are_judged_as_they_are(client: httpx2.AsyncClient) -> None:
    texts = ["我在杭州云栖科技做后端，主管是欧阳倩", "用 FastAPI 重写 billing", "我很开心😀", "项目" * 1000]
    for text in texts:
        assert (await write(client, "r34", text))["memory"]["content"] == text
    changed = await write(client, "r34", "我在杭州云栖科技做后端，主管是欧阳静")
    assert changed["outcome"] == "created"
    assert await active(client, "r34") == [*texts, "我在杭州云栖科技做后端，主管是欧阳静"]
