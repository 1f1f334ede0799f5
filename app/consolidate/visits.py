"""Which subjects a job looks at: those that changed since it looked at all of them, or whose time has come.

Invariant: a mark is moved only by a run that is not dry and only past what it has judged, so a run that is killed or
out of time leaves the rest to the next.
"""

from collections.abc import AsyncIterator
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


async def visits(database: Database, errand: Errand, job: str) -> AsyncIterator[Visit]:
    """The subjects of an errand that a job has to look at, until the errand is over."""
    for tenant_id in await tenants(database, errand):
        after = FIRST
        while True:
            async with database.read(tenant_id) as transaction:
                await transaction.allow(TURN_SECONDS)
                rows = await transaction.fetch(
                    _CHANGED, tenant_id=tenant_id, job=job, after=after, now=errand.now, limit=PAGE
                )
            for row in rows:
                if errand.is_over:
                    return
                errand.stands_at = f"{tenant_id} {row['subject_id']}"
                yield Visit(tenant_id, **row)
                await errand.pause()
            if len(rows) < PAGE:
                break
            after = rows[-1]["subject_id"]


async def mark(
    database: Database, visit: Visit, job: str, *, through: tuple[datetime | None, UUID | None], whole: bool,
    due_at: datetime | None = None,
) -> None:  # fmt: skip
    """Say how far a job came; `whole`: it saw all of the subject as it was when the visit began."""
    async with database.write(visit.tenant_id) as transaction:
        await transaction.execute(
            _MARK, **visit.names, job=job, stamp=visit.stamp if whole else None, through=through[0],
            through_id=through[1], due_at=due_at,
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
# A subject that was erased meanwhile gets no mark.
_MARK = sql("""
    INSERT INTO consolidation_marks AS k (tenant_id, subject_id, job, stamp, through, through_id, due_at)
    SELECT tenant_id, subject_id, cast(:job AS text), cast(:stamp AS bigint), cast(:through AS timestamptz),
           cast(:through_id AS uuid), cast(:due_at AS timestamptz)
    FROM subjects WHERE tenant_id = :tenant_id AND subject_id = :subject_id
    ON CONFLICT (tenant_id, subject_id, job) DO UPDATE
    SET stamp = excluded.stamp, through = excluded.through, through_id = excluded.through_id, due_at = excluded.due_at
""")
