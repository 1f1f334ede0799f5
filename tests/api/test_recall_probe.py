"""The recall probe: some searches by vector index are compared with an exact scan, aside, one at a time."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest
from prometheus_client import REGISTRY

from app.database import Database, sql
from app.recall import RecallConfig, RecallProbe, probe
from tests.api.conftest import Service
from tests.api.test_large_subjects import SIMILARITY_ONLY, facts, fill, forget_what_is_large, grow, search


def probes() -> tuple[float, float, float]:
    """How many ended, the sum of their ratios, and how many failed."""
    names: list[tuple[str, dict[str, str]]] = [
        ("mneme_recall_probe_ratio_count", {}),
        ("mneme_recall_probe_ratio_sum", {}),
        ("mneme_recall_probes_total", {"outcome": "failed"}),
    ]
    count, total, failed = (REGISTRY.get_sample_value(name, labels) or 0.0 for name, labels in names)
    return count, total, failed


async def ended(running: RecallProbe) -> None:
    if running._task is not None:
        await asyncio.wait([running._task])


@pytest.mark.usefixtures("by_index")
async def test_a_probe_tells_the_share_that_the_index_found(
    agent: httpx2.AsyncClient, service: Service, database: Database, owner_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: Any = service.app.state.mneme.recaller.probe
    await fill(agent, facts(400))
    await grow(database)
    forget_what_is_large(service)
    before = probes()
    monkeypatch.setattr(running, "_share", 0.0)
    await search(agent, "parcel in Rome")
    await ended(running)
    assert probes() == before
    monkeypatch.setattr(running, "_share", 1.0)
    nearest = await search(agent, "parcel in Rome", weights=SIMILARITY_ONLY)
    await ended(running)
    assert probes() == (before[0] + 1, before[1] + 1.0, before[2])
    owner = await asyncpg.connect(owner_url.replace("postgresql+asyncpg", "postgresql"))
    lost = [UUID(one) for one in nearest[:4]]
    await owner.execute("UPDATE memories SET ann = false WHERE memory_id = ANY ($1)", lost)
    await owner.close()
    await search(agent, "parcel in Rome")
    await ended(running)
    count, total, failed = probes()
    assert (count, failed) == (before[0] + 2, before[2])
    assert total == pytest.approx(before[1] + 1.6)


async def test_one_probe_at_a_time_and_one_that_fails_is_counted(
    database: Database, tenant: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = RecallProbe(database, RecallConfig(probe_share=1.0))
    before = probes()
    monkeypatch.setattr(probe, "PROBE_SECONDS", 0.05)
    for _ in range(5):
        running.offer(tenant, sql("SELECT cast(pg_sleep(10) AS text)"), {})
        await asyncio.sleep(0)
    await ended(running)
    assert probes() == (before[0], before[1], before[2] + 1)
    running.offer(tenant, sql("SELECT 0.5::float8"), {})
    await ended(running)
    assert probes() == (before[0] + 1, before[1] + 0.5, before[2] + 1)
    running.offer(tenant, sql("SELECT cast(pg_sleep(10) AS text)"), {})
    await asyncio.sleep(0)
    await running.close()
    assert probes() == (before[0] + 1, before[1] + 0.5, before[2] + 1)
