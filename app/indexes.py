"""Which indexes are missing or not valid, and the statements with which the schema's owner makes them again.

Invariant: indexes only make things fast, except the unique ones; nothing here touches a row.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Index
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex

from app import telemetry
from app.database import Database, sql
from app.errors import MnemeError
from app.tables import metadata

MOST_DIMENSIONS: Final = 4000  # of an HNSW index on halfvec; larger vectors are always compared exactly
_FILE: Final = re.compile(r"(?:base|pg_tblspc/\d+/\w+)/\d+/\d+")  # as the server's messages name a relation's
_LEFT_OVER: Final = re.compile(r"_cc(new|old)\d*$")  # what a broken off REINDEX CONCURRENTLY leaves behind


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
    wanted = {str(index.name) for index in _static()} | {
        ann_index(generation) for generation, dimension in generations.items() if dimension <= MOST_DIMENSIONS
    }
    return IndexFaults(
        tuple(sorted(wanted - found.keys())), tuple(sorted(name for name, valid in found.items() if not valid))
    )


def ann_index(generation_id: int) -> str:
    """The name of the vector index of a generation."""
    return f"memories_ann_g{generation_id}"


def cure(name: str, generations: Mapping[int, int], *, exists: bool) -> str:
    """The statement that makes an index good while the service runs; it must not run in a transaction."""
    if exists:
        if _LEFT_OVER.search(name):
            return f'DROP INDEX CONCURRENTLY IF EXISTS "{name}"'
        return f'REINDEX INDEX CONCURRENTLY "{name}"'
    for generation, dimension in generations.items():
        if name == ann_index(generation):
            return (
                f"CREATE INDEX CONCURRENTLY {name} ON memories USING hnsw"
                f" ((embedding::halfvec({dimension})) halfvec_cosine_ops) WHERE ann AND generation_id = {generation}"
            )
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
