"""The courier: claims what is due, sends it signed, and writes down how it went; a slow receiver holds up nobody else.

Invariant: a claim is a lease, and only who holds it writes the outcome; no error or log quotes a URL or a body.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

import httpx2
import orjson

from app import work_metrics
from app.database import Database, sql
from app.errors import MnemeError
from app.webhooks.signature import WebhookConfig, headers_for
from app.webhooks.target import Refused, resolve

EACH: Final = 4  # deliveries of one webhook in one go
LEASE_MARGIN_SECONDS: Final = 30.0
GONE: Final = 410


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt went: None everywhere but in `took_ms` if it was heard."""

    status: int | None
    error: str | None
    took_ms: int


@dataclass(slots=True)
class Courier:
    """The deliveries of one worker process. `secret` gives the secret of a tenant's webhook."""

    database: Database
    secret: Callable[[UUID, UUID], bytes]
    config: WebhookConfig
    _client: httpx2.AsyncClient = field(init=False)
    _tasks: dict[UUID, "asyncio.Task[None]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._client = httpx2.AsyncClient(
            follow_redirects=False, trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0)
        )

    async def deliver(self, *, now: datetime) -> int:
        """Begin what is due and wait until a part is done; returns how many webhooks were in hand (0: none is due)."""
        room = self.config.concurrency - len(self._tasks)
        claimed = await self._claim(now, room) if room > 0 else []
        of_webhook: dict[UUID, list[Any]] = {}
        for row in claimed:
            of_webhook.setdefault(row["webhook_id"], []).append(row)
        for webhook_id, rows in of_webhook.items():
            self._tasks[webhook_id] = asyncio.create_task(self._serve(rows, now), name="webhook")
        in_hand = len(self._tasks)
        if self._tasks:
            done, _ = await asyncio.wait(self._tasks.values(), timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            self._tasks = {name: task for name, task in self._tasks.items() if task not in done}
            for task in done:
                task.result()
        return in_hand

    async def close(self) -> None:
        """Break off what is under way and give it back, for other workers to go on at once."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._client.aclose()

    async def _claim(self, now: datetime, limit: int) -> list[Any]:
        lease = timedelta(seconds=EACH * self.config.timeout_seconds + LEASE_MARGIN_SECONDS)
        async with self.database.work() as transaction:
            return await transaction.fetch(
                _CLAIM, now=now, until=now + lease, each=EACH, webhooks=limit, busy=list(self._tasks)
            )

    async def _serve(self, rows: list[Any], claimed_at: datetime) -> None:
        started = time.monotonic()
        left = deque(sorted(rows, key=itemgetter("event_id")))  # made in the order of what happened
        try:
            while left:
                began = claimed_at + timedelta(seconds=time.monotonic() - started)
                attempt = await self._send(left[0], began)
                await self._settle(left[0], attempt, claimed_at + timedelta(seconds=time.monotonic() - started))
                left.popleft()
        except asyncio.CancelledError:  # this process ends
            with suppress(MnemeError):  # the leases end by themselves
                await self._give_back(left, claimed_at)
            raise

    async def _give_back(self, rows: Iterable[Any], now: datetime) -> None:
        async with self.database.work() as transaction:
            for row in rows:
                names = {name: row[name] for name in ("tenant_id", "subject_id", "event_id", "webhook_id", "attempts")}
                await transaction.execute(_GIVE_BACK, **names, now=now)

    async def _send(self, row: Any, now: datetime) -> Attempt:
        body = orjson.dumps(
            {"type": row["kind"], "timestamp": row["created_at"], "data": row["payload"]}, option=orjson.OPT_UTC_Z
        )
        headers = headers_for(self.secret(row["tenant_id"], row["webhook_id"]), row["event_id"], now, body)
        started, status, error = time.monotonic(), None, None
        try:
            async with asyncio.timeout(self.config.timeout_seconds):
                url, host, name = await resolve(row["url"], allow_private=self.config.allow_private_targets)
                request = self._client.build_request(
                    "POST", url, content=body, headers=headers | host, extensions={"sni_hostname": name}
                )
                # Only the status counts: the body, however long, is never read.
                response = await self._client.send(request, stream=True)
                status = response.status_code
                await response.aclose()
        except TimeoutError:
            error = "timeout"
        except Refused as refused:
            error = refused.reason
        except (httpx2.HTTPError, OSError, ValueError) as failure:
            error = _KINDS.get(type(failure), "connection")
        else:
            error = None if 200 <= status < 300 else "redirect" if 300 <= status < 400 else "status"
        return Attempt(status, error, round((time.monotonic() - started) * 1000))

    async def _settle(self, row: Any, attempt: Attempt, now: datetime) -> None:
        last = row["attempts"] >= self.config.attempts
        state = "delivered" if attempt.error is None else "failed" if last else "pending"
        wait = wait_seconds(self.config, row["attempts"])
        gone = attempt.status == GONE
        async with self.database.work() as transaction:
            settled = await transaction.execute(
                _SETTLE,
                **{name: row[name] for name in ("tenant_id", "subject_id", "event_id", "webhook_id", "attempts")},
                state=state,
                due_at=now + timedelta(seconds=wait * random.uniform(0.8, 1.2)),  # noqa: S311 - spreads load
                status=attempt.status,
                error=attempt.error,
                took_ms=attempt.took_ms,
                finished_at=None if state == "pending" else now,
            )
            if settled:
                switched_off = await transaction.fetch_value(
                    _HEARD if attempt.error is None else _MISSED,
                    tenant_id=row["tenant_id"],
                    webhook_id=row["webhook_id"],
                    now=now,
                    since=now if gone else now - timedelta(hours=self.config.disable_after_hours),
                    reason="gone" if gone else "failing",
                )
                if switched_off:
                    work_metrics.WEBHOOKS_DISABLED.labels("gone" if gone else "failing").inc()
        outcome = {"delivered": "delivered", "failed": "failed", "pending": "retried"}[state]
        work_metrics.WEBHOOK_DELIVERIES.labels(outcome if settled else "lost").inc()
        work_metrics.WEBHOOK_DURATION_SECONDS.observe(attempt.took_ms / 1000)


def wait_seconds(config: WebhookConfig, attempts: int) -> float:
    """How long to wait after so many attempts (from 1): four times longer each time, up to the longest wait."""
    return float(min(config.longest_wait_seconds, config.first_wait_seconds * 4.0 ** min(attempts - 1, 20)))


async def forget_events(database: Database, config: WebhookConfig, *, now: datetime, limit: int = 1000) -> int:
    """Forget events older than configured, with their deliveries; returns how many (short: none are left)."""
    async with database.work() as transaction:
        return await transaction.execute(_FORGET, before=now - timedelta(days=config.keep_days), limit=limit)


async def pending(database: Database, *, now: datetime) -> tuple[int, float]:
    """How many deliveries wait, and how many seconds the oldest that could be sent has waited since its event."""
    async with database.work() as transaction:
        row = await transaction.fetch_row(_PENDING)
    assert row is not None
    return row["waiting"], max(0.0, (now - row["oldest"]).total_seconds()) if row["oldest"] else 0.0


_KINDS: Final[dict[type[BaseException], str]] = {
    httpx2.ConnectTimeout: "timeout",
    httpx2.ReadTimeout: "timeout",
    httpx2.WriteTimeout: "timeout",
    httpx2.RemoteProtocolError: "protocol",
}
_CLAIM = sql("""
    UPDATE webhook_deliveries d SET due_at = :until, attempts = d.attempts + 1
    FROM (
        SELECT due.* FROM (
            SELECT tenant_id, webhook_id FROM webhooks w
            WHERE disabled_at IS NULL AND webhook_id <> ALL (cast(:busy AS uuid[])) AND EXISTS (
                SELECT FROM webhook_deliveries d
                WHERE d.tenant_id = w.tenant_id AND d.webhook_id = w.webhook_id AND d.state = 'pending'
                  AND d.due_at <= :now
            )
            LIMIT :webhooks
        ) AS w
        CROSS JOIN LATERAL (
            SELECT tenant_id, subject_id, event_id, webhook_id FROM webhook_deliveries d
            WHERE d.tenant_id = w.tenant_id AND d.webhook_id = w.webhook_id AND d.state = 'pending' AND d.due_at <= :now
            ORDER BY due_at, event_id LIMIT :each FOR UPDATE SKIP LOCKED
        ) AS due
    ) AS due
    JOIN outbox o ON o.tenant_id = due.tenant_id AND o.subject_id = due.subject_id AND o.event_id = due.event_id
    JOIN webhooks w ON w.tenant_id = due.tenant_id AND w.webhook_id = due.webhook_id
    WHERE d.tenant_id = due.tenant_id AND d.subject_id = due.subject_id AND d.event_id = due.event_id
      AND d.webhook_id = due.webhook_id
    RETURNING d.tenant_id, d.subject_id, d.event_id, d.webhook_id, d.attempts, o.kind, o.payload, o.created_at, w.url
""")
_SETTLE = sql("""
    UPDATE webhook_deliveries SET state = :state, due_at = :due_at, last_status = :status, last_error = :error,
           took_ms = :took_ms, finished_at = :finished_at
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND event_id = :event_id AND webhook_id = :webhook_id
      AND state = 'pending' AND attempts = :attempts
""")
_GIVE_BACK = sql("""
    UPDATE webhook_deliveries SET due_at = :now, attempts = attempts - 1
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND event_id = :event_id AND webhook_id = :webhook_id
      AND state = 'pending' AND attempts = :attempts
""")
_HEARD = sql("""
    UPDATE webhooks SET failing_since = NULL
    WHERE tenant_id = :tenant_id AND webhook_id = :webhook_id AND failing_since IS NOT NULL
    RETURNING false
""")
# Switched off when it has failed without a break since before `since`; in the same breath, the first failure is noted.
_MISSED = sql("""
    UPDATE webhooks SET failing_since = coalesce(failing_since, :now),
           disabled_at = CASE WHEN coalesce(failing_since, :now) <= :since THEN cast(:now AS timestamptz) END,
           disabled_reason = CASE WHEN coalesce(failing_since, :now) <= :since THEN :reason END
    WHERE tenant_id = :tenant_id AND webhook_id = :webhook_id AND disabled_at IS NULL
    RETURNING disabled_at IS NOT NULL
""")
_FORGET = sql("""
    DELETE FROM outbox WHERE (tenant_id, subject_id, event_id) IN (
        SELECT tenant_id, subject_id, event_id FROM outbox WHERE created_at < :before LIMIT :limit
        FOR UPDATE SKIP LOCKED
    )
""")
_PENDING = sql("""
    SELECT count(*) AS waiting, min(d.created_at) AS oldest FROM webhook_deliveries d
    JOIN webhooks w ON w.tenant_id = d.tenant_id AND w.webhook_id = d.webhook_id AND w.disabled_at IS NULL
    WHERE d.state = 'pending'
""")
