"""R37: a run killed half-way is finished by the next one; nothing is archived twice, nothing without a trace."""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from app.clock import now
from app.database import sql
from tests.forget.conftest import Store

_STATE = sql("""
    SELECT count(*) FILTER (WHERE m.status = 'archived') AS archived, count(DISTINCT a.memory_id) AS kept,
           (SELECT count(*) FROM memory_events e WHERE e.tenant_id = :tenant AND e.action = 'archived') AS events,
           count(DISTINCT a.run_id) AS runs
    FROM memories m LEFT JOIN memory_archive a USING (tenant_id, subject_id, memory_id) WHERE m.tenant_id = :tenant
""")


async def state(store: Store) -> tuple[int, ...]:
    async with store.database.read(store.tenant_id) as transaction:
        row = await transaction.fetch_row(_STATE, tenant=store.tenant_id)
    assert row is not None
    return tuple(row.values())


async def test_a_killed_run_is_finished_by_the_next_one(store: Store, database_url: str, tmp_path: Path) -> None:
    await store.add(importance=1.0, updated_at=now() - timedelta(days=30))
    await store.multiply(4_999)

    async def start() -> asyncio.subprocess.Process:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MNEME_")}
        settings = {"MNEME_DATABASE__URL": database_url, "MNEME_WORKER__LEASE_SECONDS": "1"}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app.cli", "jobs", "run", "forget", "--quiet", "--tenant", str(store.tenant_id),
            env=environment | settings | {"PYTHONPATH": str(Path.cwd())}, cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    killed = await start()
    assert killed.stdout is not None
    assert await killed.stdout.readline()  # it is at it
    killed.send_signal(signal.SIGKILL)
    await killed.communicate()
    archived, kept, events, runs = await state(store)
    assert archived == kept == events
    assert (0 < archived < 5000, runs) == (True, 1)

    code, out = 75, b""
    async with asyncio.timeout(120):
        while code == 75:  # until the lease of the dead one is over
            process = await start()
            out, _ = await process.communicate()
            code = process.returncode or 0
    assert code == 0
    assert len(out.splitlines()) == 5000 - archived
    assert await state(store) == (5000, 5000, 5000, 2)
