"""kill -9 of the API while it writes: what was acknowledged is there once, a retry gives the same answer."""

import asyncio
from pathlib import Path
from uuid import UUID

import httpx2

from app.database import Database, sql
from tests.api.conftest import MakeKey, bearer
from tests.api.test_serve import started

STORED = sql("SELECT content, count(*) AS rows FROM memories WHERE tenant_id = :tenant_id GROUP BY content")
WRITES = 300  # more than can be under way at once: some are still to come when the process dies


async def test_acknowledged_writes_survive_kill_9_and_retries_double_nothing(
    database_url: str, tmp_path: Path, make_key: MakeKey, database: Database, tenant: UUID
) -> None:
    headers = bearer(await make_key())
    acknowledged: dict[int, bytes] = {}

    async def send(client: httpx2.AsyncClient, number: int) -> httpx2.Response:
        return await client.post(
            "/v1/memories",
            json={"user_id": f"user{number % 7}", "content": f"fact number {number}"},
            headers=headers | {"Idempotency-Key": f"write-{number}"},
        )

    async with (
        started(database_url, tmp_path) as service,
        httpx2.AsyncClient(base_url=service.url, timeout=10) as client,
    ):

        async def write(number: int) -> None:
            response = await send(client, number)
            assert response.status_code == 201
            acknowledged[number] = response.content
            if len(acknowledged) == WRITES // 3:
                service.process.kill()

        await asyncio.gather(*(write(number) for number in range(WRITES)), return_exceptions=True)
    assert WRITES // 3 <= len(acknowledged) < WRITES

    async with (
        started(database_url, tmp_path) as service,
        httpx2.AsyncClient(base_url=service.url, timeout=10) as client,
    ):
        answers = await asyncio.gather(*(send(client, number) for number in range(WRITES)))
    assert {answer.status_code for answer in answers} == {201}
    assert all(answers[number].content == body for number, body in acknowledged.items())
    async with database.read(tenant) as transaction:
        rows = {row["content"]: row["rows"] for row in await transaction.fetch(STORED, tenant_id=tenant)}
    assert rows == {f"fact number {number}": 1 for number in range(WRITES)}
