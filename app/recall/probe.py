"""Now and then the vector index is compared with the whole truth, in the background: is what it finds the nearest?

Invariant: never in a request's way: a small share of the searches, one probe at a time, in a transaction of its own.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from app import telemetry
from app.database import Database, Statement
from app.errors import MnemeError
from app.recall.query import RecallConfig

PROBE_SECONDS = 60  # a whole large subject is read


class RecallProbe:
    """The probe of one process that may be under way."""

    def __init__(self, database: Database, config: RecallConfig) -> None:
        self._database, self._share = database, config.probe_share
        self._task: asyncio.Task[None] | None = None

    def offer(self, tenant_id: UUID, statement: Statement, values: Mapping[str, Any]) -> None:
        """Perhaps run a statement that yields the share of the nearest that was found (null: there is nothing)."""
        busy = self._task is not None and not self._task.done()
        if not busy and random.random() < self._share:  # noqa: S311 - a sample, not a secret
            self._task = asyncio.create_task(self._run(tenant_id, statement, values))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, tenant_id: UUID, statement: Statement, values: Mapping[str, Any]) -> None:
        try:
            async with self._database.read(tenant_id, ordered=True) as transaction:
                await transaction.allow(PROBE_SECONDS)
                ratio = await transaction.fetch_value(statement, **values)
        except MnemeError:
            telemetry.RECALL_PROBES.labels("failed").inc()
            return
        telemetry.RECALL_PROBES.labels("ok").inc()
        if ratio is not None:
            telemetry.RECALL_PROBE_RATIO.observe(ratio)
