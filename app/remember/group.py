"""Group commit: writes of one tenant that come while others are being committed go together into the next transaction.

Invariant: nothing is acknowledged before its COMMIT; a member is refused, slowed down or cancelled for reasons of its
own only; members that share a lock are committed in the order in which they came.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar
from uuid import UUID

from app.database import Database, Transaction, note_commit, sql
from app.errors import DeadlineExceeded, MnemeError, PoolExhausted, Silent
from app.telemetry import DB_POOL_TIMEOUTS, WRITE_GROUP_LEFT, WRITE_GROUP_SIZE

MOST_WEIGHT: Final = 64
"""Memories in one transaction: it must stay short, because all of its members wait for it."""
LIGHT: Final = 8
"""Memories of a request up to which it shares a transaction."""
GROUPS_AT_ONCE: Final = 2
"""Of a tenant in flight: while the database works for one, the next is made ready. With more they get too small."""
ENOUGH: Final = 16
"""Members for whom a second group is worth its transaction; fewer wait for the end of the first…"""
SLOW_SECONDS: Final = 0.05
"""… but not longer than this."""
ALONE_AT_ONCE: Final = 4
"""Of a tenant in flight: members whose lock another process holds, or whose group failed."""

R = TypeVar("R")
A = TypeVar("A")
Work = Callable[[Transaction, Sequence[R]], Awaitable[Sequence[A | MnemeError]]]
"""What is done for some requests in one transaction: the answer of each, or why it is refused without any effect."""
Early = Callable[[Sequence[R]], Iterable[Callable[[], object]]]
"""Pieces of that work (see Meanwhile) which can be done while the transaction of these requests begins."""


@dataclass(slots=True, eq=False)
class Member(Generic[R, A]):
    """A request in line. It shares no transaction with a member that has one of the same `unlike`."""

    request: R
    locks: frozenset[int]
    unlike: frozenset[Hashable]
    weight: int
    answer: "asyncio.Future[A]"
    alone: bool = False
    patience: asyncio.TimerHandle | None = None


class Groups(Generic[R, A]):
    """The lines of all tenants, in one event loop."""

    def __init__(self, database: Database, work: Work[R, A], early: Early[R] = lambda _: ()) -> None:
        self._database, self._work, self._early = database, work, early
        self._lines: dict[UUID, Line[R, A]] = {}

    async def commit(
        self, tenant_id: UUID, request: R, *, locks: frozenset[int], unlike: frozenset[Hashable], weight: int
    ) -> A:
        """The answer of a request, after its commit. Alone it waits for nothing; a heavy one has its own transaction.

        Raises what the work refuses it with, DatabaseUnavailable, PoolExhausted, DeadlineExceeded or StorageFull.
        """
        if weight > LIGHT:
            early = self._early([request])
            async with self._database.write(tenant_id, *sorted(locks), meanwhile=early) as transaction:
                [answer] = await self._work(transaction, [request])
            WRITE_GROUP_SIZE.observe(1)
            if isinstance(answer, MnemeError):
                raise answer
            return answer
        line = self._lines.get(tenant_id)
        if line is None:
            line = self._lines[tenant_id] = Line(tenant_id, self._database, self._work, self._early)
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        line.enter(Member(request, locks, unlike, weight, future))
        try:
            committed = await future
            note_commit()
            return committed
        finally:
            if line.idle:
                self._lines.pop(tenant_id, None)


@dataclass(slots=True, eq=False)
class Line(Generic[R, A]):
    """The writes of one tenant: those that wait, in order, and the locks of those in flight.

    Whoever comes in the same turn of the event loop begins together.
    """

    tenant_id: UUID
    database: Database
    work: Work[R, A]
    early: Early[R]
    waiting: deque[Member[R, A]] = field(default_factory=deque)
    held: set[int] = field(default_factory=set)
    groups: int = 0
    alone: int = 0
    called: bool = False
    slow: bool = False
    hurry: asyncio.TimerHandle | None = None
    tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.groups or self.alone)

    def enter(self, member: Member[R, A]) -> None:
        """Take a member in, and begin if nothing is in its way."""
        self._wait(member)
        self.waiting.append(member)
        if self._may_group and not self.called:
            self.called = True
            asyncio.get_running_loop().call_soon(self._begin)

    @property
    def _may_group(self) -> bool:
        return self.groups == 0 or (self.groups < GROUPS_AT_ONCE and (self.slow or len(self.waiting) >= ENOUGH))

    def _hurry(self) -> None:
        self.slow = True
        self._begin()

    def _wait(self, member: Member[R, A]) -> None:
        loop = asyncio.get_running_loop()
        member.patience = loop.call_later(self.database.patience_seconds, self._give_up, member)

    def _give_up(self, member: Member[R, A]) -> None:
        if member.answer.done():
            return
        if member.locks.isdisjoint(self.held):
            DB_POOL_TIMEOUTS.inc()
            member.answer.set_exception(PoolExhausted())
        else:
            member.answer.set_exception(DeadlineExceeded())

    def _begin(self) -> None:
        """Send off whoever can go; nobody overtakes a member that waits for the same lock."""
        self.called = False
        may_group = self._may_group
        barred, locks, unlike = set(self.held), set[int](), set[Hashable]()
        group: list[Member[R, A]] = []
        weight, staying = 0, deque[Member[R, A]]()
        for member in self.waiting:
            if member.answer.done():
                continue  # its caller has gone, or its patience is over
            free = barred.isdisjoint(member.locks)
            if free and member.alone and self.alone < ALONE_AT_ONCE and locks.isdisjoint(member.locks):
                self._send([member])
            elif (
                free
                and not member.alone
                and may_group
                and weight + member.weight <= MOST_WEIGHT
                and unlike.isdisjoint(member.unlike)
            ):
                group.append(member)
                weight += member.weight
                locks |= member.locks
                unlike |= member.unlike
                continue
            else:
                staying.append(member)
            barred |= member.locks
        self.waiting = staying
        if group:
            self._send(group)

    def _send(self, members: list[Member[R, A]]) -> None:
        for member in members:
            self.held |= member.locks
            if member.patience is not None:
                member.patience.cancel()
        if members[0].alone:
            self.alone += 1
        else:
            self.groups += 1
            if self.hurry is None:
                self.hurry = asyncio.get_running_loop().call_later(SLOW_SECONDS, self._hurry)
        # In a context of its own: what serves several requests belongs to none of them.
        task = asyncio.get_running_loop().create_task(self._commit(members), context=Context())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _calm(self) -> None:
        if self.hurry is not None:
            self.hurry.cancel()
        self.slow, self.hurry = False, None

    async def _commit(self, members: list[Member[R, A]]) -> None:
        """Commit members together and answer them; those that must be tried alone go back to the head of the line."""
        again: list[Member[R, A]] = []
        try:
            again = await self._attempt(members)
        except Exception as error:  # theirs to see: nobody may wait for ever
            _refuse(members, error)
        except BaseException:
            for member in members:
                member.answer.cancel()
            raise
        finally:
            for member in members:
                self.held -= member.locks
            if members[0].alone:
                self.alone -= 1
            else:
                self.groups -= 1
                self._calm()
            for member in reversed(again):
                member.alone = True
                self._wait(member)
                self.waiting.appendleft(member)
            self._begin()

    async def _attempt(self, members: list[Member[R, A]]) -> list[Member[R, A]]:
        """Answer members by one transaction and return those that it did not serve: nothing of theirs is stored."""
        alone, began = members[0].alone, asyncio.get_running_loop().time()
        locks = sorted(frozenset[int]().union(*(member.locks for member in members)))
        locked, present, undone = list[Member[R, A]](), members, False
        try:
            early = self.early([member.request for member in members])
            async with self.database.write(self.tenant_id, *locks, patient=alone, meanwhile=early) as transaction:
                if transaction.locked < len(locks):
                    locked = await _locked_out(transaction, locks, members)
                present = [member for member in members if member not in locked and not member.answer.done()]
                undone = True
                answers = await self.work(transaction, [member.request for member in present]) if present else []
                undone = False  # from here on nobody knows, if COMMIT fails
        except Exception as error:
            slow = asyncio.get_running_loop().time() - began > self.database.patience_seconds
            # Nothing is stored, so another try is safe, each alone: whoever is to blame fails by itself. A single one
            # that has used up its time is spared it, and all of them are where the server fell silent.
            if undone and not alone and not (slow and len(present) == 1) and not isinstance(error, Silent):
                WRITE_GROUP_LEFT.labels("failed").inc(len(present))
                return [member for member in members if not member.answer.done()]
            _refuse(present, error)
            return locked
        WRITE_GROUP_SIZE.observe(len(present))
        for member, answer in zip(present, answers, strict=True):
            if isinstance(answer, MnemeError):
                _refuse([member], answer)
            elif not member.answer.done():
                member.answer.set_result(answer)
        return locked


async def _locked_out(
    transaction: Transaction, locks: Sequence[int], members: Sequence[Member[R, A]]
) -> list[Member[R, A]]:
    """Members whose locks are not all to be had now."""
    free = {row["key"] for row in await transaction.fetch(_FREE, locks=locks)}
    locked = [member for member in members if not member.locks <= free]
    WRITE_GROUP_LEFT.labels("locked").inc(len(locked))
    return locked


def _refuse(members: Sequence[Member[R, A]], error: Exception) -> None:
    for member in members:
        if not member.answer.done():
            member.answer.set_exception(error)


_FREE = sql("SELECT key FROM unnest(cast(:locks AS bigint[])) AS key WHERE pg_try_advisory_xact_lock(key)")
