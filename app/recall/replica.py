"""Searches on a read replica, wherever it is as new as the primary for those who are asked about.

Invariant: what the replica found counts only if it had the stamps that the primary has after the question came, so
whatever was acknowledged before, by any process, is seen. Where it lags, fails or hangs, the primary answers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar
from uuid import UUID

import asyncpg
from pydantic import SecretStr

from app import telemetry
from app.breaker import Breaker, BreakerOpen, State
from app.connections import DatabaseConfig
from app.database import Database, Transaction, sql
from app.errors import MnemeError
from app.recall.query import Query
from app.recall.residents import Stamps

Found = TypeVar("Found")


class Replica:
    """The pool of a read replica, or none; `stamps` reads those of the primary."""

    def __init__(self, config: DatabaseConfig, stamps: Stamps) -> None:
        self._stamps, self._patience_seconds = stamps, config.replica_patience_seconds
        self._database: Database | None = None
        if config.replica_url is not None:
            url = SecretStr(config.replica_url.get_secret_value())
            # Another connection may lead to another server, whose stamps nobody has compared.
            self._database = Database(config.model_copy(update={"url": url}), spares=False)
        self._breaker = Breaker("replica")

    @property
    def state(self) -> State | Literal["none"]:
        """What became of the last calls: the state of the breaker before the replica."""
        return "none" if self._database is None else self._breaker.state

    async def attempt(self, query: Query, read: Callable[[Transaction], Awaitable[Found]]) -> Found | None:
        """What `read` finds on the replica; None where the primary must be asked. Raises nothing of the replica's."""
        if self._database is None:
            return None
        outcome, found = "failed", None
        try:
            async with (
                self._breaker.guard(),
                asyncio.timeout(self._patience_seconds) as limit,
                self._database.read(query.tenant_id, ordered=True) as transaction,
            ):
                outcome = "behind"
                if await self._is_current(transaction, query, limit):
                    outcome = "failed"
                    found = await read(transaction)
                    outcome = "used"
        except BreakerOpen:
            outcome = "open"
        except (MnemeError, TimeoutError, asyncpg.PostgresError) as error:  # also a schema that it has not replayed yet
            outcome = "failed"
            telemetry.log().warning("replica_failed", error=type(error).__name__)
        telemetry.SEARCH_REPLICA.labels(outcome).inc()
        return found if outcome == "used" else None

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()

    async def _is_current(self, transaction: Transaction, query: Query, limit: asyncio.Timeout) -> bool:
        shared = query.include_shared or query.user_id is None
        rows = await transaction.fetch(_HERE, tenant_id=query.tenant_id, user_id=query.user_id, shared=shared)
        here: dict[UUID, int | None] = {row["subject_id"]: row["stamp"] for row in rows}
        if query.user_id is not None and not any(row["user_id"] == query.user_id for row in rows):
            return False  # nobody here, who may have come to the primary
        if shared:
            here.setdefault(query.tenant_id, None)
        limit.reschedule(None)  # that of the primary is not the replica's time
        try:
            there = await self._stamps.of(query.tenant_id, [*here])
        except MnemeError:
            return False  # the primary will say it itself
        limit.reschedule(asyncio.get_running_loop().time() + self._patience_seconds)
        return [*here.values()] == [None if stamp is None else stamp[1] for stamp in there]


_HERE = sql("""
    SELECT s.subject_id, s.user_id, t.stamp
    FROM subjects s LEFT JOIN subject_stamps t ON t.tenant_id = s.tenant_id AND t.subject_id = s.subject_id
    WHERE s.tenant_id = :tenant_id
      AND (s.user_id = :user_id OR cast(:shared AS bool) AND s.subject_id = :tenant_id)
""")
