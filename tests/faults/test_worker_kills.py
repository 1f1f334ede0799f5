"""kill -9 of the worker in the middle of every job: the next one takes over, and what there was to do is done once."""

import asyncio
import json
from dataclasses import dataclass

import httpx2
import pytest

from tests.embed.server import serving, status
from tests.faults.conftest import Stage
from tests.faults.processes import Process, until
from workers.jobs import JOBS

ERASURE = """
INSERT INTO erasures (tenant_id, subject_id, erasure_id, actor, counts, created_at)
SELECT tenant_id, gen_random_uuid(), gen_random_uuid(), 'test', '{}', now() FROM tenants
"""
LONG_AGO = "now() - interval '200 days'"
ONCE = "0 0 1 1 *"
"""A slot that began long ago and has had no run: it is due now, and stays the same one for the whole test."""
SHORT, LONG = "Emma has a cat", "Emma has a black cat"
PRINTER = (
    "Asked about the office printer being offline", "The office printer was offline again and restarted",
    "Complained that the office printer is offline", "Reported the office printer offline once more",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Act:
    """In which table a job is stopped, what it finds to do, and the question that is true when it was done, once.

    `leased`: where what the killed one had in hand is its own for two minutes, which pass at once here.
    """

    table: str | None
    seed: tuple[str, ...] = ()
    done: str = "SELECT true"
    leased: str | None = None


def _of(content: str) -> str:
    return f"(SELECT memory_id FROM memories WHERE content = '{content}')"


def _queue(table: str, columns: str, values: str, content: str) -> str:
    return (
        f"INSERT INTO {table} (tenant_id, subject_id, memory_id, {columns}) "
        f"SELECT tenant_id, subject_id, memory_id, {values} FROM memories WHERE content = '{content}'"
    )


ACTS: dict[str, Act] = {
    "embed": Act(
        "memories",
        (
            "UPDATE memories SET embedding = NULL, generation_id = NULL WHERE content = 'pending'",
            _queue("embedding_queue", "due_at, created_at", "now(), now()", "pending"),
        ),
        "SELECT embedding IS NOT NULL AND NOT EXISTS (SELECT FROM embedding_queue) FROM memories "
        "WHERE content = 'pending'",
        leased="embedding_queue",
    ),
    "gauges": Act("webhook_deliveries"),
    "idempotency": Act(
        "idempotency_keys",
        (f"UPDATE idempotency_keys SET created_at = {LONG_AGO}",),
        "SELECT count(*) = 0 FROM idempotency_keys",
    ),
    "large_subjects": Act("memory_terms", (), "SELECT ann AND ann_ready FROM subjects WHERE user_id = 'large'"),
    "sessions": Act(
        "session_windows",
        (f"UPDATE session_windows SET ends_at = {LONG_AGO}",),
        "SELECT count(*) = 0 FROM session_windows",
    ),
    "webhooks": Act(
        "webhooks",
        (),
        "SELECT bool_and(state = 'delivered') AND count(*) > 0 FROM webhook_deliveries",
        leased="webhook_deliveries",
    ),
    "operations": Act(
        "memories",
        (),
        "SELECT state = 'succeeded' AND attempts = 2 "
        "AND (SELECT count(*) FROM memories WHERE content LIKE '%芒果%') = 1 FROM operations",
    ),
    "finished_operations": Act(
        "operations", (f"UPDATE operations SET finished_at = {LONG_AGO}",), "SELECT count(*) = 0 FROM operations"
    ),
    "events": Act("outbox", (f"UPDATE outbox SET created_at = {LONG_AGO}",), "SELECT count(*) = 0 FROM outbox"),
    "reembed": Act("embedding_generations"),
    "reembed_rest": Act("embedding_generations"),
    "erasures": Act(
        "erasures",
        (ERASURE,),
        "SELECT bool_and(cleared_at IS NOT NULL) AND count(*) > 0 FROM erasures",
    ),
    "reinforce": Act(
        "memory_usage",
        (_queue("reinforcement_queue", "created_at", "now()", "pending"),),
        "SELECT count(*) = 0 FROM reinforcement_queue",
    ),
    "forget": Act(
        "memory_archive",
        (f"UPDATE memories SET expires_at = {LONG_AGO} WHERE content = 'expired'",),
        "SELECT count(*) = 1 FROM memory_archive",
    ),
    "cool": Act(
        "memory_windows",
        (f"UPDATE memories SET importance = 2, updated_at = {LONG_AGO} WHERE content = 'unused'",),
        "SELECT count(*) = 1 FROM memories WHERE cooled_by IS NOT NULL AND content = 'unused'",
    ),
    "purge": Act(
        "memory_events",
        (f"UPDATE memory_archive SET archived_at = {LONG_AGO}",),
        "SELECT count(*) = 0 FROM memories WHERE content = 'expired'",
    ),
    "deprecate": Act(
        "memory_events",
        (f"UPDATE memories SET valid_to = {LONG_AGO} WHERE content = 'over'",),
        "SELECT status = 'deprecated' AND (SELECT count(*) FROM memory_events e WHERE e.memory_id = m.memory_id "
        "AND e.action = 'deprecated') = 1 FROM memories m WHERE content = 'over'",
    ),
    "dedup": Act(
        "memory_events",
        (
            "DELETE FROM memory_links",
            _queue("memory_links", "relation, other_id, created_at", f"'candidate', {_of(SHORT)}, now()", LONG),
        ),
        f"SELECT status = 'duplicate' AND (SELECT count(*) FROM memory_links) = 1 FROM memories "
        f"WHERE content = '{SHORT}'",
    ),
    "summarise": Act(
        "memory_events",
        (f"UPDATE memories SET created_at = {LONG_AGO}, updated_at = {LONG_AGO} WHERE content LIKE '%printer%'",),
        "SELECT count(*) = 1 FROM memories WHERE kind = 'summary'",
    ),
    "backup": Act("memories"),
    "backup_gauges": Act(None),
}


def only(job: str) -> dict[str, str]:
    """Settings under which a worker does this job and no other."""
    cron = {each.name: "off" for each in JOBS if each.name != job}
    [own] = [each for each in JOBS if each.name == job]
    return {"jobs__cron": json.dumps(cron | ({job: ONCE} if own.once else {}))}


async def seed(client: httpx2.AsyncClient, hook: str) -> None:
    """One of everything that a job may find to do."""

    async def post(path: str, body: object) -> None:
        answer = await client.post(path, json=body)
        assert answer.is_success, answer.text

    await post("/v1/webhooks", {"url": hook})
    for content in ("pending", "expired", "over", "unused", SHORT, LONG, *PRINTER):
        await post("/v1/memories", {"user_id": "amy", "content": content, "if_trivial": "keep"})
    await post("/v1/memories:batch", {"items": [{"user_id": "large", "content": f"room {n}"} for n in range(110)]})
    await post("/v1/sessions/s1/messages", {"user_id": "amy", "messages": [{"role": "user", "content": "hello"}]})
    await post("/v1/memories:extract", {"user_id": "ben", "messages": [{"role": "user", "content": "我对芒果过敏"}]})


async def killed_within(stage: Stage, worker: Process, table: str | None) -> None:
    """Kill the worker while a statement of its job waits for this table."""
    async with stage.session() as stranger:
        transaction = stranger.transaction()
        await transaction.start()
        if table is not None:
            await stranger.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        await asyncio.to_thread(worker.start)

        async def within() -> bool:
            waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            return worker.said("worker_started") > 0 if table is None else bool(await stage.ask(waiting))

        await until(within, f"the job waits for {table}")
        await asyncio.to_thread(worker.kill)
        await transaction.rollback()


def test_every_job_has_its_act() -> None:
    assert ACTS.keys() == {job.name for job in JOBS}


@pytest.mark.faults
async def test_the_worker_is_killed_in_every_job(stage: Stage) -> None:
    common = {
        "recall__exact_scan_rows": "100",
        "consolidate__summary_similarity": "0.2",
        "webhooks__allow_private_targets": "true",
        "operations__lease_seconds": "1",
        "backup__database_url": stage.owner_url,
    }
    api = stage.api(**common)
    with serving("/hook", status(204)) as receiver:
        await asyncio.to_thread(api.start)
        async with stage.client() as client:
            await seed(client, receiver.url)
        await asyncio.to_thread(api.stop)
        for job in JOBS:
            act = ACTS[job.name]
            for statement in act.seed:
                await stage.ask(statement)
            await killed_within(stage, stage.worker(**common, **only(job.name)), act.table)
            if act.leased:
                await stage.ask(f"UPDATE {act.leased} SET due_at = now()")
            await resumed(stage, job.name, stage.worker(**common, **only(job.name)))


async def resumed(stage: Stage, job: str, worker: Process) -> None:
    """A new worker does what the killed one did not, and leaves no run open."""
    await asyncio.to_thread(worker.start)
    series = f'mneme_job_runs_total{{job="{job}",outcome="succeeded"}}'
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{stage.metrics_port}") as client:

            async def done() -> bool:
                try:
                    text = (await client.get("/metrics")).text
                except httpx2.TransportError:
                    return False
                return series in text and await stage.ask(ACTS[job].done) == [(True,)]

            await until(done, f"{job} is done")
    finally:
        await asyncio.to_thread(worker.stop)
    runs = await stage.ask("SELECT state, attempts FROM job_runs WHERE job = $1", job)
    assert runs in ([], [("succeeded", 2)]), job
