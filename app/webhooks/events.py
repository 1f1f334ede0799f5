"""EVENTS: one row for each kind of event; and the outbox, where they are written with what happened.

Invariant: who is told is decided in the writing transaction; a tenant without webhooks costs a write nothing.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app.database import Database, Transaction, sql

EVENTS: Final = MappingProxyType(
    {
        "memory.created": "a new active memory exists",
        "memory.deprecated": "a memory was overruled and is in no search any more",
        "operation.finished": "an operation succeeded, failed or was cancelled",
    }
)
KNOWN_SECONDS: Final = 1.0
"""How long a process believes that it knows who listens. Whoever registers a webhook is answered after that time."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a subject at a time: `data` holds ids and states, no text."""

    kind: str
    subject_id: UUID
    data: Mapping[str, Any]
    at: datetime


@dataclass(slots=True)
class Subscriptions:
    """Which tenants have a webhook, as this process knew it at most a second ago: one small query a second at most."""

    database: Database
    _tenants: frozenset[UUID] = frozenset()
    _until: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def hears(self, tenant_id: UUID) -> bool:
        """Whether events of this tenant are to be told; asked before the transaction that would tell them."""
        if time.monotonic() >= self._until:
            async with self._lock:
                if (asked_at := time.monotonic()) >= self._until:
                    async with self.database.work(changes=False) as transaction:
                        rows = await transaction.fetch(_LISTENERS)
                    self._tenants = frozenset(row["tenant_id"] for row in rows)
                    self._until = asked_at + KNOWN_SECONDS
        return tenant_id in self._tenants


async def tell(transaction: Transaction, tenant_id: UUID, events: Sequence[Event]) -> None:
    """Put events into the outbox, with a delivery for each webhook that wants them; without one nothing is written."""
    if events:
        await transaction.execute(
            _TELL,
            tenant_id=tenant_id,
            subjects=[event.subject_id for event in events],
            events=[uuid7() for _ in events],
            kinds=[event.kind for event in events],
            payloads=[event.data for event in events],
            moments=[event.at for event in events],
        )


_LISTENERS = sql("SELECT DISTINCT tenant_id FROM webhooks WHERE disabled_at IS NULL")
_TELL = sql("""
    WITH event AS (
        SELECT * FROM unnest(
            cast(:subjects AS uuid[]), cast(:events AS uuid[]), cast(:kinds AS text[]), cast(:payloads AS jsonb[]),
            cast(:moments AS timestamptz[])
        ) AS event (subject_id, event_id, kind, payload, at)
    ), heard AS (
        SELECT e.subject_id, e.event_id, e.at, w.webhook_id FROM event e
        JOIN webhooks w ON w.tenant_id = :tenant_id AND w.disabled_at IS NULL AND e.kind = ANY (w.events)
    ), stored AS (
        INSERT INTO outbox (tenant_id, subject_id, event_id, kind, payload, created_at)
        SELECT :tenant_id, e.subject_id, e.event_id, e.kind, e.payload, e.at FROM event e
        WHERE EXISTS (SELECT FROM heard h WHERE h.event_id = e.event_id)
    )
    INSERT INTO webhook_deliveries (tenant_id, subject_id, event_id, webhook_id, state, due_at, created_at)
    SELECT :tenant_id, subject_id, event_id, webhook_id, 'pending', at, at FROM heard
""")
