"""The sweep: goes through a tenant's memories rule by rule and archives what they point at, noting the way back.

Invariant: a dry errand finds what a real one finds, in the same order, by the same statements; only the archiving is
left out. What is archived is exactly as it was when the rule saw it, not pinned and not held.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import telemetry, work_metrics
from app.database import Database, Statement, sql
from app.errand import Change, Errand
from app.errors import DatabaseUnavailable
from app.forget.policy import GROUP, ForgetConfig, Policy, policy_of
from app.forget.rules import RULES, Numbers, Rule
from app.kinds import KINDS

for _name in RULES:
    work_metrics.MEMORIES_FORGOTTEN.labels(_name)

ACTOR: Final = "forget"
BATCH: Final = 200
BATCH_SECONDS: Final = 60.0
ATTEMPTS: Final = 3
"""Many subjects are marked as changed in one transaction: now and then another one waits the other way round."""
_BEFORE_ALL: Final = (datetime(1, 1, 2, tzinfo=UTC), UUID(int=0))


@dataclass(slots=True)
class _Sweep:
    """The sweep of one tenant: what the rules before have taken belongs to no later one."""

    database: Database
    errand: Errand
    tenant_id: UUID
    policy: Policy
    taken: set[UUID] = field(default_factory=set)
    taken_of: Counter[UUID] = field(default_factory=Counter)  # by subject, of active ones

    async def run(self) -> None:
        for name, numbers in self.policy.rules.items():
            rule = RULES[name]
            self.errand.stands_at = f"{self.tenant_id} {name}"
            if not rule.only_above_quota:
                await self._apply(rule, numbers)
                continue
            for subject_id, excess in await self._crowds():
                await self._apply(rule, numbers, subject_id, excess)
            if self.errand.is_over:
                return

    async def _apply(
        self, rule: Rule, numbers: Numbers, subject_id: UUID | None = None, most: int | None = None
    ) -> None:
        """Take what the rule points at, page by page: of one subject and at most so many, if these are given."""
        values = rule.values(numbers, self.errand.now)
        reason = rule.reason.format(**numbers)
        after, left = _BEFORE_ALL, most
        while (left is None or left > 0) and not self.errand.is_over:
            async with self.database.read(self.tenant_id) as transaction:
                await transaction.allow(BATCH_SECONDS)
                await transaction.execute(ALONG_THE_INDEX)
                rows = await transaction.fetch(
                    _pointed_at(rule.name, subject_id is not None), tenant_id=self.tenant_id, subject_id=subject_id,
                    after_due=after[0], after_id=after[1], limit=BATCH, **values,
                )  # fmt: skip
            chosen, postponed = [], []
            for row in rows:
                keeps, due = _verdict(rule, row, values["before"])
                if keeps:
                    postponed.append((row, due))
                elif row["memory_id"] not in self.taken:
                    chosen.append(row)
            await self._take(rule, reason, chosen[:left])
            if postponed and not self.errand.dry_run:
                await self._postpone(postponed)
            if left is not None:
                left -= len(chosen)
            await self.errand.pause()
            if len(rows) < BATCH:
                return
            after = rows[-1]["due"], rows[-1]["memory_id"]

    async def _take(self, rule: Rule, reason: str, rows: Sequence[Any]) -> None:
        gone = {row["memory_id"] for row in rows}
        if rows and not self.errand.dry_run:
            gone = await self._archive(rule, reason, rows)
            work_metrics.MEMORIES_FORGOTTEN.labels(rule.name).inc(len(gone))
        for row in rows:
            if row["memory_id"] in gone:
                self.taken.add(row["memory_id"])
                self.taken_of[row["subject_id"]] += row["status"] == "active"
                change = Change(self.tenant_id, row["memory_id"], rule.name, reason, row["status"], "archived")
                self.errand.note(change)

    async def _archive(self, rule: Rule, reason: str, rows: Sequence[Any]) -> set[UUID]:
        """Archive rows that nobody changed or locked meanwhile; returns which."""
        detail = {"rule": rule.name, "reason": reason, "run_id": str(self.errand.run_id)}
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self.database.write(self.tenant_id) as transaction:
                    archived = await transaction.fetch(
                        _ARCHIVE,
                        tenant_id=self.tenant_id,
                        subjects=[row["subject_id"] for row in rows],
                        memories=[row["memory_id"] for row in rows],
                        statuses=[row["status"] for row in rows],
                        changes=[row["updated_at"] for row in rows],
                        events=[uuid7() for _ in rows],
                        rule=rule.name,
                        run_id=self.errand.run_id,
                        detail=detail,
                        actor=ACTOR,
                        now=self.errand.now,
                    )
                return {row["memory_id"] for row in archived}
            except DatabaseUnavailable:
                if attempt == ATTEMPTS:
                    raise
        return set()

    async def _postpone(self, rows: Sequence[tuple[Any, datetime | None]]) -> None:
        async with self.database.write(self.tenant_id) as transaction:
            await transaction.execute(
                _POSTPONE,
                tenant_id=self.tenant_id,
                subjects=[row["subject_id"] for row, _ in rows],
                memories=[row["memory_id"] for row, _ in rows],
                dues=[due for _, due in rows],
            )

    async def _crowds(self) -> list[tuple[UUID | None, int]]:
        """Subjects with more memories than their quota allows, and how many too many; last the tenant (None)."""
        of_subject, of_tenant = map(self.policy.quota_line, (self.policy.subject_quota, self.policy.tenant_quota))
        if not of_subject and not of_tenant:
            return []
        async with self.database.read(self.tenant_id) as transaction:
            await transaction.allow(BATCH_SECONDS)
            rows = await transaction.fetch(_COUNTS, tenant_id=self.tenant_id)
        # A real errand has archived what it took, a dry one has not.
        taken = self.taken_of if self.errand.dry_run else Counter[UUID]()
        counts = {row["subject_id"]: row["memories"] - taken[row["subject_id"]] for row in rows}
        crowds: list[tuple[UUID | None, int]] = []
        if of_subject:
            crowds += [(one, count - of_subject) for one, count in sorted(counts.items()) if count > of_subject]
        total = sum(counts.values()) - sum(excess for _, excess in crowds)
        return [*crowds, (None, total - of_tenant)] if of_tenant and total > of_tenant else crowds


async def forget(database: Database, config: ForgetConfig, errand: Errand) -> int:
    """Archive what the rules of each tenant's policy point at; returns how many memories (of a dry errand: would be).

    A tenant whose sweep fails stops no other; the failure is raised at the end.
    """
    async with database.work() as transaction:
        tenants = await transaction.fetch(_TENANTS, tenant_id=errand.tenant_id, settings=GROUP)
    failure: Exception | None = None
    for tenant in tenants:
        if errand.is_over:
            break
        try:
            await _Sweep(database, errand, tenant["tenant_id"], policy_of(tenant["own"] or {}, config)).run()
        except Exception as error:
            telemetry.log().error("sweep_failed", tenant_id=str(tenant["tenant_id"]), **telemetry.frames(error))
            failure = error
    if failure is not None:
        raise failure
    return sum(errand.counts[name] for name in RULES)


def _verdict(rule: Rule, row: Mapping[str, Any], before: datetime) -> tuple[bool, datetime | None]:
    """Whether the memory stays, and until when (None: there is no moment to wait for).

    A stored due date stands for a memory that nobody used; use since then makes it later.
    """
    if not rule.may_postpone:
        return False, None
    if row["status"] != "active" or row["pinned"] or row["held"]:
        return True, None
    if row["last_accessed_at"] is None:
        return False, None
    used_at = max(row["last_accessed_at"], row["updated_at"])
    due = KINDS[row["kind"]].forget_at(row["importance"], row["access_count"], used_at)
    return due > before, due


# One plan serves tenants of all sizes: for a mean one it would rather sort, for a large one each page would do so anew.
ALONG_THE_INDEX: Final = sql("SET LOCAL enable_sort = off")
HELD: Final = """EXISTS (
    SELECT FROM legal_holds h
    WHERE h.tenant_id = m.tenant_id AND h.subject_id = m.subject_id
      AND (h.memory_id IS NULL OR h.memory_id = m.memory_id)
)"""
"""Whether memory m must not be touched; only an erasure goes before it."""


@lru_cache(maxsize=2 * len(RULES))
def _pointed_at(name: str, of_subject: bool) -> Statement:
    rule = RULES[name]
    wall = "" if rule.may_postpone else f"AND NOT {HELD}"
    memory_id = "u.memory_id" if rule.due.startswith("u.") else "m.memory_id"  # of the table whose index is walked
    subject = "AND m.subject_id = :subject_id" if of_subject else "AND cast(:subject_id AS uuid) IS NULL"
    return sql(f"""
        SELECT m.subject_id, m.memory_id, m.status, m.updated_at, m.pinned, m.kind, m.importance, u.access_count,
               u.last_accessed_at, {HELD} AS held, {rule.due} AS due
        FROM memories m
        JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
        WHERE m.tenant_id = :tenant_id AND {rule.condition} {wall} {subject}
          AND ({rule.due}, {memory_id}) > (cast(:after_due AS timestamptz), cast(:after_id AS uuid))
        ORDER BY {rule.due}, {memory_id} LIMIT :limit
    """)


_TENANTS = sql("""
    SELECT tenant_id, settings -> cast(:settings AS text) AS own FROM tenants
    WHERE cast(:tenant_id AS uuid) IS NULL OR tenant_id = :tenant_id ORDER BY tenant_id
""")
_COUNTS = sql("""
    SELECT subject_id, count(*) AS memories FROM memories WHERE tenant_id = :tenant_id AND status = 'active'
    GROUP BY subject_id
""")
_ARCHIVE = sql(f"""
    WITH seen AS (
        SELECT m.tenant_id, m.subject_id, m.memory_id, m.status, m.deprecated_at, named.event_id
        FROM unnest(
            cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:statuses AS text[]),
            cast(:changes AS timestamptz[]), cast(:events AS uuid[])
        ) AS named (subject_id, memory_id, status, updated_at, event_id)
        JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = named.subject_id
             AND m.memory_id = named.memory_id
        WHERE m.status = named.status AND m.updated_at = named.updated_at AND NOT m.pinned AND NOT {HELD}
        FOR UPDATE OF m SKIP LOCKED
    ), archived AS (
        UPDATE memories m SET status = 'archived', deprecated_at = NULL, updated_at = :now, version = m.version + 1
        FROM seen s
        WHERE m.tenant_id = s.tenant_id AND m.subject_id = s.subject_id AND m.memory_id = s.memory_id
        RETURNING m.tenant_id, m.subject_id, m.memory_id, m.version, s.status AS was, s.deprecated_at, s.event_id
    ), kept AS (
        INSERT INTO memory_archive (tenant_id, subject_id, memory_id, was, deprecated_at, rule, run_id, archived_at)
        SELECT tenant_id, subject_id, memory_id, was, deprecated_at, :rule, :run_id, :now FROM archived
    ), undated AS (
        UPDATE memory_usage u SET forget_at = NULL FROM archived a
        WHERE u.tenant_id = a.tenant_id AND u.subject_id = a.subject_id AND u.memory_id = a.memory_id
    ), unqueued AS (
        DELETE FROM embedding_queue q USING archived a
        WHERE q.tenant_id = a.tenant_id AND q.subject_id = a.subject_id AND q.memory_id = a.memory_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT tenant_id, subject_id, event_id, memory_id, 'archived', :actor, version,
           cast(:detail AS jsonb) || jsonb_build_object('before', was), :now
    FROM archived
    RETURNING memory_id
""")
_POSTPONE = sql("""
    UPDATE memory_usage u SET forget_at = named.due
    FROM unnest(cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:dues AS timestamptz[]))
         AS named (subject_id, memory_id, due)
    WHERE u.tenant_id = :tenant_id AND u.subject_id = named.subject_id AND u.memory_id = named.memory_id
""")
