"""One run a slot over all replicas, whatever dies (R37); nothing a job does ends its process."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

import app.errand
from app import telemetry
from app.cli import embedded, schema
from app.connections import DatabaseConfig
from app.database import Database, sql
from app.errand import Errand
from app.errors import StartupRefused
from app.runs import Runs, Slot, Turn, ask, history, known_jobs
from app.settings import Settings
from tests.conftest import TEMPLATE, administer
from workers.context import Context
from workers.jobs import JOBS, Job
from workers.runner import JobDone, JobHeld, Runner

NOON = datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)
SLOT = NOON.replace(second=0)
LEASE = timedelta(seconds=60)


@pytest.fixture
async def jobs_database(database_url: str) -> AsyncIterator[Database]:
    database = await Database.connect(DatabaseConfig(url=SecretStr(database_url), pool_size=8))
    yield database
    await database.close()


@pytest.fixture
def context(jobs_database: Database, owner_url: str, tmp_path: Path) -> Context:
    return Context(Settings(data_dir=tmp_path, backup={"database_url": owner_url}), jobs_database)


class Counted:
    """Work that counts its runs and can be held up."""

    def __init__(self) -> None:
        self.errands: list[Errand] = []
        self.go_on = asyncio.Event()
        self.started = asyncio.Event()

    @property
    def runs(self) -> int:
        return len(self.errands)

    async def __call__(self, context: Context, errand: Errand) -> int:
        self.errands.append(errand)
        errand.counts["seen"] += 1
        self.started.set()
        await self.go_on.wait()
        return 7


def free() -> Counted:
    work = Counted()
    work.go_on.set()
    return work


def a_job(work: Counted, *, once: bool = True, every_seconds: float | None = 60) -> Job:
    return Job(f"test-{uuid4().hex}", work, every_seconds=every_seconds, once=once)


def a_runner(context: Context, *jobs: Job, lease: timedelta = LEASE) -> Runner:
    return Runner(context, lease, jobs)


async def row_of(database: Database, job: Job) -> dict[str, object]:
    async with database.work() as transaction:
        row = await transaction.fetch_row(_ROW, job=job.name)
    assert row is not None
    return dict(row)


async def change(database: Database, job: Job, assignment: str) -> None:
    async with database.work() as transaction:
        assert await transaction.execute(sql(f"UPDATE job_runs SET {assignment} WHERE job = :job"), job=job.name) == 1


END_LEASE = "lease_until = clock_timestamp() - interval '1 second'"
"""As if its worker had died a while ago."""


async def test_ten_slots_offered_to_three_replicas_again_and_again_get_ten_runs(context: Context) -> None:
    work = free()
    job = a_job(work)
    replicas = [a_runner(context, job) for _ in range(3)]
    for slot in range(10):
        offers = [
            replica.run(job, NOON + timedelta(seconds=60 * slot + second))
            for second in (0, 11, 29)
            for replica in replicas
        ]
        await asyncio.gather(*offers)
    assert work.runs == 10


async def test_a_night_that_no_worker_saw_is_made_up_for_once(context: Context) -> None:
    """Also when several were missed; and each night begins at its own moment of the jitter."""
    work = free()
    job = a_job(work, every_seconds=None)
    replicas = [a_runner(context, job) for _ in range(2)]
    for days in (0, 5):
        for hours in (0, 1, 6):
            for replica in replicas:
                await replica.run(job, NOON + timedelta(days=days, hours=hours))
    assert [errand.now - NOON for errand in work.errands] == [timedelta(0), timedelta(days=5)]
    night = datetime(2026, 12, 4, 19, tzinfo=UTC)  # 3 o'clock in Shanghai
    await replicas[0].run(job, night - timedelta(seconds=1))
    await replicas[0].run(job, night + timedelta(seconds=301))
    assert work.runs == 3


async def test_a_run_writes_down_how_it_ended(context: Context, jobs_database: Database) -> None:
    job = a_job(free())
    await a_runner(context, job).run(job, NOON)
    row = await row_of(jobs_database, job)
    assert (row["state"], row["counts"], row["error"]) == ("succeeded", {"rows": 7, "seen": 1}, None)


async def failing(context: Context, errand: Errand) -> int:
    raise ValueError("a memory's text")


async def test_a_failed_job_is_written_down_counted_and_does_not_raise(
    context: Context, jobs_database: Database
) -> None:
    job = Job(f"test-{uuid4().hex}", failing, every_seconds=60)
    await a_runner(context, job).run(job, NOON)
    row = await row_of(jobs_database, job)
    assert (row["state"], row["error"]) == ("failed", "ValueError")
    assert telemetry.JOB_RUNS.labels(job.name, "failed")._value.get() == 1


async def test_a_night_that_failed_is_tried_again_after_a_while_but_not_for_ever(
    context: Context, jobs_database: Database
) -> None:
    job = Job(f"test-{uuid4().hex}", failing)
    for attempts in (1, 2, 3, 3):
        for _ in range(2):
            await a_runner(context, job).run(job, NOON)
        assert (await row_of(jobs_database, job))["attempts"] == attempts
        await change(jobs_database, job, "finished_at = finished_at - interval '11 minutes'")


async def test_the_run_of_a_dead_worker_is_taken_over_when_its_lease_is_over(
    context: Context, jobs_database: Database
) -> None:
    work = free()
    job = a_job(work)
    turn = await Runs(jobs_database, "the dead one", LEASE).claim(Slot(job.name, SLOT))
    assert isinstance(turn, Turn)
    await a_runner(context, job).run(job, NOON)
    assert work.runs == 0
    await change(jobs_database, job, END_LEASE)
    await a_runner(context, job).run(job, NOON)
    assert [errand.run_id for errand in work.errands] == [turn.run_id]
    assert (await row_of(jobs_database, job))["state"] == "succeeded"


async def test_who_lost_the_lease_neither_renews_nor_finishes_it(jobs_database: Database) -> None:
    job = a_job(Counted())
    first, second = (Runs(jobs_database, name, LEASE) for name in ("first", "second"))
    turn = await first.claim(Slot(job.name, SLOT))
    assert isinstance(turn, Turn)
    assert await first.renew(turn, {"seen": 3})
    await change(jobs_database, job, END_LEASE)
    assert isinstance(await second.claim(Slot(job.name, SLOT)), Turn)
    assert not await first.renew(turn, {})
    await first.finish(turn, {"rows": 1})
    row = await row_of(jobs_database, job)
    assert (row["state"], row["worker"], row["counts"]) == ("running", "second", {"seen": 3})


async def test_a_running_job_whose_lease_was_taken_is_cancelled(context: Context, jobs_database: Database) -> None:
    work = Counted()
    job = a_job(work)
    lost = telemetry.JOB_LEASE_LOST.labels(job.name)
    running = asyncio.create_task(a_runner(context, job, lease=timedelta(seconds=0.4)).run(job, NOON))
    await work.started.wait()
    await change(jobs_database, job, "worker = 'thief'")
    await running
    assert lost._value.get() == 1
    row = await row_of(jobs_database, job)
    assert (row["state"], row["worker"]) == ("running", "thief")


async def test_a_beating_heart_keeps_a_lease_longer_than_it_is(context: Context, jobs_database: Database) -> None:
    work = Counted()
    job, lease = a_job(work), timedelta(seconds=2)  # what stalls for longer than that lets another have it
    running = asyncio.create_task(a_runner(context, job, lease=lease).run(job, NOON))
    await work.started.wait()
    first = (await row_of(jobs_database, job))["lease_until"]
    assert isinstance(first, datetime)
    while (await row_of(jobs_database, job))["heartbeat_at"] < first:  # type: ignore[operator]
        await asyncio.sleep(0.05)
        assert not running.done()
        assert await Runs(jobs_database, "another", lease).claim(Slot(job.name, SLOT)) == "held"
    assert (await row_of(jobs_database, job))["counts"] == {"seen": 1}
    work.go_on.set()
    await running
    assert work.runs == 1


async def test_of_one_job_two_runs_never_go_on_at_once_whatever_their_slots(
    context: Context, jobs_database: Database
) -> None:
    work = Counted()
    job = a_job(work)
    running = asyncio.create_task(a_runner(context, job).run(job, NOON))
    await work.started.wait()
    extra = Slot(job.name, NOON, actor="command")
    with pytest.raises(JobHeld):
        await a_runner(context, job).run_slot(job, extra, Errand(NOON))
    await ask(jobs_database, Slot(job.name, NOON + timedelta(seconds=1), actor="key:1"))
    another = a_runner(context, job)
    await another.tick_asked()
    await another.drain(10)
    await another.run(job, NOON + timedelta(minutes=1))
    assert work.runs == 1
    work.go_on.set()
    await running
    with pytest.raises(JobDone):
        await a_runner(context, job).run_slot(job, Slot(job.name, SLOT), Errand(NOON))
    await a_runner(context, job).run_slot(job, extra, Errand(NOON))
    assert work.runs == 2


async def test_a_run_that_was_asked_for_is_begun_by_a_worker_as_it_was_asked_for(
    context: Context, jobs_database: Database, tenant: UUID
) -> None:
    work = free()
    job = a_job(work)
    run_id = await ask(jobs_database, Slot(job.name, NOON, actor="key:1", tenant_id=tenant, dry_run=True))
    runner = a_runner(context, job)
    for _ in range(5):  # before it may be what other tests left behind
        await runner.tick_asked()
        await runner.drain(10)
    assert [(each.run_id, each.tenant_id, each.dry_run) for each in work.errands] == [(run_id, tenant, True)]
    (seen,) = await history(jobs_database, run_id=run_id, tenant_id=tenant)
    assert (seen["state"], seen["counts"]) == ("succeeded", {"rows": 7, "seen": 1})
    assert await history(jobs_database, run_id=run_id, tenant_id=uuid4()) == []


async def test_ticks_do_not_pile_up_and_a_drain_waits_then_cancels(context: Context) -> None:
    quick, stuck = Counted(), Counted()
    jobs = [a_job(work, once=False) for work in (quick, stuck)]
    runner = a_runner(context, *jobs)
    for job, work in zip(jobs, (quick, stuck), strict=True):
        for _ in range(3):
            await runner.tick(job)
        await work.started.wait()
    quick.go_on.set()
    await runner.drain(0.1)
    assert (quick.runs, stuck.runs) == (1, 1)
    assert not runner._running


async def test_workers_say_what_they_do_and_when(context: Context, jobs_database: Database) -> None:
    context.settings.jobs.cron = {"idempotency": "15 4 * * *", "events": "off"}
    await Runner(context, LEASE).register()
    known = {row["job"]: row for row in await known_jobs(jobs_database, None)}
    assert {job.name for job in JOBS} <= set(known)
    assert known["idempotency"]["schedule"] == "15 4 * * * (Asia/Shanghai)"
    assert (known["events"]["schedule"], known["events"]["next_at"]) == ("off", None)
    assert known["sessions"]["schedule"] == "every 60 s"
    assert all(row["meaning"].endswith(".") for row in known.values())


@pytest.mark.parametrize("cron", [{"no_such_job": "off"}, {"events": "at night"}, {"events": "0 3 31 2 *"}])
def test_a_wrong_schedule_stops_the_start(context: Context, cron: dict[str, str]) -> None:
    context.settings.jobs.cron = cron
    with pytest.raises(StartupRefused, match=r"jobs\.cron"):
        Runner(context, LEASE)


@pytest.fixture
async def idle(cluster: embedded.EmbeddedServer, database_name: str, tmp_path: Path) -> AsyncIterator[Context]:
    """A database in which nobody has written anything."""
    name = f"{database_name}_idle"
    await asyncio.to_thread(
        administer, cluster.url(embedded.SUPERUSER, "postgres"), f"DROP DATABASE IF EXISTS {name}",
        f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}",
    )  # fmt: skip
    database = await Database.connect(DatabaseConfig(url=SecretStr(cluster.url(schema.LOGIN_ROLE, name)), pool_size=2))
    owner_url = cluster.url(embedded.SUPERUSER, name)
    context = Context(Settings(data_dir=tmp_path, backup={"database_url": owner_url}), database)
    yield context
    await context.close()
    await database.close()


async def test_every_job_runs_on_an_idle_store_without_the_model(idle: Context) -> None:
    for job in JOBS:
        assert await job.run(idle, Errand(NOON)) == 0, job.name
        assert idle._embedder is None, job.name


def test_an_errand_is_over_when_its_time_is_up() -> None:
    assert not Errand(NOON).is_over
    errand = Errand(NOON, budget_seconds=0)
    assert errand.is_over
    assert errand.counts == {"unfinished": 1}


async def test_an_errand_pauses_as_long_as_its_batch_took(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    # Only the errand's: the service of other tests waits on this loop, too, and would never give it up again.
    monkeypatch.setattr(app.errand, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(
        app.errand, "time", SimpleNamespace(monotonic=iter((0.25, 0.75, 600.0, 605.0, 610.0, 610.0)).__next__)
    )
    errand = Errand(NOON, rest=2.0, _started=0.0, _resumed=0.0)
    await errand.pause()
    await errand.pause()
    await Errand(NOON, _started=0.0, _resumed=605.0).pause()
    assert pauses == [0.5, 5.0]


_ROW = sql("SELECT * FROM job_runs WHERE job = :job ORDER BY slot DESC LIMIT 1")
