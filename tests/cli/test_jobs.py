"""`mneme jobs` against a real database: what it prints, its exit codes, and what the nightly cron calls."""

import asyncio
from datetime import timedelta
from uuid import UUID

import orjson
import pytest
from asyncpg.pgproto import pgproto

from app.cli import jobs
from app.clock import now
from app.database import Database, sql
from app.errand import Errand
from app.errors import EXIT_HELD
from app.runs import Runs, Slot, Turn
from tests.cli.test_commands import Ended, Run, configured, mneme
from tests.forget.conftest import Store
from workers.jobs import JOBS

__all__ = ["configured", "mneme"]  # fixtures

OLD_ANSWERS = sql("""
    INSERT INTO idempotency_keys (tenant_id, scope, key, fingerprint, status, response, created_at)
    SELECT :tenant_id, 'test', 'old ' || number, decode(repeat('00', 32), 'hex'), 201, '', now() - interval '2 days'
    FROM generate_series(1, 2) AS number
""")


async def run(mneme: Run, *arguments: str) -> Ended:
    """The command in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(mneme, *arguments)


@pytest.fixture
def store(database: Database, tenant: UUID) -> Store:
    return Store(database, tenant)


async def some_to_forget(store: Store) -> list[str]:
    month = now() - timedelta(days=31)
    ids = [await store.add(importance=1.0, updated_at=month), await store.add("王", expires_at=month)]
    await store.add(importance=1.0, updated_at=month, pinned=True)
    return [str(memory_id) for memory_id in ids]


async def test_a_dry_run_prints_what_a_real_run_then_does_and_a_second_run_nothing(
    mneme: Run, configured: None, store: Store
) -> None:
    """R37."""
    ids = await some_to_forget(store)
    wanted = ("jobs", "run", "forget", "--once", "--tenant", str(store.tenant_id))
    dry = await run(mneme, *wanted, "--dry-run")
    assert dry.code == 0
    assert [line.split()[0] for line in dry.out.splitlines()] == ids
    assert "trivial: importance 1 and unchanged for 7 days" in dry.out
    assert "dry: nothing was changed" in dry.err
    assert (await store.look(UUID(ids[0])))["status"] == "active"
    real = await run(mneme, *wanted)
    assert (real.code, real.out) == (0, dry.out)
    assert "trivial 1, expired 1" in real.err
    again = await run(mneme, *wanted)
    assert (again.code, again.out) == (0, "")
    assert "nothing to do" in again.err


async def test_programs_get_json_a_run_can_be_undone_and_the_history_has_both(
    mneme: Run, configured: None, store: Store
) -> None:
    ids = await some_to_forget(store)
    tenant = ("--tenant", str(store.tenant_id))
    ended = await run(mneme, "jobs", "run", "forget", "--json", "--quiet", *tenant)
    lines = [orjson.loads(line) for line in ended.out.splitlines()]
    assert [line["memory_id"] for line in lines] == ids
    assert lines[0] == {
        "tenant_id": str(store.tenant_id), "memory_id": ids[0], "rule": "trivial",
        "reason": "importance 1 and unchanged for 7 days", "before": "active", "after": "archived",
    }  # fmt: skip
    assert ended.err == ""
    history = await run(mneme, "jobs", "history", "forget", "--json", "--limit", "1")
    (last,) = [orjson.loads(line) for line in history.out.splitlines()]
    assert (last["state"], last["actor"], last["counts"]) == (
        "succeeded",
        "command",
        {"rows": 2, "trivial": 1, "expired": 1},
    )
    undone = await run(mneme, "jobs", "undo", last["run_id"], *tenant)
    assert undone.out.startswith("2 brought back, 0 left")
    assert (await store.look(UUID(ids[0])))["status"] == "active"
    assert last["run_id"] in (await run(mneme, "jobs", "history")).out


async def test_every_job_is_listed_with_its_hour_and_its_last_run(
    mneme: Run, configured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MNEME_JOBS__CRON", '{"purge": "15 4 * * *", "events": "off"}')
    monkeypatch.setenv("COLUMNS", "200")
    await run(mneme, "jobs", "run", "purge", "--dry-run")
    listed = await run(mneme, "jobs", "list", "--json")
    jobs = {job["job"]: job for job in map(orjson.loads, listed.out.splitlines())}
    assert list(jobs) == [job.name for job in JOBS]
    assert jobs["purge"]["schedule"] == "15 4 * * * (Asia/Shanghai)"
    assert (jobs["events"]["schedule"], jobs["events"]["next_at"]) == ("off", None)
    table = (await run(mneme, "jobs", "list")).out
    assert all(job.name in table for job in JOBS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such-job",), "no job is called so"),
        (("embed", "--dry-run"), "cannot say what it would do"),
        (("gauges", "--tenant", "01900000-0000-7000-8000-00000000dead"), "all tenants at once"),
        (("forget", "--tenant", "lin"), "UUID"),
        (("forget", "--tenant", "01900000-0000-7000-8000-00000000dead"), "no such tenant"),
    ],
)
def test_wrong_usage_ends_with_2(mneme: Run, configured: None, arguments: tuple[str, ...], said: str) -> None:
    ended = mneme("jobs", "run", *arguments)
    assert ended.code == 2
    assert said in ended.err


async def test_a_job_that_only_counts_says_how_much_it_did(mneme: Run, configured: None, store: Store) -> None:
    async with store.database.write(store.tenant_id) as transaction:
        await transaction.execute(OLD_ANSWERS, tenant_id=store.tenant_id)
    did, again = [await run(mneme, "jobs", "run", "idempotency", "--once") for _ in range(2)]
    assert (did.code, again.code) == (0, 0)
    assert "idempotency: rows " in did.err
    assert "nothing to do" in again.err


def test_nothing_is_undone_for_an_unknown_tenant(mneme: Run, configured: None) -> None:
    nobody = "01900000-0000-7000-8000-00000000dead"
    ended = mneme("jobs", "undo", nobody, "--tenant", nobody)
    assert ended.code == 2
    assert "no such tenant" in ended.err


async def test_a_run_that_goes_on_elsewhere_ends_with_75_and_changes_nothing(
    mneme: Run, configured: None, store: Store
) -> None:
    (first, _) = await some_to_forget(store)
    worker = Runs(store.database, "elsewhere", timedelta(seconds=60))
    turn = await worker.claim(Slot("forget", now(), actor="test"))
    assert isinstance(turn, Turn)
    for options in ((), ("--if-due",), ("--dry-run",)):
        held = await run(mneme, "jobs", "run", "forget", "--once", *options)
        assert (held.code, held.out) == (EXIT_HELD, "")
        assert "goes on elsewhere" in held.err
    assert (await store.look(UUID(first)))["status"] == "active"
    await worker.finish(turn, {})


async def test_cron_beside_workers_runs_a_night_once(
    mneme: Run, configured: None, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second with --if-due is told so and ends well; without it a run can always be had."""
    forget = sql("DELETE FROM job_runs WHERE job = 'purge'")
    async with database.work() as transaction:
        await transaction.execute(forget)
    runs = [
        await run(mneme, "jobs", "run", "purge", *options) for options in (("--if-due",), ("--if-due",), ("--once",))
    ]
    assert [one.code for one in runs] == [0, 0, 0]
    assert ["has had its run" in one.err for one in runs] == [False, True, False]


def test_how_far_a_long_run_is_is_told_line_by_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its id comes from the driver, whose UUID is one of its own kind."""
    monkeypatch.setattr(jobs, "SECONDS_A_LINE", 0.0)
    run_id = pgproto.UUID("01a22abc-e867-728f-a462-a2eba3556f0b")
    jobs._lines("forget")(Errand(now(), run_id=run_id, stands_at="stale"))
    line = orjson.loads(capsys.readouterr().err)
    assert line == {"job": "forget", "run_id": str(run_id), "at": "stale", "counts": {}}
