"""Which subjects are held in memory: those asked about again and again, as fresh as the database at every search.

Invariant: a held subject answers only after its stamp, which every change of its memories moves in the same
transaction, was read from the database after the question came: what was written, overruled or erased before is seen.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any
from uuid import UUID

import numpy as np
from asyncpg.pgproto import pgproto
from numpy.typing import NDArray

from app import telemetry
from app.database import Database, Transaction, sql
from app.embed import BOTH, Generation
from app.errors import DatabaseUnavailable
from app.memory import MEMORY_COLUMNS, MEMORY_SOURCE
from app.recall.query import NO_FILTERS, Query, RecallConfig
from app.recall.resident import Resident, Stamp
from app.recall.usage import Written

Place = tuple[UUID, UUID]
"""Tenant and subject."""
_Key = tuple[UUID, str | None]

PAUSE_SECONDS = 60.0  # after which the searches of a subject are counted from one again
REFUSED = -1  # instead of a number of searches: too large or unknown, not to be tried again for PAUSE_SECONDS
REMEMBERED = 100_000  # subjects whose last search is remembered
USAGE_SECONDS = 30.0  # after which access counts are read again: other processes count, too
ROWS_A_STATEMENT = 500
STAMPS_A_STATEMENT = 500
_HELD, _BUSY = (telemetry.SEARCH_RESIDENT.labels(outcome) for outcome in ("held", "busy"))


class Stamps:
    """Reads stamps, for all searches that came while the last reading went on in one statement."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[Place, list[asyncio.Future[Stamp | None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._checks: list[tuple[asyncio.Future[bool], list[tuple[UUID, UUID, Stamp | None]]]] = []
        self._checking: asyncio.Task[None] | None = None

    async def of(self, tenant_id: UUID, subject_ids: Sequence[UUID]) -> list[Stamp | None]:
        """The stamps of subjects (None: none yet), read after this call began. Raises what the database raises."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in subject_ids]
        for subject_id, future in zip(subject_ids, futures, strict=True):
            self._waiting.setdefault((tenant_id, subject_id), []).append(future)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._read())
        return [await future for future in futures]

    def check(self, tenant_id: UUID, residents: Sequence[Resident]) -> "asyncio.Future[bool]":
        """Whether all of these are certainly what the database has, asked after this call began.

        False says only that one of those may have changed that were asked about together. The future may hold what the
        database raises.
        """
        future = asyncio.get_running_loop().create_future()
        self._checks.append((future, [(tenant_id, one.subject_id, one.stamp) for one in residents]))
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check())
        return future

    async def close(self) -> None:
        """Wait for the reading that goes on."""
        if tasks := [task for task in (self._task, self._checking) if task is not None]:
            await asyncio.wait(tasks)

    async def _check(self) -> None:
        while self._checks:
            taken, self._checks = self._checks, []
            try:
                asked = list({one for _, each in taken for one in each})
                counts = [
                    await self._database.count(_unchanged(asked[start : start + STAMPS_A_STATEMENT]))
                    for start in range(0, len(asked), STAMPS_A_STATEMENT)
                ]
                for future in (future for future, _ in taken if not future.done()):  # its search may have been given up
                    future.set_result(sum(counts) == len(asked))
            except Exception as error:
                for future in (future for future, _ in taken if not future.done()):
                    future.set_exception(error)

    async def _read(self) -> None:
        while self._waiting:
            places = list(self._waiting)[:STAMPS_A_STATEMENT]
            waiting = {place: self._waiting.pop(place) for place in places}
            try:
                async with self._database.work() as transaction:
                    rows = await transaction.fetch(
                        _STAMPS, tenants=[place[0] for place in places], subjects=[place[1] for place in places]
                    )
                    stamps = {(row["tenant_id"], row["subject_id"]): (row["server"], row["stamp"]) for row in rows}
                    for place, futures in waiting.items():
                        for future in futures:
                            if not future.done():  # its search may have been given up
                                future.set_result(stamps.get(place))  # nobody need wait for the end of a reading
            except Exception as error:
                for future in (future for futures in waiting.values() for future in futures if not future.done()):
                    future.set_exception(error)


@dataclass(frozen=True, slots=True)
class Claim:
    """Subjects as they are held, and whether these are certainly what the database has, asked after the question came.

    Awaiting it raises what the database raises.
    """

    residents: list[Resident]
    unchanged: asyncio.Future[bool]


@dataclass(slots=True)
class _Held:
    resident: Resident
    size_bytes: int
    usage_until: float


class Residents:
    """The subjects that one process holds, least recently asked about leaving first when they outgrow their room."""

    def __init__(self, database: Database, generation: Generation, config: RecallConfig) -> None:
        self._database, self._generation, self._config = database, generation, config
        self.stamps = Stamps(database)
        self._held: OrderedDict[_Key, _Held] = OrderedDict()
        self._size_bytes = 0
        self._loading: set[_Key] = set()
        self._asked: OrderedDict[_Key, tuple[int, float]] = OrderedDict()

    def claim(self, query: Query) -> Claim | None:
        """The subjects of a query as they are held, while the database is asked whether they changed.

        None if they are not held: then ask of(), as if they changed.
        """
        if not self._held or not answerable(query):
            return None
        keys, moment = _keys(query), monotonic()
        held = [self._held.get(key) for key in keys]
        residents = [one.resident for one in held if one is not None and one.usage_until > moment]
        if len(residents) < len(keys):
            return None
        for key in keys:
            self._held.move_to_end(key)
        unchanged = self.stamps.check(query.tenant_id, residents)
        unchanged.add_done_callback(self._note)
        return Claim(residents, unchanged)

    def _note(self, checked: "asyncio.Future[bool]") -> None:
        if checked.cancelled():
            return
        if isinstance(checked.exception(), DatabaseUnavailable):
            self.clear()
        elif checked.exception() is None and checked.result():
            _HELD.inc()

    async def of(self, query: Query) -> list[Resident] | None:
        """The subjects of a query as the database has them now, or None: then SQL answers.

        Raises DatabaseUnavailable, PoolExhausted, DeadlineExceeded.
        """
        if not self._config.resident_mb or not answerable(query):
            return None
        keys = _keys(query)
        try:
            wanted = [self._is_wanted(key) for key in keys]
            if not all(wanted):
                return None
            held = [self._held.get(key) for key in keys]
            known = [one.resident.subject_id for one in held if one is not None]
            stamps = dict(zip(known, await self.stamps.of(query.tenant_id, known) if known else (), strict=True))
            fresh = [await self._fresh(key, one, stamps) for key, one in zip(keys, held, strict=True)]
        except DatabaseUnavailable:
            self.clear()  # another server may answer next, whose stamps tell nothing about these
            raise
        found = [one for one in fresh if one is not None]
        (_HELD if len(found) == len(keys) else _BUSY).inc()
        return found if len(found) == len(keys) else None

    def used(self, written: Written) -> None:
        """Count hits that were written to the database on what is held."""
        by_place = {(key[0], held.resident.subject_id): held.resident for key, held in self._held.items()}
        for place, counts in written.items():
            if (resident := by_place.get(place)) is not None:
                for memory_id, (count, moment) in counts.items():
                    if (memory := resident.by_id.get(memory_id)) is not None:
                        memory["access_count"] += count
                        memory["last_accessed_at"] = max(memory["last_accessed_at"] or moment, moment)

    def clear(self) -> None:
        """Hold nothing any more."""
        self._held.clear()
        self._size_bytes = 0
        telemetry.RESIDENT_BYTES.set(0)

    async def close(self) -> None:
        await self.stamps.close()

    def _is_wanted(self, key: _Key) -> bool:
        """Whether a subject is held, or asked about so often that it should be."""
        if key in self._held:
            return True
        moment = monotonic()
        times, last = self._asked.pop(key, (0, moment))
        if times == REFUSED and moment - last <= PAUSE_SECONDS:
            self._asked[key] = REFUSED, last
            return False
        times = 1 if moment - last > PAUSE_SECONDS else times + 1
        self._asked[key] = times, moment
        if len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        return times >= self._config.resident_after

    async def _fresh(self, key: _Key, held: _Held | None, stamps: Mapping[UUID, Stamp | None]) -> Resident | None:
        """The subject, read again if it changed; None if it cannot be held or another search is reading it."""
        if held is not None and held.usage_until > monotonic():
            resident = held.resident
            if resident.stamp == stamps[resident.subject_id]:
                if key in self._held:
                    self._held.move_to_end(key)
                return resident
        if key in self._loading:
            return None
        self._loading.add(key)
        try:
            read = await self._read(key, held)
        finally:
            self._loading.discard(key)
        self._keep(key, read, held)
        return read

    def _keep(self, key: _Key, resident: Resident | None, held: _Held | None) -> None:
        if (before := self._held.pop(key, None)) is not None:
            self._size_bytes -= before.size_bytes
        if resident is None:
            self._asked[key] = REFUSED, monotonic()
        else:
            until = monotonic()
            until = held.usage_until if held is not None and held.usage_until > until else until + USAGE_SECONDS
            self._held[key] = _Held(resident, resident.size_bytes, until)
            self._size_bytes += self._held[key].size_bytes
            while self._size_bytes > self._config.resident_mb << 20 and self._held:
                _, left = self._held.popitem(last=False)
                self._size_bytes -= left.size_bytes
        telemetry.RESIDENT_BYTES.set(self._size_bytes)

    async def _read(self, key: _Key, held: _Held | None) -> Resident | None:
        """The subject in one snapshot: of one that is held only the rows that changed since."""
        tenant_id, user_id = key
        async with self._database.read(tenant_id, snapshot=True) as transaction:
            subject = await transaction.fetch_row(
                _SUBJECT, tenant_id=tenant_id, user_id=user_id, most=self._config.resident_rows + 1
            )
            if subject is None and user_id is not None:
                return None
            subject_id, number, marks = (tenant_id, None, b"") if subject is None else subject[:3]
            stamp = None if subject is None or number is None else (subject["server"], number)
            if (subject is not None and subject["ann"]) or len(marks) > _MARK.itemsize * self._config.resident_rows:
                return None
            there = np.frombuffer(marks, _MARK)
            # Marks are numbers of transactions, too.
            kept = _kept(held.resident, there) if held is not None and held.resident.shares_numbers(stamp) else None
            known = {} if kept is None else kept.by_id
            ids = map(pgproto.UUID, there["id"].tolist())  # a uuid.UUID, made ten times faster
            rows = await self._rows(transaction, tenant_id, subject_id, [one for one in ids if one not in known])
            read = Resident.of(subject_id, stamp, rows, self._generation.spec.dimension)
            if kept is None or kept.subject_id != subject_id:
                return read
            if held is not None and held.usage_until <= monotonic():
                _count(kept.by_id, await transaction.fetch(_USAGE, tenant_id=tenant_id, subject_id=subject_id))
            return kept.joined(read) if len(read) else replace(kept, stamp=stamp)

    async def _rows(
        self, transaction: Transaction, tenant_id: UUID, subject_id: UUID, ids: Sequence[UUID]
    ) -> list[Any]:
        rows = []
        for start in range(0, len(ids), ROWS_A_STATEMENT):  # in slices, between which others have the event loop
            rows += await transaction.fetch(
                _ROWS, tenant_id=tenant_id, subject_id=subject_id, ids=ids[start : start + ROWS_A_STATEMENT],
                generation_id=self._generation.generation_id,
            )  # fmt: skip
        return rows


def _keys(query: Query) -> list[_Key]:
    keys: list[_Key] = [] if query.user_id is None else [(query.tenant_id, query.user_id)]
    if query.include_shared or query.user_id is None:
        keys.append((query.tenant_id, None))
    return keys


def answerable(query: Query) -> bool:
    """Whether what is held is enough: the active memories of this moment, by no filter."""
    return (
        query.as_of is None
        and not query.include_deprecated
        and not query.include_cold
        and not query.rerank
        and query.time_decay.clock != "accessed"
        and query.filters == NO_FILTERS
    )


def _kept(resident: Resident, there: NDArray[np.void]) -> Resident:
    """The rows that are there unchanged."""
    marked = dict(zip(there["id"].tolist(), there["mark"].tolist(), strict=True))
    marks = zip(resident.memories, resident.marks.tolist(), strict=True)
    gone = np.array([marked.get(memory["id"].bytes) != mark for memory, mark in marks], np.bool_)
    return resident.without(gone) if gone.any() else resident


def _count(memories: Mapping[UUID, dict[str, Any]], usage: Iterable[Any]) -> None:
    for row in usage:
        if (memory := memories.get(row["memory_id"])) is not None:
            memory["access_count"], memory["last_accessed_at"] = row["access_count"], row["last_accessed_at"]


_STAMPS = sql("""
    SELECT s.tenant_id, s.subject_id, s.stamp, pg_postmaster_start_time() AS server
    FROM unnest(cast(:tenants AS uuid[]), cast(:subjects AS uuid[])) AS asked (tenant_id, subject_id)
    JOIN subject_stamps s ON s.tenant_id = asked.tenant_id AND s.subject_id = asked.subject_id
""")


def _unchanged(asked: Sequence[tuple[UUID, UUID, Stamp | None]]) -> str:
    """A SELECT that finds as many rows as there are subjects with the stamp that is known of them."""
    tenants = ",".join([f"{tenant_id.int:032x}" for tenant_id, _, _ in asked])
    subjects = ",".join([f"{subject_id.int:032x}" for _, subject_id, _ in asked])
    numbers = ",".join(["NULL" if stamp is None else f"{stamp[1]:d}" for _, _, stamp in asked])
    servers = ",".join(["NULL" if stamp is None else f'"{stamp[0].isoformat()}"' for _, _, stamp in asked])
    return f"""
        SELECT FROM unnest('{{{tenants}}}'::uuid[], '{{{subjects}}}'::uuid[], '{{{numbers}}}'::bigint[],
                           '{{{servers}}}'::timestamptz[]) AS asked (tenant_id, subject_id, stamp, server)
        LEFT JOIN subject_stamps s ON s.tenant_id = asked.tenant_id AND s.subject_id = asked.subject_id
        WHERE s.stamp IS NOT DISTINCT FROM asked.stamp
          AND (asked.stamp IS NULL OR asked.server = pg_postmaster_start_time())
    """


# xmin is what a row changes with, whoever changes it: whatever was stored since has another one.
_MARK = np.dtype([("id", "V16"), ("mark", ">u4")])
_SUBJECT = sql("""
    SELECT s.subject_id,
           (SELECT stamp FROM subject_stamps t WHERE t.tenant_id = s.tenant_id AND t.subject_id = s.subject_id),
           coalesce((
               SELECT string_agg(uuid_send(memory_id) || xidsend(xmin), '') FROM (
                   SELECT m.memory_id, m.xmin FROM memories m
                   WHERE m.tenant_id = s.tenant_id AND m.subject_id = s.subject_id AND m.status = 'active'
                     AND m.cooled_by IS NULL
                   LIMIT :most
               ) AS active
           ), ''),
           s.ann, pg_postmaster_start_time() AS server
    FROM subjects s
    WHERE s.tenant_id = :tenant_id
      AND (s.user_id = :user_id OR cast(:user_id AS text) IS NULL AND s.subject_id = :tenant_id)
""")


def _of_generation(value: str) -> str:
    """The branches of a CASE that give a value from where a memory has its vectors of a generation."""
    return " ".join(
        f"WHEN m.{columns.generation_id} = :generation_id THEN {value.format(**asdict(columns))}" for columns in BOTH
    )


_WINDOWS = """CASE WHEN m.{window_count} > 1 THEN (
    SELECT string_agg(halfvec_send(w.embedding), '' ORDER BY w.window_number) FROM {windows} w
    WHERE w.tenant_id = m.tenant_id AND w.subject_id = m.subject_id AND w.memory_id = m.memory_id
) END"""
_ROWS = sql(f"""
    SELECT {MEMORY_COLUMNS}, xidsend(m.xmin) AS mark, m.keywords, m.word_count,
           CASE {_of_generation("m.{window_count}")} ELSE 1 END AS window_count,
           CASE {_of_generation("halfvec_send(m.{embedding})")} END AS vector,
           CASE {_of_generation(_WINDOWS)} END AS windows
    FROM {MEMORY_SOURCE}
    WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = ANY (cast(:ids AS uuid[]))
      AND m.status = 'active' AND m.cooled_by IS NULL
""")
_USAGE = sql("""
    SELECT memory_id, access_count, last_accessed_at FROM memory_usage
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id
""")
