"""The process itself: it says where it listens, ends gently when told, loses nothing, and refuses plainly."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from app.database import Database, sql
from app.errors import StartupRefused
from app.main import serve
from tests.api.conftest import PEPPER, MakeKey, bearer, make_settings

COMMAND = "from app.main import serve; from app.settings import load_settings; serve(load_settings())"
_COUNT = sql("SELECT access_count FROM memory_usage WHERE memory_id = :memory_id")


@dataclass
class Process:
    """A running service of its own."""

    process: asyncio.subprocess.Process
    url: str

    async def ended(self) -> tuple[int, list[dict[str, Any]]]:
        """Its exit code and the log lines after it began to listen."""
        out, _ = await asyncio.wait_for(self.process.communicate(), 30)
        return self.process.returncode or 0, [json.loads(line) for line in out.splitlines()]


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@asynccontextmanager
async def started(database_url: str, data_dir: Path) -> AsyncIterator[Process]:
    """Start `serve` in a process and wait until it says where it listens."""
    environment = os.environ | {
        "MNEME_DATABASE__URL": database_url,
        "MNEME_DATA_DIR": str(data_dir),
        "MNEME_AUTH__PEPPER": PEPPER,
        "MNEME_AUTH__REQUIRED": "true",
        "MNEME_EMBED__PROVIDER": "hashing",
        "MNEME_API__PORT": str(free_port()),
        "MNEME_RECALL__USAGE_FLUSH_SECONDS": "60",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMMAND, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        while True:
            line = json.loads(await process.stdout.readline())
            if line["event"] == "listening":
                break
        yield Process(process, f"http://127.0.0.1:{line['port']}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_told_to_end_it_answers_what_it_began_and_writes_what_it_kept(
    database_url: str, tmp_path: Path, make_key: MakeKey, database: Database, tenant: UUID
) -> None:
    key = bearer(await make_key())
    async with (
        started(database_url, tmp_path) as service,
        httpx2.AsyncClient(base_url=service.url, headers=key, timeout=30) as client,
    ):
        body = {"content": "Amy lives in Oslo", "user_id": "amy"}
        memory_id = UUID((await client.post("/v1/memories", json=body)).json()["id"])
        hits = (await client.post("/v1/memories:search", json={"query": "Oslo", "user_id": "amy"})).json()["hits"]
        assert len(hits) == 1
        items = [{"content": f"Amy knows {number} songs", "user_id": "amy"} for number in range(300)]
        running = asyncio.create_task(client.post("/v1/memories:batch", json={"items": items}))
        await asyncio.sleep(0.05)  # until it is under way
        service.process.send_signal(signal.SIGTERM)
        assert (await running).status_code == 200
        code, lines = await service.ended()
        assert code == 0
        assert all(line["level"] == "info" for line in lines)
        with pytest.raises(httpx2.ConnectError):
            await client.get("/livez")
    async with database.read(tenant) as transaction:
        assert await transaction.fetch_value(_COUNT, memory_id=memory_id) == 1


def test_a_taken_port_is_a_plain_refusal(database_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupRefused, match=f"cannot listen on 127.0.0.1:{port}"):
            serve(make_settings(database_url, tmp_path, port=port))
