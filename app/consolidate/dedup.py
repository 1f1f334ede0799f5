"""The job `dedup`: pairs that the write path linked as candidates, and could not decide, are decided or kept apart.

Invariant: only linked pairs are looked at, so the work grows with the links and never with the square of a subject.
What is merged stays, as a duplicate that is linked, and its run can be undone.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app import work_metrics
from app.consolidate.config import Asking, Tools
from app.consolidate.guarded import GUARDED
from app.consolidate.pairs import INSTRUCTIONS, Merge, SaysAll, Verdict, decide, decide_by, question
from app.consolidate.visits import FIRST, TURN_SECONDS, Mark, Visit, mark, turn, visits
from app.database import Database, Transaction, sql
from app.errand import Change, Errand
from app.kinds import KINDS

JOB: Final = "dedup"
ACTOR: Final = "consolidate"
PAGE: Final = 100
Pair = tuple[UUID, UUID]


async def merge_duplicates(tools: Tools, errand: Errand) -> int:
    """Merge what says the same; returns how many memories became duplicates (of a dry errand: would become)."""
    asking = Asking(tools.model, tools.config.most_questions, errand)
    async for visit in visits(tools.database, errand, asking.name(JOB), partial(_glance, tools.database)):
        await _visit(tools, errand, asking, visit)
    return errand.counts[JOB]


async def _glance(database: Database, page: Sequence[Visit]) -> list[Mark]:
    """The marks of subjects without a linked pair."""
    async with database.read(page[0].tenant_id) as transaction:
        await transaction.allow(TURN_SECONDS)
        rows = await transaction.fetch(
            _PAIRED, tenant_id=page[0].tenant_id, subjects=[visit.subject_id for visit in page],
            afters=[visit.through_id or FIRST for visit in page],
        )  # fmt: skip
    paired = {row["subject_id"] for row in rows}
    return [Mark(visit) for visit in page if visit.subject_id not in paired]


async def _visit(tools: Tools, errand: Errand, asking: Asking, visit: Visit) -> None:
    after = (visit.through_id or FIRST, FIRST)
    looked_at = 0
    gone: set[UUID] = set()
    name = asking.name(JOB)
    while looked_at < tools.config.most_pairs and not errand.is_over:
        async with tools.database.read(visit.tenant_id) as transaction:
            rows = await transaction.fetch(_PAIRS, **visit.names, after=after[0], after_other=after[1], limit=PAGE)
            pairs = [(row["memory_id"], row["other_id"]) for row in rows]
            known = await _memories(transaction, visit, pairs)
        verdicts = {pair: await _verdict(known, pair, asking) for pair in pairs}
        if "unsure" in verdicts.values():
            name = JOB  # a model that did not answer leaves its own mark where it is, and is asked again
        await _decide(tools, errand, visit, verdicts, gone)
        looked_at += len(pairs)
        if len(pairs) < PAGE:
            if not errand.dry_run:
                await mark(tools.database, name, [Mark(visit)])
            return
        after = pairs[-1]
    if not errand.dry_run:
        await mark(tools.database, name, [Mark(visit, through_id=after[0], whole=False)])


async def _verdict(known: dict[UUID, Any], pair: Pair, asking: Asking) -> Merge | Verdict:
    a, b = (known[memory_id] for memory_id in pair)
    verdict = decide(a, b)
    if verdict == "unsure" and asking.is_on:
        answer = await asking.ask("judge", INSTRUCTIONS, question(a, b), SaysAll)
        return verdict if answer is None else decide_by(answer, a, b)
    return verdict


async def _memories(transaction: Transaction, visit: Visit, pairs: Sequence[Pair]) -> dict[UUID, Any]:
    rows = await transaction.fetch(_MEMORIES, **visit.names, memories=list(set(chain.from_iterable(pairs))))
    return {row["memory_id"]: row for row in rows}


async def _decide(
    tools: Tools, errand: Errand, visit: Visit, verdicts: dict[Pair, Merge | Verdict], gone: set[UUID]
) -> None:
    """Merge and unlink in one transaction, whatever of it nobody changed since it was judged."""
    merges = {pair: verdict for pair, verdict in verdicts.items() if isinstance(verdict, Merge)}
    apart = [pair for pair, verdict in verdicts.items() if verdict == "apart"]
    if not merges and not apart:
        return
    done: list[Merge] = []
    async with turn(tools.database, visit, dry_run=errand.dry_run) as transaction:
        known = await _memories(transaction, visit, list(verdicts))
        for merge in merges.values():
            kept_id, merged_id = merge.kept["memory_id"], merge.merged["memory_id"]
            as_judged = all(
                row["memory_id"] in known and known[row["memory_id"]]["version"] == row["version"]
                for row in (merge.kept, merge.merged)
            )
            if as_judged and not gone & {kept_id, merged_id} and await _merge(transaction, visit, errand, merge):
                gone.add(merged_id)
                done.append(merge)
        await transaction.execute(
            _UNLINK, **visit.names, memories=[pair[0] for pair in apart], others=[pair[1] for pair in apart]
        )
    for merge in done:
        reason = f"{merge.kept['memory_id']} says all of it"
        errand.note(Change(visit.tenant_id, merge.merged["memory_id"], JOB, reason, "active", "duplicate"))
    if not errand.dry_run:
        work_metrics.MEMORIES_CONSOLIDATED.labels(JOB).inc(len(done))
        work_metrics.PAIRS_APART.inc(len(apart))


async def _merge(transaction: Transaction, visit: Visit, errand: Errand, merge: Merge) -> bool:
    kept, merged = merge.kept, merge.merged
    importance = max(kept["importance"], merged["importance"])
    uses = kept["access_count"] + merged["access_count"]
    return bool(
        await transaction.execute(
            _MERGE,
            **visit.names,
            merged_id=merged["memory_id"],
            kept_id=kept["memory_id"],
            importance=importance,
            uses=merged["access_count"],
            used_at=merged["last_accessed_at"],
            due=KINDS[kept["kind"]].forget_at(importance, uses, errand.now),
            run_id=errand.run_id,
            way_back={"importance": kept["importance"], "raised_to": importance, "uses": merged["access_count"]},
            detail={"reason": JOB, "by": str(kept["memory_id"]), "run_id": str(errand.run_id)},
            kept_detail={"merged": str(merged["memory_id"]), "run_id": str(errand.run_id)},
            event_id=uuid7(),
            kept_event_id=uuid7(),
            actor=ACTOR,
            now=errand.now,
        )
    )


_LINKED: Final = """
    FROM memory_links l
    JOIN memories a ON a.tenant_id = l.tenant_id AND a.subject_id = l.subject_id AND a.memory_id = l.memory_id
    JOIN memories b ON b.tenant_id = l.tenant_id AND b.subject_id = l.subject_id AND b.memory_id = l.other_id
    WHERE l.tenant_id = :tenant_id AND l.relation = 'candidate'
      AND a.status = 'active' AND b.status = 'active' AND a.cooled_by IS NULL AND b.cooled_by IS NULL
"""
_PAIRS = sql(f"""
    SELECT l.memory_id, l.other_id {_LINKED} AND l.subject_id = :subject_id
      AND (l.memory_id, l.other_id) > (cast(:after AS uuid), cast(:after_other AS uuid))
    ORDER BY l.memory_id, l.other_id LIMIT :limit
""")
# The LIMIT keeps the planner at the links of each subject.
_PAIRED = sql(f"""
    SELECT i.subject_id FROM unnest(cast(:subjects AS uuid[]), cast(:afters AS uuid[])) AS i (subject_id, after)
    WHERE (SELECT l.memory_id {_LINKED} AND l.subject_id = i.subject_id AND l.memory_id >= i.after LIMIT 1) IS NOT NULL
""")
_MEMORIES = sql(f"""
    SELECT m.memory_id, m.agent_id, m.content, m.content_type, m.kind, m.key, m.importance, m.pinned, m.version,
           m.event_at, m.valid_from, m.valid_to, m.expires_at, m.created_at, u.access_count, u.last_accessed_at,
           {GUARDED} AS guarded
    FROM memories m
    JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
    WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = ANY (cast(:memories AS uuid[]))
      AND m.status = 'active' AND m.cooled_by IS NULL
""")
_UNLINK = sql("""
    DELETE FROM memory_links l USING unnest(cast(:memories AS uuid[]), cast(:others AS uuid[])) AS pair (one, other)
    WHERE l.tenant_id = :tenant_id AND l.subject_id = :subject_id AND l.memory_id = pair.one
      AND l.relation = 'candidate' AND l.other_id = pair.other
""")
# What is kept is not worse off than the two were: as important as either, and used as often as both.
_MERGE = sql(f"""
    WITH merged AS (
        UPDATE memories m SET status = 'duplicate', updated_at = :now
        WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = :merged_id
          AND m.status = 'active' AND NOT {GUARDED}
        RETURNING m.tenant_id, m.subject_id, m.memory_id, m.version
    ), raised AS (
        UPDATE memories k SET importance = cast(:importance AS real), updated_at = :now, version = k.version + 1
        FROM merged g
        WHERE k.tenant_id = g.tenant_id AND k.subject_id = g.subject_id AND k.memory_id = :kept_id
          AND k.importance < cast(:importance AS real)
    ), used AS (
        UPDATE memory_usage u SET access_count = u.access_count + cast(:uses AS bigint),
               last_accessed_at = greatest(u.last_accessed_at, cast(:used_at AS timestamptz)),
               forget_at = CASE WHEN u.forget_at IS NOT NULL THEN greatest(u.forget_at, cast(:due AS timestamptz)) END
        FROM merged g
        WHERE u.tenant_id = g.tenant_id AND u.subject_id = g.subject_id AND u.memory_id = :kept_id
    ), undated AS (
        UPDATE memory_usage u SET forget_at = NULL FROM merged g
        WHERE u.tenant_id = g.tenant_id AND u.subject_id = g.subject_id AND u.memory_id = g.memory_id
    ), unqueued AS (
        DELETE FROM embedding_queue q USING merged g
        WHERE q.tenant_id = g.tenant_id AND q.subject_id = g.subject_id AND q.memory_id = g.memory_id
    ), linked AS (
        INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
        SELECT tenant_id, subject_id, memory_id, 'duplicate_of', cast(:kept_id AS uuid), cast(:now AS timestamptz)
        FROM merged
        ON CONFLICT DO NOTHING
    ), unlinked AS (
        DELETE FROM memory_links l USING merged g
        WHERE l.tenant_id = g.tenant_id AND l.subject_id = g.subject_id AND l.relation = 'candidate'
          AND ((l.memory_id = g.memory_id AND l.other_id = :kept_id)
               OR (l.memory_id = :kept_id AND l.other_id = g.memory_id))
    ), noted AS (
        INSERT INTO consolidations (tenant_id, subject_id, memory_id, run_id, became, other_id, detail, created_at)
        SELECT tenant_id, subject_id, memory_id, cast(:run_id AS uuid), 'duplicate', cast(:kept_id AS uuid),
               cast(:way_back AS jsonb), cast(:now AS timestamptz)
        FROM merged
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT g.tenant_id, g.subject_id, item.event_id, item.memory_id, item.action, cast(:actor AS text), g.version,
           item.detail, cast(:now AS timestamptz)
    FROM merged g, (VALUES
        (cast(:event_id AS uuid), cast(:merged_id AS uuid), 'duplicate', cast(:detail AS jsonb)),
        (cast(:kept_event_id AS uuid), cast(:kept_id AS uuid), 'merged', cast(:kept_detail AS jsonb))
    ) AS item (event_id, memory_id, action, detail)
""")
