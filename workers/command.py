"""What `mneme jobs` does: the same jobs, under the same leases, in the process of whoever calls them.

Loaded by name: no room of the app imports the workers.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from app.clock import now
from app.database import Database
from app.errand import Change, Errand
from app.errors import NotFound
from app.runs import Slot, known_jobs
from app.settings import Settings
from workers.context import Context
from workers.jobs import JOBS, Job
from workers.runner import JobDone, JobHeld, Runner

ACTOR = "command"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run as it is asked for: of one tenant only, dry, or only if the slot of this moment has not had its run."""

    name: str
    tenant_id: UUID | None = None
    dry_run: bool = False
    if_due: bool = False


async def list_jobs(settings: Settings, database: Database) -> list[dict[str, Any]]:
    """Every job with its schedule here, the moment it runs next, and its last run."""
    runner = Runner(Context(settings, database), timedelta(seconds=settings.worker.lease_seconds))
    last = {job["job"]: job["last_run"] for job in await known_jobs(database, None)}
    moment, rows = now(), []
    for job in JOBS:
        schedule = runner.schedules[job.name]
        following = None if schedule is None or not job.once else schedule.following(moment)
        rows.append({
            "job": job.name, "meaning": job.meaning, "schedule": "off" if schedule is None else str(schedule),
            "next_at": following, "by_tenant": job.by_tenant, "can_be_dry": job.can_be_dry,
            "last_run": last.get(job.name),
        })  # fmt: skip
    return rows


def refusal(wanted: Wanted) -> str | None:
    """Why a run cannot be had as it is wanted, in a sentence, or None."""
    job = _job(wanted.name)
    if job is None:
        return f"no job is called so: {', '.join(job.name for job in JOBS)}"
    if wanted.dry_run and not job.can_be_dry:
        return "this job cannot say what it would do"
    if wanted.tenant_id is not None and not job.by_tenant:
        return "this job is of all tenants at once"
    return None


async def run_job(
    settings: Settings,
    database: Database,
    wanted: Wanted,
    *,
    tell: Callable[[Errand, Change], None],
    watch: Callable[[Errand], None],
) -> tuple[str, Errand]:
    """Run a job here and now; returns `ran`, `held` (a run goes on elsewhere) or `done` (if_due), and the errand.

    `tell` hears of every change, `watch` is called several times a second. Raises what the job raises.
    """
    job = _job(wanted.name)
    if job is None:
        raise NotFound("no such job")
    context = Context(settings, database)
    runner = Runner(context, timedelta(seconds=settings.worker.lease_seconds))
    moment = now()
    errand = Errand(moment, tenant_id=wanted.tenant_id, dry_run=wanted.dry_run, tell=tell)
    slot = Slot(job.name, moment, ACTOR, wanted.tenant_id, wanted.dry_run)
    if wanted.if_due:
        schedule = runner.schedules[job.name]
        if schedule is None:
            return "done", errand
        slot = Slot(job.name, schedule.slot(moment), attempts=job.attempts)
    watching = asyncio.create_task(_watch(errand, watch))
    try:
        await runner.run_slot(job, slot, errand)
    except JobHeld:
        return "held", errand
    except JobDone:
        return "done", errand
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await context.close()
    return "ran", errand


async def _watch(errand: Errand, watch: Callable[[Errand], None]) -> None:
    while True:
        watch(errand)
        await asyncio.sleep(0.2)


def _job(name: str) -> Job | None:
    return next((job for job in JOBS if job.name == name), None)
