"""Bringing one tenant or subject back into a running system, from a scratch database that holds a backup.

Invariant: every subject is one transaction as the application's role, behind row security, under the subject's lock and
through the triggers on memories, like any other write; what was erased stays erased, and no revoked key comes back.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from app.backup.content import lift_row_security, plain_connection
from app.backup.fates import columns_of, tables_of
from app.backup.subject import SubjectReturn, Vectors
from app.database import Database, Statement, Transaction, sql, subject_lock
from app.errors import Conflict, NotFound

SUBJECT_SECONDS: Final = 900


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to come back: a tenant, or with `one` a single subject of it (user_id None: the shared one).

    replace: what such a subject has now gives way to what it had; else both are there, and of two versions of one
    memory the newer. even_erased: also subjects that were erased since. dry_run: everything is done and taken back.
    """

    tenant_id: UUID
    one: bool = False
    user_id: str | None = None
    replace: bool = False
    even_erased: bool = False
    dry_run: bool = False


async def merge(
    database: Database, scratch_url: str, wanted: Wanted, backup: str, *, now: datetime,
    progress: Callable[[int, int], None],
) -> dict[str, int]:  # fmt: skip
    """Bring `wanted` back and return counts: subjects; restored; kept, because newer; demoted, because another memory
    has its place; removed by `replace`; erased subjects that stay so.

    Raises NotFound when the backup has no such tenant or subject, Conflict when the tenant's name is taken or the one
    subject was erased.
    """
    counts: Counter[str] = Counter(subjects=0, restored=0, kept=0, demoted=0, removed=0, erased=0)
    async with plain_connection(scratch_url) as source:
        await lift_row_security(source)
        if not await source.fetchval("SELECT count(*) FROM tenants WHERE tenant_id = $1", wanted.tenant_id):
            raise NotFound("the backup has no such tenant")
        subjects = await source.fetch(_SUBJECTS, wanted.tenant_id, wanted.one, wanted.user_id)
        if wanted.one and not subjects:
            raise NotFound("the backup has no such subject")
        await _attempt(database, wanted, None, lambda transaction: _bring_tenant(transaction, source, wanted))
        vectors = await _comparable(database, source, wanted)
        for number, row in enumerate(subjects, 1):
            subject = SubjectReturn(source, wanted.tenant_id, row, vectors, backup, now)

            async def bring(transaction: Transaction, subject: SubjectReturn = subject) -> None:
                if wanted.dry_run:
                    await _bring_tenant(transaction, source, wanted)  # of another transaction nothing has stayed
                if not wanted.even_erased and await subject.was_erased(transaction):
                    if wanted.one:
                        raise Conflict("this subject was erased: only --even-erased brings it back")
                    counts["erased"] += 1
                    return
                counts.update(await subject.bring(transaction, replace=wanted.replace))

            await _attempt(database, wanted, subject_lock(wanted.tenant_id, row["user_id"]), bring)
            progress(number, len(subjects))
    return dict(counts)


class _TakenBack(Exception):
    """Ends the transaction of a dry run."""


async def _attempt(
    database: Database, wanted: Wanted, lock: int | None, work: Callable[[Transaction], Awaitable[None]]
) -> None:
    """Do `work` in one transaction; of a dry run nothing stays."""
    with suppress(_TakenBack):
        async with database.write(wanted.tenant_id, *(() if lock is None else (lock,))) as transaction:
            await transaction.allow(SUBJECT_SECONDS)
            await work(transaction)
            if wanted.dry_run:
                raise _TakenBack


async def _bring_tenant(transaction: Transaction, source: Any, wanted: Wanted) -> None:
    """The tenant's own rows where they are missing; of a single subject's tenant only what the subject hangs on."""
    for table in tables_of("tenant")[: 1 if wanted.one else None]:
        rows = await source.fetchval(_ROWS.format(table=table), wanted.tenant_id)
        await transaction.execute(adding(table), rows=rows)
        if not await transaction.fetch_value(_IS_THERE, tenant_id=wanted.tenant_id):
            raise Conflict("another tenant has this tenant's name")


async def _comparable(database: Database, source: Any, wanted: Wanted) -> Vectors:
    """Which of the backup's vectors may stand beside those of now; a system without any takes over the backup's."""
    async with database.work() as transaction:
        here = await transaction.fetch_row(_ACTIVE)
    there = [dict(row) for row in await source.fetch(_GENERATIONS)]
    if here is None:
        active = next((row for row in there if row["state"] == "active"), None)
        if active is None or wanted.dry_run:
            return Vectors(None, None)
        rows = await source.fetchval(_GENERATION_ROWS, active["generation_id"])
        async with database.work() as transaction:
            await transaction.execute(adding("embedding_generations"), rows=rows)
            await transaction.execute(_ENSURE_INDEX, generation_id=active["generation_id"])
        return Vectors(active["generation_id"], active["generation_id"])
    same = [row for row in there if all(row[name] == here[name] for name in _COMPARED)]
    return Vectors(same[0]["generation_id"] if same else None, here["generation_id"])


def adding(table: str) -> Statement:
    """The statement that adds the `rows` (a JSON array as text) that a table does not have."""
    names = ", ".join(columns_of(table))
    return sql(f"""
        INSERT INTO {table} ({names})
        SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, cast(:rows AS text)::jsonb) ON CONFLICT DO NOTHING
    """)


_COMPARED: Final = ("model", "revision", "dimension", "query_prompt", "document_prompt")
_SUBJECTS: Final = """
SELECT subject_id, user_id, to_jsonb(s)::text AS document FROM subjects s
WHERE tenant_id = $1 AND (NOT $2 OR user_id IS NOT DISTINCT FROM $3) ORDER BY subject_id
"""
_ROWS: Final = "SELECT coalesce(jsonb_agg(to_jsonb(t)), '[]')::text FROM {table} t WHERE tenant_id = $1"
_GENERATIONS: Final = f"SELECT generation_id, state, {', '.join(_COMPARED)} FROM embedding_generations"
_GENERATION_ROWS: Final = "SELECT jsonb_agg(to_jsonb(g))::text FROM embedding_generations g WHERE generation_id = $1"
_ACTIVE = sql(f"SELECT generation_id, {', '.join(_COMPARED)} FROM embedding_generations WHERE state = 'active'")
_ENSURE_INDEX = sql("SELECT ensure_ann_index(cast(:generation_id AS smallint))")
_IS_THERE = sql("SELECT EXISTS (SELECT FROM tenants WHERE tenant_id = :tenant_id)")
