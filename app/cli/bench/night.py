"""Part `night`: how much slower search is while the clean-up of the night works through the same store.

For each memory that is searched four more are due to be forgotten, one of them of the very user who is asked about. The
clean-up is the command that cron calls, in a process of its own.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import asyncpg

from app.cli import schema
from app.cli.bench import raw, service, texts
from app.cli.bench.load import BenchFailed, Connection, Timing, drive, prepared
from app.cli.bench.parts import BATCH, BATCH_SIZE, Report, Size, Target, asking, shared
from app.cli.connect import URL
from app.cli.embedded import SUPERUSER, EmbeddedServer
from app.settings import PREFIX, variable

MOST_SLOWER: Final = 1.5
OTHERS: Final = 3  # memories of other users that are due, for each that is searched
LONGEST_SECONDS: Final = 50.0


def measure_night(server: EmbeddedServer, data_dir: Path, size: Size, processes: int = 1) -> Report:
    """Measure on a fresh database of `server`; raises BenchFailed or StartupRefused."""
    _, url = schema.prepare(server, "mneme_bench_night")
    with service.running(server, url, data_dir, "hashing", processes) as running:
        return asyncio.run(_measured(running, url, data_dir, size))


async def _measured(running: service.Service, url: str, data_dir: Path, size: Size) -> Report:
    users = [f"u{number}" for number in range(size.users)]
    connections = [Connection(running.port) for _ in users]
    try:
        await drive(shared([each.post for each in connections[:4]], _batches(users, size.memories)), 60)
        await _age(running.server.url(SUPERUSER, running.database))
        await raw.settle(running.server, running.database)
        questions = cycle(asking("night", users, size.seconds))
        calls = [each.post for each in connections]
        await drive(shared(calls, questions), size.seconds / 2)  # so that by day, too, users are held in memory
        day = await drive(shared(calls, questions), size.seconds)
        night, began = Timing(), time.perf_counter()
        told = data_dir / "night.log"
        cleaning = await _clean_up(url, data_dir, told)
        while cleaning.returncode is None and time.perf_counter() - began < LONGEST_SECONDS:
            night.add(await drive(shared(calls, questions), 0.5))
        seconds = time.perf_counter() - began
        await cleaning.wait()
    finally:
        for each in connections:
            each.close()
    archived = len(told.read_bytes().splitlines())
    if cleaning.returncode or not archived:
        raise BenchFailed(f"the clean-up ended with {cleaning.returncode} and archived {archived}")
    report = Report("night")
    slower = night.percentile(95) / day.percentile(95)
    report.targets.append(Target("search p95 during the clean-up, by day 1", slower, MOST_SLOWER, "x"))
    report.tables["search, milliseconds"] = {"by day": _figures(day), "during the clean-up": _figures(night)}
    report.tables["clean-up"] = {
        "all of it": {"archived": archived, "seconds": seconds, "archived a second": archived / seconds}
    }
    return report


def _figures(timing: Timing) -> dict[str, float]:
    percentiles = {f"p{percent}": timing.percentile(percent) for percent in (50, 95, 99)}
    return percentiles | {"a second": timing.per_second}


def _batches(users: list[str], memories: int) -> Iterator[bytes]:
    for user in users:
        contents = list(islice(texts.memories(f"night {user}"), memories))
        for start in range(0, len(contents), BATCH_SIZE):
            items = [
                {"user_id": user, "content": text, "importance": 3.0} for text in contents[start : start + BATCH_SIZE]
            ]
            yield prepared(BATCH, {"items": items})


async def _age(owner_url: str) -> None:
    connection = await asyncpg.connect(owner_url.replace("+asyncpg", ""))
    try:
        await connection.execute(_DUE, timeout=LONGEST_SECONDS)
    finally:
        await connection.close()


async def _clean_up(url: str, data_dir: Path, told: Path) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)} | {
        URL: url, variable(("data_dir",)): str(data_dir),
    }  # fmt: skip
    with told.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app.cli", "jobs", "run", "forget", "--once", "--quiet", env=environment,
            stdout=output,
        )  # fmt: skip


_DUE = f"""
    INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
    SELECT tenant_id, gen_random_uuid(), user_id || ' ' || n, created_at
    FROM subjects, generate_series(1, {OTHERS}) AS n WHERE user_id IS NOT NULL;
    WITH due AS (
        INSERT INTO memories (
            tenant_id, subject_id, memory_id, status, content, content_type, kind, importance, tags, metadata, pinned,
            version, created_at, updated_at, content_hash, keywords, word_count, tokenizer_version, embedding,
            generation_id
        )
        SELECT m.tenant_id, s.subject_id, gen_random_uuid(), m.status, m.content, m.content_type, m.kind, 1, m.tags,
               m.metadata, false, 1, m.created_at, m.updated_at - interval '30 days', uuid_send(gen_random_uuid()),
               m.keywords, m.word_count, m.tokenizer_version, m.embedding, m.generation_id
        FROM memories m
        JOIN subjects own ON own.tenant_id = m.tenant_id AND own.subject_id = m.subject_id
        JOIN subjects s ON s.tenant_id = m.tenant_id
             AND (s.user_id = own.user_id OR starts_with(s.user_id, own.user_id || ' '))
        WHERE m.status = 'active'
        RETURNING tenant_id, subject_id, memory_id
    )
    INSERT INTO memory_usage (tenant_id, subject_id, memory_id, access_count, hit_streak)
    SELECT tenant_id, subject_id, memory_id, 0, 0 FROM due
"""
