"""What a move to another model needs of the schema's owner: indexes, and the switch itself, a change of names.

Invariant: names and states change in one transaction, so that whoever sees the one sees the other.
"""

import asyncio
from datetime import datetime
from typing import Any, Final

import asyncpg

from app.backup import plain_connection
from app.embed import ACTIVE, OTHER, Known
from app.errors import StartupRefused
from app.indexes import ann_indexes

PATIENCE: Final = "500ms"
TRIES: Final = 60
"""The change of names waits for running statements, and all that come later for it: so only for a moment, but often."""


async def ensure_lacking_index(owner_url: str, generation: Known) -> None:
    """Make the index of the memories that lack a generation's vector; nobody waits for it."""
    columns = ACTIVE if generation.state == "active" else OTHER
    number = generation.generation_id
    await _ensure_index(
        owner_url,
        f"memories_lacking_g{number}",
        "ON memories (tenant_id, subject_id, memory_id)"
        f" WHERE {columns.generation_id} IS DISTINCT FROM {number} AND cooled_by IS NULL",
    )


async def ensure_vector_index(owner_url: str, generation: Known) -> None:
    """Make the vector index of large subjects for a generation beside the active one; nobody waits for it."""
    for name, definition in ann_indexes(generation.generation_id, generation.dimension, OTHER).items():
        await _ensure_index(owner_url, name, definition)


async def switch(owner_url: str, generation_id: int, now: datetime) -> None:
    """Make a generation the active one, and the active one its other; raises StartupRefused when that cannot be now.

    Whether all memories have their vectors of it is the caller's to see to.
    """
    async with plain_connection(owner_url) as connection:
        for _ in range(TRIES):
            try:
                await _switch(connection, generation_id, now)
                return
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                await asyncio.sleep(0.5)  # and those who waited get their turn
    raise StartupRefused("the tables are too busy to be switched just now: try again", dependency=True)


async def _switch(connection: Any, generation_id: int, now: datetime) -> None:
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
        await connection.execute(f"LOCK TABLE memories, {ACTIVE.windows}, {OTHER.windows} IN ACCESS EXCLUSIVE MODE")
        there = await connection.fetchval(_IS_OTHER, generation_id)
        if not there:
            raise StartupRefused(f"generation {generation_id} does not stand beside the active one any more")
        for name in ("embedding", "generation_id", "window_count"):
            mine, others = getattr(ACTIVE, name), getattr(OTHER, name)
            for old, new in ((mine, "swapped"), (others, mine), ("swapped", others)):
                await connection.execute(f"ALTER TABLE memories RENAME COLUMN {old} TO {new}")
        for old, new in ((ACTIVE.windows, "swapped"), (OTHER.windows, ACTIVE.windows), ("swapped", OTHER.windows)):
            await connection.execute(f"ALTER TABLE {old} RENAME TO {new}")
        # One after the other: no two are ever active, and no two beside the active one.
        await connection.execute(_STATE, generation_id, "retired", now)
        await connection.execute(_LEAVE, now)
        await connection.execute(_STATE, generation_id, "active", now)


async def _ensure_index(owner_url: str, name: str, definition: str) -> None:
    async with plain_connection(owner_url) as connection:
        valid = await connection.fetchval(_IS_VALID, name)
        if valid:
            return
        if valid is not None:  # left over by one who was killed
            await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        await connection.execute(f"CREATE INDEX CONCURRENTLY {name} {definition}")


_IS_OTHER: Final = """
SELECT count(*) FROM embedding_generations WHERE generation_id = $1 AND state IN ('building', 'previous')
"""
_STATE: Final = """
UPDATE embedding_generations SET state = $2, switched_at = $3 WHERE generation_id = $1
"""
_LEAVE: Final = """
UPDATE embedding_generations SET state = 'previous', switched_at = $1 WHERE state = 'active'
"""
_IS_VALID: Final = "SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass($1)"
