"""Search and time: as of a moment, in the words of then, also in large subjects; decay by rate and clock."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from app.clock import now
from app.database import Database
from app.recall import RecallConfig, tend_large_subjects
from tests.api.conftest import Service
from tests.api.test_search import KEYWORD_ONLY, SIMILARITY_ONLY, fill, ids, search

HOUR = timedelta(hours=1)
TIME_ONLY = {"similarity": 0.001, "time": 1.0, "importance": 0.0, "keyword": 0.0}
Move = Callable[..., Awaitable[None]]


@pytest.fixture
async def move(owner_url: str) -> AsyncIterator[Move]:
    """Change columns of stored memories behind the service's back: tests cannot wait for hours."""
    owner = await asyncpg.connect(owner_url.replace("postgresql+asyncpg", "postgresql"))

    async def change(memory_id: str, **columns: Any) -> None:
        for name, value in columns.items():
            status = ", status = 'deprecated'" if name == "deprecated_at" else ""
            statement = f"UPDATE memories SET {name} = $1 {status} WHERE memory_id = $2"
            await owner.execute(statement, value, UUID(memory_id))

    yield change
    await owner.close()


async def company(agent: httpx2.AsyncClient, move: Move, start: datetime) -> list[str]:
    """Three names of a company, each overruling the one before after an hour."""
    names: list[str] = []
    for number, name in enumerate(("甲骨", "乙方", "丙烯")):
        [memory_id] = await fill(agent, f"公司名称是{name} company", key="profile.company")
        await move(memory_id, created_at=start + number * HOUR)
        if names:
            await move(names[-1], deprecated_at=start + number * HOUR)
        names.append(memory_id)
    return names


@pytest.mark.usefixtures("by_index")
@pytest.mark.parametrize("large", [False, True])
async def test_as_of_shows_what_was_known_then(
    agent: httpx2.AsyncClient, move: Move, service: Service, database: Database, large: bool
) -> None:
    start = now() - 10 * HOUR
    first, second, third = await company(agent, move, start)
    if large:
        await fill(agent, *(f"note {n} about parcels" for n in range(120)))
        await tend_large_subjects(database, RecallConfig(exact_scan_rows=100), now=now())
        service.app.state.mneme.recaller.large._known.clear()

    async def known(moment: datetime | None, **fields: Any) -> set[str]:
        as_of = None if moment is None else moment.isoformat()
        return set(ids(await search(agent, "公司名称 company", top_k=100, as_of=as_of, **fields))) & {
            first,
            second,
            third,
        }

    modes: list[dict[str, Any]] = [{"weights": KEYWORD_ONLY}, {"weights": SIMILARITY_ONLY}, {}]
    for mode in modes:
        assert await known(None, **mode) == {third}
        assert await known(start - HOUR, **mode) == set()
        assert await known(start, **mode) == {first}
        assert await known(start + HOUR / 2, **mode) == {first}
        assert await known(start + HOUR, **mode) == {second}
        assert await known(start + 5 * HOUR, **mode) == {third}
        assert await known(start + 1.5 * HOUR, include_deprecated=True, **mode) == {first, second}
    [hit] = await search(agent, "甲骨 company", as_of=start.isoformat(), top_k=1)
    assert (hit["memory"]["id"], hit["memory"]["status"]) == (first, "deprecated")  # the status is that of today


async def test_as_of_obeys_validity_and_expiry_of_that_moment_and_never_shows_what_was_erased(
    agent: httpx2.AsyncClient, move: Move
) -> None:
    start = now() - 10 * HOUR
    fields = {"valid_from": (start + HOUR).isoformat(), "valid_to": (start + 2 * HOUR).isoformat()}
    [voucher] = await fill(agent, "voucher for tea", **fields)
    [offer] = await fill(agent, "offer of tea", expires_at=(start + 3 * HOUR).isoformat())
    [gone] = await fill(agent, "tea is gone")
    for memory_id in (voucher, offer, gone):
        await move(memory_id, created_at=start)
    assert (await agent.delete(f"/v1/memories/{gone}")).status_code == 204
    expected = {0.5: {offer}, 1: {voucher, offer}, 1.5: {voucher, offer}, 2: {offer}, 2.5: {offer}, 3: set(), 9: set()}
    for hours, found in expected.items():
        assert set(ids(await search(agent, "tea", as_of=(start + hours * HOUR).isoformat()))) == found, hours


async def test_a_memory_amended_since_is_told_in_its_words_of_then(agent: httpx2.AsyncClient, move: Move) -> None:
    fields = {"tags": ["old"], "event_at": "2026-01-05T09:00:00+08:00"}
    [memory_id] = await fill(agent, "meeting in Rome on Monday", **fields)
    await move(memory_id, created_at=now() - HOUR)
    moments = [now()]
    for changes in (
        {"content": "meeting in Oslo on Monday", "tags": ["new"], "event_at": None},
        {"content": "meeting in Bern on Monday"},
    ):
        assert (await agent.patch(f"/v1/memories/{memory_id}", json=changes)).status_code == 200
        moments.append(now())
    told = []
    for moment in moments:
        [hit] = await search(agent, "meeting on Monday", as_of=moment.isoformat())
        told.append([hit["memory"][name] for name in ("content", "tags", "event_at", "version")])
    assert told == [
        ["meeting in Rome on Monday", ["old"], "2026-01-05T01:00:00Z", 1],
        ["meeting in Oslo on Monday", ["new"], None, 2],
        ["meeting in Bern on Monday", ["new"], None, 3],
    ]


async def test_looking_back_is_no_use_of_a_memory(agent: httpx2.AsyncClient, service: Service) -> None:
    [memory_id] = await fill(agent, "likes green tea")
    assert ids(await search(agent, "green tea", as_of=now().isoformat())) == [memory_id]
    await service.app.state.mneme.recaller.usage.flush()
    assert (await agent.get(f"/v1/memories/{memory_id}")).json()["access_count"] == 0


async def test_r20_sixty_corrections_leave_one_hit(agent: httpx2.AsyncClient) -> None:
    last = ""
    for n in range(61):
        [last] = await fill(agent, f"the price of the tea set is {n} yuan", key="price")
    others = await fill(agent, *(f"the tea set number {n} has a crack" for n in range(5)))
    hits = await search(agent, "price of the tea set", top_k=5)
    assert hits[0]["memory"]["id"] == last
    assert set(ids(hits)) <= {last, *others}
    assert {hit["memory"]["status"] for hit in hits} == {"active"}
    flagged = await search(agent, "price of the tea set", top_k=50, include_deprecated=True, diversity=0.0)
    assert {hit["memory"]["status"] for hit in flagged} == {"active", "deprecated"}


async def test_decay_by_rate_and_clock(agent: httpx2.AsyncClient, move: Move, service: Service) -> None:
    written_last, happened_last, used_last = await fill(agent, "tea one", "tea two", "tea three")
    for memory_id, created, event in ((written_last, 1, 30), (happened_last, 20, 2), (used_last, 10, None)):
        event_at = None if event is None else now() - event * HOUR
        await move(memory_id, created_at=now() - created * HOUR, event_at=event_at)
    assert ids(await search(agent, "three", weights=KEYWORD_ONLY)) == [used_last]
    await service.app.state.mneme.recaller.usage.flush()

    async def order(per_hour: float, clock: str, **fields: Any) -> tuple[list[str], list[float]]:
        decay = {"per_hour": per_hour, "clock": clock}
        fields |= {"weights": TIME_ONLY, "as_of": now().isoformat(), "explain": True} | fields  # as_of: is no access
        hits = await search(agent, "tea", time_decay=decay, **fields)
        return ids(hits), [round(hit["signals"]["time"]["value"], 2) for hit in hits]

    assert await order(0.1, "created") == ([written_last, used_last, happened_last], [0.9, 0.37, 0.14])
    assert await order(0.1, "event") == ([happened_last, used_last, written_last], [0.82, 0.37, 0.05])
    assert await order(0.1, "accessed") == ([used_last, written_last, happened_last], [1.0, 0.9, 0.14])
    for clock in ("created", "event", "accessed"):
        assert (await order(0, clock))[1] == [1.0, 1.0, 1.0]
    before = await order(0.1, "accessed", as_of=(now() - HOUR / 2).isoformat())
    assert before[0] == [written_last, used_last, happened_last]  # that access was later


@pytest.mark.parametrize(
    "wrong",
    [
        {"as_of": "2026-11-29"},
        {"as_of": "2026-11-29T08:00:00"},
        {"as_of": 1},
        {"time_decay": {"per_hour": -0.1}},
        {"time_decay": {"clock": "lunar"}},
        {"time_decay": {"half_life": 1}},
        {"diversity": 1.1},
        {"diversity": -0.1},
        {"max_share_per_source": 0},
        {"max_share_per_source": 1.5},
        {"why_not": ["x"]},
        {"why_not": ["01900000-0000-7000-8000-00000000dead"] * 21},
    ],
)
async def test_wrong_wishes_are_refused(agent: httpx2.AsyncClient, wrong: dict[str, Any]) -> None:
    response = await agent.post("/v1/memories:search", json={"user_id": "amy", "query": "tea", **wrong})
    assert response.status_code == 422
    assert response.json()["code"] == "validation_failed"
