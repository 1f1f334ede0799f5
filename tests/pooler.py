"""Debian's PgBouncer in transaction mode, in front of the test run's server, as docs/operations.md sets it up."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from app.cli import embedded, schema

CONFIGURATION = """\
[databases]
* = host={server} port={port}

[pgbouncer]
listen_port = {port}
unix_socket_dir = {sockets}
auth_type = trust
auth_file = {sockets}/users
logfile = {sockets}/pgbouncer.log
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
server_round_robin = 1
"""
# Round robin: each transaction on another connection than the last, so that nothing can hide behind luck.


def program() -> str:
    """Where PgBouncer is; skips the test where it is not and may not be installed."""
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
    return found


@contextmanager
def running(server: embedded.EmbeddedServer, size: int) -> Iterator[Path]:
    """PgBouncer with `size` connections to each database; gives the folder of its socket."""
    command = program()
    with tempfile.TemporaryDirectory(prefix="mneme-pooler-") as directory:
        sockets = Path(directory)
        configuration = sockets / "pgbouncer.ini"
        text = CONFIGURATION.format(server=server.sockets, port=embedded.PORT, sockets=sockets, size=size)
        configuration.write_text(text)
        users = sockets / "users"
        users.write_text(f'"{schema.LOGIN_ROLE}" ""\n')
        account = pwd.getpwuid(server.directory.stat().st_uid)  # PgBouncer refuses root, as PostgreSQL does
        for path in (sockets, configuration, users):
            os.chown(path, account.pw_uid, account.pw_gid)
        process = subprocess.Popen(
            [command, "--quiet", str(configuration)],
            user=account.pw_uid if os.geteuid() == 0 else None,
            group=account.pw_gid if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
        )
        try:
            _wait(sockets / f".s.PGSQL.{embedded.PORT}")
            yield sockets
        finally:
            process.terminate()
            process.wait()


def url(sockets: Path, user: str, database: str) -> str:
    """The URL of a database behind PgBouncer."""
    return f"postgresql+asyncpg://{user}@/{database}?host={quote(str(sockets), safe='')}&port={embedded.PORT}"


def _wait(path: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except OSError:
                time.sleep(0.05)
            else:
                return
    raise TimeoutError(path)
