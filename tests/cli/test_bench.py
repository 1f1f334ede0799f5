"""mneme bench: a tiny run of both parts through the command's own code, its client against odd answers, its texts."""

import asyncio
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from app.cli import embedded, root, schema
from app.cli.bench import command, growth, night, raw, service, texts
from app.cli.bench.extraction import measure_extraction
from app.cli.bench.load import BenchFailed, Connection, Timing, alternate, drive, prepared
from app.cli.bench.parts import Report, Size


def test_a_tiny_run_of_both_parts(cluster: embedded.EmbeddedServer, tmp_path: Path) -> None:
    _, url = schema.prepare(cluster, "mneme_bench")
    size = Size(users=2, memories=6, seconds=0.1)
    with service.running(cluster, url, tmp_path, "hashing") as running:
        reports = [command.run_part(running, part, size) for part in command.PARTS]
    phases = {"write, 2 at once", "search, 2 at once"}
    assert set(reports[0].timings) == phases | {"search, 2 at once, cached queries"}
    assert set(reports[1].timings) == phases | {"batch write", "write", "search", "search, first of a user"}
    assert [target.most for report in reports for target in report.targets] == [500, 200, 6, 6, 6, 6, 7]
    for report in reports:
        assert all(timing.per_second > 0 for pair in report.timings.values() for timing in pair)
        assert set(report.usage) == set(report.timings)
        assert report.api_peak_mb > 10
    assert reports[0].stored == {"active": 2 * 5 + 8 + 2 * 3, "pending": 0}
    document = orjson.loads(orjson.dumps(command.document(reports[1])))
    assert document["timings"]["search"]["service"]["count"] == len(reports[1].timings["search"][0].milliseconds)


@pytest.mark.parametrize("rows", [400, 1_000, 20_000, 100_000, 1_000_000])
def test_no_size_is_filled_twice(rows: int) -> None:
    for sizes in (growth.SIZES, growth.CROSSING):
        found = growth._sizes(rows, sizes)
        assert sorted(set(found)) == found
        assert found[-1] == min(rows, sizes[-1])


def test_a_tiny_run_of_growth(cluster: embedded.EmbeddedServer, tmp_path: Path) -> None:
    report = Report("growth")
    growth.search_as_they_grow(cluster, tmp_path, Size(users=2, memories=6, seconds=0.2), 400, 1, report)
    growth.look_for_the_nearest(cluster, tmp_path, 400, report)
    assert set(report.timings) == {
        "search, 400 memories", "search, 400 memories, 2 at once", "search, 400 memories, not held in memory",
        "search, one of 80 subjects", "search, one of 80 subjects, first of each",
        "search, the only subject of a store", "search, the only subject of a store, first of each",
    }  # fmt: skip
    assert all(timing.per_second > 0 for pair in report.timings.values() for timing in pair)
    assert [target.most for target in report.targets] == [1.2, 3, 3, 3, 5, 5, 5, 5]
    factors, ways, found = report.tables.values()
    assert [set(row) for row in factors.values()] == [{"service", "plain SQL"}] * 2
    assert [row["recall@10"] for row in found.values()] == [1.0] * 8
    assert ways["400 memories"].keys() == {"all measured ms", "as served ms"}
    command._print(report)
    stored = asyncio.run(_stored(cluster))
    assert stored == {"memories": 800, "subjects": 81, "usage": 800, "large": 0, "invalid": 0}
    document = orjson.loads(orjson.dumps(command.document(report)))
    assert document["tables"]["nearest ten that are found"] == found


def test_a_tiny_night(cluster: embedded.EmbeddedServer, tmp_path: Path) -> None:
    report = night.measure_night(cluster, tmp_path, Size(users=2, memories=6, seconds=0.1))
    archived = report.tables["clean-up"]["all of it"]["archived"]
    assert 0 < archived <= 4 * 2 * 6
    assert archived % 4 == 0
    assert all(figures["a second"] > 0 for figures in report.tables["search, milliseconds"].values())
    assert [target.most for target in report.targets] == [1.5]
    command._print(report)
    assert orjson.loads(orjson.dumps(command.document(report)))["part"] == "night"


async def _stored(cluster: embedded.EmbeddedServer) -> dict[str, int]:
    connection = await raw.connect(cluster, "grown", teach=None)
    try:
        row = await connection.fetchrow("""
            SELECT count(*) AS memories, count(DISTINCT m.subject_id) AS subjects, count(u.memory_id) AS usage,
                   count(*) FILTER (WHERE m.ann) AS large,
                   count(*) FILTER (WHERE m.embedding IS NULL OR m.status <> 'active') AS invalid
            FROM memories m LEFT JOIN memory_usage u USING (tenant_id, subject_id, memory_id)
        """)
    finally:
        await connection.close()
    return dict(row)


def test_a_tiny_run_of_extraction(cluster: embedded.EmbeddedServer, tmp_path: Path) -> None:
    figures = measure_extraction(cluster, tmp_path, Size(users=2, memories=6, seconds=0.1), with_model=3)
    assert len(figures.timings) == len(figures.drained) == 2
    assert all(timing.per_second > 0 for timing in figures.timings.values())
    by_rules, with_model = figures.drained.values()
    assert by_rules[0] == len(next(iter(figures.timings.values())).milliseconds)
    assert with_model[0] == 3
    document = orjson.loads(orjson.dumps(figures.document()))
    assert document["part"] == "extraction"
    command._print_extraction(figures)


def test_the_command_says_what_it_may_be_asked() -> None:
    shown = CliRunner().invoke(root.app, ["bench", "--help"])
    assert shown.exit_code == 0
    assert {"--only", "--seconds", "--users", "--memories", "--json"} <= set(shown.output.split())


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server that cuts its answer into single bytes, hangs up after each, and refuses what says `refuse`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        status = b"422 No" if b"refuse" in body else b"200 OK"
        if b"silent" not in body:
            for byte in b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body:
                writer.write(bytes([byte]))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def test_the_client_reads_answers_in_pieces_and_comes_back_after_a_hang_up(port: int) -> None:
    connection = Connection(port)
    for document in ({"query": "芒果"}, {"query": "x" * 5_000}):
        assert orjson.loads(await connection.post(prepared("/v1/memories:search", document))) == document
        await asyncio.sleep(0.01)  # let the hang-up arrive
    connection.close()


@pytest.mark.parametrize(("document", "said"), [("refuse", "HTTP 422"), ("silent", "hung up")])
async def test_a_refusal_or_a_lost_answer_ends_the_bench(port: int, document: str, said: str) -> None:
    with pytest.raises(BenchFailed, match=said):
        await drive([(Connection(port).post, [prepared("/", document)])], 1)


async def test_lanes_share_items_and_each_item_is_done_once() -> None:
    done: list[int] = []

    async def call(item: int) -> None:
        await asyncio.sleep(0)
        done.append(item)

    items = iter(range(100))
    timing = await drive([(call, items)] * 7, 10)
    assert sorted(done) == list(range(100))
    assert len(timing.milliseconds) == 100
    first, second = await alternate((call, range(3)), (call, range(10, 99)))
    assert done[100:] == [0, 10, 1, 11, 2, 12]
    first.add(second)
    assert len(first.milliseconds) == 6


def test_percentiles_and_rates_by_hand() -> None:
    timing = Timing(seconds=2.0)
    timing.milliseconds.extend([1.0, 2.0, 3.0, 4.0])
    assert (timing.percentile(50), timing.percentile(100), timing.per_second) == (2.5, 4.0, 2.0)


@pytest.mark.parametrize("made", [texts.memories, texts.questions])
def test_texts_are_distinct_bilingual_and_the_same_every_run(made: object) -> None:
    assert callable(made)
    some = list(islice(made("seed"), 300))
    assert some == list(islice(made("seed"), 300))
    assert some != list(islice(made("other"), 300))
    assert len(set(some)) == 300
    assert 60 < sum(text.isascii() for text in some) < 240
    assert not [text for text in some if "{" in text]
