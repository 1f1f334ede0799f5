"""What part `growth` stands on: a server with the memory of a production one, and stores filled in bulk.

Invariant: nothing is kept. Nothing is flushed to disk either (fsync off): loading is not what is measured.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil
from pydantic import SecretStr

from app.cli import embedded, schema
from app.cli.bench import raw, stock
from app.cli.bench.stock import Lot
from app.cli.embedded import EmbeddedServer
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database
from app.embed import EmbedConfig, claim_generation, load_embedder
from app.guard import DEFAULT_TENANT_ID
from app.language import TOKENIZER_VERSION
from app.recall import RecallConfig, tend_large_subjects

GIGABYTE: Final = 1 << 30
TUNED: Final = MappingProxyType(
    {"fsync": "off", "max_wal_size": "16GB", "maintenance_work_mem": "4GB", "max_parallel_maintenance_workers": "2"}
)


def start(directory: Path) -> EmbeddedServer:
    """Start a new server whose shared buffers are a quarter of the machine's memory, 4 GB at most."""
    server = embedded.start(directory)
    memory = psutil.virtual_memory().total
    buffers = max(1, min(4, memory // GIGABYTE // 4))
    asyncio.run(_tune(server, {**TUNED, "shared_buffers": f"{buffers}GB", "effective_cache_size": f"{2 * buffers}GB"}))
    embedded.stop(directory)
    return embedded.start(directory)


def store(server: EmbeddedServer, name: str, lots: Sequence[Lot], embed: EmbedConfig, data_dir: Path) -> str:
    """Make a store, fill it, and do what the job for large subjects does; returns the URL of the service."""
    _, url = schema.prepare(server, name)
    asyncio.run(_claim(url, embed, data_dir))
    stock.load(server, name, DEFAULT_TENANT_ID, lots)
    asyncio.run(_tend(url, min((lot.rows for lot in lots if lot.large), default=1_000_000) - 1))
    return url


async def _tune(server: EmbeddedServer, settings: Mapping[str, str]) -> None:
    connection = await raw.connect(server, "postgres", teach=None)
    try:
        for name, value in settings.items():
            await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    finally:
        await connection.close()


async def _claim(url: str, embed: EmbedConfig, data_dir: Path) -> None:
    database = await Database.connect(DatabaseConfig(url=SecretStr(url)))
    try:
        spec = load_embedder(embed, data_dir).spec
        await claim_generation(database, spec, TOKENIZER_VERSION, now())
    finally:
        await database.close()


async def _tend(url: str, exact_scan_rows: int) -> None:
    database = await Database.connect(DatabaseConfig(url=SecretStr(url)))
    try:
        await tend_large_subjects(database, RecallConfig(exact_scan_rows=max(100, exact_scan_rows)), now=now())
    finally:
        await database.close()
