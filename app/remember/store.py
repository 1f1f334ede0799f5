"""Putting judged drafts into the tables: overruled rows, new rows with all that belongs to them, and repeats.

Invariant: everything here runs inside the writing transaction; one statement writes a memory's row, vector, keywords,
usage, links, queue entry and audit event.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from app.cold import wake
from app.database import Statement, Transaction, sql
from app.errors import MnemeError
from app.memory import MEMORY_COLUMNS, MEMORY_SOURCE, as_json, importance_score
from app.remember.columns import Rows, judged_columns, lone, signed, stated_columns
from app.remember.memory import Draft, Written, weigh
from app.wire import new_id

ROWS_AT_ONCE: Final = 50
"""Rows of a statement, about, where there are more for another: the database stores while the API makes it ready."""
LAST_ROWS: Final = (35, 20)
"""Rows of the last two: there is ever less for the API to do meanwhile, and at the end nothing but to wait."""
PARTED_ROWS: Final = 60
"""Fewer are stored by one statement."""
A_PIECE: Final = 16
"""Drafts of a piece of work that is done while the database is waited for: its answer waits for two pieces at most."""


async def store(
    transaction: Transaction,
    tenant_id: UUID,
    drafts: Sequence[Draft],
    generation_id: int,
    *,
    judged: Callable[[int], object] = lambda _: None,
    early: "Early | None" = None,
    told: Callable[[list[Written]], object] = lambda _: None,
) -> list[Written]:
    """Write drafts part by part: what they overrule first (it frees the key slot), then the new rows in one statement.

    `judged` is called before the first so many drafts are written, and gives them their verdict if they have none:
    while a part is being stored the next is judged and made ready. What a later part overrules in an earlier one is
    retired like any memory. `early` has what was made before the verdict. `told` is called with what is returned while
    the last part is being stored, if it is known by then: what it refuses it must refuse again afterwards.
    """
    parts = _parts(len(drafts))
    ready = early or Early(drafts, generation_id)
    made: dict[int, tuple[list[Draft], dict[str, Any]]] = {}
    shown: dict[UUID, Any] = {}

    def make(number: int) -> None:
        start, end = parts[number]
        judged(end)
        new = [draft for draft in drafts[start:end] if draft.outcome != "duplicate" or draft.status == "duplicate"]
        made[number] = new, {**ready.columns(number, new), **judged_columns(new, tenant_id)} if new else {}

    def tell() -> None:
        if all(draft.twin_id is None for draft in drafts):
            with suppress(MnemeError):
                told([_written(draft, shown) for draft in drafts])

    for number, (start, end) in enumerate(parts):
        if number not in made:
            make(number)
        new, columns = made[number]
        await retire(transaction, tenant_id, drafts[start:end])
        transaction.meanwhile(
            [*_showing(drafts, shown), tell]
            if number == len(parts) - 1
            else [*_judging(judged, *parts[number + 1]), *ready.pieces(number + 1), partial(make, number + 1)]
        )
        if new:
            statement = _insert(tuple(name for name in _OPTIONAL if columns[name]), alone=len(new) == 1)
            await transaction.execute(statement, **(lone(columns, _MAIN) if len(new) == 1 else columns))
    repeats = [draft for draft in drafts if draft.twin_id is not None]
    twins = await _repeat(transaction, tenant_id, repeats) if repeats else {}
    _show(drafts, shown)
    known = shown | twins
    return [_written(draft, known) for draft in drafts]


class Early:
    """Of drafts that will be stored together, what no verdict changes."""

    def __init__(self, drafts: Sequence[Draft], generation_id: int) -> None:
        self._parts = [drafts[start:end] for start, end in _parts(len(drafts))]
        self._generation_id = generation_id
        self._made: dict[int, dict[str, Any]] = {}

    def pieces(self, number: int) -> Iterator[Callable[[], object]]:
        """The work for one part."""
        yield partial(weigh, self._parts[number])
        yield partial(self._make, number)

    def columns(self, number: int, new: Sequence[Draft]) -> dict[str, Any]:
        """The columns of those drafts of a part that are new."""
        if len(new) < len(self._parts[number]):
            return stated_columns(new, self._generation_id)
        return self._make(number)

    def _make(self, number: int) -> dict[str, Any]:
        if number not in self._made:
            self._made[number] = stated_columns(self._parts[number], self._generation_id)
        return self._made[number]


def _parts(count: int) -> list[tuple[int, int]]:
    """Where each part begins and ends."""
    ends = [count] if count else []
    if count >= PARTED_ROWS:
        first = count - sum(LAST_ROWS)
        parts = max(1, round(first / ROWS_AT_ONCE))
        ends = [first * number // parts for number in range(1, parts + 1)] + [count - LAST_ROWS[1], count]
    return list(pairwise((0, *(end for end in ends if end >= LAST_ROWS[1] or end == count))))


def _judging(judged: Callable[[int], object], start: int, end: int) -> Iterator[Callable[[], object]]:
    """Pieces of work: verdicts."""
    return (partial(judged, min(end, at + A_PIECE)) for at in range(start, end, A_PIECE))


def _showing(drafts: Sequence[Draft], shown: dict[UUID, Any]) -> Iterator[Callable[[], object]]:
    """Pieces of work: drafts as they are shown."""
    return (partial(_show, drafts[at : at + A_PIECE], shown) for at in range(0, len(drafts), A_PIECE))


def _show(drafts: Sequence[Draft], shown: dict[UUID, Any]) -> None:
    for draft in drafts:
        if draft.memory_id not in shown and (draft.outcome != "duplicate" or draft.status == "duplicate"):
            shown[draft.memory_id] = _render(draft)


async def retire(transaction: Transaction, tenant_id: UUID, drafts: Sequence[Draft]) -> None:
    """Deprecate what judged drafts overrule, with the reason in the audit trail."""
    retired = [(draft, memory_id, reason) for draft in drafts for memory_id, reason in draft.retired.items()]
    if retired:
        await transaction.execute(
            _RETIRE,
            tenant_id=tenant_id,
            subjects=[draft.subject_id for draft, _, _ in retired],
            memories=[memory_id for _, memory_id, _ in retired],
            details=[{"reason": reason, "by": str(draft.memory_id)} for draft, _, reason in retired],
            events=[new_id() for _ in retired],
            **signed([draft for draft, _, _ in retired]),
        )


def _written(draft: Draft, memories: dict[UUID, Any]) -> Written:
    if draft.twin_id is None:
        related = tuple(
            (link.other_id, link.relation) if link.memory_id == draft.memory_id else (link.memory_id, "superseded_by")
            for link in draft.links
        )
        return Written(draft.outcome, memories[draft.memory_id], related)
    kept = ((draft.memory_id, "duplicate"),) if draft.status == "duplicate" else ()
    return Written("duplicate", memories[draft.twin_id], kept)


async def _repeat(transaction: Transaction, tenant_id: UUID, drafts: Sequence[Draft]) -> dict[UUID, Any]:
    """Count repeats on their twins and fetch these."""
    rows = await transaction.fetch(
        _REPEAT,
        tenant_id=tenant_id,
        subjects=[draft.subject_id for draft in drafts],
        twins=[draft.twin_id for draft in drafts],
        kept=[draft.memory_id if draft.status == "duplicate" else None for draft in drafts],
        events=[new_id() for _ in drafts],
        trusts=[draft.trust for draft in drafts],
        **signed(drafts),
    )
    await wake(
        transaction, tenant_id, [row["id"] for row in rows if row["embedding"] == "cold"],
        now=max(draft.now for draft in drafts),
    )  # fmt: skip
    more = {row["id"]: row["most_trust"] for row in rows if row["most_trust"] > row["trust"]}
    if more:  # whoever is believed more says it, too
        places = {draft.twin_id: draft.subject_id for draft in drafts}
        await transaction.execute(
            _BELIEVE, tenant_id=tenant_id, subjects=[places[memory_id] for memory_id in more], memories=list(more),
            trusts=list(more.values()),
        )  # fmt: skip
    # The counters of this very statement are not visible to its own SELECT.
    return {
        row["id"]: as_json(row)
        | {
            "access_count": row["access_count"] + row["repeats"], "last_accessed_at": row["last_repeat"],
            "trust": more.get(row["id"], row["trust"]),
        }
        for row in rows
    }  # fmt: skip


def _render(draft: Draft) -> dict[str, Any]:
    """A memory as it is shown once it is stored: what as_json() makes of its row."""
    new = draft.new
    return {
        "id": draft.memory_id,
        "user_id": new.user_id,
        "agent_id": new.agent_id,
        "content": new.content,
        "content_type": new.content_type,
        "kind": new.kind,
        "key": new.key,
        "importance": draft.importance,
        "tags": list(new.tags),
        "metadata": new.metadata,
        "source": new.source,
        "session_id": new.session_id,
        "status": draft.status,
        "access_count": 0,
        "last_accessed_at": None,
        "created_at": draft.now,
        "updated_at": draft.now,
        "event_at": new.event_at,
        "valid_from": new.valid_from,
        "valid_to": new.valid_to,
        "expires_at": new.expires_at,
        "pinned": new.pinned,
        "version": 1,
        "embedding": "pending" if draft.windows is None else "ready",
        "trust": draft.trust,
        "importance_score": importance_score(draft.importance),
    }


_RETIRE = sql("""
    WITH named AS (
        SELECT * FROM unnest(
            cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:events AS uuid[]), cast(:actors AS text[]),
            cast(:moments AS timestamptz[]), cast(:details AS jsonb[])
        ) AS named (subject_id, memory_id, event_id, actor, moment, detail)
    ), retired AS (
        UPDATE memories m SET status = 'deprecated', deprecated_at = n.moment, updated_at = n.moment
        FROM named n
        WHERE m.tenant_id = :tenant_id AND m.subject_id = n.subject_id AND m.memory_id = n.memory_id
          AND m.status = 'active'
        RETURNING m.subject_id, n.event_id, m.memory_id, m.version, n.actor, n.moment, n.detail
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT :tenant_id, subject_id, event_id, memory_id, 'deprecated', actor, version, detail, moment FROM retired
""")
_REPEAT = sql(f"""
    WITH repeated AS (
        SELECT * FROM unnest(
            cast(:subjects AS uuid[]), cast(:twins AS uuid[]), cast(:kept AS uuid[]), cast(:events AS uuid[]),
            cast(:actors AS text[]), cast(:moments AS timestamptz[]), cast(:trusts AS smallint[])
        ) AS repeated (subject_id, memory_id, kept_id, event_id, actor, moment, trust)
    ), counted AS (
        SELECT subject_id, memory_id, count(*) AS repeats, max(moment) AS last_repeat, max(trust) AS most_trust
        FROM repeated GROUP BY subject_id, memory_id
    ), used AS (
        UPDATE memory_usage u SET access_count = u.access_count + c.repeats, last_accessed_at = c.last_repeat
        FROM counted c
        WHERE u.tenant_id = :tenant_id AND u.subject_id = c.subject_id AND u.memory_id = c.memory_id
    ), noted AS (
        INSERT INTO memory_events (
            tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at
        )
        SELECT :tenant_id, r.subject_id, r.event_id, r.memory_id, 'repeated', r.actor, 1,
               CASE WHEN r.kept_id IS NULL THEN '{{}}' ELSE jsonb_build_object('kept_as', r.kept_id) END, r.moment
        FROM repeated r
    )
    SELECT {MEMORY_COLUMNS}, c.repeats, c.last_repeat, c.most_trust
    FROM counted c JOIN {MEMORY_SOURCE}
      ON m.tenant_id = :tenant_id AND m.subject_id = c.subject_id AND m.memory_id = c.memory_id
""")
_BELIEVE = sql("""
    UPDATE memories m SET trust = item.trust
    FROM unnest(cast(:subjects AS uuid[]), cast(:memories AS uuid[]), cast(:trusts AS smallint[]))
         AS item (subject_id, memory_id, trust)
    WHERE m.tenant_id = :tenant_id AND m.subject_id = item.subject_id AND m.memory_id = item.memory_id
      AND m.trust < item.trust
""")
_ITEM = Rows(
    "subject_id subjects uuid =", "memory_id memories uuid", "agent_id agents text =", "status statuses text =",
    "content contents text", "content_type content_types text =", "kind kinds text =", "key keys text",
    "importance importances real =", "tags tags text =", "metadata metadata jsonb =", "source sources text =",
    "session_id sessions text =", "pinned pinned bool =", "event_at event_at timestamptz",
    "valid_from valid_from timestamptz", "valid_to valid_to timestamptz", "expires_at expires_at timestamptz",
    "content_hash hashes bytea", "keywords keywords sparsevec", "word_count word_counts int",
    "embedding embeddings halfvec", "window_count window_counts smallint =", "ann large bool =",
    "trust trusts smallint =", "moment moments timestamptz =",
)  # fmt: skip
_USAGE_ITEM = Rows("subject_id subjects uuid =", "memory_id memories uuid", "forget_at forget_at timestamptz =")
_EVENT_ITEM = Rows(
    "subject_id subjects uuid =", "event_id events uuid", "memory_id memories uuid", "action actions text =",
    "actor actors text =", "detail details jsonb =", "moment moments timestamptz =",
)  # fmt: skip
_MAIN: Final = frozenset(_ITEM.parameters + _USAGE_ITEM.parameters + _EVENT_ITEM.parameters)


def _stored(*, alone: bool) -> str:
    return f"""
        INSERT INTO memories (
            tenant_id, subject_id, memory_id, agent_id, status, content, content_type, kind, key, importance, tags,
            metadata, source, session_id, pinned, event_at, valid_from, valid_to, expires_at, content_hash, keywords,
            word_count, embedding, generation_id, window_count, version, created_at, updated_at, tokenizer_version,
            deprecated_at, ann, trust
        )
        SELECT :tenant_id, subject_id, memory_id, agent_id, status, content, content_type, kind, key, importance,
               cast(tags AS text[]), metadata, source, session_id, pinned, event_at, valid_from, valid_to, expires_at,
               content_hash, keywords, word_count, embedding,
               CASE WHEN embedding IS NOT NULL THEN cast(:generation_id AS smallint) END,
               window_count, 1, moment, moment, :tokenizer_version,
               CASE WHEN status = 'deprecated' THEN moment END, ann, trust
        FROM {_ITEM.sql(alone=alone)} AS item
    """


def _used(*, alone: bool) -> str:
    return f"""
        INSERT INTO memory_usage (tenant_id, subject_id, memory_id, forget_at, access_count, hit_streak)
        SELECT :tenant_id, subject_id, memory_id, forget_at, 0, 0 FROM {_USAGE_ITEM.sql(alone=alone)} AS item
    """


# What only some writes have: the column that says so, and its statement.
_OPTIONAL = {
    "new_subjects": """
        INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
        SELECT :tenant_id, item.*
        FROM unnest(cast(:new_subjects AS uuid[]), cast(:users AS text[]), cast(:subject_moments AS timestamptz[]))
             AS item
        ON CONFLICT DO NOTHING
    """,
    "window_subjects": """
        INSERT INTO memory_windows (tenant_id, subject_id, memory_id, window_number, embedding)
        SELECT :tenant_id, item.* FROM unnest(
            cast(:window_subjects AS uuid[]), cast(:window_memories AS uuid[]), cast(:window_numbers AS smallint[]),
            cast(:window_embeddings AS halfvec[])
        ) AS item
    """,
    "term_subjects": """
        INSERT INTO memory_terms (tenant_id, subject_id, memory_id, term_id)
        SELECT :tenant_id, item.* FROM unnest(
            cast(:term_subjects AS uuid[]), cast(:term_memories AS uuid[]), cast(:term_ids AS int[])
        ) AS item
    """,
    "link_subjects": """
        INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
        SELECT :tenant_id, item.* FROM unnest(
            cast(:link_subjects AS uuid[]), cast(:link_memories AS uuid[]), cast(:link_relations AS text[]),
            cast(:link_others AS uuid[]), cast(:link_moments AS timestamptz[])
        ) AS item
    """,
    "pending_subjects": """
        INSERT INTO embedding_queue (tenant_id, subject_id, memory_id, due_at, created_at)
        SELECT :tenant_id, subject_id, memory_id, moment, moment FROM unnest(
            cast(:pending_subjects AS uuid[]), cast(:pending_memories AS uuid[]),
            cast(:pending_moments AS timestamptz[])
        ) AS item (subject_id, memory_id, moment)
    """,
    "ended_subjects": """
        INSERT INTO memory_events (
            tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at
        )
        SELECT :tenant_id, subject_id, event_id, memory_id, 'deprecated', actor, 1, detail, moment FROM unnest(
            cast(:ended_subjects AS uuid[]), cast(:ended_events AS uuid[]), cast(:ended_memories AS uuid[]),
            cast(:ended_actors AS text[]), cast(:ended_moments AS timestamptz[]), cast(:ended_details AS jsonb[])
        ) AS item (subject_id, event_id, memory_id, actor, moment, detail)
    """,
}


@lru_cache(maxsize=2 << len(_OPTIONAL))
def _insert(optional: tuple[str, ...], *, alone: bool) -> Statement:
    """One statement that writes everything; naming a table costs time even when it gets no row."""
    more = "".join(f", {name} AS ({_OPTIONAL[name]})" for name in optional)
    return sql(f"""
    WITH stored AS ({_stored(alone=alone)}), used AS ({_used(alone=alone)}) {more}
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT :tenant_id, subject_id, event_id, memory_id, action, actor, 1, detail, moment
    FROM {_EVENT_ITEM.sql(alone=alone)} AS item
    """)
