"""The history checker: what the service acknowledged while things broke, against what is there afterwards."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from uuid import UUID

import httpx2
import orjson

from app.backup.content import plain_connection
from tests.faults.processes import until

DEADLINE_SECONDS: Final = 25.0
"""No request takes longer, whatever is broken: the limits of Stage add up to 12 s, and machines may be slow."""
BROKEN: Final = frozenset({503, 504, 507})
"""What a service may answer while something that it needs is broken; everything else is a fault of its own."""
USERS: Final = 7


@dataclass
class History:
    """Writers that each store one unique memory after the other, and retry each until it is acknowledged.

    `violations` are answers that may never be given, whatever is broken.
    """

    client: httpx2.AsyncClient
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)
    _open: bool = True

    async def attempt(self, number: int) -> bytes | None:
        """Ask once for a memory to be stored, and return the answer, or None for none or a refusal that may pass."""
        try:
            answer = await self.client.post(
                "/v1/memories",
                json={"user_id": f"user{number % USERS}", "content": f"编号 {number} fact number {number}"},
                headers={"Idempotency-Key": f"write-{number}"},
            )
        except httpx2.TransportError as error:
            self.refusals[type(error).__name__] += 1
            return None
        if answer.status_code == 201:
            return answer.content
        code = answer.json().get("code")
        self.refusals[f"{answer.status_code} {code}"] += 1
        if answer.status_code == 409 and code == "idempotency_in_progress":
            return None
        if answer.status_code not in BROKEN or int(answer.headers.get("Retry-After", 0)) < 1:
            self.violations.append(f"{answer.status_code} {answer.text}")
        return None

    async def write(self) -> None:
        """Store memories until the history is closed; what was begun is retried until it is acknowledged."""
        while self._open:
            number = next(self._numbers)
            answer = None
            while answer is None:
                answer = await self.attempt(number)
                await asyncio.sleep(0 if answer else 0.1)
            self.acknowledged[number] = answer

    @asynccontextmanager
    async def written(self, writers: int = 8) -> AsyncIterator[None]:
        """Write while the block runs, and end with everything acknowledged that was begun."""
        tasks = [asyncio.create_task(self.write()) for _ in range(writers)]
        try:
            yield
            self._open = False
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    async def goes_on(self, more: int = 20) -> None:
        """Wait until so many more are acknowledged: the service has healed."""
        goal = len(self.acknowledged) + more
        await until(lambda: len(self.acknowledged) >= goal, f"acknowledged again, after {dict(self.refusals)}")

    async def check(self, owner_url: str) -> None:
        """Acknowledged is present exactly once, as it was answered; nothing else is there; a retry says the same."""
        assert not self.violations, self.violations[:3]
        begun = next(self._numbers)
        assert set(self.acknowledged) == set(range(begun))
        async with plain_connection(owner_url) as connection:
            rows = await connection.fetch(_ROWS)
        stored = {row["memory_id"]: row for row in rows}
        assert {row["content"]: row["copies"] for row in await _copies(owner_url)} == {
            f"编号 {number} fact number {number}": 1 for number in range(begun)
        }
        for number, answer in self.acknowledged.items():
            memory: dict[str, Any] = orjson.loads(answer)["memory"]
            row = stored[UUID(memory["id"])]
            assert (row["content"], row["status"]) == (memory["content"], "active")
            assert (row["events"], row["counters"], row["answers"]) == (1, 1, 1), number
        for number in list(self.acknowledged)[:: max(1, begun // 50)]:
            assert await self.attempt(number) == self.acknowledged[number]


async def _copies(owner_url: str) -> list[Any]:
    async with plain_connection(owner_url) as connection:
        copies: list[Any] = await connection.fetch("SELECT content, count(*) AS copies FROM memories GROUP BY content")
    return copies


_ROWS: Final = """
    SELECT m.memory_id, m.content, m.status,
           (SELECT count(*) FROM memory_events e WHERE e.tenant_id = m.tenant_id AND e.memory_id = m.memory_id)
               AS events,
           (SELECT count(*) FROM memory_usage u WHERE u.tenant_id = m.tenant_id AND u.memory_id = m.memory_id)
               AS counters,
           (SELECT count(*) FROM idempotency_keys i
            WHERE i.key = 'write-' || substring(m.content FROM '[0-9]+$')) AS answers
    FROM memories m
"""
