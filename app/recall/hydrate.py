"""From ids to memories: the full rows of the few best, in the words of the moment asked for.

Invariant: scope, status and validity are conditions here, too: what was overruled or erased since it was measured is
not shown.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.database import Transaction, sql
from app.embed import Generation
from app.memory import MEMORY_ALIVE, MEMORY_COLUMNS, MEMORY_SOURCE, importance_score
from app.recall.candidates import SUBJECTS, known, scope
from app.recall.query import Query


async def fetch(
    transaction: Transaction, query: Query, ids: Sequence[UUID], *, now: datetime, generation: Generation | None = None
) -> dict[UUID, Any]:
    """The full rows of memories that are still in scope, by id; with a generation, also their vectors of it."""
    statement = _HYDRATE[query.include_deprecated, query.as_of is not None, generation is not None]
    generation_id = None if generation is None else generation.generation_id
    rows = await transaction.fetch(statement, **scope(query, now), ids=ids, generation_id=generation_id)
    return {row["id"]: row for row in rows}


def vectors_of(rows: Mapping[UUID, Any], ids: Sequence[UUID], dimension: int) -> NDArray[np.float32]:
    """The vectors that came with rows, in the order of ids: shape (ids, dimension), zeros where there is none."""
    nothing = bytes(_HEADER_BYTES + 2 * dimension)
    packed = b"".join([(one in rows and rows[one]["vector"]) or nothing for one in ids])
    halves = np.frombuffer(packed, ">f2").reshape(len(ids), -1)[:, _HEADER_BYTES // 2 :]
    return halves.astype(np.float32)


async def texts_of_then(
    transaction: Transaction, query: Query, ids: Sequence[UUID], *, now: datetime
) -> dict[UUID, dict[str, Any]]:
    """The fields, as they stood at `now`, of those memories that were amended since, by id."""
    rows = await transaction.fetch(_AS_OF, **scope(query, now), ids=ids)
    return {row["memory_id"]: _restored(row["snapshot"]) | {"version": row["version"]} for row in rows}


def _restored(snapshot: dict[str, Any]) -> dict[str, Any]:
    times = {name: snapshot[name] for name in ("event_at", "valid_from", "valid_to", "expires_at")}
    score = {"importance_score": importance_score(snapshot["importance"])}
    return snapshot | score | {name: value and datetime.fromisoformat(value) for name, value in times.items()}


_HEADER_BYTES = 4  # of halfvec_send: dimension and a reserved field
# Texts of several windows may be equal in their first and differ after it: they are not compared. As bytes, for numpy
# reads all of them at once.
_VECTOR = """
    , CASE WHEN m.generation_id = :generation_id AND m.window_count = 1 THEN halfvec_send(m.embedding)
           WHEN m.other_generation_id = :generation_id AND m.other_window_count = 1 THEN halfvec_send(m.other_embedding)
      END AS vector
"""
# By their ids: the subject is no index condition, or one plan for all could read it whole (see proposals.py).
_HYDRATE = {
    (deprecated, past, vectors): sql(f"""
        SELECT {MEMORY_COLUMNS}, m.subject_id {_VECTOR if vectors else ""} FROM {MEMORY_SOURCE}
        WHERE m.tenant_id = :tenant_id AND ({SUBJECTS}) IS TRUE AND m.memory_id = ANY (cast(:ids AS uuid[]))
          AND {known(deprecated, past)} AND {MEMORY_ALIVE}
    """)
    for deprecated in (False, True)
    for past in (False, True)
    for vectors in (False, True)
}
# The first version replaced after a moment is the one that stood at it.
_AS_OF = sql(f"""
    SELECT DISTINCT ON (m.memory_id) m.memory_id, m.version, m.snapshot FROM memory_versions m
    WHERE m.tenant_id = :tenant_id AND {SUBJECTS} AND m.memory_id = ANY (cast(:ids AS uuid[])) AND m.replaced_at > :now
    ORDER BY m.memory_id, m.version
""")
