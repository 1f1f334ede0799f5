"""The runs of jobs in PostgreSQL: one a slot and one at a time over all processes, held by a lease; and their history.

Invariant: leases are measured by the database's clock, the only one that all processes share; who lost a lease neither
renews nor finishes. No row holds an error's text or anything of a memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from uuid_utils.compat import uuid7

from app.database import Database, sql

KEEP_RUNS: Final = timedelta(days=30)
TAKEOVERS: Final = 10
"""So often a run whose process died is taken over; what kills every process that tries it must end."""
RETRY_AFTER: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Slot:
    """What a run is of; one that `actor` asked for has its own moment as slot. `attempts`: how often it may fail."""

    job: str
    at: datetime
    actor: str | None = None
    tenant_id: UUID | None = None
    dry_run: bool = False
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Turn:
    """A run that is ours until its lease ends."""

    slot: Slot
    run_id: UUID


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs that one process takes."""

    database: Database
    worker: str
    lease: timedelta

    async def claim(self, slot: Slot) -> Turn | Literal["held", "done"]:
        """Take a slot's one run: new, left over by a process whose lease is over, or failed and to be tried again.

        `held`: a run of this job goes on elsewhere; `done`: this slot has had its run.
        """
        async with self.database.work() as transaction:
            # Alone: of two runs of one job, neither may miss the other.
            await transaction.execute(_TAKE_TURNS, job=slot.job)
            run_id = await transaction.fetch_value(
                _CLAIM, job=slot.job, slot=slot.at, run_id=uuid7(), actor=slot.actor, tenant_id=slot.tenant_id,
                dry_run=slot.dry_run, attempts=slot.attempts, worker=self.worker, lease=self.lease,
                retry_after=RETRY_AFTER, takeovers=TAKEOVERS,
            )  # fmt: skip
            if run_id is not None:
                return Turn(slot, run_id)
            done = await transaction.fetch_value(_IS_DONE, job=slot.job, slot=slot.at, attempts=slot.attempts)
        return "done" if done else "held"

    async def take_asked(self) -> Turn | None:
        """Take a run that somebody asked for, or whose process died; None: there is none that may begin now."""
        async with self.database.work() as transaction:
            row = await transaction.fetch_row(_ASKED, takeovers=TAKEOVERS)
            if row is None:
                return None
            await transaction.execute(_TAKE_TURNS, job=row["job"])
            taken = await transaction.fetch_value(
                _TAKE, job=row["job"], slot=row["slot"], worker=self.worker, lease=self.lease
            )
        slot = Slot(row["job"], row["slot"], row["actor"], row["tenant_id"], row["dry_run"])
        return None if taken is None else Turn(slot, row["run_id"])

    async def renew(self, turn: Turn, counts: Mapping[str, int]) -> bool:
        """Move the end of the lease and say how far it is; tells whether it was still ours."""
        async with self.database.work() as transaction:
            renewed = await transaction.execute(
                _RENEW, job=turn.slot.job, slot=turn.slot.at, worker=self.worker, lease=self.lease, counts=counts
            )
        return renewed == 1

    async def finish(self, turn: Turn, counts: Mapping[str, int], error: str | None = None) -> None:
        """Write down how the run ended (an error's type, never its text), and forget runs older than 30 days."""
        async with self.database.work() as transaction:
            await transaction.execute(
                _FINISH,
                job=turn.slot.job,
                slot=turn.slot.at,
                worker=self.worker,
                state="succeeded" if error is None else "failed",
                counts=counts,
                error=error,
            )
            await transaction.execute(_FORGET, job=turn.slot.job, keep=KEEP_RUNS)

    async def give_back(self, turn: Turn) -> None:
        """Let any other process go on with a run at once: this one ends, which is no failure and no takeover."""
        async with self.database.work() as transaction:
            await transaction.execute(_GIVE_BACK, job=turn.slot.job, slot=turn.slot.at, worker=self.worker)


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job as a worker knows it: whether it can be run for one tenant, and whether it can say what it would do."""

    job: str
    meaning: str
    schedule: str
    next_at: datetime | None
    by_tenant: bool
    can_be_dry: bool


async def register_jobs(database: Database, worker: str, jobs: Sequence[KnownJob], *, now: datetime) -> None:
    """Let everybody know which jobs the workers do, and when; what no worker does for a day is forgotten."""
    async with database.work() as transaction:
        await transaction.execute(
            _REGISTER,
            jobs=[job.job for job in jobs],
            meanings=[job.meaning for job in jobs],
            schedules=[job.schedule for job in jobs],
            nexts=[job.next_at for job in jobs],
            options=[{"by_tenant": job.by_tenant, "can_be_dry": job.can_be_dry} for job in jobs],
            worker=worker,
            now=now,
        )
        await transaction.execute(_UNREGISTER, before=now - timedelta(days=1))


async def known_jobs(database: Database, tenant_id: UUID | None) -> list[dict[str, Any]]:
    """The jobs that running workers do, by name, each with its last run that this tenant may know of (None: any)."""
    async with database.work() as transaction:
        rows = await transaction.fetch(_KNOWN)
        last = {row["job"]: dict(row) for row in await transaction.fetch(_LAST, tenant_id=tenant_id)}
    return [
        {name: row[name] for name in ("job", "meaning", "schedule", "next_at", "seen_at")}
        | row["options"]
        | {"last_run": last.get(row["job"])}
        for row in rows
    ]


async def history(
    database: Database, *, job: str | None = None, run_id: UUID | None = None, tenant_id: UUID | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:  # fmt: skip
    """Runs, the latest first; with `tenant_id` none that was asked for by another tenant."""
    async with database.work() as transaction:
        rows = await transaction.fetch(_HISTORY, job=job, run_id=run_id, tenant_id=tenant_id, limit=limit)
    return [dict(row) for row in rows]


async def touched(
    database: Database, tenant_id: UUID, run_id: UUID, *, after: UUID | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """What a run did to a tenant's memories and what of it still stands, by memory: states and reasons, no text.

    `other_id`: what overruled it, what it was merged into, or the summary that tells it.
    """
    async with database.read(tenant_id) as transaction:
        rows = await transaction.fetch(
            _TOUCHED, tenant_id=tenant_id, run_id=run_id, after=after or UUID(int=0), limit=limit
        )
    return [dict(row) for row in rows]


async def ask(database: Database, slot: Slot) -> UUID:
    """Ask for a run, which a worker begins within seconds; returns its id."""
    run_id, at = None, slot.at
    async with database.work() as transaction:
        while run_id is None:  # somebody asked in this very microsecond
            run_id = await transaction.fetch_value(
                _ASK, job=slot.job, slot=at, run_id=uuid7(), actor=slot.actor, tenant_id=slot.tenant_id,
                dry_run=slot.dry_run,
            )  # fmt: skip
            at += timedelta(microseconds=1)
    assert isinstance(run_id, UUID)
    return run_id


_TAKE_TURNS = sql("SELECT pg_advisory_xact_lock(hashtextextended('mneme job ' || cast(:job AS text), 0))")
_CLAIM = sql("""
    INSERT INTO job_runs AS run (
        job, slot, run_id, actor, tenant_id, dry_run, state, worker, started_at, heartbeat_at, lease_until, counts
    )
    SELECT :job, :slot, :run_id, :actor, :tenant_id, :dry_run, 'running', :worker, clock_timestamp(), clock_timestamp(),
           clock_timestamp() + CAST(:lease AS interval), '{}'
    WHERE NOT EXISTS (
        SELECT FROM job_runs other
        WHERE other.job = :job AND other.slot <> :slot AND other.state = 'running'
          AND other.lease_until > clock_timestamp()
    )
    ON CONFLICT (job, slot) DO UPDATE
    SET state = 'running', worker = excluded.worker, started_at = excluded.started_at, finished_at = NULL, error = NULL,
        heartbeat_at = excluded.heartbeat_at, lease_until = excluded.lease_until, attempts = run.attempts + 1,
        run_id = coalesce(run.run_id, excluded.run_id)
    WHERE (run.state = 'running' AND run.lease_until < clock_timestamp() AND run.attempts <= :takeovers)
       OR (run.state = 'failed' AND run.attempts < :attempts
           AND run.finished_at < clock_timestamp() - CAST(:retry_after AS interval))
    RETURNING run_id
""")
_IS_DONE = sql("""
    SELECT EXISTS (
        SELECT FROM job_runs WHERE job = :job AND slot = :slot
          AND (state = 'succeeded' OR (state = 'failed' AND attempts >= :attempts))
    )
""")
_OPEN = """
    (state = 'queued' OR (state = 'running' AND actor IS NOT NULL AND NOT dry_run
                          AND lease_until < clock_timestamp() AND attempts <= :takeovers))
"""
_ASKED = sql(f"""
    SELECT job, slot, run_id, actor, tenant_id, dry_run FROM job_runs run
    WHERE state IN ('queued', 'running') AND {_OPEN} AND NOT EXISTS (
        SELECT FROM job_runs other
        WHERE other.job = run.job AND other.slot <> run.slot AND other.state = 'running'
          AND other.lease_until > clock_timestamp()
    )
    ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED
""")
_TAKE = sql("""
    UPDATE job_runs
    SET attempts = CASE WHEN state = 'running' THEN attempts + 1 ELSE attempts END, state = 'running', worker = :worker,
        started_at = clock_timestamp(), heartbeat_at = clock_timestamp(),
        lease_until = clock_timestamp() + CAST(:lease AS interval)
    WHERE job = :job AND slot = :slot AND NOT EXISTS (
        SELECT FROM job_runs other
        WHERE other.job = :job AND other.slot <> :slot AND other.state = 'running'
          AND other.lease_until > clock_timestamp()
    )
    RETURNING run_id
""")
_RENEW = sql("""
    UPDATE job_runs SET heartbeat_at = clock_timestamp(), counts = :counts,
                        lease_until = clock_timestamp() + CAST(:lease AS interval)
    WHERE job = :job AND slot = :slot AND worker = :worker AND state = 'running'
""")
_FINISH = sql("""
    UPDATE job_runs SET state = :state, finished_at = clock_timestamp(), counts = :counts, error = :error
    WHERE job = :job AND slot = :slot AND worker = :worker AND state = 'running'
""")
_GIVE_BACK = sql("""
    UPDATE job_runs SET lease_until = clock_timestamp(), attempts = attempts - 1
    WHERE job = :job AND slot = :slot AND worker = :worker AND state = 'running'
""")
_FORGET = sql("DELETE FROM job_runs WHERE job = :job AND slot < clock_timestamp() - CAST(:keep AS interval)")
_REGISTER = sql("""
    INSERT INTO jobs AS known (job, meaning, schedule, next_at, options, worker, seen_at)
    SELECT job, meaning, schedule, next_at, options, :worker, :now
    FROM unnest(
        cast(:jobs AS text[]), cast(:meanings AS text[]), cast(:schedules AS text[]), cast(:nexts AS timestamptz[]),
        cast(:options AS jsonb[])
    ) AS item (job, meaning, schedule, next_at, options)
    ORDER BY job
    ON CONFLICT (job) DO UPDATE
    SET meaning = excluded.meaning, schedule = excluded.schedule, next_at = excluded.next_at,
        options = excluded.options, worker = excluded.worker, seen_at = excluded.seen_at
""")
_UNREGISTER = sql("DELETE FROM jobs WHERE seen_at < :before")
_KNOWN = sql("SELECT job, meaning, schedule, next_at, options, seen_at FROM jobs ORDER BY job")
_COLUMNS = """
    run_id, job, slot, state, started_at, finished_at, counts, error, actor, tenant_id, dry_run, attempts,
    state = 'running' AND lease_until < clock_timestamp() AS abandoned
"""
_LAST = sql(f"""
    SELECT DISTINCT ON (job) {_COLUMNS} FROM job_runs
    WHERE tenant_id IS NULL OR cast(:tenant_id AS uuid) IS NULL OR tenant_id = :tenant_id
    ORDER BY job, slot DESC
""")
_HISTORY = sql(f"""
    SELECT {_COLUMNS} FROM job_runs
    WHERE (cast(:job AS text) IS NULL OR job = :job) AND (cast(:run_id AS uuid) IS NULL OR run_id = :run_id)
      AND (tenant_id IS NULL OR cast(:tenant_id AS uuid) IS NULL OR tenant_id = :tenant_id)
    ORDER BY slot DESC LIMIT :limit
""")
# Each part in order of an index and no longer than a page, so that a run of any size is paged through.
_TOUCHED = sql("""
    WITH done AS (
        (SELECT subject_id, memory_id, rule, was AS before, 'archived' AS after, cast(NULL AS uuid) AS other_id,
                archived_at AS at
         FROM memory_archive WHERE tenant_id = :tenant_id AND run_id = :run_id AND memory_id > :after
         ORDER BY memory_id LIMIT :limit)
        UNION ALL
        (SELECT subject_id, memory_id,
                CASE became WHEN 'duplicate' THEN 'dedup' WHEN 'summary' THEN 'summarise' ELSE 'deprecate' END,
                CASE WHEN became <> 'summary' THEN 'active' END,
                CASE WHEN became = 'summary' THEN 'active' ELSE became END, other_id, created_at
         FROM consolidations WHERE tenant_id = :tenant_id AND run_id = :run_id AND memory_id > :after
         ORDER BY memory_id LIMIT :limit)
        UNION ALL
        (SELECT l.subject_id, l.other_id, 'summarise', 'active', 'active', l.memory_id, c.created_at
         FROM consolidations c
         JOIN memory_links l ON l.tenant_id = c.tenant_id AND l.subject_id = c.subject_id AND l.memory_id = c.memory_id
              AND l.relation = 'derived_from'
         WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.became = 'summary' AND l.other_id > :after
         ORDER BY l.other_id LIMIT :limit)
        UNION ALL
        (SELECT subject_id, memory_id, 'cooled', 'warm', 'cold', NULL, NULL
         FROM memories WHERE tenant_id = :tenant_id AND cooled_by = :run_id AND memory_id > :after
         ORDER BY memory_id LIMIT :limit)
    )
    SELECT d.memory_id, s.user_id, m.agent_id, m.kind, d.rule, (
               SELECT e.detail ->> 'reason' FROM memory_events e
               WHERE e.tenant_id = :tenant_id AND e.subject_id = d.subject_id AND e.memory_id = d.memory_id
                 AND e.detail ->> 'run_id' = cast(cast(:run_id AS uuid) AS text) AND e.detail ->> 'reason' IS NOT NULL
               LIMIT 1
           ) AS reason, d.before, d.after, d.other_id, d.at
    FROM done d
    JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = d.subject_id AND m.memory_id = d.memory_id
    JOIN subjects s ON s.tenant_id = :tenant_id AND s.subject_id = d.subject_id
    ORDER BY d.memory_id, d.other_id LIMIT :limit
""")
_ASK = sql("""
    INSERT INTO job_runs (
        job, slot, run_id, actor, tenant_id, dry_run, state, worker, started_at, heartbeat_at, lease_until, counts
    )
    VALUES (:job, :slot, :run_id, :actor, :tenant_id, :dry_run, 'queued', '', clock_timestamp(), clock_timestamp(),
            clock_timestamp(), '{}')
    ON CONFLICT (job, slot) DO NOTHING
    RETURNING run_id
""")
