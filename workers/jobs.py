"""JOBS: what is done in the background, one row a job. A row names a room's function; all logic is in the rooms.

Every function works in bounded batches, one transaction a batch, and may run in any number of processes at once.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from app import telemetry, work_metrics
from app.clock import now
from app.idempotency import expire_idempotency
from app.operations import expire_operations, waiting
from app.recall import tend_large_subjects
from app.remember import backlog, end_idle_sessions
from app.webhooks import forget_events, pending
from workers.context import Context

EMBED_BATCH = 32
EXPIRE_BATCH = 1000
SESSION_BATCH = 200

Work = Callable[[Context, datetime], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Job:
    """One row: `run` returns how many rows it changed.

    `once` jobs run once a slot (a multiple of `every_seconds` since 1970) over all replicas, by a row in job_runs. The
    others run in every replica: where each row is claimed with SKIP LOCKED a slot would add a write and no safety.
    """

    name: str
    every_seconds: float
    once: bool
    run: Work


async def embed(context: Context, moment: datetime) -> int:
    """Give the memories that were accepted without a vector their vector, until none is due."""
    unembedded, _ = await backlog(context.database, now=moment)
    if not unembedded:
        return 0  # and the model stays unloaded
    filler, done = await context.filler(), 0
    while True:
        claimed = await filler.fill_pending(now=now(), limit=EMBED_BATCH)
        done += claimed
        if claimed < EMBED_BATCH:
            return done


async def idempotency(context: Context, moment: datetime) -> int:
    """Forget stored answers whose time is over."""
    done, hours = 0, context.settings.remember.idempotency_hours
    while True:
        expired = await expire_idempotency(context.database, hours, now=moment, limit=EXPIRE_BATCH)
        done += expired
        if expired < EXPIRE_BATCH:
            return done


async def sessions(context: Context, moment: datetime) -> int:
    """End conversations whose idle time is over."""
    done = 0
    while True:
        ended = await end_idle_sessions(context.database, now=moment, limit=SESSION_BATCH)
        done += ended
        if ended < SESSION_BATCH:
            return done


async def webhooks(context: Context, moment: datetime) -> int:
    """Tell what happened to whom it is to be told, until nothing is due."""
    untold, _ = await pending(context.database, now=moment)
    if not untold:
        return 0
    courier, done = await context.courier(), 0
    while under_way := await courier.deliver(now=now()):
        done = max(done, under_way)
    return done


async def operations(context: Context, moment: datetime) -> int:
    """Work off what was asked for, until nothing is due."""
    queued, running, _ = await waiting(context.database, now=moment)
    if not queued + running:
        return 0  # and the model stays unloaded
    operator, done = await context.operator(), 0
    while in_hand := await operator.work_off():
        done = max(done, in_hand)
    return done


async def finished_operations(context: Context, moment: datetime) -> int:
    """Forget operations that ended long ago."""
    done = 0
    while True:
        expired = await expire_operations(context.database, context.settings.operations, now=moment, limit=EXPIRE_BATCH)
        done += expired
        if expired < EXPIRE_BATCH:
            return done


async def events(context: Context, moment: datetime) -> int:
    """Forget events whose time is over, with the log of their deliveries."""
    done = 0
    while True:
        expired = await forget_events(context.database, context.settings.webhooks, now=moment, limit=EXPIRE_BATCH)
        done += expired
        if expired < EXPIRE_BATCH:
            return done


async def large_subjects(context: Context, moment: datetime) -> int:
    """Move subjects that outgrew the exact scan to index and postings, and refresh the statistics of those that did."""
    counts = await tend_large_subjects(context.database, context.settings.recall, now=moment)
    return counts.get("indexed", 0)


async def gauges(context: Context, moment: datetime) -> int:
    """Measure what is true of the whole database: every replica shows the same, so take max(), never sum()."""
    unembedded, oldest_seconds = await backlog(context.database, now=moment)
    telemetry.EMBEDDING_PENDING.set(unembedded)
    telemetry.EMBEDDING_OLDEST_PENDING_SECONDS.set(oldest_seconds)
    untold, oldest_seconds = await pending(context.database, now=moment)
    work_metrics.WEBHOOKS_PENDING.set(untold)
    work_metrics.WEBHOOKS_OLDEST_SECONDS.set(oldest_seconds)
    queued, running, oldest_seconds = await waiting(context.database, now=moment)
    work_metrics.OPERATIONS_WAITING.labels("queued").set(queued)
    work_metrics.OPERATIONS_WAITING.labels("running").set(running)
    work_metrics.OPERATIONS_OLDEST_SECONDS.set(oldest_seconds)
    return 0


JOBS: tuple[Job, ...] = (
    Job("embed", every_seconds=2, once=False, run=embed),
    Job("gauges", every_seconds=15, once=False, run=gauges),
    Job("idempotency", every_seconds=3600, once=True, run=idempotency),
    Job("large_subjects", every_seconds=300, once=True, run=large_subjects),
    Job("sessions", every_seconds=60, once=True, run=sessions),
    Job("webhooks", every_seconds=1, once=False, run=webhooks),
    Job("operations", every_seconds=1, once=False, run=operations),
    Job("finished_operations", every_seconds=3600, once=True, run=finished_operations),
    Job("events", every_seconds=3600, once=True, run=events),
)
