"""The embedded server comes back after any kill with everything that was committed, and is never started twice."""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from app.cli import embedded
from app.errors import StartupRefused


@pytest.fixture(scope="module")
def directory(passable_directory: Path) -> Iterator[Path]:
    directory = passable_directory / "postgres"
    server = embedded.start(directory)
    assert server.started
    ask(server, "CREATE TABLE kept (number int)")
    yield directory
    embedded.stop(directory)
    assert embedded.postmaster(directory) is None


def ask(server: embedded.EmbeddedServer, statement: str) -> list[int]:
    """Run one statement as the superuser and return the first column."""

    async def run() -> list[int]:
        engine = create_async_engine(server.url(embedded.SUPERUSER, "postgres"), isolation_level="AUTOCOMMIT")
        try:
            async with engine.connect() as connection:
                result = await connection.execute(text(statement))
                return [row[0] for row in result] if result.returns_rows else []
        finally:
            await engine.dispose()

    return asyncio.run(run())


def kill(directory: Path) -> psutil.Process:
    """Kill the postmaster as the out-of-memory killer would, and return a child that shares its memory."""
    number = embedded.postmaster(directory)
    assert number is not None
    children = psutil.Process(number).children()
    child = next(child for child in children if "checkpointer" in " ".join(child.cmdline()))
    child.suspend()  # it cannot notice yet that its server is gone
    os.kill(number, signal.SIGKILL)
    return child


def test_what_was_committed_survives_repeated_kills(directory: Path) -> None:
    for number in range(3):
        server = embedded.start(directory)
        ask(server, f"INSERT INTO kept VALUES ({number})")
        kill(directory).resume()
    server = embedded.start(directory)
    assert ask(server, "SELECT number FROM kept ORDER BY number") == [0, 1, 2]


def test_a_start_waits_for_the_children_of_a_killed_server(directory: Path) -> None:
    embedded.start(directory)
    child, released = kill(directory), threading.Event()

    def release() -> None:
        released.set()
        child.resume()

    timer = threading.Timer(1.0, release)
    timer.start()
    server = embedded.start(directory)
    assert released.is_set(), "two servers on one directory"
    assert ask(server, "SELECT 1") == [1]
    timer.join()


def test_a_left_over_file_that_names_another_living_program_is_no_server(directory: Path) -> None:
    embedded.start(directory)
    kill(directory).resume()
    owner = directory.stat().st_uid
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=owner) as other:
        for lock in ("postmaster.pid", f".s.PGSQL.{embedded.PORT}.lock"):
            lines = (directory / lock).read_text().splitlines()
            (directory / lock).write_text("\n".join([str(other.pid), *lines[1:]]))
        assert embedded.postmaster(directory) is None
        assert ask(embedded.start(directory), "SELECT 1") == [1]
        assert other.poll() is None
        other.communicate(b"\n")


def test_a_second_start_joins_and_two_at_once_make_one_server(directory: Path) -> None:
    embedded.stop(directory)
    servers: list[embedded.EmbeddedServer] = []
    starts = [threading.Thread(target=lambda: servers.append(embedded.start(directory))) for _ in range(3)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert sorted(server.started for server in servers) == [False, False, True]
    joined = embedded.join(directory)
    assert joined is not None
    assert ask(joined, "SELECT 1") == [1]


def test_a_clean_stop_leaves_nothing_running_and_can_be_repeated(directory: Path) -> None:
    embedded.start(directory)
    embedded.stop(directory)
    embedded.stop(directory)
    assert embedded.postmaster(directory) is None
    assert embedded.join(directory) is None


def test_a_wrong_setting_is_a_message_with_postgresqls_own_words(directory: Path) -> None:
    embedded.stop(directory)
    settings = directory / "postgresql.auto.conf"
    before = settings.read_text()
    settings.write_text(before + "shared_buffers = 'plenty'\n")
    try:
        with pytest.raises(StartupRefused, match="shared_buffers") as refused:
            embedded.start(directory)
        assert refused.value.exit_code == 4
    finally:
        settings.write_text(before)


def test_an_interrupted_first_start_is_begun_anew(passable_directory: Path) -> None:
    half = passable_directory / "another.initdb"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    directory = passable_directory / "another"
    try:
        assert embedded.start(directory).started
    finally:
        embedded.stop(directory)
    assert not half.exists()


def test_the_log_holds_the_servers_words_and_no_text_of_statements(directory: Path) -> None:
    server = embedded.start(directory)
    with pytest.raises(Exception, match="does not exist"):
        ask(server, "SELECT 'my secret words' FROM nowhere")
    with pytest.raises(Exception, match="my secret words"):
        ask(server, "SELECT CAST('my secret words' AS int)")
    log = (directory / embedded.LOG).read_text()
    assert "ready to accept connections" in log
    assert "my secret words" not in log


def test_a_path_too_long_for_a_socket_gets_a_short_one_of_its_own(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["a-rather-long-name"] * 6) / "postgres"
    directory.parent.mkdir(parents=True)
    sockets = embedded._socket_directory(directory, None)
    assert len(str(sockets)) < embedded.LONGEST_SOCKET_PATH
    assert sockets.stat().st_mode & 0o077 == 0
    assert sockets == embedded._socket_directory(directory, None)
    sockets.chmod(0o755)
    with pytest.raises(StartupRefused, match="not ours alone"):
        embedded._socket_directory(directory, None)
    sockets.rmdir()
