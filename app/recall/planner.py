"""Which way a search of large subjects takes: the cheapest that finds what it should.

Invariant: a way decides how long a search takes and, where it is the vector index, whether a few of the nearest are
missed; never whether a row that fails the filters is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import UUID

from app.database import Transaction
from app.recall.candidates import Shape
from app.recall.narrow import COUNTED, Index, Way, narrowest, of_time
from app.recall.proposals import LATEST, passing

# What it costs to find the nearest, in microseconds of the database (docs/decisions/0027); only ratios matter.
SCANNED: Final = 1.7  # each row of a subject that is read in order
FETCHED: Final = 10.0  # each row that the index of a filter gives
WALKED: Final = 5_000.0  # the walk of a vector index of which every row counts; of a share of it, so many times more
SELECTIVE: Final = 0.07  # of the rows of the index: where fewer are looked for, it misses some of the nearest
PATIENCE: Final = 200_000.0  # microseconds that reading may take at most, to miss none of these
MEASURED: Final = 1_000  # rows that pass: so few are all measured, whatever they resemble


@dataclass(slots=True)
class LargeSubject:
    """A subject with index and postings, and its size when these were last refreshed.

    `share` is its share of the rows of the vector index, which it has in common with others.
    """

    subject_id: UUID
    user_id: str | None
    memory_count: int
    mean_word_count: float
    share: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How the nearest are found, by the vector index or by reading all that pass, or that all of these are measured.

    What is read comes by `index`, None: it is the whole subject; `facets` are what to look for in it.
    """

    near: Literal["index", "scan", "all"] = "index"
    index: Index | None = None
    facets: Sequence[int] | None = field(default=None)


async def plan(
    transaction: Transaction, shape: Shape, large: Sequence[LargeSubject], values: Mapping[str, Any]
) -> Plan:
    """The way of a search; parameters of `values` as large.py has them."""
    share, rows = max(sum(one.share for one in large), 1e-9), sum(one.memory_count for one in large)
    scan = SCANNED * rows
    if not (shape.filters or shape.agent):
        return Plan("scan" if scan < WALKED / share else "index")
    kept = 1.0
    if not (shape.past or of_time(shape)):  # else the latest are no sample
        kept = await transaction.fetch_value(passing(shape), **values) / (LATEST * len(large))
        if kept * share >= SELECTIVE and WALKED / (kept * share) <= min(scan, FETCHED * kept * rows):
            return Plan()
    way = await narrowest(transaction, shape, values)
    if way is not None and way.passing <= MEASURED:
        return Plan("all", way.index, way.facets)
    if way is not None:
        kept = min(kept, way.passing / max(rows, 1)) if way.passing < COUNTED else kept
    walk, (read, by) = WALKED / max(kept * share, 1e-9), _reading(way, scan)
    if walk <= read and (kept * share >= SELECTIVE or read > PATIENCE):
        return Plan()
    return Plan("scan") if by is None else Plan("scan", by.index, by.facets)


async def instead(transaction: Transaction, shape: Shape, rows: int, values: Mapping[str, Any]) -> Plan:
    """The way where the vector index gave too few of `rows`: reading."""
    way = await narrowest(transaction, shape, values)
    _, by = _reading(way, SCANNED * rows)
    if by is None:
        return Plan("scan")
    return Plan("all" if by.passing <= MEASURED else "scan", by.index, by.facets)


def _reading(way: Way | None, scan: float) -> tuple[float, Way | None]:
    """What reading costs, and by what: the index of a filter, None: all of the subject."""
    if way is None or way.passing >= COUNTED or FETCHED * way.passing > scan:
        return scan, None
    return FETCHED * way.passing, way
