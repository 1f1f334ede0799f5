"""Runs jobs: one run a slot over all replicas, by a row with a lease in PostgreSQL; the scheduler is only the clock.

Invariant: a run whose lease another process could have taken is cancelled before that can happen. A job that fails is
counted and logged, and tried again later; nothing a job does ends the process.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from app import telemetry
from app.again import again
from app.clock import now
from app.errand import Errand
from app.errors import StartupRefused, VerificationFailed
from app.runs import KnownJob, Runs, Slot, Turn, register_jobs
from workers.context import Context
from workers.jobs import JOBS, Job
from workers.schedule import Cron, Schedule, delay


class LeaseLost(Exception):
    """Another worker may have taken the run over."""


class JobHeld(Exception):
    """A run of this job goes on elsewhere."""


class JobDone(Exception):
    """The slot has had its run."""


@dataclass(slots=True)
class Runner:
    """Runs the jobs of one process, each at most once at a time. Raises StartupRefused for a wrong schedule."""

    context: Context
    lease: timedelta
    jobs: Sequence[Job] = JOBS
    worker: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}")
    runs: Runs = field(init=False)
    schedules: dict[str, Schedule | None] = field(init=False)
    _running: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _ending: bool = False
    _done: dict[str, datetime] = field(default_factory=dict)  # the last slot known to have had its run

    def __post_init__(self) -> None:
        self.runs = Runs(self.context.database, self.worker, self.lease)
        config = self.context.settings.jobs
        unknown = sorted(config.cron.keys() - {job.name for job in self.jobs})
        if unknown:
            raise StartupRefused(f"jobs.cron names no job: {', '.join(unknown)}")
        try:
            self.schedules = {job.name: job.schedule(config) for job in self.jobs}
            for schedule in self.schedules.values():
                if schedule is not None:
                    schedule.following(now())
        except ValueError as error:
            raise StartupRefused(f"jobs.cron: {error}") from error

    async def tick(self, job: Job) -> None:
        """Start `job` in the background unless its last run still goes on."""
        if not self._is_running(job.name):
            self._begin(job.name, self.run(job, now()))

    async def tick_asked(self) -> None:
        """Start a run that somebody asked for; one that cannot be begun here is left to other workers."""
        try:
            turn = await self.runs.take_asked()
        except Exception as error:
            telemetry.log().error("asked_runs_unread", **telemetry.frames(error))
            return
        if turn is not None:
            self._begin(f"asked {turn.run_id}", self._run_asked(turn))

    async def register(self) -> None:
        """Say which jobs this process does, and when."""
        moment, known = now(), []
        for job in self.jobs:
            schedule = self.schedules[job.name]
            known.append(
                KnownJob(
                    job.name, job.meaning, "off" if schedule is None else str(schedule),
                    None if schedule is None or not job.once else schedule.following(moment),
                    job.by_tenant, job.can_be_dry,
                )
            )  # fmt: skip
        with contextlib.suppress(Exception):  # a database that is away for a moment
            await register_jobs(self.context.database, self.worker, known, now=moment)

    async def drain(self, timeout_seconds: float) -> None:
        """Let running jobs end, and cancel those that take longer: their leases are given back, other workers go on."""
        self._ending = True
        running = [task for task in self._running.values() if not task.done()]
        if running:
            _, late = await asyncio.wait(running, timeout=timeout_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def run(self, job: Job, moment: datetime) -> None:
        """Run `job` for the slot of `moment`, unless that slot has had its run; never raises but when cancelled."""
        schedule = self.schedules[job.name]
        if schedule is None:
            return
        with contextlib.suppress(Exception):  # told already
            if not job.once:
                errand = Errand(moment)
                await self._told(job, errand, self._work(job, errand))
                return
            slot = schedule.slot(moment)
            jitter = self.context.settings.jobs.jitter_seconds if isinstance(schedule, Cron) else 0
            if self._done.get(job.name) != slot and moment >= slot + delay(job.name, slot, jitter):
                await self.run_slot(job, Slot(job.name, slot, attempts=job.attempts), Errand(moment))

    async def run_slot(self, job: Job, slot: Slot, errand: Errand) -> None:
        """Run a job once for this slot, and leave what it did in the errand.

        Raises JobHeld, JobDone, LeaseLost and what the job raises.
        """
        try:
            turn = await self.runs.claim(slot)
        except Exception as error:
            _tell_failure(job, error)
            raise
        if turn == "done":
            self._done[job.name] = slot.at
            raise JobDone
        if turn == "held":
            raise JobHeld
        await self._run_turn(job, turn, errand)

    async def _run_asked(self, turn: Turn) -> None:
        job = next((job for job in self.jobs if job.name == turn.slot.job), None)
        with contextlib.suppress(Exception):  # told already; a lease that is not given back ends by itself
            if job is None:
                telemetry.log().error("job_unknown", job=turn.slot.job)
                await self.runs.finish(turn, {}, "UnknownJob")
                return
            await self._run_turn(job, turn, Errand(now(), tenant_id=turn.slot.tenant_id, dry_run=turn.slot.dry_run))

    async def _run_turn(self, job: Job, turn: Turn, errand: Errand) -> None:
        config = self.context.settings.jobs
        errand.run_id, errand.budget_seconds, errand.rest = turn.run_id, config.budget_seconds, config.rest
        await self._told(job, errand, self._leased(job, turn, errand))

    async def _told(self, job: Job, errand: Errand, work: Awaitable[int]) -> None:
        """Await the work, and tell log and metrics how it ended."""
        started = time.monotonic()
        try:
            rows = await work
        except Exception as error:
            _tell_failure(job, error)
            raise
        duration = time.monotonic() - started
        telemetry.JOB_RUNS.labels(job.name, "succeeded").inc()
        telemetry.JOB_DURATION_SECONDS.labels(job.name).observe(duration)
        telemetry.JOB_ROWS.labels(job.name).inc(rows)
        telemetry.JOB_LAST_SUCCESS_TIMESTAMP_SECONDS.labels(job.name).set(now().timestamp())
        if rows or job.once:
            telemetry.log().info(
                "job_done", job=job.name, rows=rows, duration_ms=round(duration * 1000, 1), run_id=str(errand.run_id),
                dry_run=errand.dry_run, counts=dict(errand.counts),
            )  # fmt: skip

    async def _leased(self, job: Job, turn: Turn, errand: Errand) -> int:
        """Run the job while a heartbeat renews its lease; a lost lease ends the run with LeaseLost."""
        work = asyncio.ensure_future(self._work(job, errand))
        heart = asyncio.create_task(self._beat(turn, errand))
        lost: bool | None = None
        try:
            await asyncio.wait((work, heart), return_when=asyncio.FIRST_COMPLETED)
            lost = not work.done()
        finally:
            work.cancel()
            heart.cancel()
            await asyncio.gather(work, heart, return_exceptions=True)
            if lost is None and self._ending:  # else its row stays `running` until the lease is over
                with contextlib.suppress(Exception):
                    await self.runs.give_back(turn)
        if lost:
            telemetry.JOB_LEASE_LOST.labels(job.name).inc()
            raise LeaseLost(job.name)
        error = work.exception()
        rows = 0 if error is not None else work.result()
        failure = None if error is None else type(error).__name__
        if rows and not errand.counts:  # of a job with nothing to tell apart, whoever reads the errand learns how much
            errand.counts["rows"] = rows
        await self.runs.finish(turn, {"rows": rows, **errand.counts}, failure)
        if error is not None:
            raise error
        return rows

    async def _work(self, job: Job, errand: Errand) -> int:
        """The job itself: a deadlock in one of its batches makes it go on, not fail."""
        return await again(self.context.database, lambda: job.run(self.context, errand), resumes=True)

    async def _beat(self, turn: Turn, errand: Errand) -> None:
        """Renew the lease until it is lost: taken by another worker, or not renewed in time."""
        period = self.lease.total_seconds() / 4
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(period)
            with contextlib.suppress(Exception):  # a database that is away for a moment does not cost the lease
                if not await self.runs.renew(turn, errand.counts):
                    return
                renewed = time.monotonic()
            if time.monotonic() - renewed > 2 * period:
                return

    def _is_running(self, name: str) -> bool:
        task = self._running.get(name)
        return task is not None and not task.done()

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"job {name}")
        self._running[name] = task
        task.add_done_callback(lambda _: self._running.pop(name, None))


def _tell_failure(job: Job, error: Exception) -> None:
    telemetry.JOB_RUNS.labels(job.name, "failed").inc()
    reason = {"reason": error.message} if isinstance(error, (StartupRefused, VerificationFailed)) else {}
    telemetry.log().error("job_failed", job=job.name, **reason, **telemetry.frames(error))
