"""Feedback over HTTP: what a verdict moves, how often, what the audit says, and that it can be taken back."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import telemetry
from app.clock import now
from app.database import Database
from app.guard import Caller
from app.remember import give_feedback
from app.remember.feedback import FEEDBACK_HOURS, STEPS, moved
from tests.api.conftest import UNKNOWN_ID, MakeKey, Service, bearer
from tests.api.test_memories import write


async def judge(agent: httpx2.AsyncClient, memory_id: str, verdict: str, **fields: Any) -> dict[str, Any]:
    response = await agent.post(f"/v1/memories/{memory_id}:feedback", json={"verdict": verdict, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert response.headers["ETag"] == f'"v{answer["memory"]["version"]}"'
    return answer


async def undo(agent: httpx2.AsyncClient, memory_id: str, feedback_id: str) -> dict[str, Any]:
    response = await agent.post(f"/v1/memories/{memory_id}:undo-feedback", json={"feedback_id": feedback_id})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def importance(agent: httpx2.AsyncClient, memory_id: str) -> float:
    value: float = (await agent.get(f"/v1/memories/{memory_id}")).json()["importance"]
    return value


def counted(verdict: str) -> float:
    value: float = telemetry.FEEDBACK.labels(verdict)._value.get()
    return value


@given(st.floats(1, 5), st.sampled_from(sorted(STEPS)))
def test_importance_stays_within_its_bounds_and_moves_the_right_way(before: float, verdict: str) -> None:
    after = moved(before, STEPS[verdict])
    assert 1 <= after <= 5
    assert abs(after - before) <= abs(STEPS[verdict]) + 1e-4
    assert (after >= before - 1e-4) if verdict == "useful" else (after <= before + 1e-4)


@pytest.mark.parametrize(
    ("verdict", "before", "after"),
    [("useful", 3.0, 3.5), ("useful", 4.8, 5.0), ("useful", 5.0, 5.0), ("wrong", 3.0, 2.0), ("wrong", 1.5, 1.0),
     ("outdated", 4.0, 3.0), ("outdated", 1.0, 1.0)],
)  # fmt: skip
async def test_a_verdict_moves_importance_is_audited_counted_and_undoable(
    agent: httpx2.AsyncClient, verdict: str, before: float, after: float
) -> None:
    memory_id = (await write(agent, "我对芒果过敏", importance=before))["id"]
    count = counted(verdict)

    answer = await judge(agent, memory_id, verdict, query="芒果 query that nobody keeps")

    assert (answer["applied"], answer["verdict"]) == (True, verdict)
    assert answer["importance"] == {"before": before, "after": after}
    assert await importance(agent, memory_id) == after == answer["memory"]["importance"]
    assert counted(verdict) == count + 1
    found = await agent.post("/v1/memories:search", json={"user_id": "amy", "query": "芒果"})
    assert [hit["memory"]["id"] for hit in found.json()["hits"]] == [memory_id]

    undone = await undo(agent, memory_id, answer["feedback_id"])
    assert (undone["applied"], undone["importance"]) == (True, {"before": after, "after": before})
    assert await importance(agent, memory_id) == before
    again = await undo(agent, memory_id, answer["feedback_id"])
    assert (again["applied"], again["importance"]) == (False, {"before": before, "after": before})
    history = await agent.get(f"/v1/memories/{memory_id}/history")
    assert [(entry["action"], entry["detail"]) for entry in history.json()["items"]] == [
        ("created", {}),
        ("feedback", {"verdict": verdict, "before": before, "after": after}),
        ("feedback_undone", {"feedback_id": answer["feedback_id"], "before": after, "after": before}),
    ]
    assert "nobody keeps" not in history.text


async def test_a_verdict_cannot_be_pumped(agent: httpx2.AsyncClient, service: Service, make_key: MakeKey) -> None:
    memory_id = (await write(agent, "likes tea", importance=2))["id"]
    answers = await asyncio.gather(*(judge(agent, memory_id, "useful") for _ in range(10)))
    assert sorted(answer["applied"] for answer in answers) == [False] * 9 + [True]
    assert len({answer["feedback_id"] for answer in answers}) == 1
    assert await importance(agent, memory_id) == 2.5
    other = await service.client.post(
        f"/v1/memories/{memory_id}:feedback", json={"verdict": "useful"}, headers=bearer(await make_key())
    )
    assert other.json()["importance"] == {"before": 2.5, "after": 3.0}
    assert (await judge(agent, memory_id, "wrong"))["importance"] == {"before": 3.0, "after": 2.0}
    taken_back = await undo(agent, memory_id, answers[0]["feedback_id"])
    assert taken_back["importance"] == {"before": 2.0, "after": 1.5}  # what others moved since stays
    assert (await judge(agent, memory_id, "useful"))["importance"] == {"before": 1.5, "after": 2.0}


async def test_the_next_day_the_verdict_counts_again(
    agent: httpx2.AsyncClient, database: Database, tenant: UUID
) -> None:
    memory_id = UUID((await write(agent, "likes tea", importance=2))["id"])
    caller = Caller(tenant, None, None, None, frozenset({"write"}))
    moment = now()
    applied = [
        (await give_feedback(database, caller, memory_id, "useful", now=moment + timedelta(hours=hours))).applied
        for hours in (0, FEEDBACK_HOURS - 1, FEEDBACK_HOURS + 1)
    ]
    assert applied == [True, False, True]


async def test_feedback_is_a_change_that_if_match_sees(agent: httpx2.AsyncClient) -> None:
    memory_id = (await write(agent, "likes tea"))["id"]
    await judge(agent, memory_id, "useful")
    stale = await agent.patch(f"/v1/memories/{memory_id}", json={"importance": 1}, headers={"If-Match": '"v1"'})
    assert stale.status_code == 412


@pytest.mark.parametrize("wrong", [{}, {"verdict": "bad"}, {"verdict": None}, {"verdict": "useful", "note": "x"}])
async def test_a_wrong_verdict_is_refused(agent: httpx2.AsyncClient, wrong: dict[str, Any]) -> None:
    memory_id = (await write(agent, "likes tea"))["id"]
    assert (await agent.post(f"/v1/memories/{memory_id}:feedback", json=wrong)).status_code == 422
    assert (await agent.get(f"/v1/memories/{memory_id}")).json()["version"] == 1


async def test_nothing_to_judge_and_nothing_to_take_back(agent: httpx2.AsyncClient) -> None:
    first, second = [(await write(agent, text))["id"] for text in ("likes tea", "owns a boat")]
    given = (await judge(agent, first, "useful"))["feedback_id"]
    await agent.delete(f"/v1/memories/{first}")
    for path, body in (
        (f"{first}:feedback", {"verdict": "useful"}),
        (f"{UNKNOWN_ID}:feedback", {"verdict": "useful"}),
        (f"{first}:undo-feedback", {"feedback_id": given}),
        (f"{second}:undo-feedback", {"feedback_id": given}),
        (f"{second}:undo-feedback", {"feedback_id": UNKNOWN_ID}),
    ):
        response = await agent.post(f"/v1/memories/{path}", json=body)
        assert (response.status_code, response.json()["code"]) == (404, "not_found"), path
