"""Counts of hits outlast whatever goes wrong with a flush, and so does the task that writes them."""

import asyncio
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from app.clock import now
from app.database import Database
from app.recall import RecallConfig, usage
from app.recall.query import Hit
from app.recall.usage import UsageBuffer, Written


async def test_a_flush_that_fails_for_any_reason_is_tried_again(
    database: Database, tenant: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen after a recovery: one error that was no outage, and no hit was ever written again."""
    written: list[Written] = []
    buffer = UsageBuffer(database, RecallConfig(usage_flush_seconds=0.01), written.append)
    subject_id, memory_id = UUID(str(uuid7())), UUID(str(uuid7()))
    hit = Hit({"id": memory_id, "kind": "profile"}, subject_id, 0.5)
    right, tried = usage._FLUSH, asyncio.Event()

    class Wrong:
        names = right.names

        @property
        def sql(self) -> str:
            tried.set()
            return "INSERT INTO no_such_table VALUES (1)"

        def arguments(self, values: object) -> list[object]:
            return []

    monkeypatch.setattr(usage, "_FLUSH", Wrong())
    buffer.add(tenant, [hit], now())
    await buffer.start()
    await asyncio.wait_for(tried.wait(), 10)
    monkeypatch.setattr(usage, "_FLUSH", right)
    buffer.add(tenant, [hit], now())
    async with asyncio.timeout(10):
        while not written:  # noqa: ASYNC110 - that the task goes on by itself is what is tested
            await asyncio.sleep(0.01)
    await buffer.close()
    assert [counts[tenant, subject_id][memory_id][0] for counts in written] == [2]
