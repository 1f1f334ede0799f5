"""What part `growth` stands on: a server with the memory of a production one, and stores filled in bulk.

Invariant: a store that was filled says so and is found again by the next run in the same directory. Nothing is flushed
to disk (fsync off): loading is not what is measured.
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
from app.remember import content_hash

GIGABYTE: Final = 1 << 30
TUNED: Final = MappingProxyType(
    {
        "fsync": "off",
        "full_page_writes": "off",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "max_wal_size": "16GB",
        "autovacuum": "off",
        "maintenance_work_mem": "4GB",
        "max_parallel_maintenance_workers": "1",
    }
)

_COMMENT: Final = """
    SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = $1
"""


def start(directory: Path) -> EmbeddedServer:
    """Start a server whose shared buffers are a quarter of the machine's memory, 4 GB at most."""
    server = embedded.start(directory)
    memory = psutil.virtual_memory().total
    buffers = max(1, min(4, memory // GIGABYTE // 4))
    asyncio.run(_tune(server, {**TUNED, "shared_buffers": f"{buffers}GB", "effective_cache_size": f"{2 * buffers}GB"}))
    embedded.stop(directory)
    return embedded.start(directory)


def store(server: EmbeddedServer, name: str, lots: Sequence[Lot], embed: EmbedConfig, data_dir: Path) -> str:
    """Find or make a store, filled as the job for large subjects leaves it; returns the URL of the service.

    What was begun and not finished, or filled with other lots, is made anew.
    """
    filled = f"filled: {content_hash(repr((lots, embed.provider))).hex()}"
    if asyncio.run(_comment(server, name)) == filled:
        return schema.prepare(server, name)[1]
    asyncio.run(_administer(server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
    _, url = schema.prepare(server, name)
    asyncio.run(_claim(url, embed, data_dir))
    stock.load(server, name, DEFAULT_TENANT_ID, lots)
    asyncio.run(_tend(url, min((lot.rows for lot in lots if lot.large), default=1_000_000) - 1))
    asyncio.run(_administer(server, f"COMMENT ON DATABASE {name} IS '{filled}'"))
    return url


async def _comment(server: EmbeddedServer, name: str) -> str | None:
    connection = await raw.connect(server, "postgres", teach=None)
    try:
        found: str | None = await connection.fetchval(_COMMENT, name)
        return found
    finally:
        await connection.close()


async def _tune(server: EmbeddedServer, settings: Mapping[str, str]) -> None:
    await _administer(server, *(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()))


async def _administer(server: EmbeddedServer, *commands: str) -> None:
    connection = await raw.connect(server, "postgres", teach=None)
    try:
        for command in commands:
            await connection.execute(command)
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
