"""The one SELECT that finds and measures: all memories of the query's subjects with the raw value of every signal.

Invariant: tenant, subject, agent, status, expiry and validity are conditions of the SELECT itself, before any cut; SQL
measures, the pure functions of signals and ranking judge. The measures come as one string of fixed-width records, which
numpy reads as it is: as arrays or rows they would cost both sides more than the measuring.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import numpy as np
from asyncpg.pgproto import pgproto
from numpy.typing import NDArray

from app.database import Statement, Transaction, sql
from app.embed import BOTH, Columns
from app.language import KeywordQuery
from app.memory import MEMORY_ALIVE
from app.recall.query import NO_FILTERS, Candidates, Filters, Query, row_before
from app.wire import halfvec, sparsevec

# The subjects in scope; an unknown user has none, which leaves the shared one (whose id is the tenant's) or nothing.
SUBJECTS = """
    m.subject_id = ANY (
        ARRAY(SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id)
        || cast(:shared AS uuid[])
    )
"""
ID_BYTES: Final = 16
FILTERS = {
    "tags_any": "m.tags && cast(:tags_any AS text[])",
    "tags_all": "m.tags @> cast(:tags_all AS text[])",
    "kinds": "m.kind = ANY (cast(:kinds AS text[]))",
    "content_types": "m.content_type = ANY (cast(:content_types AS text[]))",
    "created_from": "m.created_at >= :created_from",
    "created_to": "m.created_at < :created_to",
    "event_from": "m.event_at >= :event_from",
    "event_to": "m.event_at < :event_to",
    "metadata": "m.metadata @> :metadata",
    "session_id": "m.session_id = :session_id",
    "min_trust": "m.trust >= :min_trust",
}


@dataclass(frozen=True, slots=True)
class Remade:
    """Cold memories with what they lack; a vector is None where the model did not give it in time."""

    ids: Sequence[UUID] = ()
    embeddings: Sequence[bytes | None] = ()
    keywords: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A query as numbers: its terms, its vector (None: no dense arm), its single questions', and small talk's; and the
    cold memories that are to be measured with it."""

    keywords: KeywordQuery
    vector: NDArray[np.float32] | None
    questions: tuple[NDArray[np.float32], ...] = ()
    small_talk: NDArray[np.float32] | None = None
    remade: Remade = Remade()

    @property
    def vectors(self) -> dict[str, NDArray[np.float32]]:
        """The vectors that a row is compared with, by parameter name."""
        if self.vector is None:
            return {}
        named = {"vector": self.vector} | {f"question_{n}": vector for n, vector in enumerate(self.questions)}
        return named if self.small_talk is None else named | {"small_talk": self.small_talk}


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides the text of the SELECT: the parts that a query has."""

    codes: int
    vectors: tuple[str, ...]
    filters: tuple[str, ...]
    agent: bool
    deprecated: bool
    past: bool
    accessed: bool
    sources: bool
    generation_id: int


def shape_of(query: Query, asked: Asked, generation_id: int) -> Shape:
    filters: tuple[str, ...] = ()
    if query.filters != NO_FILTERS:
        filters = tuple(name for name in Filters.__slots__ if getattr(query.filters, name))
    return Shape(
        len(asked.keywords.codes),
        tuple(asked.vectors),
        filters,
        query.agent_id is not None,
        query.include_deprecated,
        query.as_of is not None,
        query.time_decay.clock == "accessed",
        limits_sources(query),
        generation_id,
    )


def limits_sources(query: Query) -> bool:
    """Whether hits of one source are limited, so that it must be measured."""
    return query.max_share_per_source is not None and query.max_share_per_source < 1


def parameters(query: Query, asked: Asked, *, now: datetime) -> dict[str, Any]:
    """The values of every parameter that a SELECT over candidates may name."""
    values: dict[str, Any] = {}
    if query.filters != NO_FILTERS:
        values = {name: getattr(query.filters, name) for name in Filters.__slots__}
    return {
        **scope(query, now),
        **{name: list(value) if isinstance(value, tuple) else value for name, value in values.items()},
        **{f"code_{n}": sparsevec(code.ids, code.powers) for n, code in enumerate(asked.keywords.codes)},
        **{name: halfvec(vector) for name, vector in asked.vectors.items()},
    }


async def find(transaction: Transaction, query: Query, asked: Asked, shape: Shape, *, now: datetime) -> bytes:
    """Measure every memory in scope, as columns() reads it; without a vector all cosines are NaN."""
    packed = await transaction.fetch_value(_select(shape), **parameters(query, asked, now=now))
    return packed or b""


def scope(query: Query, now: datetime) -> dict[str, Any]:
    shared = query.include_shared or query.user_id is None
    return {
        "tenant_id": query.tenant_id,
        "user_id": query.user_id,
        "shared": [query.tenant_id] if shared else [],
        "agent_id": query.agent_id,
        "now": now,
    }


@lru_cache(maxsize=512)
def _select(shape: Shape) -> Statement:
    return sql(f"""
        SELECT string_agg({record(shape)}, '') FROM memories m
        WHERE m.tenant_id = :tenant_id AND {SUBJECTS} AND {alive(shape)}
    """)


def alive(shape: Shape, *, cold: bool = False) -> str:
    """The conditions that every candidate meets, whichever way it is found."""
    agent = "AND (m.agent_id IS NULL OR m.agent_id = :agent_id)" if shape.agent else ""
    tier = "NOT NULL" if cold else "NULL"
    return f"{known(shape.deprecated, shape.past)} AND m.cooled_by IS {tier} AND {MEMORY_ALIVE} {agent}"


def matching(shape: Shape) -> str:
    """The request's filters as one condition."""
    return " AND ".join(FILTERS[name] for name in shape.filters) or "true"


def record(shape: Shape) -> str:
    """One memory in binary, as _layout reads it."""
    return " || ".join(
        (
            "uuid_send(m.memory_id)",
            "timestamptz_send(m.created_at)",
            "timestamptz_send(coalesce(m.event_at, m.created_at))",
            "float4send(m.importance)",
            "int4send(m.word_count)",
            "int4send(coalesce(hashtext(m.session_id), 0))",
            f"boolsend(({matching(shape)}) IS TRUE)",
            *((f"timestamptz_send(coalesce({_ACCESSED}, m.created_at))",) if shape.accessed else ()),
            *(("int4send(coalesce(hashtext(m.source), 0))",) if shape.sources else ()),
            *(f"float4send({distance(name, shape.generation_id)})" for name in shape.vectors),
            *(f"float4send((-(m.keywords <#> :code_{n}))::float4)" for n in range(shape.codes)),
        )
    )


def distance(name: str, generation_id: int) -> str:
    """Distance to one of the query's vectors; NaN without a vector of this generation."""
    cases = " ".join(
        f"WHEN m.{columns.generation_id} = {generation_id} THEN {_measured(name, columns)}" for columns in BOTH
    )
    return f"(CASE {cases} ELSE 'NaN' END)::float4"


def _measured(name: str, columns: Columns) -> str:
    own = f"m.{columns.embedding}"
    if name == "small_talk":
        return f"({own} <#> :{name})"
    if name == "vector":  # a long text has further windows; its distance is that of its nearest one
        return f"""
            CASE WHEN m.{columns.window_count} = 1 THEN {own} <=> :vector ELSE least({own} <=> :vector, (
                SELECT min(w.embedding <=> :vector) FROM {columns.windows} w
                WHERE w.tenant_id = m.tenant_id AND w.subject_id = m.subject_id AND w.memory_id = m.memory_id
            )) END
        """
    return f"({own} <=> :{name})"


# Of several accesses only the last is known: one after the moment asked for says nothing about those before it.
_ACCESSED = """(
    SELECT u.last_accessed_at FROM memory_usage u
    WHERE u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
      AND u.last_accessed_at <= :now
)"""


def record_bytes(shape: Shape) -> int:
    """How long the record of one memory is; the first ID_BYTES of it are its id."""
    return _layout(shape).itemsize


@lru_cache(maxsize=64)
def _layout(shape: Shape) -> np.dtype[np.void]:
    """Big-endian, times in microseconds since 2000."""
    return np.dtype(
        [
            ("id", ">u8", 2), ("created_at", ">i8"), ("happened_at", ">i8"), ("importance", ">f4"),
            ("word_count", ">i4"), ("session", ">i4"), ("matching", "?"),
            *([("accessed_at", ">i8")] if shape.accessed else []), *([("source", ">i4")] if shape.sources else []),
            ("distances", ">f4", (len(shape.vectors),)), ("products", ">f4", (shape.codes,)),
        ]
    )  # fmt: skip


def known(deprecated: bool, past: bool) -> str:
    """What was known at :now. Of the past (as_of), that includes what was overruled since; never what was erased."""
    status = "m.status = ANY (ARRAY['active', 'deprecated'])" if deprecated or past else "m.status = 'active'"
    written = " AND m.created_at <= :now" if past else ""
    overruled = " AND (m.deprecated_at IS NULL OR m.deprecated_at > :now)" if past and not deprecated else ""
    return status + written + overruled


def columns(packed: bytes, asked: Asked, shape: Shape) -> Candidates:
    """The packed memories as columns, in order of time."""
    vectors = shape.vectors
    layout = _layout(shape)
    rows = np.frombuffer(packed, layout)
    order = np.lexsort((rows["id"][:, 1], rows["id"][:, 0], rows["happened_at"]))
    rows = np.frombuffer(packed, f"V{layout.itemsize}")[order].view(layout)  # field by field it takes ten times as long
    words, grams = asked.keywords.decode(rows["products"])
    session = rows["session"].astype(np.int64)
    distances = rows["distances"].astype(np.float64)
    questions = [number for number, name in enumerate(vectors) if name.startswith("question")]
    return Candidates(
        ids=Ids(rows["id"]),
        cosine=1 - distances[:, 0] if vectors else np.full(len(rows), np.nan),
        frequency=np.concatenate((words, grams), axis=1, dtype=np.float64),
        words=words.shape[1],
        word_count=rows["word_count"].astype(np.float64),
        created_at=_seconds(rows["created_at"]),
        happened_at=_seconds(rows["happened_at"]),
        importance=rows["importance"].astype(np.float64),
        before=row_before(session),
        matching=rows["matching"],
        commonness=-distances[:, -1] if "small_talk" in vectors else None,
        question_cosine=1 - distances[:, questions] if questions else None,
        accessed_at=_seconds(rows["accessed_at"]) if shape.accessed else None,
        source=rows["source"].astype(np.int64) if shape.sources else None,
    )


def _seconds(microseconds: NDArray[np.int64]) -> NDArray[np.float64]:
    """PostgreSQL's microseconds since 2000 as seconds since 1970."""
    return np.asarray(microseconds / 1e6 + _YEAR_2000)


class Ids(Sequence[UUID]):
    """Ids in two numbers each, turned into a UUID only when asked for: few candidates become hits."""

    def __init__(self, halves: NDArray[np.uint64]) -> None:
        self._halves = halves
        self._made: dict[int, UUID] = {}

    def __len__(self) -> int:
        return len(self._halves)

    def __getitem__(self, row: Any) -> Any:
        if (made := self._made.get(row)) is None:
            made = self._made[row] = pgproto.UUID(self._halves[row].tobytes())  # a uuid.UUID, made ten times faster
        return made

    def index(self, value: UUID, start: int = 0, stop: int | None = None) -> int:
        halves = self._halves[start:stop]
        found = np.flatnonzero((halves[:, 0] == value.int >> 64) & (halves[:, 1] == value.int & 0xFFFF_FFFF_FFFF_FFFF))
        if not len(found):
            raise ValueError(f"{value} is not among the candidates")
        return start + int(found[0])


_YEAR_2000 = datetime(2000, 1, 1, tzinfo=UTC).timestamp()  # the zero of PostgreSQL's clock
