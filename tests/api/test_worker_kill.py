"""kill -9 of a real worker: what it had in hand is finished by the next one, once; and what happened is told."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2

from app.database import Database
from tests.api.conftest import PEPPER, MakeKey, bearer, make_settings, run
from tests.api.test_operations import FACT, INPUT
from tests.api.test_serve import free_port
from tests.api.test_webhooks import TRUSTING, verified
from tests.embed.server import serving, status


@asynccontextmanager
async def worker(database_url: str, data_dir: Path, llm_url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process; whoever leaves kills it."""
    environment = os.environ | {
        "MNEME_DATABASE__URL": database_url,
        "MNEME_DATA_DIR": str(data_dir),
        "MNEME_AUTH__PEPPER": PEPPER,
        "MNEME_EMBED__PROVIDER": "hashing",
        "MNEME_WORKER__METRICS_PORT": str(free_port()),
        "MNEME_OPERATIONS__LEASE_SECONDS": "1",
        "MNEME_LLM__URL": llm_url.removesuffix("/chat/completions"),
        "MNEME_LLM__MODEL": "played",
        "MNEME_WEBHOOKS__ALLOW_PRIVATE_TARGETS": "true",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workers", env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ended(client: httpx2.AsyncClient, place: str) -> dict[str, Any]:
    """The operation once it has ended; the service's longest wait bounds each look."""
    while True:
        shown: dict[str, Any] = (await client.get(place, params={"wait": "true"})).json()
        if shown["state"] not in ("queued", "running"):
            return shown


async def test_an_operation_survives_kill_9_of_its_worker_and_is_done_once(
    database_url: str, tmp_path: Path, make_key: MakeKey, database: Database, tenant: UUID
) -> None:
    settings = make_settings(database_url, tmp_path)
    settings.webhooks = TRUSTING
    with (
        serving("/v1/chat/completions", FACT) as model,
        serving("/hook", status(204)) as receiver,
    ):
        async with (
            run(settings) as service,
            httpx2.AsyncClient(
                base_url=service.client.base_url, headers=bearer(await make_key()), timeout=60
            ) as client,
            asyncio.timeout(120),
        ):
            webhook = (await client.post("/v1/webhooks", json={"url": receiver.url})).json()
            model.scripts = [model.silent]
            body = {"user_id": "amy", "messages": [{"role": "user", "content": "我对芒果过敏"}]}
            place = (await client.post("/v1/memories:extract", json=body)).headers["Location"]
            async with worker(database_url, tmp_path, model.url) as first:
                assert await asyncio.to_thread(model.asked.acquire, timeout=60)
                assert (await client.get(place)).json()["state"] == "running"
                first.kill()
                await first.wait()
            async with database.read(tenant) as transaction:
                kept = await transaction.fetch_value(
                    INPUT, tenant_id=tenant, operation_id=UUID(place.rpartition("/")[2])
                )
            assert kept["messages"][0]["content"] == "我对芒果过敏"
            model.scripts = [FACT]
            async with worker(database_url, tmp_path, model.url):
                shown = await ended(client, place)
                while len(receiver.bodies) < 2:
                    assert await asyncio.to_thread(receiver.asked.acquire, timeout=60)
            assert (shown["state"], shown["attempts"]) == ("succeeded", 2)
            memories = (await client.get("/v1/memories", params={"user_id": "amy"})).json()["items"]
            assert [memory["id"] for memory in memories] == [fact["memory_id"] for fact in shown["result"]["facts"]]
            told = [body for _, body in verified(webhook["secret"], receiver)]
            assert [(body["type"], body["data"].get("state")) for body in told] == [
                ("memory.created", None), ("operation.finished", "succeeded"),
            ]  # fmt: skip
            assert told[1]["data"]["operation_id"] == shown["id"]
            await client.delete(f"/v1/webhooks/{webhook['id']}")
