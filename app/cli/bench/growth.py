"""Part `growth`: what a search costs as subjects and stores grow, beside one plain hybrid statement of the same run.

Subjects of 1,000 up to `rows` memories, and as many spread over 10,000 subjects, all in one store; then what the vector
index finds, where proposing becomes faster than measuring all, and what embedding the question costs.
"""

from asyncio import Runner
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import uvloop

from app.cli import embedded
from app.cli.bench import ground, nearest, service, stock, texts
from app.cli.bench.hybrid import Asked, Hybrid
from app.cli.bench.load import Connection, Timing, alternate, drive
from app.cli.bench.parts import PLAIN_CONNECTIONS, Report, Size, Target, asking, shared
from app.cli.bench.service import Service
from app.cli.bench.stock import Lot
from app.cli.embedded import EmbeddedServer
from app.embed import EmbedConfig, load_embedder
from app.guard import DEFAULT_TENANT_ID
from app.recall import RecallConfig

SUBJECTS: Final = 10_000
SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
CROSSING: Final = (2_500, 5_000, 10_000, 20_000)
EXACT_ROWS: Final = RecallConfig().exact_scan_rows
NEAREST_ASKED: Final = 50  # questions whose nearest are compared with the truth
OWN_ROWS: Final = 100_000  # memories of the subject whose vectors are those of its texts
PLAIN_WAYS: Final = "ways of the plain statement: median of one search"
FACTORS: Final = "one of many subjects: p50, times that of the only subject of a store"
# Fifty at once upon files that nobody has read since the start: they wait for each other instead of being refused.
PATIENT: Final = {("database", "pool_timeout_seconds"): "60"}
NOT_HELD: Final = {**PATIENT, ("recall", "resident_mb"): "0"}
HASHING: Final = EmbedConfig(provider="hashing")
BUNDLED: Final = EmbedConfig()
BUNDLED_ROWS: Final = 10_000


def measure_growth(directory: Path, size: Size, rows: int, processes: int, store: Path | None = None) -> Report:
    """Run the part on a server of its own; what it fills is kept in `store`, if given, and found there again.

    Raises BenchFailed or StartupRefused.
    """
    server = ground.start((store or directory) / "growth")
    report = Report("growth")
    try:
        search_as_they_grow(server, directory, size, rows, processes, report)
        look_for_the_nearest(server, directory, rows, report)
        search_with_a_model(server, directory, size, report)
    finally:
        embedded.stop(server.directory)
    return report


def search_as_they_grow(
    server: EmbeddedServer, directory: Path, size: Size, rows: int, processes: int, report: Report
) -> None:
    """Searches by size of the subject, and in a store of one subject beside one of many."""
    sizes, many = _sizes(rows), _many(rows)
    alone = ground.store(server, "alone", [Lot(("alone",), rows // len(many))], HASHING, directory)
    grown = _grown(server, directory, rows)
    with service.running(server, grown, directory, "hashing", processes, PATIENT) as running, _runner() as runner:
        for count in sizes:
            runner.run(_one_size(running, size, _user(count), count, report))
    with (
        service.running(server, grown, directory, "hashing", processes, NOT_HELD) as running,
        service.running(server, alone, directory, "hashing", processes, NOT_HELD) as beside,
        _runner() as runner,
    ):
        small = [count for count in sizes if count <= EXACT_ROWS]
        for count in small:
            runner.run(_one_size(running, size, _user(count), count, report, not_held=True))
        runner.run(_one_of_many(running, beside, size, many, report))
    _judge(report, sizes)
    report.stored["active"] = sum(sizes) + rows


def _grown(server: EmbeddedServer, directory: Path, rows: int) -> str:
    """The store with subjects of all sizes and many small ones: of the large and the largest, vectors are clustered."""
    sizes = _sizes(rows)
    lots = [
        Lot((_user(count),), count, large, "clustered" if large or count == sizes[-1] else "texts")
        for count, large in ((count, count > EXACT_ROWS) for count in sizes)
    ]
    return ground.store(server, "grown", [*lots, Lot(_many(rows), rows)], HASHING, directory)


async def _one_size(
    running: Service, size: Size, user: str, count: int, report: Report, *, not_held: bool = False
) -> None:
    """Searches of one subject alone and many at once, each beside the plain statement."""
    name = f"search, {count:,} memories" + (", not held in memory" if not_held else "")
    large = count > EXACT_ROWS
    async with _lines(running, size.users) as (http, plain):
        questions = cycle(asking(user, [user], size.seconds / 4))
        asked = await _parameters(user, 50)
        parameters = cycle(asked)
        if large:
            report.tables.setdefault(PLAIN_WAYS, {})[user] = await plain[0].choose(asked[:10])
            for each in plain[1:]:
                each.by_index = plain[0].by_index
        await drive(shared([each.post for each in http], islice(questions, 4 * len(http))), 60)
        await drive(shared([each.search for each in plain], islice(parameters, 4 * len(plain))), 60)
        alone = round(size.seconds * 40)
        statement, served = await alternate(
            (plain[0].search, islice(parameters, alone)), (http[0].post, islice(questions, alone))
        )
        report.timings[name] = served, statement
        if not_held:
            return
        before = running.usage()
        served = await drive(shared([each.post for each in http], questions), size.seconds / 2)
        report.usage[f"{name}, {size.users} at once"] = running.usage().since(before)
        statement = await drive(shared([each.search for each in plain], parameters), size.seconds / 2)
        report.timings[f"{name}, {size.users} at once"] = served, statement
        api, database = running.memory_mb()
        report.api_peak_mb, report.database_mb = max(report.api_peak_mb, api), max(report.database_mb, database)


async def _one_of_many(running: Service, beside: Service, size: Size, many: Sequence[str], report: Report) -> None:
    """Each search another subject of the large store, in turn with searches in a store of one such subject.

    Twice the same: the first of a subject may read its pages from files. Service and plain statement ask about
    different subjects, so that neither finds warm what the other has just read.
    """
    count = round(size.seconds * 60)
    factors = report.tables.setdefault(FACTORS, {})
    async with _lines(running, size.users) as (http, plain), _lines(beside, 1) as (one, alone):
        spread = [next(iter(await _parameters(user, 1))) for user in islice(cycle(reversed(many)), count)]
        lonely = await _parameters("alone", min(count, 50))
        for connection, user in ((http[0], many[len(many) // 2]), (one[0], "alone")):
            await drive([(connection.post, asking("warm", [user], 0.03))], 60)
        for hybrid, parameters in ((plain[0], spread[:1]), (alone[0], lonely[:1])):
            await drive([(hybrid.search, islice(cycle(parameters), 20))], 60)
        for when in (", first of each", ""):
            asked, same = (asking(f"spread{when}", users, count / 1_000) for users in (many, ["alone"]))
            served, only, statement, only_statement = await alternate(
                (http[0].post, islice(cycle(asked), count)),
                (one[0].post, islice(cycle(same), count)),
                (plain[0].search, spread),
                (alone[0].search, islice(cycle(lonely), count)),
            )
            name = f"search, one of {len(many):,} subjects{when}"
            report.timings[name] = served, statement
            report.timings[f"search, the only subject of a store{when}"] = only, only_statement
            factors[name] = {
                "service": served.percentile(50) / only.percentile(50),
                "plain SQL": statement.percentile(50) / only_statement.percentile(50),
            }
    ratio = factors[f"search, one of {len(many):,} subjects"]["service"]
    report.targets.append(Target("search p50, one of many subjects to the only one", ratio, 1.2, "x"))


def _judge(report: Report, sizes: Sequence[int]) -> None:
    def p50(count: int) -> float:
        return report.timings[f"search, {count:,} memories"][0].percentile(50)

    for phase, (served, statement) in report.timings.items():
        if phase.startswith("search") and not any(word in phase for word in ("at once", "of a store", "first of")):
            ratio = served.percentile(50) / statement.percentile(50)
            report.targets.append(Target(f"{phase}: p50 to the plain statement", ratio, 3.0, "x"))
    if 100_000 in sizes:
        report.targets.append(Target("search p50, 100,000 memories", p50(100_000), 10.0, "ms"))
    if sizes[-1] > 100_000:
        ratio = p50(sizes[-1]) / p50(100_000)
        report.targets.append(Target(f"search p50, {sizes[-1]:,} memories to 100,000", ratio, 2.0, "x"))


def look_for_the_nearest(server: EmbeddedServer, directory: Path, rows: int, report: Report) -> None:
    """What the index finds of clustered vectors and of the texts' own, and where it gets faster than reading all."""
    grown, largest = _grown(server, directory, rows), _sizes(rows)[-1]
    own_rows = min(rows, OWN_ROWS)
    texts_own = ground.store(server, "texts", [Lot(("texts' own vectors",), own_rows, large=True)], HASHING, directory)
    sizes = _sizes(rows, CROSSING)
    crossing = ground.store(
        server, "crossing", [Lot((_user(count),), count, large=True) for count in sizes], HASHING, directory
    )
    some = list(islice(texts.questions("nearest"), NEAREST_ASKED))
    table: dict[str, dict[str, float]] = {}
    with _runner() as runner:
        own = dict(zip(some, [runner.run(_vector(text)) for text in some], strict=True))
        around = dict(zip(some, stock.clustered(1, len(some)), strict=True))

        async def found(url: str, database: str, user: str, questions: nearest.Questions) -> None:
            async with nearest.reading(url, directory, questions) as recall:
                table.update(await nearest.found(server, database, recall, user, questions))

        runner.run(found(grown, "grown", _user(largest), around))
        runner.run(found(texts_own, "texts", "texts' own vectors", own))

        async def both() -> dict[str, dict[str, float]]:
            async with nearest.reading(crossing, directory, own) as recall:
                return await nearest.both_ways(recall, [_user(count) for count in sizes])

        report.tables["all measured or some proposed: median of one search"] = runner.run(both())
    report.tables["nearest ten that are found"] = table
    for label, row in table.items():
        if label.startswith(_user(largest)):
            report.targets.append(Target(f"nearest ten missed, {label}", 100 * (1 - row["recall@10"]), 5.0, "%"))


def search_with_a_model(server: EmbeddedServer, directory: Path, size: Size, report: Report) -> None:
    """What embedding the question costs, with the bundled model."""
    lot = Lot(("reader",), BUNDLED_ROWS, vectors="clustered")
    url = ground.store(server, "bundled", [lot], BUNDLED, directory)

    async def ask(running: Service) -> tuple[Timing, Timing, Timing]:
        async with _lines(running, 1) as (http, plain):
            parameters = cycle(await _parameters("reader", 50))
            await drive([(http[0].post, asking("warm", ["reader"], 0.01))], 60)
            fresh = asking("bundled", ["reader"], size.seconds / 50)
            uncached, first = await alternate((http[0].post, fresh), (plain[0].search, parameters))
            cached, _ = await alternate((http[0].post, fresh), (plain[0].search, parameters))
            return uncached, cached, first

    with service.running(server, url, directory, "bundled") as running, _runner() as runner:
        uncached, cached, statement = runner.run(ask(running))
    name = f"search, {BUNDLED_ROWS:,} memories, bundled model"
    report.timings[f"{name}, new questions"] = uncached, statement
    report.timings[f"{name}, cached questions"] = cached, statement


@asynccontextmanager
async def _lines(running: Service, users: int) -> AsyncIterator[tuple[list[Connection], list[Hybrid]]]:
    """Connections to the service and, logged in as the superuser, to its database."""
    http = [Connection(running.port) for _ in range(users)]
    plain = [await Hybrid.connect(running.server, running.database) for _ in range(min(users, PLAIN_CONNECTIONS))]
    try:
        yield http, plain
    finally:
        for each in http:
            each.close()
        for one in plain:
            await one.connection.close()


async def _parameters(user: str, count: int) -> list[Asked]:
    """The parameters of plain statements about a user, vectors made by the hashing embedder."""
    subject: UUID = stock.subject_of(user)
    return [
        Asked.of(DEFAULT_TENANT_ID, subject, text, await _vector(text))
        for text in islice(texts.questions(f"plain {user}"), count)
    ]


async def _vector(text: str) -> Any:
    return await _EMBEDDER.embed_query(text)


def _runner() -> Runner:
    return Runner(loop_factory=uvloop.new_event_loop)


def _sizes(rows: int, sizes: Sequence[int] = SIZES) -> list[int]:
    return sorted({*(count for count in sizes if count < rows), min(rows, sizes[-1])})


def _many(rows: int) -> tuple[str, ...]:
    """The users to whom `rows` memories are spread, at least five each."""
    return tuple(f"one of many {n}" for n in range(rows // max(rows // SUBJECTS, 5)))


def _user(count: int) -> str:
    return f"{count:,} memories"


_EMBEDDER: Final = load_embedder(HASHING, Path())
