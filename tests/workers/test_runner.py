"""One run a slot over all replicas, whatever dies; nothing a job does ends its process."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from app import telemetry
from app.database import Database, DatabaseConfig, sql
from app.settings import Settings
from workers.context import Context
from workers.jobs import JOBS, Job
from workers.runner import Runner, claim, finish, renew, slot_of

NOON = datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)
LEASE = timedelta(seconds=60)


@pytest.fixture
async def jobs_database(database_url: str) -> AsyncIterator[Database]:
    database = await Database.connect(DatabaseConfig(url=SecretStr(database_url), pool_size=8))
    yield database
    await database.close()


@pytest.fixture
def context(jobs_database: Database) -> Context:
    return Context(Settings(), jobs_database)


class Counted:
    """Work that counts its runs and can be held up."""

    def __init__(self) -> None:
        self.runs = 0
        self.go_on = asyncio.Event()
        self.started = asyncio.Event()

    async def __call__(self, context: Context, moment: datetime) -> int:
        self.runs += 1
        self.started.set()
        await self.go_on.wait()
        return 7


def a_job(work: Counted, *, once: bool = True) -> Job:
    return Job(f"test-{uuid4().hex}", every_seconds=60, once=once, run=work)


async def row_of(database: Database, job: Job) -> dict[str, object]:
    async with database.work() as transaction:
        row = await transaction.fetch_row(_ROW, job=job.name)
    assert row is not None
    return dict(row)


async def end_lease(database: Database, job: Job) -> None:
    """Let the lease end now, as if its worker had died a while ago."""
    async with database.work() as transaction:
        assert await transaction.execute(_END_LEASE, job=job.name) == 1


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1971, 1, 1)), st.sampled_from([2, 60, 3600, 86400]))  # noqa: DTZ001
def test_a_slot_holds_its_moment_and_is_its_own(moment: datetime, every_seconds: int) -> None:
    slot = slot_of(moment, every_seconds)
    assert slot <= moment < slot + timedelta(seconds=every_seconds)
    assert slot_of(slot, every_seconds) == slot


async def test_ten_slots_offered_to_three_replicas_again_and_again_get_ten_runs(context: Context) -> None:
    work = Counted()
    work.go_on.set()
    job = a_job(work)
    replicas = [Runner(context, LEASE) for _ in range(3)]
    offers = [
        replica.run(job, NOON + timedelta(seconds=60 * slot + second))
        for slot in range(10)
        for second in (0, 11, 29)
        for replica in replicas
    ]
    await asyncio.gather(*offers)
    assert work.runs == 10


async def test_a_run_writes_down_how_it_ended(context: Context, jobs_database: Database) -> None:
    work = Counted()
    work.go_on.set()
    job = a_job(work)
    await Runner(context, LEASE).run(job, NOON)
    row = await row_of(jobs_database, job)
    assert (row["state"], row["counts"], row["error"]) == ("succeeded", {"rows": 7}, None)


async def test_a_failed_job_is_written_down_counted_and_does_not_raise(
    context: Context, jobs_database: Database
) -> None:
    async def fail(context: Context, moment: datetime) -> int:
        raise ValueError("a memory's text")

    job = Job(f"test-{uuid4().hex}", every_seconds=60, once=True, run=fail)
    await Runner(context, LEASE).run(job, NOON)
    row = await row_of(jobs_database, job)
    assert (row["state"], row["error"]) == ("failed", "ValueError")
    assert telemetry.JOB_RUNS.labels(job.name, "failed")._value.get() == 1


async def test_the_run_of_a_dead_worker_is_taken_over_when_its_lease_is_over(
    context: Context, jobs_database: Database
) -> None:
    work = Counted()
    work.go_on.set()
    job, slot = a_job(work), slot_of(NOON, 60)
    assert await claim(jobs_database, job.name, slot, "the dead one", LEASE)
    await Runner(context, LEASE).run(job, NOON)
    assert work.runs == 0
    await end_lease(jobs_database, job)
    await Runner(context, LEASE).run(job, NOON)
    assert work.runs == 1
    assert (await row_of(jobs_database, job))["state"] == "succeeded"


async def test_who_lost_the_lease_neither_renews_nor_finishes_it(jobs_database: Database) -> None:
    job, slot = a_job(Counted()), slot_of(NOON, 60)
    assert await claim(jobs_database, job.name, slot, "first", LEASE)
    assert await renew(jobs_database, job.name, slot, "first", LEASE)
    await end_lease(jobs_database, job)
    assert await claim(jobs_database, job.name, slot, "second", LEASE)
    assert not await renew(jobs_database, job.name, slot, "first", LEASE)
    await finish(jobs_database, job.name, slot, "first", rows=1)
    row = await row_of(jobs_database, job)
    assert (row["state"], row["worker"]) == ("running", "second")


async def test_a_running_job_whose_lease_was_taken_is_cancelled(context: Context, jobs_database: Database) -> None:
    work = Counted()
    job = a_job(work)
    lost = telemetry.JOB_LEASE_LOST.labels(job.name)
    running = asyncio.create_task(Runner(context, timedelta(seconds=0.4)).run(job, NOON))
    await work.started.wait()
    async with jobs_database.work() as transaction:
        await transaction.execute(_TAKE, job=job.name)
    await running
    assert lost._value.get() == 1
    row = await row_of(jobs_database, job)
    assert (row["state"], row["worker"]) == ("running", "thief")


async def test_a_beating_heart_keeps_a_lease_longer_than_it_is(context: Context, jobs_database: Database) -> None:
    work = Counted()
    job, lease = a_job(work), timedelta(seconds=0.4)
    running = asyncio.create_task(Runner(context, lease).run(job, NOON))
    await work.started.wait()
    first = (await row_of(jobs_database, job))["lease_until"]
    assert isinstance(first, datetime)
    while (await row_of(jobs_database, job))["heartbeat_at"] < first:  # type: ignore[operator]
        await asyncio.sleep(0.05)
        assert not await claim(jobs_database, job.name, slot_of(NOON, 60), "another", lease)
    work.go_on.set()
    await running
    assert work.runs == 1


async def test_ticks_do_not_pile_up_and_a_drain_waits_then_cancels(context: Context) -> None:
    quick, stuck = Counted(), Counted()
    runner = Runner(context, LEASE)
    for work in (quick, stuck):
        job = a_job(work, once=False)
        for _ in range(3):
            await runner.tick(job)
        await work.started.wait()
    quick.go_on.set()
    await runner.drain(0.1)
    assert (quick.runs, stuck.runs) == (1, 1)
    assert all(task.done() for task in runner._running.values())


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
async def test_every_job_runs_on_an_idle_store_without_the_model(job: Job, context: Context) -> None:
    assert await job.run(context, NOON) == 0
    assert context._embedder is None


_ROW = sql("SELECT * FROM job_runs WHERE job = :job")
_END_LEASE = sql("UPDATE job_runs SET lease_until = clock_timestamp() - interval '1 second' WHERE job = :job")
_TAKE = sql("UPDATE job_runs SET worker = 'thief' WHERE job = :job")
