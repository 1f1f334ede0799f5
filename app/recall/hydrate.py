"""From ids to memories: the full rows of the few best, in the words of the moment asked for.

Invariant: scope, status and validity are conditions here, too: what was overruled or erased since it was measured is
not shown.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.database import Transaction, sql
from app.embed import Generation
from app.memory import MEMORY_ALIVE, MEMORY_COLUMNS, MEMORY_SOURCE
from app.recall.candidates import SUBJECTS, known, scope
from app.recall.query import Query


async def fetch_beside(
    transaction: Transaction, query: Query, ids: Sequence[UUID], shortlist: Sequence[UUID], generation: Generation, *,
    now: datetime,
) -> tuple[dict[UUID, Any], NDArray[np.float32]]:  # fmt: skip
    """The full rows of some ids (at least one), and the vectors of a shortlist in its order.

    In one statement, which costs one way there and back less. Zeros for memories without one vector of `generation`.
    """
    rows = await transaction.fetch(
        _HYDRATE[query.include_deprecated, query.as_of is not None, True], **scope(query, now), ids=ids, first=ids[0],
        shortlist=shortlist, generation_id=generation.generation_id,
    )  # fmt: skip
    vectors = np.zeros((len(shortlist), generation.spec.dimension), dtype=np.float32)
    packed = next((row["vectors"] for row in rows if row["vectors"] is not None), b"")
    place = {memory_id.bytes: number for number, memory_id in enumerate(shortlist)}
    records = np.frombuffer(packed, _vector_layout(generation.spec.dimension))
    vectors[[place[one] for one in records["id"].tolist()]] = records["vector"]
    return {row["id"]: row for row in rows}, vectors


@lru_cache(maxsize=16)
def _vector_layout(dimension: int) -> np.dtype[np.void]:
    return np.dtype([("id", "V16"), ("length", ">u2"), ("unused", ">u2"), ("vector", ">f2", (dimension,))])


async def texts_of_then(
    transaction: Transaction, query: Query, ids: Sequence[UUID], *, now: datetime
) -> dict[UUID, dict[str, Any]]:
    """The fields, as they stood at `now`, of those memories that were amended since, by id."""
    rows = await transaction.fetch(_AS_OF, **scope(query, now), ids=ids)
    return {row["memory_id"]: _restored(row["snapshot"]) | {"version": row["version"]} for row in rows}


def _restored(snapshot: dict[str, Any]) -> dict[str, Any]:
    times = {name: snapshot[name] for name in ("event_at", "valid_from", "valid_to", "expires_at")}
    return snapshot | {name: value and datetime.fromisoformat(value) for name, value in times.items()}


async def fetch(transaction: Transaction, query: Query, ids: Sequence[UUID], *, now: datetime) -> dict[UUID, Any]:
    """The full rows of the best candidates that are still in scope, by id."""
    statement = _HYDRATE[query.include_deprecated, query.as_of is not None, False]
    return {row["id"]: row for row in await transaction.fetch(statement, **scope(query, now), ids=ids)}


# The vectors of all stand in one row only. Texts of several windows may be equal in their first and differ after it.
_BESIDE = f"""
    , CASE WHEN m.memory_id = :first THEN (
        SELECT string_agg(uuid_send(m.memory_id) || halfvec_send(m.embedding), '') FROM memories m
        WHERE m.tenant_id = :tenant_id AND {SUBJECTS} AND m.memory_id = ANY (cast(:shortlist AS uuid[]))
          AND m.generation_id = :generation_id AND m.window_count = 1
    ) END AS vectors
"""
_HYDRATE = {
    (deprecated, past, beside): sql(f"""
        SELECT {MEMORY_COLUMNS}, m.subject_id {_BESIDE if beside else ""} FROM {MEMORY_SOURCE}
        WHERE m.tenant_id = :tenant_id AND {SUBJECTS} AND m.memory_id = ANY (cast(:ids AS uuid[]))
          AND {known(deprecated, past)} AND {MEMORY_ALIVE}
    """)
    for deprecated in (False, True)
    for past in (False, True)
    for beside in (False, True)
}


# The first version replaced after a moment is the one that stood at it.
_AS_OF = sql(f"""
    SELECT DISTINCT ON (m.memory_id) m.memory_id, m.version, m.snapshot FROM memory_versions m
    WHERE m.tenant_id = :tenant_id AND {SUBJECTS} AND m.memory_id = ANY (cast(:ids AS uuid[])) AND m.replaced_at > :now
    ORDER BY m.memory_id, m.version
""")
