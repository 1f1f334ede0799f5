"""Which way a search of large subjects takes: the cheapest that finds what it should.

Invariant: a way decides how long a search takes and, where it is the vector index, whether a few of the nearest are
missed; never whether a row that fails the filters is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Literal
from uuid import UUID

from app.database import Transaction
from app.indexes import part_of
from app.recall.candidates import Shape
from app.recall.narrow import COUNTED, Index, Way, narrowest, of_time
from app.recall.proposals import LATEST, NEAREST, passing

# What it costs to find the nearest, in microseconds of the database (docs/decisions/0027, 0030); only ratios matter.
SCANNED: Final = 1.7  # each row of a subject that is read in order
FETCHED: Final = 10.0  # each row that the index of a filter gives
MET: Final = 65.0  # each row that a walk of the vector index meets
SELECTIVE: Final = 0.07  # of the rows of the index: where fewer are looked for, it misses some of the nearest
PATIENCE: Final = 200_000.0  # microseconds that reading may take at most, to miss none of these
# Of 100,000 rows 100 find all of the nearest ten, of a million 0.87 of them, 300 find 0.97 (docs/decisions/0029, 0030).
LOOKS, MOST_LOOKS, LOOKS_ENOUGH_FOR = 100, 300, 250_000
MEASURED: Final = 1_000  # rows that pass: so few are all measured, whatever they resemble


@dataclass(slots=True)
class LargeSubject:
    """A subject with index and postings, and its size when these were last refreshed.

    `indexed` are the rows of its part of the vector index, which it may have in common with others.
    """

    subject_id: UUID
    user_id: str | None
    memory_count: int
    mean_word_count: float
    indexed: float

    @property
    def part(self) -> int:
        return part_of(self.subject_id)

    @property
    def share(self) -> float:
        """Its share of its part of the vector index."""
        return min(1.0, self.memory_count / max(self.indexed, 1.0))


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
    rows = sum(one.memory_count for one in large)
    share = max(min(share_of_parts(large).values()), 1e-9)
    scan = SCANNED * rows
    if not (shape.filters or shape.agent):
        return Plan("scan" if scan < _walks(large) else "index")
    kept = 1.0
    if not (shape.past or of_time(shape)):  # else the latest are no sample
        kept = await transaction.fetch_value(passing(shape), **values) / (LATEST * len(large))
        if kept * share >= SELECTIVE and _walks(large, kept) <= min(scan, FETCHED * kept * rows):
            return Plan()
    way = await narrowest(transaction, shape, values)
    if way is not None and way.passing <= MEASURED:
        return Plan("all", way.index, way.facets)
    if way is not None:
        kept = min(kept, way.passing / max(rows, 1)) if way.passing < COUNTED else kept
    walk, (read, by) = _walks(large, kept), _reading(way, scan)
    if walk <= read and (kept * share >= SELECTIVE or read > PATIENCE):
        return Plan()
    return Plan("scan") if by is None else Plan("scan", by.index, by.facets)


def share_of_parts(large: Sequence[LargeSubject]) -> dict[int, float]:
    """By part of the vector index that has rows of the subjects, the share of it that these are."""
    shares: dict[int, float] = {}
    for one in large:
        shares[one.part] = shares.get(one.part, 0.0) + one.share
    return shares


def looks(large: Sequence[LargeSubject]) -> int:
    """How many rows a walk keeps in view (`hnsw.ef_search`): the more there are, the easier it misses some."""
    return min(MOST_LOOKS, LOOKS * ceil(max(one.indexed for one in large) / LOOKS_ENOUGH_FOR))


async def instead(transaction: Transaction, shape: Shape, rows: int, values: Mapping[str, Any]) -> Plan:
    """The way where the vector index gave too few of `rows`: reading."""
    way = await narrowest(transaction, shape, values)
    _, by = _reading(way, SCANNED * rows)
    if by is None:
        return Plan("scan")
    return Plan("all" if by.passing <= MEASURED else "scan", by.index, by.facets)


def _walks(large: Sequence[LargeSubject], kept: float = 1.0) -> float:
    """What walks of their parts cost, of whose rows of the subjects filters keep a share."""
    least = float(looks(large))
    return sum(MET * max(least, NEAREST / max(kept * share, 1e-9)) for share in share_of_parts(large).values())


def _reading(way: Way | None, scan: float) -> tuple[float, Way | None]:
    """What reading costs, and by what: the index of a filter, None: all of the subject."""
    if way is None or way.passing >= COUNTED or FETCHED * way.passing > scan:
        return scan, None
    return FETCHED * way.passing, way
