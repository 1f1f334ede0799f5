"""The filter of a request that the fewest rows of large subjects pass, and these rows by an index of their own.

Invariant: an index only proposes: each row is checked against all filters where it is measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from app.database import Statement, Transaction, sql
from app.recall.candidates import FILTERS, Shape

COUNTED: Final = 50_001
"""Rows of one filter that are counted at most."""

# By filter, the facets of which a row has one: each row of the answer is a way by itself.
_FACETS: Final[Mapping[str, str]] = {
    "tags_any": "SELECT array_agg(facet('tag', value)) FROM unnest(cast(:tags_any AS text[])) AS value",
    "tags_all": "SELECT ARRAY[facet('tag', value)] FROM unnest(cast(:tags_all AS text[])) AS value",
    "kinds": "SELECT array_agg(facet('kind', value)) FROM unnest(cast(:kinds AS text[])) AS value",
    "content_types": """
        SELECT array_agg(facet('content_type', value)) FROM unnest(cast(:content_types AS text[])) AS value
        HAVING bool_and(value <> 'text')
    """,
    "metadata": """
        SELECT ARRAY[facet('metadata', key || '=' || value)] FROM jsonb_each(:metadata) AS pair (key, value)
        WHERE jsonb_typeof(value) IN ('string', 'boolean')
    """,
}
Index = Literal["facets", "created", "event", "session"]
# By index on memories, the filters that it serves and what makes it apply.
_OF_MEMORIES: Final[Mapping[Index, tuple[tuple[str, ...], str]]] = {
    "created": (("created_from", "created_to"), "m.ann"),
    "event": (("event_from", "event_to"), "m.ann AND m.event_at IS NOT NULL"),
    "session": (("session_id",), "m.status = 'active' AND m.session_id IS NOT NULL"),
}
_HERE: Final = "tenant_id = :tenant_id AND {0}.subject_id = ANY (cast(:large AS uuid[]))"
# An array, since the planner, who takes every facet for one of mean size, would join by reading all of the subject.
_FACETED: Final = f"""
    m.memory_id = ANY (ARRAY(
        SELECT f.memory_id FROM memory_facets f WHERE f.{_HERE.format("f")} AND f.facet = ANY (cast(:facets AS int[]))
    ))
"""


@dataclass(frozen=True, slots=True)
class Way:
    """An index, the facets to look for in it, and how many rows of large subjects that gives, at most COUNTED."""

    index: Index
    facets: list[int] | None
    passing: int


async def narrowest(transaction: Transaction, shape: Shape, values: Mapping[str, Any]) -> Way | None:
    """The way with the fewest rows; None if no index serves any of the filters."""
    if not any((*_facets(shape), *_of_memories(shape))):
        return None
    row = await transaction.fetch_row(_narrowest(shape), **values)
    return None if row is None else Way(**row)


def of_time(shape: Shape) -> bool:
    """Whether a filter is one of time, of which the latest rows are no sample."""
    return any(name in shape.filters for name in (*_OF_MEMORIES["created"][0], *_OF_MEMORIES["event"][0]))


def proposed(shape: Shape, index: Index) -> str:
    """FROM clause of the rows `m` of large subjects that a way gives; parameters large and facets."""
    served = _FACETED if index == "facets" else _served(shape, index)
    return f"(SELECT * FROM memories m WHERE m.{_HERE.format('m')} AND {served}) AS m"


@lru_cache(maxsize=256)
def _narrowest(shape: Shape) -> Statement:
    ways = []
    if facets := _facets(shape):
        ways.append(f"""
            SELECT 'facets' AS index, asked.facets, (
                SELECT count(*) FROM (
                    SELECT FROM memory_facets f WHERE f.{_HERE.format("f")} AND f.facet = ANY (asked.facets)
                    LIMIT {COUNTED}
                ) AS few
            ) AS passing
            FROM ({" UNION ALL ".join(facets)}) AS asked (facets)
        """)
    ways += [
        f"""
            SELECT '{index}' AS index, NULL::int[] AS facets, (
                SELECT count(*) FROM (
                    SELECT FROM memories m WHERE m.{_HERE.format("m")} AND {_served(shape, index)} LIMIT {COUNTED}
                ) AS few
            ) AS passing
        """
        for index in _of_memories(shape)
    ]
    return sql(f"SELECT * FROM ({' UNION ALL '.join(ways)}) AS ways ORDER BY passing LIMIT 1")


def _facets(shape: Shape) -> list[str]:
    return [select for name, select in _FACETS.items() if name in shape.filters]


def _of_memories(shape: Shape) -> list[Index]:
    active = not (shape.past or shape.deprecated)
    return [
        index
        for index, (names, _) in _OF_MEMORIES.items()
        if any(name in shape.filters for name in names) and (index != "session" or active)
    ]


def _served(shape: Shape, index: Index) -> str:
    names, applies = _OF_MEMORIES[index]
    return " AND ".join([applies, *(FILTERS[name] for name in names if name in shape.filters)])
