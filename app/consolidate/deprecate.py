"""The job `deprecate`: what changed is judged again beside what is there; what is no longer valid is overruled by time.

Invariant: the verdicts, the caps and the words of the write path. What is guarded (pinned, held, brought back) goes to
review instead; a memory that was never edited gets no new candidate, because the write path had its say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import telemetry, work_metrics
from app.consolidate.config import Asking, Tools
from app.consolidate.guarded import GUARDED
from app.consolidate.visits import FIRST, TURN_SECONDS, Mark, Visit, mark, tenants, turn, visits
from app.database import Database, Transaction, sql
from app.errand import Change, Errand
from app.remember import Draft, LlmOpinion, NewMemory, Rememberer, consult, judge_drafts
from app.webhooks import Event, Subscriptions, tell

JOB: Final = "deprecate"
ACTOR: Final = "consolidate"
PAGE: Final = 20
"""Judged under the lock of their subject, so that its writers wait for a moment only."""
ENDED: Final = "validity_ended"
BEFORE_ALL: Final = datetime(1, 1, 2, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Step:
    """A memory that is overruled, why, and by which other one (None: by time)."""

    memory_id: UUID
    reason: str
    by: UUID | None = None


async def deprecate_overruled(tools: Tools, errand: Errand) -> int:
    """Overrule what is no longer true; returns how many memories were deprecated (of a dry errand: would be)."""
    for tenant_id in await tenants(tools.database, errand):
        await _end_validity(tools.database, errand, tenant_id)
    asking = Asking(tools.model, tools.config.most_questions, errand)
    glance = partial(_glance, tools, errand, by_rules=not asking.is_on)
    async for visit in visits(tools.database, errand, asking.name(JOB), glance):
        await _visit(tools, errand, asking, visit)
    return errand.counts[JOB] + errand.counts[ENDED]


async def _end_validity(database: Database, errand: Errand, tenant_id: UUID) -> None:
    errand.stands_at = f"{tenant_id} {ENDED}"
    subscriptions = Subscriptions(database)
    after = (BEFORE_ALL, FIRST)
    while not errand.is_over:
        async with database.read(tenant_id) as transaction:
            await transaction.allow(TURN_SECONDS)
            rows = await transaction.fetch(
                _ENDED, tenant_id=tenant_id, now=errand.now, after=after[0], after_id=after[1], limit=PAGE
            )
        by_visit: dict[Visit, list[Any]] = {}
        for row in rows:
            visit = Visit(tenant_id, row["subject_id"], row["user_id"], 0, None, None)
            by_visit.setdefault(visit, []).append(row)
        for visit, ended in by_visit.items():
            steps = [Step(row["memory_id"], ENDED) for row in ended if not row["guarded"]]
            heard = await subscriptions.hears(tenant_id)
            async with turn(database, visit, dry_run=errand.dry_run) as transaction:
                done = await _apply(transaction, visit, errand, steps, heard=heard)
            _tell(visit, errand, done, ENDED)
        await errand.pause()
        if len(rows) < PAGE:
            return
        after = rows[-1]["valid_to"], rows[-1]["memory_id"]


async def _glance(tools: Tools, errand: Errand, page: Sequence[Visit], *, by_rules: bool) -> list[Mark]:
    """The marks of subjects in which nothing changed, or in which rules find nothing to say about what did."""
    changed: dict[UUID, list[Any]] = {visit.subject_id: [] for visit in page}
    async with tools.database.read(page[0].tenant_id) as transaction:
        await transaction.allow(TURN_SECONDS)
        for row in await _changed(transaction, page):
            changed[row["subject_id"]].append(row)
    spoken_of: set[UUID] = set()
    if by_rules:
        few = {visit.subject_id: visit for visit in page if 0 < len(changed[visit.subject_id]) < PAGE}
        spoken_of = await _spoken_of(tools, errand, few, changed)
    marks = []
    for visit in page:
        rows = changed[visit.subject_id]
        if not rows:
            marks.append(Mark(visit, visit.through, visit.through_id))
        elif by_rules and len(rows) < PAGE and visit.subject_id not in spoken_of:
            marks.append(Mark(visit, rows[-1]["updated_at"], rows[-1]["memory_id"]))
    return marks


async def _spoken_of(tools: Tools, errand: Errand, few: dict[UUID, Visit], changed: dict[UUID, list[Any]]) -> set[UUID]:
    """The subjects in which a judgement of what changed says something, whether or not it is new."""
    if not few:
        return set()
    rememberer = await tools.rememberer()
    drafts = [
        (row, _draft(row, visit, errand.now))
        for subject_id, visit in few.items()
        for row in changed[subject_id]
        if _is_judged(row, rememberer)
    ]
    tenant_id = next(iter(few.values())).tenant_id
    async with tools.database.read(tenant_id) as transaction:
        await transaction.allow(TURN_SECONDS)
        await judge_drafts(
            transaction, tenant_id, [draft for _, draft in drafts], rememberer.generation,
            rememberer.config, stored=True,
        )  # fmt: skip
    return {
        row["subject_id"]
        for row, draft in drafts
        if draft.retired or draft.in_review or draft.outdated_by or (draft.links and _was_edited(row))
    }


async def _changed(
    transaction: Transaction, page: Sequence[Visit], after: tuple[datetime, UUID] | None = None
) -> list[Any]:
    """At most PAGE changed memories of each subject since its visits came so far, or since `after`, in order."""
    afters = [after or (visit.through or BEFORE_ALL, visit.through_id or FIRST) for visit in page]
    return await transaction.fetch(
        _CHANGED, tenant_id=page[0].tenant_id, subjects=[visit.subject_id for visit in page],
        afters=[moment for moment, _ in afters], after_ids=[memory_id for _, memory_id in afters], limit=PAGE,
    )  # fmt: skip


def _was_edited(row: Any) -> bool:
    return bool(row["stated_at"] > row["created_at"])


async def _visit(tools: Tools, errand: Errand, asking: Asking, visit: Visit) -> None:
    rememberer: Rememberer | None = None
    through = (visit.through or BEFORE_ALL, visit.through_id or FIRST)
    looked_at, whole = 0, False
    gone: set[UUID] = set()
    name = asking.name(JOB)
    while not whole and looked_at < tools.config.most_changed and not errand.is_over:
        async with tools.database.read(visit.tenant_id) as transaction:
            rows = await _changed(transaction, [visit], through)
        whole = len(rows) < PAGE
        if rows:
            rememberer = rememberer or await tools.rememberer()
            if not await _judge(rememberer, errand, asking, visit, rows, gone):
                name = JOB  # a model that did not answer leaves its own mark where it is, and is asked again
            looked_at += len(rows)
            through = rows[-1]["updated_at"], rows[-1]["memory_id"]
    if not errand.dry_run:
        await mark(tools.database, name, [Mark(visit, *through, whole=whole)])


async def _judge(
    rememberer: Rememberer, errand: Errand, asking: Asking, visit: Visit, rows: Sequence[Any], gone: set[UUID]
) -> bool:  # fmt: skip
    """Judge a page of changed memories; returns whether a model that is there was asked about each."""
    generation = rememberer.generation
    drafts = {row["memory_id"]: _draft(row, visit, errand.now) for row in rows if _is_judged(row, rememberer)}
    asked = await _consult(rememberer, asking, visit, list(drafts.values()))
    heard = await rememberer.subscriptions.hears(visit.tenant_id)
    done: list[Step] = []
    reviews: list[tuple[UUID, UUID, str]] = []
    async with turn(rememberer.database, visit, dry_run=errand.dry_run) as transaction:
        current = {
            row["memory_id"]: row for row in await transaction.fetch(_CURRENT, **visit.names, memories=list(drafts))
        }
        for row in rows:
            draft, now_is = drafts.get(row["memory_id"]), current.get(row["memory_id"])
            if draft is None or now_is is None or now_is["version"] != row["version"] or row["memory_id"] in gone:
                continue
            await judge_drafts(transaction, visit.tenant_id, [draft], generation, rememberer.config, stored=True)
            steps, in_review = await _steps(transaction, visit, draft, guarded=row["guarded"])
            applied = await _apply(transaction, visit, errand, steps, heard=heard)
            gone.update(step.memory_id for step in applied)
            done += applied
            reviews += in_review
            await _link(transaction, visit, draft, in_review, edited=_was_edited(row), now=errand.now)
    _tell(visit, errand, done, JOB)
    if not errand.dry_run:
        for reason, verdict in [*((step.reason, "retired") for step in done), *((r, "review") for *_, r in reviews)]:
            telemetry.CONFLICTS.labels(reason, verdict).inc()
    return asked


def _is_judged(row: Any, rememberer: Rememberer) -> bool:
    """Whether there is a vector to find its neighbours by; what is guarded may overrule others all the same."""
    return bool(row["generation_id"] == rememberer.generation.generation_id and row["window_count"] == 1)


def _draft(row: Any, visit: Visit, now: datetime) -> Draft:
    new = NewMemory(
        user_id=visit.user_id, agent_id=row["agent_id"], content=row["content"], kind=row["kind"], key=row["key"],
        event_at=row["event_at"], pinned=row["pinned"],
    )  # fmt: skip
    draft = Draft(new, ACTOR, now)
    draft.memory_id, draft.stated_at = row["memory_id"], row["stated_at"]
    draft.windows = row["embedding"][None, :]
    return draft


async def _consult(rememberer: Rememberer, asking: Asking, visit: Visit, drafts: Sequence[Draft]) -> bool:
    """Ask a model about drafts, one after the other, before the transaction; False: some it was not asked about."""
    if asking.model is None:
        return True
    opinions = (LlmOpinion(asking.model),)
    for draft in drafts:
        if not asking.take():
            return False
        missing = await consult(rememberer.database, visit.tenant_id, [draft], rememberer.generation, opinions)
        if "llm_unavailable" in missing:
            asking.give_up("llm_unavailable")
            return False
        if missing:
            return False
    return True


async def _steps(
    transaction: Transaction, visit: Visit, draft: Draft, *, guarded: bool
) -> tuple[list[Step], list[tuple[UUID, UUID, str]]]:
    """What a judged draft overrules or is overruled by; and what goes to review: newer, older, why."""
    review = [(draft.memory_id, other, reason) for other, reason in draft.in_review.items()]
    if draft.outdated_by is not None:
        by, reason = draft.outdated_by
        if guarded:
            return [], [*review, (by, draft.memory_id, reason)]
        return [Step(draft.memory_id, reason, by)], review
    if not draft.retired:
        return [], review
    rows = await transaction.fetch(_CURRENT, **visit.names, memories=list(draft.retired))
    kept = {row["memory_id"] for row in rows if row["guarded"]}
    review += [(draft.memory_id, other, draft.retired[other]) for other in kept]
    steps = [Step(other, reason, draft.memory_id) for other, reason in draft.retired.items() if other not in kept]
    return steps, review


async def _apply(
    transaction: Transaction, visit: Visit, errand: Errand, steps: Sequence[Step], *, heard: bool
) -> list[Step]:
    """Deprecate; returns what was not changed or guarded meanwhile."""
    done = []
    for step in steps:
        by = {} if step.by is None else {"by": str(step.by)}
        row = await transaction.fetch_row(
            _DEPRECATE, **visit.names, memory_id=step.memory_id, by=step.by, run_id=errand.run_id, event_id=uuid7(),
            detail={"reason": step.reason, **by, "run_id": str(errand.run_id)}, actor=ACTOR, now=errand.now,
        )  # fmt: skip
        if row is None:
            continue
        done.append(step)
        if heard:
            data = {
                "memory_id": str(step.memory_id), "superseded_by": by.get("by"), "user_id": visit.user_id,
                "agent_id": row["agent_id"],
            }  # fmt: skip
            await tell(transaction, visit.tenant_id, [Event("memory.deprecated", visit.subject_id, data, errand.now)])
    return done


async def _link(
    transaction: Transaction, visit: Visit, draft: Draft, review: Sequence[tuple[UUID, UUID, str]], *, edited: bool,
    now: datetime,
) -> None:  # fmt: skip
    links: list[tuple[UUID, str, UUID, str | None]] = [(newer, "review", older, why) for newer, older, why in review]
    if edited:
        # What says the same after an edit is for dedup to decide, which looks at more than the words.
        links += [
            (draft.memory_id, "candidate", link.other_id, None)
            for link in draft.links
            if link.relation in ("candidate", "duplicate_of")
        ]
    if links:
        await transaction.execute(
            _LINK, **visit.names, memories=[link[0] for link in links], relations=[link[1] for link in links],
            others=[link[2] for link in links], reasons=[link[3] for link in links], events=[uuid7() for _ in links],
            actor=ACTOR, now=now,
        )  # fmt: skip


def _tell(visit: Visit, errand: Errand, done: Sequence[Step], rule: str) -> None:
    for step in done:
        reason = step.reason if step.by is None else f"{step.reason}: overruled by {step.by}"
        errand.note(Change(visit.tenant_id, step.memory_id, rule, reason, "active", "deprecated"))
    if not errand.dry_run:
        work_metrics.MEMORIES_CONSOLIDATED.labels(rule).inc(len(done))


_ENDED = sql(f"""
    SELECT m.subject_id, s.user_id, m.memory_id, m.valid_to, {GUARDED} AS guarded
    FROM memories m JOIN subjects s ON s.tenant_id = m.tenant_id AND s.subject_id = m.subject_id
    WHERE m.tenant_id = :tenant_id AND m.status = 'active' AND m.valid_to IS NOT NULL AND m.valid_to <= :now
      AND (m.valid_to, m.memory_id) > (cast(:after AS timestamptz), cast(:after_id AS uuid))
    ORDER BY m.valid_to, m.memory_id LIMIT :limit
""")
# A text that was edited is stated since then.
_CHANGED = sql(f"""
    SELECT m.*, greatest(m.created_at, (
        SELECT max(e.created_at) FROM memory_events e
        WHERE e.tenant_id = :tenant_id AND e.subject_id = m.subject_id AND e.memory_id = m.memory_id
          AND e.action = 'amended' AND e.detail -> 'changed' ? 'content'
    )) AS stated_at
    FROM unnest(cast(:subjects AS uuid[]), cast(:afters AS timestamptz[]), cast(:after_ids AS uuid[]))
         AS i (subject_id, after, after_id),
    LATERAL (
        SELECT m.subject_id, m.memory_id, m.agent_id, m.content, m.kind, m.key, m.pinned, m.version,
               m.event_at, m.created_at, m.updated_at, m.embedding, m.generation_id, m.window_count,
               {GUARDED} AS guarded
        FROM memories m
        WHERE m.tenant_id = :tenant_id AND m.subject_id = i.subject_id AND m.status = 'active' AND m.kind <> 'summary'
          AND m.embedding IS NOT NULL AND (m.updated_at, m.memory_id) > (i.after, i.after_id)
        ORDER BY m.updated_at, m.memory_id LIMIT :limit
    ) AS m
    ORDER BY m.subject_id, m.updated_at, m.memory_id
""")
_CURRENT = sql(f"""
    SELECT m.memory_id, m.version, {GUARDED} AS guarded FROM memories m
    WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = ANY (cast(:memories AS uuid[]))
      AND m.status = 'active'
""")
_DEPRECATE = sql(f"""
    WITH retired AS (
        UPDATE memories m SET status = 'deprecated', deprecated_at = :now, updated_at = :now
        WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = :memory_id
          AND m.status = 'active' AND NOT {GUARDED}
        RETURNING m.tenant_id, m.subject_id, m.memory_id, m.version, m.agent_id
    ), undated AS (
        UPDATE memory_usage u SET forget_at = NULL FROM retired r
        WHERE u.tenant_id = r.tenant_id AND u.subject_id = r.subject_id AND u.memory_id = r.memory_id
    ), unqueued AS (
        DELETE FROM embedding_queue q USING retired r
        WHERE q.tenant_id = r.tenant_id AND q.subject_id = r.subject_id AND q.memory_id = r.memory_id
    ), linked AS (
        INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
        SELECT tenant_id, subject_id, cast(:by AS uuid), 'supersedes', memory_id, cast(:now AS timestamptz)
        FROM retired WHERE cast(:by AS uuid) IS NOT NULL
        ON CONFLICT DO NOTHING
    ), noted AS (
        INSERT INTO consolidations (tenant_id, subject_id, memory_id, run_id, became, other_id, detail, created_at)
        SELECT tenant_id, subject_id, memory_id, cast(:run_id AS uuid), 'deprecated', cast(:by AS uuid), '{{}}',
               cast(:now AS timestamptz)
        FROM retired
    ), told AS (
        INSERT INTO memory_events (
            tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at
        )
        SELECT tenant_id, subject_id, cast(:event_id AS uuid), memory_id, 'deprecated', cast(:actor AS text), version,
               cast(:detail AS jsonb), cast(:now AS timestamptz)
        FROM retired
    )
    SELECT agent_id FROM retired
""")
# What somebody has decided to keep beside that very memory is not asked about again.
_LINK = sql("""
    WITH item AS (
        SELECT * FROM unnest(
            cast(:memories AS uuid[]), cast(:relations AS text[]), cast(:others AS uuid[]), cast(:reasons AS text[]),
            cast(:events AS uuid[])
        ) AS item (memory_id, relation, other_id, reason, event_id)
    ), linked AS (
        INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
        SELECT :tenant_id, :subject_id, i.memory_id, i.relation, i.other_id, cast(:now AS timestamptz) FROM item i
        WHERE i.relation <> 'review' OR (
            SELECT e.event_id FROM memory_events e
            WHERE e.tenant_id = :tenant_id AND e.subject_id = :subject_id AND e.memory_id = i.other_id
              AND e.action = 'kept' AND e.detail ->> 'against' = cast(i.memory_id AS text)
            LIMIT 1
        ) IS NULL
        ON CONFLICT DO NOTHING
        RETURNING tenant_id, subject_id, memory_id, relation, other_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT l.tenant_id, l.subject_id, i.event_id, l.memory_id, 'review', :actor, m.version,
           jsonb_build_object('review', jsonb_build_object(cast(l.other_id AS text), i.reason)), :now
    FROM linked l
    JOIN item i ON i.memory_id = l.memory_id AND i.relation = l.relation AND i.other_id = l.other_id
    JOIN memories m ON m.tenant_id = l.tenant_id AND m.subject_id = l.subject_id AND m.memory_id = l.memory_id
    WHERE l.relation = 'review'
""")
