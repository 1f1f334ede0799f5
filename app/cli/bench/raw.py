"""The plain SQL beside which the service is measured: the same row, the same question, asyncpg and nothing else.

A table of the same columns and btree indexes in the same database; binary codecs, prepared statements, autocommit.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import asyncpg
import numpy as np
import orjson
from numpy.typing import NDArray
from pgvector import HalfVector, SparseVector
from pgvector.asyncpg import register_vector
from uuid_utils.compat import uuid7

from app.cli.embedded import PORT, SUPERUSER, EmbeddedServer
from app.clock import now
from app.language import TOKENIZER_VERSION, keyword_vector
from app.wire import KEYWORD_DIMENSIONS

Connection = Any
DIMENSION: Final = 384
TOP_K: Final = 20
TENANT: Final = UUID(int=0)

_COLUMNS: Final = {
    "tenant_id": "uuid", "subject_id": "uuid", "memory_id": "uuid", "status": "text", "content": "text",
    "content_type": "text", "kind": "text", "importance": "real", "tags": "text", "metadata": "jsonb",
    "session_id": "text", "pinned": "bool", "version": "int", "created_at": "timestamptz", "updated_at": "timestamptz",
    "content_hash": "bytea", "keywords": "sparsevec", "word_count": "int", "tokenizer_version": "smallint",
    "embedding": "halfvec", "generation_id": "smallint", "window_count": "smallint",
}  # fmt: skip
_TABLE: Final = f"""
    DROP TABLE IF EXISTS bench_memories;
    CREATE TABLE bench_memories (LIKE memories INCLUDING ALL);
    ALTER TABLE bench_memories ALTER COLUMN embedding TYPE halfvec({DIMENSION});
    ALTER TABLE bench_memories SET (toast_tuple_target = 8160)
"""
_OTHER_INDEXES: Final = """
    SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_am a ON a.oid = c.relam WHERE i.indrelid = 'bench_memories'::regclass AND a.amname <> 'btree'
"""
_PLACES: Final = ", ".join(f"${n}::{kind}" for n, kind in enumerate(_COLUMNS.values(), 1)).replace(
    "$9::text", "$9::text::text[]"
)
_ARRAYS: Final = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(_COLUMNS.values(), 1))
_NAMES: Final = ", ".join(_COLUMNS)
_INSERT: Final = f"INSERT INTO bench_memories ({_NAMES}) VALUES ({_PLACES})"
_INSERT_MANY: Final = f"""
    INSERT INTO bench_memories ({_NAMES})
    SELECT {_NAMES.replace("tags", "tags::text[]")} FROM unnest({_ARRAYS}) AS item ({_NAMES})
"""
_SELECT: Final = f"""
    SELECT memory_id, content FROM bench_memories
    WHERE tenant_id = $1 AND subject_id = $2 AND status = 'active' ORDER BY embedding <=> $3 LIMIT {TOP_K}
"""

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Raw:
    """One plain connection with its prepared statements."""

    connection: Connection
    insert: Callable[[Row], Awaitable[object]]
    insert_many: Callable[[Sequence[Sequence[Any]]], Awaitable[object]]
    select: Callable[[tuple[UUID, HalfVector]], Awaitable[object]]

    @staticmethod
    async def connect(server: EmbeddedServer, database: str) -> "Raw":
        """Log in as the superuser, for whom no row security is in the way; the table must exist."""
        connection = await connect(server, database)
        insert, many, select = [await connection.prepare(text) for text in (_INSERT, _INSERT_MANY, _SELECT)]
        return Raw(
            connection,
            lambda row: insert.fetch(*row),  # as one message; executemany() would wrap it in a transaction
            lambda columns: many.fetch(*columns),
            lambda question: select.fetch(TENANT, *question),
        )


async def create_table(server: EmbeddedServer, database: str) -> None:
    """Make the empty copy of the product's main table, with its btree indexes only."""
    connection = await connect(server, database, teach=None)
    try:
        await connection.execute(_TABLE)
        for (index,) in await connection.fetch(_OTHER_INDEXES):
            await connection.execute(f"DROP INDEX {index}")
    finally:
        await connection.close()


async def settle(server: EmbeddedServer, database: str) -> None:
    """VACUUM ANALYZE all tables of both sides, as autovacuum does within a minute, but now."""
    connection = await connect(server, database, teach=None)
    try:
        await connection.execute("VACUUM (ANALYZE)")
    finally:
        await connection.close()


async def statuses(plain: Raw) -> dict[str, int]:
    """How many memories the service holds by status, and how many still lack their vector (`pending`)."""
    found = await plain.connection.fetch(
        "SELECT status, count(*), count(*) FILTER (WHERE embedding IS NULL) FROM memories GROUP BY status"
    )
    pending = sum(missing for _, _, missing in found)
    return {status: count for status, count, _ in found} | {"pending": pending}


def row(subject_id: UUID, content: str) -> Row:
    """One row as the product stores it, with any unit vector."""
    moment, keywords = now(), keyword_vector(content)
    weights = dict(zip((term - 1 for term in keywords.ids), map(float, keywords.counts), strict=True))
    sparse = SparseVector(weights, KEYWORD_DIMENSIONS)
    memory_id = uuid7()
    return (
        TENANT, subject_id, memory_id, "active", content, "text", "user_preference", 3.0, '{"bench","load"}',
        orjson.dumps({"channel": "chat"}).decode(), "s1", False, 1, moment, moment, memory_id.bytes, sparse,
        keywords.word_count, TOKENIZER_VERSION, HalfVector(unit_vector()), 1, 1,
    )  # fmt: skip


def columns(rows: Sequence[Row]) -> list[list[Any]]:
    """The same rows as the arrays of UNNEST."""
    return [list(values) for values in zip(*rows, strict=True)]


def unit_vector() -> NDArray[np.float32]:
    vector = _random.standard_normal(DIMENSION, dtype=np.float32)
    return vector / np.linalg.norm(vector)


_random = np.random.default_rng(0)


async def connect(
    server: EmbeddedServer, database: str, *, teach: Callable[[Connection], Awaitable[None]] | None = register_vector
) -> Connection:
    """Log in as the superuser; `teach` gives the connection its codecs."""
    connection = await asyncpg.connect(host=str(server.sockets), port=PORT, user=SUPERUSER, database=database)
    if teach is not None:
        await teach(connection)
    return connection
