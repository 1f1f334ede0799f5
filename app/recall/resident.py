"""A subject held in memory: its active memories as columns, measured by numpy instead of by SQL. Pure.

Invariant: for the same rows and query it measures what the SELECT of candidates does, up to the rounding of halves; a
Resident is replaced and never changed, but for the access counts of its memories.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.memory import Shown, as_json
from app.recall.candidates import Asked, Ids, limits_sources
from app.recall.query import Candidates, Query, row_before
from app.recall.signals import Floats

Stamp = tuple[datetime, int]
"""The number of the transaction that changed a subject last, and when its server was started: one that was recovered to
an earlier moment gives out the same numbers again."""

ROW_BYTES = 3_700  # what Python needs for one memory beside its text and its numbers, about
_COLUMNS = ("created_at", "happened_at", "importance", "word_count", "expires_at", "valid_from", "valid_to")


@dataclass(frozen=True)
class Resident:
    """The active memories of one subject in order of time, as the database had them at `stamp` (None: never stamped).

    Columns have one entry a row: `ids` two numbers each, `marks` what changes with the row, `numbers` by name,
    `vectors` of unit length (zeros without one of this generation: `seen` is False), `window_rows` the rows of further
    windows. `terms` are sorted; `term_rows` and `term_counts` say where each occurs and how often.
    """

    subject_id: UUID
    stamp: Stamp | None
    memories: Sequence[dict[str, Any]]
    by_id: Mapping[UUID, dict[str, Any]]
    ids: NDArray[np.uint64]
    marks: NDArray[np.uint32]
    numbers: Mapping[str, Floats]
    session: NDArray[np.int64]
    source: NDArray[np.int64]
    vectors: NDArray[np.float32]
    seen: NDArray[np.bool_]
    single: NDArray[np.bool_]
    windows: NDArray[np.float32]
    window_rows: NDArray[np.intp]
    terms: NDArray[np.int32]
    term_rows: NDArray[np.int32]
    term_counts: NDArray[np.uint8]
    always: bool  # no row expires, is bounded in time, or belongs to one agent: all are candidates of every query

    def __len__(self) -> int:
        return len(self.memories)

    @cached_property
    def everything(self) -> NDArray[np.bool_]:
        """True for each row."""
        return np.ones(len(self), np.bool_)

    @cached_property
    def before(self) -> NDArray[np.intp]:
        """Of each row that of the memory before in its session; the number of rows if there is none."""
        return row_before(self.session)

    @cached_property
    def blind(self) -> bool:
        """Whether a row has no vector."""
        return not self.seen.all()

    @cached_property
    def split(self) -> bool:
        """Whether a row has several windows."""
        return not self.single.all()

    def shares_numbers(self, stamp: Stamp | None) -> bool:
        """Whether a stamp is of the same start of the server as this, so that equal numbers mean the same."""
        return (self.stamp and self.stamp[0]) == (stamp and stamp[0])

    @property
    def size_bytes(self) -> int:
        """What it holds, about."""
        arrays = (self.vectors, self.windows, self.terms, self.term_rows, self.term_counts)
        texts = sum(3 * len(memory["content"]) for memory in self.memories)  # as text, and in JSON
        return sum(array.nbytes for array in arrays) + texts + ROW_BYTES * len(self)

    @staticmethod
    def of(subject_id: UUID, stamp: Stamp | None, rows: Sequence[Any], dimension: int) -> "Resident":
        """From rows as residents.py reads them; vectors have `dimension` entries."""
        memories = [Shown(as_json(row)) for row in rows]
        marks = np.frombuffer(b"".join(row["mark"] for row in rows), ">u4").astype(np.uint32)
        vectors, seen = _vectors([row["vector"] for row in rows], dimension)
        further = [(number, row["windows"]) for number, row in enumerate(rows) if row["windows"]]
        halves = _HEADER_BYTES // 2 + dimension
        windows = np.frombuffer(b"".join(packed for _, packed in further), ">f2").reshape(-1, halves)
        terms, term_counts, per_row = _terms([row["keywords"] for row in rows])
        numbers: dict[str | None, int] = {None: 0}
        made = Resident(
            subject_id=subject_id,
            stamp=stamp,
            memories=memories,
            by_id={memory["id"]: memory for memory in memories},
            ids=np.frombuffer(b"".join(memory["id"].bytes for memory in memories), ">u8").reshape(-1, 2),
            marks=marks,
            numbers={name: _COLUMN_OF[name](rows) for name in _COLUMNS},
            session=np.array([_number(row["session_id"], numbers) for row in rows], np.int64),
            source=np.array([_number(row["source"], numbers) for row in rows], np.int64),
            vectors=vectors,
            seen=seen,
            single=np.array([row["window_count"] == 1 for row in rows], np.bool_),
            windows=_unit(windows[:, _HEADER_BYTES // 2 :].astype(np.float32)),
            window_rows=np.repeat(
                np.array([number for number, _ in further], np.intp),
                [len(packed) // (2 * halves) for _, packed in further],
            ),
            terms=terms,
            term_rows=np.repeat(np.arange(len(rows), dtype=np.int32), per_row),
            term_counts=term_counts,
            always=all(
                row["agent_id"] is None and row["expires_at"] is None and row["valid_from"] is None
                and row["valid_to"] is None for row in rows
            ),
        )  # fmt: skip
        return made.sorted()

    def sorted(self) -> "Resident":
        """The same with its rows in order of time and its terms in order of their ids."""
        order = np.lexsort((self.ids[:, 1], self.ids[:, 0], self.numbers["happened_at"]))
        return self._taken(order, self.stamp)

    def without(self, gone: NDArray[np.bool_]) -> "Resident":
        """The rows that are not gone."""
        return self._taken(np.flatnonzero(~gone), self.stamp)

    def joined(self, other: "Resident") -> "Resident":
        """Both as one, with the stamp of the other; they hold different memories of one subject."""
        both = Resident(
            subject_id=self.subject_id,
            stamp=other.stamp,
            memories=[*self.memories, *other.memories],
            by_id={**self.by_id, **other.by_id},
            numbers={name: np.concatenate((column, other.numbers[name])) for name, column in self.numbers.items()},
            window_rows=np.concatenate((self.window_rows, other.window_rows + len(self))),
            term_rows=np.concatenate((self.term_rows, other.term_rows + np.int32(len(self)))),
            always=self.always and other.always,
            **{name: np.concatenate((getattr(self, name), getattr(other, name))) for name in _PLAIN},
        )
        return both.sorted()

    def _taken(self, order: NDArray[np.intp], stamp: Stamp | None) -> "Resident":
        """The rows of `order`, in that order."""
        place = np.full(len(self) + 1, -1, np.int32)  # one more, so that an empty one has a place, too
        place[order] = np.arange(len(order), dtype=np.int32)
        memories = [self.memories[row] for row in order.tolist()]
        windows, terms = place[self.window_rows] >= 0, place[self.term_rows] >= 0
        kept = np.flatnonzero(terms)
        kept = kept[np.argsort(self.terms[kept])]
        return Resident(
            subject_id=self.subject_id,
            stamp=stamp,
            memories=memories,
            by_id=self.by_id if len(memories) == len(self) else {memory["id"]: memory for memory in memories},
            ids=self.ids[order],
            marks=self.marks[order],
            numbers={name: column[order] for name, column in self.numbers.items()},
            session=self.session[order],
            source=self.source[order],
            vectors=self.vectors[order],
            seen=self.seen[order],
            single=self.single[order],
            windows=self.windows[windows],
            window_rows=place[self.window_rows[windows]].astype(np.intp),
            terms=self.terms[kept],
            term_rows=place[self.term_rows[kept]],
            term_counts=self.term_counts[kept],
            always=self.always,
        )

    def candidates(self, query: Query, at: float) -> NDArray[np.intp]:
        """The rows that are there for a query at a moment (seconds since 1970): valid, not expired, of its agent."""
        if self.always:
            return np.arange(len(self))
        numbers = self.numbers
        there = (numbers["expires_at"] > at) & (numbers["valid_from"] <= at) & (numbers["valid_to"] > at)
        if query.agent_id is not None:
            there &= np.array([memory["agent_id"] in (None, query.agent_id) for memory in self.memories], np.bool_)
        return np.flatnonzero(there)

    def commonness(self, small_talk: NDArray[np.float32]) -> Floats:
        """The product of each row with the mean vector of small talk; NaN without a vector."""
        mean, common = self.__dict__.get("_commonness", (None, None))
        if mean is not small_talk:  # it is the same in every search
            common = self._seen(self.vectors @ _as_half(small_talk))
            self.__dict__["_commonness"] = small_talk, common
        return np.asarray(common)

    def likeness(self, vector: NDArray[np.float32], *, windows: bool = False) -> Floats:
        """The cosine of each row, with `windows` that of its nearest one; NaN without a vector."""
        asked = _as_half(vector)
        asked /= np.sqrt(asked @ asked)
        alike = self.vectors @ asked
        if windows and len(self.windows):
            np.maximum.at(alike, self.window_rows, self.windows @ asked)
        return self._seen(alike)

    def comparable(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """The unit vectors of rows; zeros for texts of several windows and without a vector."""
        vectors = self.vectors[rows]
        return vectors * self.single[rows, None] if self.split else vectors

    def _seen(self, alike: NDArray[np.float32]) -> Floats:
        if self.blind:
            alike[~self.seen] = np.nan
        return alike.astype(np.float64)

    def frequencies(self, ids: Sequence[int], words: int) -> Floats:
        """(rows, ids): how often each of the first `words` terms occurs, and of the others whether they do."""
        asked = np.array(ids, np.int32)
        first, end = self.terms.searchsorted(asked), self.terms.searchsorted(asked, "right")
        counts = end - first
        found = np.zeros((len(self), len(asked)))
        if total := int(counts.sum()):
            terms = np.arange(len(asked)).repeat(counts)
            places = np.arange(total) + (first - (counts.cumsum() - counts)).repeat(counts)
            found[self.term_rows[places], terms] = np.where(terms < words, self.term_counts[places], 1)
        return found


@dataclass(frozen=True, slots=True)
class Measured:
    """Candidates out of residents, and whence each of them comes: the resident and the row in it.

    Without these two, candidates are all rows of the one resident as they stand.
    """

    candidates: Candidates
    residents: Sequence[Resident]
    whose: NDArray[np.intp] | None = None
    rows: NDArray[np.intp] | None = None

    def told(self, candidate: int) -> tuple[dict[str, Any], UUID]:
        """The memory and its subject."""
        if self.whose is None or self.rows is None:
            return self.residents[0].memories[candidate], self.residents[0].subject_id
        resident = self.residents[int(self.whose[candidate])]
        return resident.memories[int(self.rows[candidate])], resident.subject_id

    def vectors(self, candidates: Sequence[int]) -> NDArray[np.float32]:
        """Unit vectors to compare memories with each other; zeros for texts of several windows and without a vector."""
        if self.whose is None or self.rows is None:
            return self.residents[0].comparable(np.array(candidates, np.intp))
        rows, whose = self.rows[candidates], self.whose[candidates]
        found = np.zeros((len(rows), self.residents[0].vectors.shape[1]), np.float32)
        for number, resident in enumerate(self.residents):
            own = whose == number
            found[own] = resident.comparable(rows[own])
        return found


def measure(residents: Sequence[Resident], query: Query, asked: Asked, *, at: float) -> Measured:
    """The candidates of a query in the memories of its subjects, in order of time; at least one resident."""
    residents = [resident for resident in residents if len(resident)] or residents[:1]  # mostly nothing is shared
    if len(residents) == 1 and residents[0].always:
        [resident] = residents
        return Measured(
            _candidates(lambda of: of(resident), query, asked, before=resident.before, everything=resident.everything),
            residents,
        )
    parts = [resident.candidates(query, at) for resident in residents]
    whose = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rows = np.concatenate(parts)

    def gathered(of: Column) -> NDArray[Any]:
        return np.concatenate([of(resident)[part] for resident, part in zip(residents, parts, strict=True)])

    order = np.arange(len(rows))
    if len(parts) > 1:
        ids, happened = gathered(lambda resident: resident.ids), gathered(_numbers("happened_at"))
        order = np.lexsort((ids[:, 1], ids[:, 0], happened))
    before = row_before(gathered(lambda resident: resident.session)[order])
    everything = np.ones(len(rows), np.bool_)
    found = _candidates(lambda of: gathered(of)[order], query, asked, before=before, everything=everything)
    return Measured(found, residents, whose[order], rows[order])


Column = Callable[[Resident], NDArray[Any]]


def _candidates(
    column: Callable[[Column], NDArray[Any]], query: Query, asked: Asked, *, before: NDArray[np.intp],
    everything: NDArray[np.bool_],
) -> Candidates:  # fmt: skip
    """Candidates of which `column` gives each column."""
    keywords, vector, small_talk = asked.keywords, asked.vector, asked.small_talk
    terms, words = (*keywords.word_ids, *keywords.gram_ids), len(keywords.word_ids)
    singly = [column(lambda resident, each=each: resident.likeness(each)) for each in asked.questions]  # type: ignore[misc]
    return Candidates(
        ids=Ids(column(lambda resident: resident.ids)),
        cosine=np.full(len(before), np.nan) if vector is None
        else column(lambda resident: resident.likeness(vector, windows=True)),
        frequency=column(lambda resident: resident.frequencies(terms, words)),
        words=words,
        word_count=column(_numbers("word_count")),
        created_at=column(_numbers("created_at")),
        happened_at=column(_numbers("happened_at")),
        importance=column(_numbers("importance")),
        before=before,
        matching=everything,
        commonness=None if vector is None or small_talk is None
        else column(lambda resident: resident.commonness(small_talk)),
        question_cosine=None if vector is None or not singly else np.stack(singly, axis=1),
        source=column(lambda resident: resident.source) if limits_sources(query) else None,
    )  # fmt: skip


def _numbers(name: str) -> Column:
    return lambda resident: resident.numbers[name]


def _as_half(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """As SQL gets it."""
    return vector.astype(np.float16).astype(np.float32)


def _seconds(moments: Iterable[datetime | None], without: float) -> Floats:
    return np.array([without if moment is None else moment.timestamp() for moment in moments], np.float64)


_COLUMN_OF = {
    "created_at": lambda rows: _seconds((row["created_at"] for row in rows), 0.0),
    "happened_at": lambda rows: _seconds((row["event_at"] or row["created_at"] for row in rows), 0.0),
    "importance": lambda rows: np.array([row["importance"] for row in rows], np.float64),
    "word_count": lambda rows: np.array([row["word_count"] for row in rows], np.float64),
    "expires_at": lambda rows: _seconds((row["expires_at"] for row in rows), np.inf),
    "valid_from": lambda rows: _seconds((row["valid_from"] for row in rows), -np.inf),
    "valid_to": lambda rows: _seconds((row["valid_to"] for row in rows), np.inf),
}
_PLAIN = (
    "ids", "marks", "session", "source", "vectors", "seen", "single", "windows", "terms", "term_counts",
)  # fmt: skip
_HEADER_BYTES = 4  # of halfvec_send: dimension and a reserved field
_SPARSE_HEADER = 3  # of a sparsevec, in int32: dimensions, how many entries, a reserved field


def _vectors(packed: Sequence[bytes | None], dimension: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    nothing = bytes(_HEADER_BYTES + 2 * dimension)
    halves = np.frombuffer(b"".join(one or nothing for one in packed), ">f2")
    vectors = halves.reshape(len(packed), -1)[:, _HEADER_BYTES // 2 :] if len(packed) else np.zeros((0, dimension))
    return _unit(vectors.astype(np.float32)), np.array([one is not None for one in packed], np.bool_)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length > 0, length, 1), np.float32)


def _terms(packed: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int64]]:
    """Ids and counts of sparsevecs in pgvector's binary form, one after the other, and how many each has."""
    words = np.frombuffer(b"".join(packed), ">i4")
    length = np.array([len(one) for one in packed], np.int64) // 4
    count = (length - _SPARSE_HEADER) // 2
    first = np.cumsum(length) - length + _SPARSE_HEADER
    places = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
    counts = words.view(">f4")[places + np.repeat(count, count)]
    return words[places].astype(np.int32), counts.astype(np.uint8), count


def _number(name: str | None, known: dict[str | None, int]) -> int:
    """A number for a name, 0 for none, the same in every resident: only whether two are equal matters."""
    if (number := known.get(name)) is None and name is not None:
        number = known[name] = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
    return number or 0
