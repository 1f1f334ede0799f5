"""Which subjects a job looks at: those that changed since it looked at all of them, or whose time has come; and which
of these it visits one by one: those on which a glance at the page finds something to do.

Invariant: a mark is moved only by a run that is not dry and only past what it has judged, so a run that is killed or
out of time leaves the rest to the next. It holds the stamp that was read before the look, so that what is written
meanwhile is seen by the next run.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.database import Database, Transaction, sql, subject_lock
from app.errand import Errand

PAGE: Final = 100
TURN_SECONDS: Final = 60.0
FIRST: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Visit:
    """A subject to look at, and how far the last run came (None: from the beginning)."""

    tenant_id: UUID
    subject_id: UUID
    user_id: str | None
    stamp: int
    through: datetime | None
    through_id: UUID | None

    @property
    def names(self) -> dict[str, UUID]:
        return {"tenant_id": self.tenant_id, "subject_id": self.subject_id}


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a job came with a subject; `whole`: it saw all of it as it was when the visit began.

    `due_at`: when mere time will have made something of it to look at.
    """

    visit: Visit
    through: datetime | None = None
    through_id: UUID | None = None
    whole: bool = True
    due_at: datetime | None = None


Glance = Callable[[Sequence[Visit]], Awaitable[list[Mark]]]
"""What a job says of subjects of one tenant: the marks of those on which it has nothing to do. Changes nothing."""


class _Rehearsed(Exception):
    """A dry run is at its end."""


def _end(*, rehearsed: bool) -> None:
    if rehearsed:
        raise _Rehearsed


@asynccontextmanager
async def turn(database: Database, visit: Visit, *, dry_run: bool) -> AsyncIterator[Transaction]:
    """A writing transaction in which nobody else writes to the subject; of a dry run all is taken back at the end."""
    try:
        async with database.write(visit.tenant_id, subject_lock(visit.tenant_id, visit.user_id)) as transaction:
            await transaction.allow(TURN_SECONDS)
            yield transaction
            _end(rehearsed=dry_run)
    except _Rehearsed:
        return


async def tenants(database: Database, errand: Errand) -> list[UUID]:
    """The tenants of an errand."""
    async with database.work() as transaction:
        rows = await transaction.fetch(_TENANTS, tenant_id=errand.tenant_id)
    return [row["tenant_id"] for row in rows]


async def visits(database: Database, errand: Errand, job: str, glance: Glance) -> AsyncIterator[Visit]:
    """The subjects of an errand on which a job has something to do, until the errand is over.

    A page of subjects is glanced at as a whole, and those that need no visit get their marks in one statement.
    """
    for tenant_id in await tenants(database, errand):
        after = FIRST
        while True:
            async with database.read(tenant_id) as transaction:
                await transaction.allow(TURN_SECONDS)
                rows = await transaction.fetch(
                    _CHANGED, tenant_id=tenant_id, job=job, after=after, now=errand.now, limit=PAGE
                )
            page = [Visit(tenant_id, **row) for row in rows]
            idle = await glance(page) if page else []
            if not errand.dry_run:
                await mark(database, job, idle)
            await errand.pause()
            idle_ones = {each.visit.subject_id for each in idle}
            for visit in page:
                if errand.is_over:
                    return
                errand.stands_at = f"{tenant_id} {visit.subject_id}"
                if visit.subject_id not in idle_ones:
                    yield visit
                    await errand.pause()
            if len(page) < PAGE:
                break
            after = page[-1].subject_id


async def mark(database: Database, job: str, marks: Sequence[Mark]) -> None:
    """Say how far a job came with subjects of one tenant."""
    if not marks:
        return
    async with database.write(marks[0].visit.tenant_id) as transaction:
        await transaction.allow(TURN_SECONDS)
        await transaction.execute(
            _MARK, tenant_id=marks[0].visit.tenant_id, job=job, subjects=[each.visit.subject_id for each in marks],
            stamps=[each.visit.stamp if each.whole else None for each in marks],
            throughs=[each.through for each in marks], through_ids=[each.through_id for each in marks],
            due=[each.due_at for each in marks],
        )  # fmt: skip


_TENANTS = sql("""
    SELECT tenant_id FROM tenants WHERE cast(:tenant_id AS uuid) IS NULL OR tenant_id = :tenant_id ORDER BY tenant_id
""")
_CHANGED = sql("""
    SELECT s.subject_id, s.user_id, p.stamp, k.through, k.through_id
    FROM subject_stamps p
    JOIN subjects s ON s.tenant_id = p.tenant_id AND s.subject_id = p.subject_id
    LEFT JOIN consolidation_marks k ON k.tenant_id = p.tenant_id AND k.subject_id = p.subject_id AND k.job = :job
    WHERE p.tenant_id = :tenant_id AND p.subject_id > :after
      AND (k.stamp IS DISTINCT FROM p.stamp OR k.due_at <= :now)
    ORDER BY p.subject_id LIMIT :limit
""")
# A subject that was erased meanwhile gets no mark, and one that is being erased is waited for.
_MARK = sql("""
    WITH there AS MATERIALIZED (
        SELECT subject_id FROM subjects
        WHERE tenant_id = :tenant_id AND subject_id = ANY (cast(:subjects AS uuid[]))
        ORDER BY subject_id FOR KEY SHARE
    )
    INSERT INTO consolidation_marks AS k (tenant_id, subject_id, job, stamp, through, through_id, due_at)
    SELECT :tenant_id, i.subject_id, cast(:job AS text), i.stamp, i.through, i.through_id, i.due_at
    FROM there
    JOIN unnest(
        cast(:subjects AS uuid[]), cast(:stamps AS bigint[]), cast(:throughs AS timestamptz[]),
        cast(:through_ids AS uuid[]), cast(:due AS timestamptz[])
    ) AS i (subject_id, stamp, through, through_id, due_at) ON i.subject_id = there.subject_id
    ON CONFLICT (tenant_id, subject_id, job) DO UPDATE
    SET stamp = excluded.stamp, through = excluded.through, through_id = excluded.through_id, due_at = excluded.due_at
""")
