"""Which indexes are missing or not valid, and the statements with which the schema's owner makes them again.

Invariant: indexes only make things fast, except the unique ones; nothing here touches a row.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import Index
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex

from app import telemetry
from app.database import Database, sql
from app.embed import ACTIVE, Columns
from app.errors import MnemeError
from app.tables import metadata

MOST_DIMENSIONS: Final = 4000  # of an HNSW index on halfvec; larger vectors are always compared exactly
PARTS: Final = 8
"""Of the vector index of a generation, so that few large subjects meet each other's rows; a power of two."""
PART: Final = f"(get_byte(uuid_send({{0}}subject_id), 15) & {PARTS - 1})"
"""The part that a row is in as SQL, given the row's alias and a dot: an expression that the planner must recognise."""
_FILE: Final = re.compile(r"(?:base|pg_tblspc/\d+/\w+)/\d+/\d+")  # as the server's messages name a relation's
_LEFT_OVER: Final = re.compile(r"_cc(new|old)\d*$")  # what a broken off REINDEX CONCURRENTLY leaves behind
_UNDIVIDED: Final = re.compile(r"memories_ann_g(\d+)")  # the one over all that there was before there were parts


@dataclass(frozen=True, slots=True)
class IndexFaults:
    """Names of indexes that should be there and are not, and of those that PostgreSQL does not use (`invalid`)."""

    missing: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()


async def index_faults(database: Database) -> IndexFaults:
    """What is wrong with the indexes now. Raises DatabaseUnavailable, PoolExhausted, DeadlineExceeded."""
    async with database.work() as transaction:
        found = {row["name"]: row["valid"] for row in await transaction.fetch(sql(INDEXES))}
        generations = {row["id"]: row["dimension"] for row in await transaction.fetch(sql(GENERATIONS))}
    return faults(found, generations)


async def drop_damaged(database: Database, error: BaseException) -> bool:
    """Drop the vector indexes that are damaged on disk, so that all goes on without; `error` told of it.

    Returns whether another try is worth it: not where the table was too busy for a second.
    """
    found = _FILE.search(str(error.__cause__))
    try:
        async with database.work() as transaction:
            dropped = await transaction.fetch_value(_DROP_DAMAGED, reported=found and found[0])
    except MnemeError as busy:  # the caller tells its own failure; this one says why nothing was mended
        telemetry.log().warning("vector_index_not_dropped", error=type(busy).__name__)
        return False
    if dropped:
        telemetry.log().error("vector_index_dropped", indexes=dropped, detail="damaged: run `mneme reindex`")
    return True


def faults(found: Mapping[str, bool], generations: Mapping[int, int]) -> IndexFaults:
    """Compare what INDEXES found (name to valid) and GENERATIONS (id to dimension) with the schema of this program."""
    wanted = {str(index.name) for index in _static()}
    for generation, dimension in generations.items():
        wanted |= ann_indexes(generation, dimension).keys()
    return IndexFaults(
        tuple(sorted(wanted - found.keys())), tuple(sorted(name for name, valid in found.items() if not valid))
    )


def superseded(found: Mapping[str, bool]) -> list[str]:
    """Vector indexes over all large subjects whose parts, as INDEXES found them, serve instead."""
    return [
        name
        for name in found
        if (match := _UNDIVIDED.fullmatch(name))
        and all(found.get(ann_index(int(match[1]), part)) for part in range(PARTS))
    ]


def ann_index(generation_id: int, part: int) -> str:
    """The name of a part of the vector index of a generation."""
    return f"memories_ann_g{generation_id}_p{part}"


def ann_indexes(generation_id: int, dimension: int, columns: Columns = ACTIVE) -> dict[str, str]:
    """Each part by name, with what follows that where it is created; none where the vectors are too large for any."""
    return {
        ann_index(generation_id, part): (
            f"ON memories USING hnsw (({columns.embedding}::halfvec({dimension})) halfvec_cosine_ops)"
            f" WHERE ann AND {columns.generation_id} = {generation_id} AND {PART.format('')} = {part}"
        )
        for part in range(PARTS if dimension <= MOST_DIMENSIONS else 0)
    }


def part_of(subject_id: UUID) -> int:
    """The part of the vector index that has the memories of a subject: by the end of its id, which is random."""
    return subject_id.int % PARTS


def cure(name: str, generations: Mapping[int, int], *, exists: bool) -> str:
    """The statement that makes an index good while the service runs; it must not run in a transaction."""
    if exists:
        if _LEFT_OVER.search(name) or _UNDIVIDED.fullmatch(name):
            return f'DROP INDEX CONCURRENTLY IF EXISTS "{name}"'
        return f'REINDEX INDEX CONCURRENTLY "{name}"'
    for generation, dimension in generations.items():
        if (definition := ann_indexes(generation, dimension).get(name)) is not None:
            return f"CREATE INDEX CONCURRENTLY {name} {definition}"
    index = next(index for index in _static() if index.name == name)
    made = str(CreateIndex(index).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
    return made.replace(" INDEX ", " INDEX CONCURRENTLY ", 1)


def _static() -> list[Index]:
    return [index for table in metadata.sorted_tables for index in table.indexes]


_DROP_DAMAGED = sql("SELECT drop_damaged_ann_indexes(:reported)")
INDEXES: Final = """
SELECT c.relname AS name, i.indisvalid AND i.indisready AND i.indislive AS valid
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE pg_table_is_visible(i.indrelid) AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace)
"""
GENERATIONS: Final = "SELECT generation_id AS id, dimension FROM embedding_generations WHERE state = 'active'"
