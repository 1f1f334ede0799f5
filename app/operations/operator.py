"""The operator: works claims off, keeps their leases alive, and decides what a failure means.

Invariant: one operation that fails, hangs or kills its process takes no other with it, and ends as `failed` with a
reason after its kind's attempts.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from app import telemetry, work_metrics
from app.errors import MnemeError
from app.operations.kinds import OPERATION_KINDS, OperationKind
from app.operations.queue import Claim, OperationConfig, OperationLost, Queue
from app.operations.tools import Tools

INTERNAL: Final = ("internal", "an unexpected error; the service's log has its place")
WORN_OUT: Final = ("worker_died", "every process that tried it ended before it did")


@dataclass(slots=True)
class Operator:
    """The operations that one process has in hand; `clock` reads the time."""

    queue: Queue
    tools: Tools
    config: OperationConfig
    clock: Callable[[], datetime]
    _tasks: dict[UUID, "asyncio.Task[None]"] = field(default_factory=dict)

    async def work_off(self) -> int:
        """Claim what is due and wait until a part of it is done; returns how many are in hand (0: nothing is due)."""
        room = self.config.concurrency - len(self._tasks)
        claims = await self.queue.claim(now=self.clock(), limit=room) if room > 0 else []
        for claim in claims:
            self.begin(claim)
        in_hand = len(self._tasks)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        return in_hand

    def begin(self, claim: Claim) -> "asyncio.Task[None]":
        """Work on a claim in the background; the task never raises but when it is cancelled."""
        task = asyncio.create_task(self._run(claim), name=f"operation {claim.kind}")
        self._tasks[claim.operation_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(claim.operation_id, None))
        return task

    async def close(self) -> None:
        """Put back what is in hand, for other processes to take up at once."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, claim: Claim) -> None:
        started = time.monotonic()
        work = asyncio.ensure_future(self._work(claim))
        heart = asyncio.create_task(self._beat(claim))
        outcome = "lost"
        try:
            await asyncio.wait((work, heart), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                outcome = work.result()
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            with contextlib.suppress(MnemeError):  # the lease ends by itself
                await self.queue.put_back(claim, timedelta(0), now=self.clock())
            outcome = "put_back"
            raise
        except Exception as error:  # the database is away: nothing was written, and the lease ends by itself
            telemetry.log().error("operation_unfinished", kind=claim.kind, **telemetry.frames(error))
        finally:
            work.cancel()
            heart.cancel()
            await asyncio.gather(work, heart, return_exceptions=True)
            work_metrics.OPERATION_ATTEMPTS.labels(claim.kind, outcome).inc()
            work_metrics.OPERATION_SECONDS.labels(claim.kind).observe(time.monotonic() - started)

    async def _work(self, claim: Claim) -> str:
        """Do the work once; returns what became of it: succeeded, failed, retried or lost."""
        kind = OPERATION_KINDS[claim.kind]
        try:
            if claim.attempts > kind.attempts:
                return await self._fail(claim, *WORN_OUT)
            claim.heard = await self.queue.subscriptions.hears(claim.tenant_id)
            result = await kind.run(claim, self.tools, self.clock())
            if result is not None:
                await self.queue.succeed(claim, result, now=self.clock())
            return "succeeded"
        except OperationLost:
            return "lost"
        except Exception as error:
            return await self._missed(claim, kind, error)

    async def _missed(self, claim: Claim, kind: OperationKind, error: Exception) -> str:
        """What an attempt that failed means: what the input is to blame for is final, the rest worth another try."""
        code, detail = (error.code, error.detail) if isinstance(error, MnemeError) else INTERNAL
        hopeless, least_wait = False, 0.0
        if isinstance(error, MnemeError):
            hopeless, least_wait = error.status < 500, error.retry_after_seconds or 0.0
        else:
            telemetry.log().error("operation_failed", kind=claim.kind, **telemetry.frames(error))
        if hopeless or claim.attempts >= kind.attempts:
            return await self._fail(claim, code, detail)
        wait = max(wait_seconds(kind, claim.attempts) * random.uniform(0.8, 1.2), least_wait)  # noqa: S311 - spreads load
        await self.queue.put_back(claim, timedelta(seconds=wait), now=self.clock(), error=code, detail=detail)
        return "retried"

    async def _fail(self, claim: Claim, code: str, detail: str) -> str:
        try:
            await self.queue.fail(claim, code, detail, now=self.clock())
        except OperationLost:
            return "lost"
        if claim.kind == "extract":
            work_metrics.EXTRACTIONS.labels("failed").inc()
        return "failed"

    async def _beat(self, claim: Claim) -> None:
        """Renew the lease until it is lost: taken over, cancelled, or not renewed in time."""
        period = self.config.lease_seconds / 4
        renewed = time.monotonic()
        while time.monotonic() - renewed <= 2 * period:
            await asyncio.sleep(period)
            with contextlib.suppress(MnemeError):  # a database that is away for a moment does not cost the lease
                if not await self.queue.renew(claim, now=self.clock()):
                    return
                renewed = time.monotonic()


def wait_seconds(kind: OperationKind, attempts: int) -> float:
    """How long to wait after so many attempts (from 1): four times longer each time, up to the kind's longest wait."""
    return float(min(kind.longest_wait_seconds, kind.first_wait_seconds * 4.0 ** min(attempts - 1, 20)))
