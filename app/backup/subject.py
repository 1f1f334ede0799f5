"""One subject on its way back: its memories with all that belongs to them, within the caller's transaction.

Invariant: of two versions of a memory the newer stays; an old memory whose place (the same text, or the same key) is
taken comes back as duplicate or deprecated, linked to what has its place. Vectors of another model are made anew.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from app.backup.fates import brought, columns_of, tables_of
from app.database import Transaction, sql
from app.language import word_ids
from app.tables import metadata

BATCH_ROWS: Final = 200
ACTOR: Final = "backup"


@dataclass(frozen=True, slots=True)
class Vectors:
    """The generation in the backup whose vectors are comparable (None: none), and its number in the running system."""

    there: int | None
    here: int | None


@dataclass(slots=True)
class SubjectReturn:
    """A subject's row in the backup, and where its rows come from."""

    source: Any
    tenant_id: UUID
    row: Any
    vectors: Vectors
    backup: str
    now: datetime

    async def was_erased(self, transaction: Transaction) -> bool:
        """Whether the subject was erased: what its backup still has must stay gone."""
        if "erasures" not in metadata.tables:
            return False
        names = {"tenant_id": self.tenant_id, "subject_id": self.row["subject_id"]}
        return bool(await transaction.fetch_value(_ERASED, **names))

    async def bring(self, transaction: Transaction, *, replace: bool) -> Counter[str]:
        """Write what is missing or older; returns counts, see merge()."""
        counts: Counter[str] = Counter(subjects=1)
        await transaction.execute(_ADD_SUBJECT, row=self.row["document"])
        # Deleted and come again since, a user has another id now.
        here = await transaction.fetch_row(_SUBJECT_HERE, tenant_id=self.tenant_id, user_id=self.row["user_id"])
        assert here is not None
        place = {"tenant_id": self.tenant_id, "subject_id": here["subject_id"]}
        if replace:
            counts["removed"] = await transaction.execute(_REMOVE, **place)
        async for rows in self._batches("memories", "(status = 'active'), memory_id"):  # overruled ones leave the slots
            await self._memories(transaction, rows, place, here["ann"], counts)
        for table in tables_of("trace"):
            statement = add_of_subject(table)
            async for rows in self._batches(table, "1"):
                await transaction.execute(statement, rows=_array(rows), subject_id=place["subject_id"])
        return counts

    async def _memories(
        self, transaction: Transaction, rows: Sequence[Any], place: dict[str, UUID], large: bool, counts: Counter[str]
    ) -> None:
        documents = _array(rows)
        chosen = await transaction.fetch(_CHOOSE, rows=documents, **place)
        counts["kept"] += len(rows) - len(chosen)
        if not chosen:
            return
        ids = [row["memory_id"] for row in chosen]
        demoted = [row for row in chosen if row["twin_id"] or row["rival_id"]]
        await transaction.execute(
            _WRITE, rows=documents, memories=ids, statuses=[_status(row) for row in chosen], large=large,
            there=self.vectors.there, here=self.vectors.here, now=self.now, **place,
        )  # fmt: skip
        for table in tables_of("part"):
            held = await self.source.fetchval(_PARTS.format(table=table), self.tenant_id, self.row["subject_id"], ids)
            await transaction.execute(_forget_parts(table), memories=ids, **place)
            await transaction.execute(add_of_subject(table), rows=held, subject_id=place["subject_id"])
        await transaction.execute(_DROP_WINDOWS, memories=ids, **place)
        await transaction.execute(_QUEUE, memories=ids, now=self.now, **place)
        if large:
            terms = [(row["memory_id"], term) for row in chosen for term in set(word_ids(row["content"]))]
            await transaction.execute(_forget_parts("memory_terms"), memories=ids, **place)
            await transaction.execute(
                _TERMS, memories=[memory_id for memory_id, _ in terms], terms=[term for _, term in terms], **place
            )
        await transaction.execute(
            _LINK,
            memories=[row["memory_id"] if row["twin_id"] else row["rival_id"] for row in demoted],
            relations=["duplicate_of" if row["twin_id"] else "supersedes" for row in demoted],
            others=[row["twin_id"] or row["memory_id"] for row in demoted],
            now=self.now,
            **place,
        )
        await transaction.execute(
            _NOTE, memories=ids, events=[uuid7() for _ in ids], actor=ACTOR, detail={"backup": self.backup},
            now=self.now, **place,
        )  # fmt: skip
        counts["restored"] += len(ids)
        counts["demoted"] += len(demoted)

    async def _batches(self, table: str, order: str) -> AsyncIterator[list[Any]]:
        """The subject's rows in the backup, in batches of JSON documents."""
        query = f"SELECT to_jsonb(t)::text FROM {table} t WHERE tenant_id = $1 AND subject_id = $2 ORDER BY {order}"
        async with self.source.transaction(readonly=True):
            cursor = await self.source.cursor(query, self.tenant_id, self.row["subject_id"])
            while rows := await cursor.fetch(BATCH_ROWS):
                yield rows


def _array(rows: Sequence[Any]) -> str:
    return f"[{','.join(row[0] for row in rows)}]"


def _status(row: Any) -> str:
    status: str = row["status"]
    return "duplicate" if row["twin_id"] else "deprecated" if row["rival_id"] else status


def add_of_subject(table: str) -> Any:
    """The statement that adds rows of the subject that a table does not have, under the subject's id of now."""
    names = columns_of(table)
    values = ("cast(:subject_id AS uuid)" if name == "subject_id" else brought(table, name) for name in names)
    return sql(f"""
        INSERT INTO {table} ({", ".join(names)})
        SELECT {", ".join(values)}
        FROM jsonb_populate_recordset(NULL::{table}, cast(:rows AS text)::jsonb) AS old ON CONFLICT DO NOTHING
    """)


def _forget_parts(table: str) -> Any:
    return sql(f"DELETE FROM {table} WHERE {_OF_MEMORIES}")


def _write() -> Any:
    changed = {
        "subject_id": "cast(:subject_id AS uuid)",
        "status": "chosen.status",
        "deprecated_at": "CASE WHEN chosen.status = 'deprecated' THEN coalesce(old.deprecated_at, :now) END",
        "ann": "cast(:large AS bool) AND old.cooled_by IS NULL",
        "embedding": f"CASE WHEN {_COMPARABLE} THEN old.embedding END",
        "generation_id": f"CASE WHEN {_COMPARABLE} THEN cast(:here AS smallint) END",
        "signs": f"CASE WHEN {_SIGNS_COMPARABLE} THEN old.signs END",
        "signs_generation_id": f"CASE WHEN {_SIGNS_COMPARABLE} THEN cast(:here AS smallint) END",
        "window_count": f"CASE WHEN {_COMPARABLE} THEN old.window_count ELSE 1 END",
        # Of a model that the store moves to or has left, they are made anew.
        "other_embedding": "NULL",
        "other_generation_id": "NULL",
        "other_window_count": "1",
    }
    names = columns_of("memories")
    keys = {column.name for column in metadata.tables["memories"].primary_key}
    return sql(f"""
        INSERT INTO memories ({", ".join(names)})
        SELECT {", ".join(changed.get(name, f"old.{name}") for name in names)}
        FROM jsonb_populate_recordset(NULL::memories, cast(:rows AS text)::jsonb) AS old
        JOIN unnest(cast(:memories AS uuid[]), cast(:statuses AS text[])) AS chosen (memory_id, status)
          ON chosen.memory_id = old.memory_id
        WHERE cast(:tenant_id AS uuid) = old.tenant_id
        ON CONFLICT (tenant_id, subject_id, memory_id) DO UPDATE
        SET {", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)}
    """)


_COMPARABLE: Final = "old.generation_id = cast(:there AS smallint)"
_SIGNS_COMPARABLE: Final = "old.signs_generation_id = cast(:there AS smallint)"
_OF_MEMORIES: Final = (
    "tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = ANY (cast(:memories AS uuid[]))"
)
_PARTS: Final = """
SELECT coalesce(jsonb_agg(to_jsonb(t)), '[]')::text FROM {table} t
WHERE tenant_id = $1 AND subject_id = $2 AND memory_id = ANY ($3::uuid[])
"""
_ERASED = sql("SELECT EXISTS (SELECT FROM erasures WHERE tenant_id = :tenant_id AND subject_id = :subject_id)")
_ADD_SUBJECT = sql("""
    INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
    SELECT tenant_id, subject_id, user_id, created_at
    FROM jsonb_populate_record(NULL::subjects, cast(:row AS text)::jsonb) ON CONFLICT DO NOTHING
""")
_SUBJECT_HERE = sql("""
    SELECT subject_id, ann FROM subjects WHERE tenant_id = :tenant_id AND user_id IS NOT DISTINCT FROM :user_id
""")
_REMOVE = sql("""
    DELETE FROM memories m WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND NOT EXISTS (
        SELECT FROM legal_holds h WHERE h.tenant_id = m.tenant_id AND h.subject_id = m.subject_id
          AND (h.memory_id IS NULL OR h.memory_id = m.memory_id)
    )
""")
# What is missing or older here, with the active memory of now that has its text or its key.
_CHOOSE = sql("""
    SELECT old.memory_id, old.status, old.content, (
        SELECT t.memory_id FROM memories t
        WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.status = 'active' AND old.status = 'active'
          AND t.memory_id <> old.memory_id AND t.content_hash = old.content_hash
          AND t.agent_id IS NOT DISTINCT FROM old.agent_id LIMIT 1
    ) AS twin_id, (
        SELECT t.memory_id FROM memories t
        WHERE t.tenant_id = :tenant_id AND t.subject_id = :subject_id AND t.status = 'active' AND old.status = 'active'
          AND t.memory_id <> old.memory_id AND t.key = old.key AND t.agent_id IS NOT DISTINCT FROM old.agent_id LIMIT 1
    ) AS rival_id
    FROM jsonb_populate_recordset(NULL::memories, cast(:rows AS text)::jsonb) AS old
    LEFT JOIN memories m
      ON m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = old.memory_id
    WHERE m.memory_id IS NULL OR m.updated_at < old.updated_at
    ORDER BY old.memory_id
""")
_WRITE = _write()
# Windows whose memory waits for a new vector.
_DROP_WINDOWS = sql(f"""
    DELETE FROM memory_windows WHERE {_OF_MEMORIES} AND memory_id IN (
        SELECT memory_id FROM memories WHERE {_OF_MEMORIES} AND embedding IS NULL
    )
""")
_QUEUE = sql(f"""
    INSERT INTO embedding_queue (tenant_id, subject_id, memory_id, due_at, created_at)
    SELECT tenant_id, subject_id, memory_id, :now, :now FROM memories
    WHERE {_OF_MEMORIES} AND embedding IS NULL AND status = 'active' ON CONFLICT DO NOTHING
""")
_TERMS = sql("""
    INSERT INTO memory_terms (tenant_id, subject_id, memory_id, term_id)
    SELECT :tenant_id, :subject_id, item.* FROM unnest(cast(:memories AS uuid[]), cast(:terms AS int[])) AS item
    ON CONFLICT DO NOTHING
""")
_LINK = sql("""
    INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
    SELECT :tenant_id, :subject_id, item.*, :now
    FROM unnest(cast(:memories AS uuid[]), cast(:relations AS text[]), cast(:others AS uuid[])) AS item
    ON CONFLICT DO NOTHING
""")
_NOTE = sql("""
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT m.tenant_id, m.subject_id, noted.event_id, m.memory_id, 'recovered', :actor, m.version, :detail, :now
    FROM memories m
    JOIN unnest(cast(:memories AS uuid[]), cast(:events AS uuid[])) AS noted (memory_id, event_id)
      ON noted.memory_id = m.memory_id
    WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id
""")
