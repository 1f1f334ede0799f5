"""The webhooks of a tenant: registered, listed, switched on again, removed; and the log of what was sent to them."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from app.database import Database, sql
from app.errors import Conflict, FieldError, Invalid, NotFound
from app.guard import Caller
from app.webhooks.events import KNOWN_SECONDS
from app.webhooks.signature import WebhookConfig, secret_of, secret_text
from app.webhooks.target import Refused, checked_url, resolve


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """Where events shall go, and which."""

    url: str
    events: tuple[str, ...]
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The webhooks that callers manage. A key that is bound to a user or an agent may not: it would hear of others."""

    database: Database
    pepper: bytes
    config: WebhookConfig

    async def register(self, caller: Caller, new: NewWebhook, *, now: datetime) -> tuple[dict[str, Any], str]:
        """Store a webhook; return it and its secret, which is shown this once.

        It is answered when every process knows of it, a second later, so nothing that happens afterwards is missed.
        Raises Forbidden, Invalid (also for a target that may not be reached), Conflict when there are too many.
        """
        caller.act_for_all()
        url = checked_url(new.url, allow_private=self.config.allow_private_targets)
        try:
            await resolve(url, allow_private=self.config.allow_private_targets)
        except Refused as refused:
            if refused.reason == "private_target":  # a name that is not known yet may be known later
                raise Invalid(errors=[FieldError("/url", refused.reason, "must be a public address")]) from None
        webhook_id = uuid7()
        async with self.database.write(caller.tenant_id) as transaction:
            row = await transaction.fetch_row(
                _REGISTER, tenant_id=caller.tenant_id, webhook_id=webhook_id, url=url, events=list(new.events),
                description=new.description, now=now, most=self.config.most_per_tenant,
            )  # fmt: skip
        if row is None:
            raise Conflict(f"a tenant has at most {self.config.most_per_tenant} webhooks")
        await asyncio.sleep(KNOWN_SECONDS * 1.1)
        return dict(row), secret_text(secret_of(self.pepper, caller.tenant_id, webhook_id))

    async def browse(self, caller: Caller) -> list[dict[str, Any]]:
        """Every webhook of the tenant, oldest first."""
        caller.act_for_all()
        async with self.database.read(caller.tenant_id) as transaction:
            return [dict(row) for row in await transaction.fetch(_LIST, tenant_id=caller.tenant_id)]

    async def get(self, caller: Caller, webhook_id: UUID) -> dict[str, Any]:
        """One webhook; raises NotFound."""
        caller.act_for_all()
        async with self.database.read(caller.tenant_id) as transaction:
            row = await transaction.fetch_row(_GET, tenant_id=caller.tenant_id, webhook_id=webhook_id)
        if row is None:
            raise NotFound
        return dict(row)

    async def enable(self, caller: Caller, webhook_id: UUID) -> dict[str, Any]:
        """Send again to a webhook that was switched off; what still waits for it is sent, too. Raises NotFound."""
        caller.act_for_all()
        async with self.database.write(caller.tenant_id) as transaction:
            row = await transaction.fetch_row(_ENABLE, tenant_id=caller.tenant_id, webhook_id=webhook_id)
        if row is None:
            raise NotFound
        await asyncio.sleep(KNOWN_SECONDS * 1.1)
        return dict(row)

    async def remove(self, caller: Caller, webhook_id: UUID) -> None:
        """Forget a webhook and its log; raises NotFound."""
        caller.act_for_all()
        async with self.database.write(caller.tenant_id) as transaction:
            if not await transaction.execute(_REMOVE, tenant_id=caller.tenant_id, webhook_id=webhook_id):
                raise NotFound

    async def deliveries(
        self, caller: Caller, webhook_id: UUID, *, state: str | None = None, before: UUID | None = None, limit: int
    ) -> list[dict[str, Any]]:
        """What was or will be sent, newest event first; `before` goes on after the event with that id.

        Raises NotFound.
        """
        await self.get(caller, webhook_id)
        async with self.database.read(caller.tenant_id) as transaction:
            rows = await transaction.fetch(
                _DELIVERIES, tenant_id=caller.tenant_id, webhook_id=webhook_id, state=state, before=before, limit=limit
            )
        return [dict(row) for row in rows]


_COLUMNS = "webhook_id AS id, url, events, description, created_at, failing_since, disabled_at, disabled_reason"
_REGISTER = sql(f"""
    INSERT INTO webhooks (tenant_id, webhook_id, url, events, description, created_at)
    SELECT :tenant_id, :webhook_id, :url, cast(:events AS text[]), :description, :now
    WHERE (SELECT count(*) FROM webhooks WHERE tenant_id = :tenant_id) < cast(:most AS int)
    RETURNING {_COLUMNS}
""")
_LIST = sql(f"SELECT {_COLUMNS} FROM webhooks WHERE tenant_id = :tenant_id ORDER BY webhook_id")
_GET = sql(f"SELECT {_COLUMNS} FROM webhooks WHERE tenant_id = :tenant_id AND webhook_id = :webhook_id")
_ENABLE = sql(f"""
    UPDATE webhooks SET disabled_at = NULL, disabled_reason = NULL, failing_since = NULL
    WHERE tenant_id = :tenant_id AND webhook_id = :webhook_id RETURNING {_COLUMNS}
""")
_REMOVE = sql("DELETE FROM webhooks WHERE tenant_id = :tenant_id AND webhook_id = :webhook_id")
_DELIVERIES = sql("""
    SELECT d.event_id, o.kind AS event, d.state, d.attempts, d.created_at, d.finished_at,
           CASE WHEN d.state = 'pending' THEN d.due_at END AS next_attempt_at, d.last_status, d.last_error, d.took_ms
    FROM webhook_deliveries d
    JOIN outbox o ON o.tenant_id = d.tenant_id AND o.subject_id = d.subject_id AND o.event_id = d.event_id
    WHERE d.tenant_id = :tenant_id AND d.webhook_id = :webhook_id
      AND (cast(:state AS text) IS NULL OR d.state = :state) AND (cast(:before AS uuid) IS NULL OR d.event_id < :before)
    ORDER BY d.event_id DESC LIMIT :limit
""")
