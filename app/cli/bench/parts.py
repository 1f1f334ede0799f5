"""The two parts of the bench: the whole product with its bundled model, and the service alone with a hashing embedder.

Service and plain SQL take turns within a run, so that whatever disturbs the machine disturbs both.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, Final
from uuid import UUID

from pgvector import HalfVector
from uuid_utils.compat import uuid7

from app.cli.bench import raw, texts
from app.cli.bench.load import Connection, Lane, Timing, alternate, drive, prepared
from app.cli.bench.raw import Raw
from app.cli.bench.service import Service, Usage

WRITE, SEARCH, BATCH = "/v1/memories", "/v1/memories:search", "/v1/memories:batch"
MEMORIES_A_SESSION: Final = 5  # part "model"
BATCH_SIZE: Final = 100
SINGLE_SHARE: Final = 0.03  # of a user's memories are written one at a time, a half by batch, the others at once
PLAIN_CONNECTIONS: Final = 12  # as many as the service's pool keeps; more were slower
ROUNDS: Final = 3  # how often service and plain SQL take turns
ENOUGH_A_SECOND: Final = 2_000  # requests prepared for one second of a search phase


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done: concurrent users, memories each (part `service`), seconds of each search phase."""

    users: int
    memories: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Target:
    """A measured value and the most it may be."""

    name: str
    value: float
    most: float
    unit: str

    @property
    def met(self) -> bool:
        return self.value <= self.most


@dataclass(slots=True)
class Report:
    """What one part measured: timings by phase (service, plain SQL), targets, CPU and memory, rows of each status."""

    part: str
    timings: dict[str, tuple[Timing, Timing]] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    usage: dict[str, Usage] = field(default_factory=dict)
    api_peak_mb: float = 0.0
    database_mb: float = 0.0
    stored: dict[str, int] = field(default_factory=dict)
    tables: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Further figures: title -> row -> column -> value."""


@dataclass(slots=True)
class Desk:
    """The service, connections to it and to the database beside it, and the report that is being written."""

    service: Service
    size: Size
    report: Report
    http: list[Connection]
    plain: list[Raw]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what the phase uses."""
        before = self.service.usage()
        yield
        self.report.usage[name] = self.service.usage().since(before)
        api, database = self.service.memory_mb()
        self.report.api_peak_mb = max(self.report.api_peak_mb, api)
        self.report.database_mb = max(self.report.database_mb, database)

    def ratio(self, name: str, phase: str, most: float) -> None:
        """A target on how many times longer the median takes than the plain statement's."""
        service, plain = self.report.timings[phase]
        self.report.targets.append(Target(name, service.percentile(50) / plain.percentile(50), most, "x"))

    def rate(self, name: str, phase: str, most: float) -> None:
        """A target on how many times more plain statements are done in a second."""
        service, plain = self.report.timings[phase]
        self.report.targets.append(Target(name, plain.per_second / service.per_second, most, "x"))


@asynccontextmanager
async def _desk(service: Service, size: Size, part: str) -> AsyncIterator[Desk]:
    await raw.create_table(service.server, service.database)
    http = [Connection(service.port) for _ in range(size.users)]
    plain = [await Raw.connect(service.server, service.database) for _ in range(PLAIN_CONNECTIONS)]
    try:
        desk = Desk(service, size, Report(part), http, plain)
        yield desk
        desk.report.stored = await raw.statuses(plain[0])
    finally:
        for connection in http:
            connection.close()
        for each in plain:
            await each.connection.close()


async def model_part(service: Service, size: Size) -> Report:
    """Concurrent sessions that write, then search, with the model in the loop."""
    async with _desk(service, size, "model") as desk:
        await _warm_up(desk)
        subjects = [uuid7() for _ in desk.http]
        written = [list(islice(texts.memories(f"session {n}"), MEMORIES_A_SESSION)) for n in range(size.users)]
        at_once = f"write, {size.users} at once"
        with desk.phase(at_once):
            service_lanes = [(each.post, _writes(f"s{n}", written[n])) for n, each in enumerate(desk.http)]
            served = await drive(service_lanes, 60)
        rows = [row for subject, contents in zip(subjects, written, strict=True) for row in _rows(subject, contents)]
        plain = await drive(shared([each.insert for each in desk.plain], rows), 60)
        desk.report.timings[at_once] = served, plain
        await raw.settle(service.server, service.database)

        users = [f"s{n}" for n in range(size.users)]
        questions = asking("model", users, size.seconds)
        uncached, cached = f"search, {size.users} at once", f"search, {size.users} at once, cached queries"
        with desk.phase(uncached):
            served = await drive(shared([each.post for each in desk.http], questions), size.seconds)
        plain = await drive(shared([each.select for each in desk.plain], _vectors(subjects)), size.seconds / 2)
        desk.report.timings[uncached] = served, plain
        asked = questions[: len(users)]
        await drive(shared([each.post for each in desk.http], asked), 60)
        with desk.phase(cached):
            served = await drive(shared([each.post for each in desk.http], cycle(asked)), size.seconds / 2)
        desk.report.timings[cached] = served, plain

        for name, phase, most in (("write p95", at_once, 500.0), ("search p95", uncached, 200.0)):
            value = desk.report.timings[phase][0].percentile(95)
            desk.report.targets.append(Target(f"{name}, {size.users} at once", value, most, "ms"))
        return desk.report


async def service_part(service: Service, size: Size) -> Report:
    """Users × memories written one by one, at once and in batches, then searched, each beside its plain statement."""
    async with _desk(service, size, "service") as desk:
        await _warm_up(desk)
        subjects = [uuid7() for _ in range(size.users)]
        written = [list(islice(texts.memories(f"user {n}"), size.memories)) for n in range(size.users)]
        half, single = size.memories // 2, max(1, round(size.memories * SINGLE_SHARE))
        await _batches(desk, subjects, [each[:half] for each in written])
        await _single_writes(desk, subjects, [each[half : half + single] for each in written])
        await _writes_at_once(desk, subjects, [each[half + single :] for each in written])
        await raw.settle(service.server, service.database)
        await _searches(desk, subjects)
        return desk.report


async def _batches(desk: Desk, subjects: Sequence[UUID], written: Sequence[Sequence[str]]) -> None:
    requests, columns = [], []
    for n, contents in enumerate(written):
        for start in range(0, len(contents), BATCH_SIZE):
            part = contents[start : start + BATCH_SIZE]
            requests.append(prepared(BATCH, {"items": [_memory(f"u{n}", text) for text in part]}))
            columns.append(raw.columns([raw.row(subjects[n], text) for text in part]))
    with desk.phase("batch write"):
        plain, served = await alternate((desk.plain[0].insert_many, columns), (desk.http[0].post, requests))
    desk.report.timings["batch write"] = served, plain
    desk.rate("batch write, rows a second", "batch write", 6)


async def _single_writes(desk: Desk, subjects: Sequence[UUID], written: Sequence[Sequence[str]]) -> None:
    requests = [request for n, contents in enumerate(written) for request in _writes(f"u{n}", contents)]
    rows = [row for n, contents in enumerate(written) for row in _rows(subjects[n], contents)]
    with desk.phase("write"):
        plain, served = await alternate((desk.plain[0].insert, rows), (desk.http[0].post, requests))
    desk.report.timings["write"] = served, plain
    desk.ratio("write p50", "write", 6)


async def _writes_at_once(desk: Desk, subjects: Sequence[UUID], written: Sequence[Sequence[str]]) -> None:
    requests = [iter(_writes(f"u{n}", contents)) for n, contents in enumerate(written)]
    rows = iter([row for n, contents in enumerate(written) for row in _rows(subjects[n], contents)])
    turn = -(-max(map(len, written)) // ROUNDS)
    served, plain = Timing(), Timing()
    name = f"write, {desk.size.users} at once"
    with desk.phase(name):
        for _ in range(ROUNDS):
            some = islice(rows, turn * desk.size.users)
            plain.add(await drive(shared([each.insert for each in desk.plain], some), 60))
            served.add(await drive([(h.post, islice(r, turn)) for h, r in zip(desk.http, requests, strict=True)], 60))
    desk.report.timings[name] = served, plain
    desk.rate("writes a second, at once", name, 6)


async def _searches(desk: Desk, subjects: Sequence[UUID]) -> None:
    size = desk.size
    users = [f"u{n}" for n in range(size.users)]
    questions = iter(asking("service", users, 3 * size.seconds))
    vectors = _vectors(subjects)
    alone = round(size.seconds * 100)
    with desk.phase("search, first of a user"):
        plain, served = await alternate(
            (desk.plain[0].select, islice(vectors, len(users))), (desk.http[0].post, islice(questions, len(users)))
        )
    desk.report.timings["search, first of a user"] = served, plain
    # From the second on a user is held in memory, by each process that is asked; to read them all is no steady state.
    await drive(shared([each.post for each in desk.http], questions), size.seconds / 2)
    with desk.phase("search"):
        plain, served = await alternate(
            (desk.plain[0].select, islice(vectors, alone)), (desk.http[0].post, islice(questions, alone))
        )
    desk.report.timings["search"] = served, plain
    desk.ratio("search p50", "search", 6)
    served, plain = Timing(), Timing()
    name = f"search, {size.users} at once"
    with desk.phase(name):
        for _ in range(ROUNDS):
            plain.add(await drive(shared([each.select for each in desk.plain], vectors), size.seconds / ROUNDS / 2))
            served.add(await drive(shared([each.post for each in desk.http], questions), size.seconds / ROUNDS))
    desk.report.timings[name] = served, plain
    desk.rate("searches a second, at once", name, 7)


async def _warm_up(desk: Desk) -> None:
    """Let every connection, statement and branch be used before anything is timed."""
    contents = list(islice(texts.memories("warm-up"), 8))
    subject = uuid7()
    batch = prepared(BATCH, {"items": [_memory("w", text) for text in contents]})
    questions = asking("warm-up", ["w"], 0.1)
    for each in desk.plain:
        await each.insert_many(raw.columns(_rows(subject, contents)))
    await desk.http[0].post(batch)
    await drive([(each.post, _writes(f"w{n}", contents[:3])) for n, each in enumerate(desk.http)], 60)
    await drive([(each.insert, _rows(subject, contents)) for each in desk.plain], 60)
    await drive(shared([each.post for each in desk.http], questions), 60)
    vectors = _vectors([subject])
    await drive([(each.select, islice(vectors, 8)) for each in desk.plain], 60)


def shared(calls: Sequence[Any], items: Any) -> list[Lane]:
    """One closed loop for each call, over items that all of them take from."""
    iterator = iter(items)
    return [(call, iterator) for call in calls]


def _memory(user_id: str, content: str) -> dict[str, object]:
    return {
        "user_id": user_id,
        "content": content,
        "kind": "user_preference",
        "importance": 3.0,
        "tags": ["bench", "load"],
        "metadata": {"channel": "chat"},
        "session_id": "s1",
    }


def _writes(user_id: str, contents: Sequence[str]) -> list[bytes]:
    return [prepared(WRITE, _memory(user_id, text)) for text in contents]


def _rows(subject_id: UUID, contents: Sequence[str]) -> list[raw.Row]:
    return [raw.row(subject_id, text) for text in contents]


def asking(seed: str, users: Sequence[str], seconds: float) -> list[bytes]:
    """Distinct searches as requests, of the users in turn, for a phase of some seconds."""
    count = max(len(users), round(seconds * ENOUGH_A_SECOND))
    asked = zip(islice(texts.questions(seed), count), cycle(users), strict=False)
    return [prepared(SEARCH, {"query": text, "user_id": user, "top_k": raw.TOP_K}) for text, user in asked]


def _vectors(subjects: Sequence[UUID]) -> Iterator[tuple[UUID, HalfVector]]:
    return cycle([(subject, HalfVector(raw.unit_vector())) for subject in subjects])
