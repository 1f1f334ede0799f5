"""The statements over large subjects: what proposes rows, and these measured like rows of small subjects.

Invariant: whatever proposes only proposes; each row is checked against scope and filters where it is measured. Each
statement tells with its rows in how many memories the query's terms occur, so that nobody asks for that by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from app.database import Statement, sql
from app.indexes import PART
from app.recall.candidates import Shape, alive, distance, matching, record
from app.recall.narrow import Index, proposed

# Measured on 100,000 memories against a scan of all (docs/decisions/0015): more nearest or more best-worded cost more
# and change hits little; without the latest, a third of the best ten is missed.
NEAREST: Final = 100  # rows that likeness proposes: fewer than one walk of the vector index looks at (hnsw.ef_search)
WORDED: Final = 100  # rows that the postings propose
LATEST: Final = 400  # latest rows, of which those that pass the filters are proposed
PROBED: Final = 10  # nearest memories that a probe compares
POSTINGS_READ: Final = 3_000  # postings read for one query: those of its rarest words


@dataclass(frozen=True, slots=True)
class Walk:
    """The nearest come from these parts of the vector index, each of which has large subjects of the query."""

    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """The nearest come from reading all that pass the filters, by an index of one of them; None: the subjects whole."""

    index: Index | None = None


Near = Walk | Read


def _in_large(shape: Shape) -> str:
    return f"{_HERE} AND {alive(shape)} AND ({matching(shape)})"


def _by_index(shape: Shape, dimension: int, parts: Sequence[int], packed: str, limit: int = NEAREST) -> str:
    # Generation, dimension and part are literals, so that the planner can prove that the partial index applies. How far
    # the walk looks is set with the vector that it needs before it begins: an exchange less.
    return " UNION ALL ".join(
        f"""(
            SELECT m.memory_id, {packed} AS packed FROM memories m
            WHERE {_in_large(shape)} AND m.ann AND m.generation_id = {shape.generation_id}
              AND {PART.format("m.")} = {part}
            ORDER BY m.embedding::halfvec({dimension}) <=> (
                SELECT cast(:vector AS halfvec({dimension})) FROM set_config('hnsw.ef_search', :looks, true)
            ) LIMIT {limit}
        )"""
        for part in parts
    )


def _by_scan(shape: Shape, source: str, limit: int) -> str:
    # Only ids and distances are sorted: with all that is measured it took half as long again.
    return f"""
        SELECT m.memory_id, {record(shape)} AS packed FROM memories m
        WHERE {_HERE_BY_ID} AND m.memory_id = ANY (ARRAY(
            SELECT one.memory_id FROM (
                SELECT m.memory_id, {distance("vector", shape.generation_id)} AS distance FROM {source}
                WHERE {_in_large(shape)} OFFSET 0
            ) AS one
            WHERE one.distance <> 'NaN' ORDER BY one.distance, one.memory_id LIMIT {limit}
        ))
    """


def _by_words(shape: Shape, limit: int, beyond: str = "") -> str:
    """The best-worded, best first."""
    return f"""
            SELECT m.memory_id, {record(shape)} AS packed
            FROM (
                SELECT t.memory_id, sum(rare.weight) AS weight
                FROM rare JOIN memory_terms t ON t.term_id = rare.term_id
                WHERE t.tenant_id = :tenant_id AND t.subject_id = ANY (cast(:large AS uuid[]))
                GROUP BY t.memory_id ORDER BY weight DESC, t.memory_id DESC
            ) AS ranked
            JOIN memories m ON {_HERE_BY_ID} AND m.memory_id = ranked.memory_id
            WHERE {beyond} {alive(shape)} AND ({matching(shape)})
            ORDER BY ranked.weight DESC, ranked.memory_id DESC LIMIT {limit}
    """


def _latest(shape: Shape) -> str:
    return f"""
            SELECT {record(shape)} AS packed
            FROM {_LATEST} WHERE {alive(shape)} AND ({matching(shape)}) AND {"false" if shape.past else "true"}
    """


def _rest(shape: Shape, own_is_large: bool) -> str:
    """All memories of the query's other subjects."""
    return f"""
            SELECT {record(shape)} AS packed FROM memories m
            WHERE m.tenant_id = :tenant_id AND {_others(own_is_large)} AND {alive(shape)}
    """


@lru_cache(maxsize=64)
def probed(shape: Shape, dimension: int, parts: tuple[int, ...]) -> Statement:
    """The share of the nearest PROBED memories that is among the nearest PROBED of those that the index proposes."""
    return sql(f"""
        WITH near AS MATERIALIZED ({_by_index(shape, dimension, parts, "m.embedding <=> :vector")}
        ), found AS MATERIALIZED (
            SELECT packed AS distance FROM near ORDER BY distance LIMIT {PROBED}
        ), truly AS MATERIALIZED (
            SELECT m.embedding <=> :vector AS distance FROM memories m
            WHERE {_in_large(shape)} AND m.generation_id = {shape.generation_id}
            ORDER BY distance LIMIT {PROBED}
        )
        SELECT cast(count(*) AS float8) / nullif((SELECT count(*) FROM truly), 0)
        FROM found WHERE distance <= (SELECT max(distance) FROM truly)
    """)


@lru_cache(maxsize=256)
def proposals(shape: Shape, dimension: int, own_is_large: bool, times: int, near: Near) -> Statement:
    """Proposed rows of large subjects and all of the query's other ones: `packed`, `counted`, and how many `nearest`.

    `times` as many nearest and best-worded as usual.
    """
    # Each row is measured where it is found; only the limit ends the two walks, along the vector index and down the
    # list of the best-worded, and what the first has met is not told twice.
    nearest, limit = _NOTHING, NEAREST * times
    if "vector" in shape.vectors:
        if isinstance(near, Walk):
            nearest = _by_index(shape, dimension, near.parts, record(shape), limit)
        else:
            nearest = _by_scan(shape, "memories m" if near.index is None else proposed(shape, near.index), limit)
    return sql(f"""
        WITH {_COUNTED}, {_RARE}, near AS MATERIALIZED ({nearest}
        ), worded AS MATERIALIZED (
            {_by_words(shape, WORDED * times, "ranked.memory_id NOT IN (SELECT near.memory_id FROM near) AND")}
        ), latest AS (
            {_latest(shape)}
              AND m.memory_id NOT IN (SELECT memory_id FROM near)
              AND m.memory_id NOT IN (SELECT memory_id FROM worded)
        ), others AS (
            {_rest(shape, own_is_large)}
        ), found AS (
            SELECT packed FROM near UNION ALL SELECT packed FROM worded
            UNION ALL SELECT packed FROM latest UNION ALL SELECT packed FROM others
        )
        SELECT (SELECT string_agg(packed, '') FROM found) AS packed, (SELECT count(*) FROM near) AS nearest,
               {_COUNTS} AS counted
    """)


@lru_cache(maxsize=256)
def nearest(shape: Shape, dimension: int, times: int, walk: Walk) -> Statement:
    """Of what proposals() finds, what the walk of the vector index does: `packed`."""
    return sql(f"""
        WITH near AS MATERIALIZED ({_by_index(shape, dimension, walk.parts, record(shape), NEAREST * times)})
        SELECT string_agg(packed, '') AS packed FROM near
    """)


@lru_cache(maxsize=256)
def beside_nearest(shape: Shape, own_is_large: bool, times: int, parts: int) -> Statement:
    """What else proposals() finds: `packed`, `counted`, and `worded`, the best-worded in order.

    These are as many more as may be among the nearest, and some of them are among the latest, too: it is not known yet.
    """
    return sql(f"""
        WITH {_COUNTED}, {_RARE}, worded AS MATERIALIZED (
            {_by_words(shape, (WORDED + NEAREST * parts) * times)}
        ), found AS (
            {_latest(shape)} UNION ALL {_rest(shape, own_is_large)}
        )
        SELECT (SELECT string_agg(packed, '') FROM worded) AS worded,
               (SELECT string_agg(packed, '') FROM found) AS packed, {_COUNTS} AS counted
    """)


@lru_cache(maxsize=256)
def passing(shape: Shape) -> Statement:
    """How many of the latest rows pass the filters."""
    return sql(f"SELECT count(*) FROM {_LATEST} WHERE {alive(shape)} AND ({matching(shape)})")


@lru_cache(maxsize=256)
def whole(shape: Shape, own_is_large: bool, index: Index | None) -> Statement:
    """All that passes the filters: of large subjects by an index of one of them, or by reading these whole."""
    # Filters first: they look at columns that lie in front, and most rows need not be taken apart any further.
    large = "memories m" if index is None else proposed(shape, index)
    return sql(f"""
        WITH {_COUNTED}, found AS (
            SELECT {record(shape)} AS packed FROM {large} WHERE {_HERE} AND ({matching(shape)}) AND {alive(shape)}
            UNION ALL
            SELECT {record(shape)} FROM memories m
            WHERE m.tenant_id = :tenant_id AND {_others(own_is_large)} AND ({matching(shape)}) AND {alive(shape)}
        )
        SELECT (SELECT string_agg(packed, '') FROM found) AS packed, {_COUNTS} AS counted
    """)


def _others(own_is_large: bool) -> str:
    """Of the subjects in scope those that are not large."""
    # Named by parameter where that is all, for then the planner knows that they are small; in the other form it takes
    # them for average ones.
    if own_is_large:
        return "m.subject_id = ANY (cast(:small_shared AS uuid[]))"
    return """
        m.subject_id = ANY (
            ARRAY(SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id)
            || cast(:small_shared AS uuid[])
        )
    """


_HERE: Final = "m.tenant_id = :tenant_id AND m.subject_id = ANY (cast(:large AS uuid[]))"
# The subject is no index condition there: one plan for all takes every subject for an average one, and where these have
# few rows would read all of a large one for each id.
_HERE_BY_ID: Final = "m.tenant_id = :tenant_id AND (m.subject_id = ANY (cast(:large AS uuid[]))) IS TRUE"
_LATEST: Final = f"""
    unnest(cast(:large AS uuid[])) AS one (subject_id)
    CROSS JOIN LATERAL (
        SELECT * FROM memories m WHERE m.tenant_id = :tenant_id AND m.subject_id = one.subject_id
        ORDER BY m.memory_id DESC LIMIT {LATEST}
    ) AS m
"""
_NOTHING: Final = "SELECT NULL::uuid AS memory_id, NULL::bytea AS packed WHERE false"
# In how many memories each of the query's terms occurs, as of the last refresh; a term in none has no row.
_COUNTED: Final = """
    counted AS MATERIALIZED (
        SELECT s.term_id, sum(s.document_count)::float8 AS documents FROM term_statistics s
        WHERE s.tenant_id = :tenant_id AND s.subject_id = ANY (cast(:large AS uuid[]))
          AND s.term_id = ANY (cast(:term_ids AS int[]))
        GROUP BY s.term_id
    )
"""
_COUNTS: Final = "(SELECT string_agg(int4send(term_id) || float8send(documents), '') FROM counted)"
# The rarest words with their idf, as many as POSTINGS_READ allows, at least one.
_RARE: Final = f"""
    rare AS MATERIALIZED (
        SELECT asked.term_id, ln(1 + (:memories + 0.5::float8) / (asked.documents + 0.5)) AS weight
        FROM (
            SELECT word.term_id, coalesce(counted.documents, 0) AS documents,
                   sum(greatest(coalesce(counted.documents, 0), 1)) OVER rarest AS read,
                   row_number() OVER rarest AS place
            FROM unnest(cast(:word_ids AS int[])) AS word (term_id) LEFT JOIN counted USING (term_id)
            WINDOW rarest AS (ORDER BY coalesce(counted.documents, 0), word.term_id)
        ) AS asked
        WHERE asked.place = 1 OR asked.read <= {POSTINGS_READ}
    )
"""
