"""JOBS: what is done in the background, one row a job. A row names a room's function; all logic is in the rooms.

Every function works in bounded batches, one transaction a batch, may run in any number of processes at once, and stops
between two batches when its errand is over.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from app import telemetry, work_metrics
from app.backup import clear_erased
from app.clock import now
from app.consolidate import deprecate_overruled, merge_duplicates, summarise_old
from app.embed import other_generation
from app.errand import Errand
from app.forget import cool, forget, purge, reinforce
from app.idempotency import expire_idempotency
from app.indexes import index_faults
from app.operations import expire_operations, waiting
from app.recall import tend_large_subjects
from app.remember import backlog, end_idle_sessions, keep_up
from app.settings import JobsConfig
from app.webhooks import forget_events, pending
from workers.context import Context
from workers.schedule import Cron, Every, Schedule

EMBED_BATCH: Final = 32
EXPIRE_BATCH: Final = 1000
SESSION_BATCH: Final = 200
NIGHT_ATTEMPTS: Final = 3
"""A night's job that fails is tried again within the hour: the next slot is a day away."""

Work = Callable[[Context, Errand], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Job:
    """One row: `run` does it and returns how many rows it changed; the first line of its docstring says what it is for.

    `once` jobs run once a slot over all replicas and one at a time, by a row in job_runs. The others run in every
    replica: where each row is claimed with SKIP LOCKED a slot would add a write and no safety. Slots are the multiples
    of `every_seconds`, or begin at `cron` in the configured zone, by default in the small hours. `by_tenant`: it can be
    run for one tenant; `can_be_dry`: it can say what it would do, and then does exactly that.
    """

    name: str
    run: Work
    every_seconds: float | None = None
    cron: str = "0 3 * * *"
    once: bool = True
    by_tenant: bool = False
    can_be_dry: bool = False

    @property
    def meaning(self) -> str:
        return (self.run.__doc__ or "").partition("\n")[0]

    @property
    def attempts(self) -> int:
        return NIGHT_ATTEMPTS if self.every_seconds is None else 1

    def schedule(self, config: JobsConfig) -> Schedule | None:
        """When it is due as configured; None: it is switched off. Raises ValueError for a wrong expression."""
        own = config.cron.get(self.name)
        if own == "off":
            return None
        if own is None and self.every_seconds is not None:
            return Every(self.every_seconds)
        return Cron(own or self.cron, config.timezone)


async def _until_short(errand: Errand, limit: int, batch: Callable[[int], Awaitable[int]]) -> int:
    """Repeat `batch` until it does less than `limit`, or the errand is over; returns how much was done."""
    total = 0
    while True:
        done = await batch(limit)
        total += done
        if done < limit or errand.is_over:
            return total


async def embed(context: Context, errand: Errand) -> int:
    """Give the memories that were accepted without a vector their vector."""
    unembedded, _ = await backlog(context.database, now=errand.now)
    if not unembedded:
        return 0  # and the model stays unloaded
    filler = await context.filler()
    return await _until_short(errand, EMBED_BATCH, lambda limit: filler.fill_pending(now=now(), limit=limit))


async def idempotency(context: Context, errand: Errand) -> int:
    """Forget stored answers of `Idempotency-Key` whose time is over."""
    hours = context.settings.remember.idempotency_hours
    return await _until_short(
        errand, EXPIRE_BATCH,
        lambda limit: expire_idempotency(context.database, hours, now=errand.now, limit=limit),
    )  # fmt: skip


async def sessions(context: Context, errand: Errand) -> int:
    """End conversations whose idle time is over."""
    return await _until_short(
        errand, SESSION_BATCH, lambda limit: end_idle_sessions(context.database, now=errand.now, limit=limit)
    )


async def webhooks(context: Context, errand: Errand) -> int:
    """Tell what happened to the webhooks of its tenant."""
    untold, _ = await pending(context.database, now=errand.now)
    if not untold:
        return 0
    courier, done = await context.courier(), 0
    while under_way := await courier.deliver(now=now()):
        done = max(done, under_way)
    return done


async def operations(context: Context, errand: Errand) -> int:
    """Work off what was asked for."""
    queued, running, _ = await waiting(context.database, now=errand.now)
    if not queued + running:
        return 0  # and the model stays unloaded
    operator, done = await context.operator(), 0
    while in_hand := await operator.work_off():
        done = max(done, in_hand)
    return done


async def finished_operations(context: Context, errand: Errand) -> int:
    """Forget operations that ended long ago."""
    config = context.settings.operations
    return await _until_short(
        errand, EXPIRE_BATCH, lambda limit: expire_operations(context.database, config, now=errand.now, limit=limit)
    )


async def events(context: Context, errand: Errand) -> int:
    """Forget told events and the log of deliveries whose time is over."""
    config = context.settings.webhooks
    return await _until_short(
        errand, EXPIRE_BATCH, lambda limit: forget_events(context.database, config, now=errand.now, limit=limit)
    )


async def large_subjects(context: Context, errand: Errand) -> int:
    """Move subjects that outgrew the exact scan to index and postings, and refresh the statistics of those that did."""
    counts = await tend_large_subjects(context.database, context.settings.recall, now=errand.now)
    return counts.get("indexed", 0)


async def backup(context: Context, errand: Errand) -> int:
    """Make a backup, prove it by restoring it aside, and remove those whose time is over."""
    errand.counts["dumped"] = await context.backups().nightly(version=version("mneme"), clock=now)
    return 0


async def erasures(context: Context, errand: Errand) -> int:
    """Remove from the archive outside the database what is of users who were erased."""
    settings = context.settings
    return await clear_erased(context.database, settings.backup, settings.data_dir, now=errand.now)


async def backup_gauges(context: Context, _: Errand) -> int:
    """Measure which backups there are, and whether they are good."""
    await context.backups().show()
    return 0


async def forgetting(context: Context, errand: Errand) -> int:
    """Archive what the rules of each tenant's policy point at."""
    return await forget(context.database, context.settings.forget, errand)


async def cooling(context: Context, errand: Errand) -> int:
    """Take vector and keywords from what was not used for long."""
    return await cool(context.database, context.settings.forget, context.centre, errand)


async def purging(context: Context, errand: Errand) -> int:
    """Delete for good what was archived before the grace time."""
    return await purge(context.database, context.settings.forget, errand)


async def overruling(context: Context, errand: Errand) -> int:
    """Overrule what changes of the day or the end of its validity made untrue."""
    return await deprecate_overruled(context.consolidation(), errand)


async def merging(context: Context, errand: Errand) -> int:
    """Merge what says the same as another memory of its user."""
    return await merge_duplicates(context.consolidation(), errand)


async def summarising(context: Context, errand: Errand) -> int:
    """Tell old memories that belong together in one summary."""
    return await summarise_old(context.consolidation(), errand)


async def reembedding(context: Context, errand: Errand, *, rest: bool = False) -> int:
    """Give memories their vector of the model that the store moves to, or has left and may go back to."""
    days = context.settings.embed.keep_previous_days
    done = await keep_up(context.database, context.model_of, days, errand, rest=rest)
    if await other_generation(context.database) is None:
        await context.let_other_go()
    return done


async def reembedding_rest(context: Context, errand: Errand) -> int:
    """Give memories that were never hit the vectors that a move to another model left out."""
    return await reembedding(context, errand, rest=True)


async def reinforcement(context: Context, errand: Errand) -> int:
    """Strengthen what search finds again and again."""
    return await reinforce(context.database, errand)


async def gauges(context: Context, errand: Errand) -> int:
    """Measure what is true of the whole database: every replica shows the same, so take max(), never sum()."""
    unembedded, oldest_seconds = await backlog(context.database, now=errand.now)
    telemetry.EMBEDDING_PENDING.set(unembedded)
    telemetry.EMBEDDING_OLDEST_PENDING_SECONDS.set(oldest_seconds)
    untold, oldest_seconds = await pending(context.database, now=errand.now)
    work_metrics.WEBHOOKS_PENDING.set(untold)
    work_metrics.WEBHOOKS_OLDEST_SECONDS.set(oldest_seconds)
    queued, running, oldest_seconds = await waiting(context.database, now=errand.now)
    work_metrics.OPERATIONS_WAITING.labels("queued").set(queued)
    work_metrics.OPERATIONS_WAITING.labels("running").set(running)
    work_metrics.OPERATIONS_OLDEST_SECONDS.set(oldest_seconds)
    wrong = await index_faults(context.database)
    telemetry.INDEX_FAULTS.labels("missing").set(len(wrong.missing))
    telemetry.INDEX_FAULTS.labels("invalid").set(len(wrong.invalid))
    other = await other_generation(context.database)
    for state in ("building", "previous"):
        lacking = other.lacking if other is not None and other.state == state else None
        work_metrics.REEMBED_LACKING.labels(state).set(lacking or 0)
    return 0


JOBS: tuple[Job, ...] = (
    Job("embed", embed, every_seconds=2, once=False),
    Job("gauges", gauges, every_seconds=15, once=False),
    Job("idempotency", idempotency, every_seconds=3600),
    Job("large_subjects", large_subjects, every_seconds=300),
    Job("sessions", sessions, every_seconds=60),
    Job("webhooks", webhooks, every_seconds=1, once=False),
    Job("operations", operations, every_seconds=1, once=False),
    Job("finished_operations", finished_operations, every_seconds=3600),
    Job("events", events, every_seconds=3600),
    Job("reembed", reembedding, every_seconds=60),
    Job("reembed_rest", reembedding_rest, cron="0 5 * * sun"),
    Job("erasures", erasures, every_seconds=60),
    Job("reinforce", reinforcement, every_seconds=30, once=False),
    Job("forget", forgetting, cron="0 3 * * *", by_tenant=True, can_be_dry=True),
    Job("cool", cooling, cron="15 3 * * *", by_tenant=True, can_be_dry=True),  # what is to be forgotten is gone then
    Job("purge", purging, cron="30 3 * * *", by_tenant=True, can_be_dry=True),
    Job("deprecate", overruling, cron="45 3 * * *", by_tenant=True, can_be_dry=True),
    Job("dedup", merging, cron="0 4 * * *", by_tenant=True, can_be_dry=True),
    Job("summarise", summarising, cron="15 4 * * *", by_tenant=True, can_be_dry=True),
    Job("backup", backup, cron="30 2 * * *"),  # before anything of the night is forgotten
    Job("backup_gauges", backup_gauges, every_seconds=300, once=False),
)
