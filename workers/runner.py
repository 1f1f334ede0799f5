"""Runs jobs: one run a slot over all replicas, by a row with a lease in PostgreSQL; the scheduler is only the clock.

Invariant: a run whose lease another process could have taken is cancelled before that can happen. Leases are measured
by the database's clock, the only one that all replicas share. A job that fails is counted and logged, and the next
slot tries again; nothing a job does ends the process.
"""

import asyncio
import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from app import telemetry
from app.clock import now
from app.database import Database, sql
from app.errors import StartupRefused
from workers.context import Context
from workers.jobs import Job

KEEP_RUNS = timedelta(days=30)


@dataclass(slots=True)
class Runner:
    """Runs the jobs of one process, each at most once at a time."""

    context: Context
    lease: timedelta
    worker: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}")
    _running: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)

    async def tick(self, job: Job) -> None:
        """Start `job` in the background unless its last run still goes on."""
        task = self._running.get(job.name)
        if task is None or task.done():
            self._running[job.name] = asyncio.create_task(self.run(job, now()), name=f"job {job.name}")

    async def drain(self, timeout_seconds: float) -> None:
        """Let running jobs end, and cancel those that take longer; their leases expire and other workers go on."""
        running = [task for task in self._running.values() if not task.done()]
        if running:
            _, late = await asyncio.wait(running, timeout=timeout_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def run(self, job: Job, moment: datetime) -> None:
        """Run `job` for the slot of `moment`, unless that slot has had its run; never raises but when cancelled."""
        started = time.monotonic()
        try:
            if job.once:
                slot = slot_of(moment, job.every_seconds)
                if not await claim(self.context.database, job.name, slot, self.worker, self.lease):
                    return
                rows = await self._leased(job, slot, moment)
            else:
                rows = await job.run(self.context, moment)
        except Exception as error:
            telemetry.JOB_RUNS.labels(job.name, "failed").inc()
            reason = {"reason": error.message} if isinstance(error, StartupRefused) else {}
            telemetry.log().error("job_failed", job=job.name, **reason, **telemetry.frames(error))
            return
        duration = time.monotonic() - started
        telemetry.JOB_RUNS.labels(job.name, "succeeded").inc()
        telemetry.JOB_DURATION_SECONDS.labels(job.name).observe(duration)
        telemetry.JOB_ROWS.labels(job.name).inc(rows)
        telemetry.JOB_LAST_SUCCESS_TIMESTAMP_SECONDS.labels(job.name).set(now().timestamp())
        if rows or job.once:
            telemetry.log().info("job_done", job=job.name, rows=rows, duration_ms=round(duration * 1000, 1))

    async def _leased(self, job: Job, slot: datetime, moment: datetime) -> int:
        """Run the job while a heartbeat renews its lease; a lost lease ends the run with LeaseLost."""
        work = asyncio.ensure_future(job.run(self.context, moment))
        heart = asyncio.create_task(self._beat(job.name, slot))
        try:
            await asyncio.wait((work, heart), return_when=asyncio.FIRST_COMPLETED)
            lost = not work.done()
        finally:  # also when this run is cancelled: then its row stays `running` until the lease is over
            work.cancel()
            heart.cancel()
            await asyncio.gather(work, heart, return_exceptions=True)
        if lost:
            telemetry.JOB_LEASE_LOST.labels(job.name).inc()
            raise LeaseLost(job.name)
        error = work.exception()
        rows = 0 if error is not None else work.result()
        failure = None if error is None else type(error).__name__
        await finish(self.context.database, job.name, slot, self.worker, rows=rows, error=failure)
        if error is not None:
            raise error
        return rows

    async def _beat(self, name: str, slot: datetime) -> None:
        """Renew the lease until it is lost: taken by another worker, or not renewed in time."""
        period = self.lease.total_seconds() / 4
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(period)
            with contextlib.suppress(Exception):  # a database that is away for a moment does not cost the lease
                if not await renew(self.context.database, name, slot, self.worker, self.lease):
                    return
                renewed = time.monotonic()
            if time.monotonic() - renewed > 2 * period:
                return


class LeaseLost(Exception):
    """Another worker may have taken the run over."""


def slot_of(moment: datetime, every_seconds: float) -> datetime:
    """Return the start of the slot that `moment` falls into: a multiple of `every_seconds` since 1970, in UTC."""
    return datetime.fromtimestamp(moment.timestamp() // every_seconds * every_seconds, UTC)


async def claim(database: Database, job: str, slot: datetime, worker: str, lease: timedelta) -> bool:
    """Take the slot's one run, new or left over by a worker whose lease is over; tells whether it is ours."""
    async with database.work() as transaction:
        return await transaction.fetch_value(_CLAIM, job=job, slot=slot, worker=worker, lease=lease) is not None


async def renew(database: Database, job: str, slot: datetime, worker: str, lease: timedelta) -> bool:
    """Move the end of the lease; tells whether it was still ours."""
    async with database.work() as transaction:
        return await transaction.execute(_RENEW, job=job, slot=slot, worker=worker, lease=lease) == 1


async def finish(
    database: Database, job: str, slot: datetime, worker: str, *, rows: int = 0, error: str | None = None
) -> None:
    """Write down how the run ended (an error's type, never its text), and forget runs older than 30 days."""
    async with database.work() as transaction:
        await transaction.execute(
            _FINISH,
            job=job,
            slot=slot,
            worker=worker,
            state="succeeded" if error is None else "failed",
            counts={"rows": rows},
            error=error,
        )
        await transaction.execute(_FORGET, job=job, keep=KEEP_RUNS)


_CLAIM = sql("""
    INSERT INTO job_runs AS run (job, slot, state, worker, started_at, heartbeat_at, lease_until, counts)
    VALUES (:job, :slot, 'running', :worker, clock_timestamp(), clock_timestamp(),
            clock_timestamp() + CAST(:lease AS interval), '{}')
    ON CONFLICT (job, slot) DO UPDATE
    SET worker = excluded.worker, started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at,
        lease_until = excluded.lease_until
    WHERE run.state = 'running' AND run.lease_until < clock_timestamp()
    RETURNING worker
""")
_RENEW = sql("""
    UPDATE job_runs SET heartbeat_at = clock_timestamp(), lease_until = clock_timestamp() + CAST(:lease AS interval)
    WHERE job = :job AND slot = :slot AND worker = :worker AND state = 'running'
""")
_FINISH = sql("""
    UPDATE job_runs SET state = :state, finished_at = clock_timestamp(), counts = :counts, error = :error
    WHERE job = :job AND slot = :slot AND worker = :worker AND state = 'running'
""")
_FORGET = sql("DELETE FROM job_runs WHERE job = :job AND slot < clock_timestamp() - CAST(:keep AS interval)")
