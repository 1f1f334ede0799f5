"""`mneme up`: everything on one machine, in order: database, migrations, model, API and worker; and back in order.

Invariant: whatever was started here is stopped here, also when the start fails halfway or is interrupted. A child that
dies is started again with a growing delay; one that refuses its configuration, or keeps dying, stops everything.
"""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import httpx2

from app.cli import embedded, schema
from app.cli.children import Child, say
from app.cli.connect import URL, refuse_embedded_in_production
from app.embed import prepare_model
from app.errors import StartupRefused
from app.settings import Settings, load_settings, variable

READY_SECONDS = 180.0
BACKUP_URL = variable(("backup", "database_url"))


def up() -> None:
    """Start database, API and worker on this machine and keep them running; Ctrl-C stops them."""
    settings = load_settings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    try:
        with (
            _only_one(settings.data_dir / "up.lock"),
            _free_ports(settings),
            _database(settings) as logins,
        ):
            prepare_model(settings.embed, settings.data_dir)
            _run(settings, os.environ | logins)
    except KeyboardInterrupt:
        say("stopped")


def _run(settings: Settings, environment: dict[str, str]) -> None:
    children: list[Child] = []
    try:
        children.append(Child.start("serve", environment))
        children.append(Child.start("worker", environment))
        _wait_until_ready(settings, children)
        print(_welcome(settings), flush=True)
        while True:
            _watch(settings, children)
            time.sleep(0.5)
    finally:
        say("stopping")
        for child, seconds in zip(children, (settings.api.drain_seconds, settings.worker.drain_seconds), strict=False):
            child.stop(seconds + 5)


def _watch(settings: Settings, children: list[Child]) -> None:
    directory = (settings.data_dir / "postgres").resolve()
    if settings.database.url is None and embedded.postmaster(directory) is None:
        say("the embedded PostgreSQL ended; starting it again")
        embedded.start(directory)
    for child in children:
        child.revive()


def _wait_until_ready(settings: Settings, children: list[Child]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        _watch(settings, children)
        with contextlib.suppress(httpx2.HTTPError):
            if httpx2.get(f"{_address(settings)}/readyz", timeout=2).status_code == 200:
                return
        time.sleep(0.2)
    raise StartupRefused(f"the API is not ready after {READY_SECONDS:.0f} s", dependency=True)


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[dict[str, str]]:
    """Yield the settings that lead to a migrated database; an embedded server is stopped at the end."""
    configured = settings.database.url
    if configured is not None:
        schema.upgrade((settings.database.owner_url or configured).get_secret_value())
        yield {URL: configured.get_secret_value()}
        return
    refuse_embedded_in_production(settings)
    directory = settings.data_dir / "postgres"
    say(f"starting PostgreSQL in {directory.resolve()}")
    try:
        owner_url, url = schema.prepare(embedded.start(directory))
        yield {URL: url} | ({} if settings.backup.database_url else {BACKUP_URL: owner_url})
    finally:
        embedded.stop(directory)


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold the data directory's lock; raises StartupRefused when another `mneme up` holds it."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupRefused(f"`mneme up` already runs on {path.parent.resolve()} ({_holder(file)})") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def _holder(file: TextIO) -> str:
    file.seek(0)
    return file.read() or "process unknown"


@contextlib.contextmanager
def _free_ports(settings: Settings) -> Iterator[None]:
    """Refuse a port that another program uses before anything is started."""
    api, worker = settings.api, settings.worker
    for host, port, path in (
        (api.host, api.port, ("api", "port")),
        (worker.metrics_host, worker.metrics_port, ("worker", "metrics_port")),
    ):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise StartupRefused(
                    f"{host}:{port} cannot be used ({error.strerror}): stop the other program, or set {variable(path)}",
                    dependency=True,
                ) from error
    yield


def _address(settings: Settings) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.api.host, settings.api.host)  # noqa: S104 - not a bind
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.api.port}"


def _welcome(settings: Settings) -> str:
    api, worker = _address(settings), settings.worker
    body = '{"user_id": "u1", "content": "我对芒果过敏"}'
    return f"""
Mneme is ready.

  docs      {api}/docs
  metrics   {api}/metrics and http://{worker.metrics_host}:{worker.metrics_port}/metrics (worker)
  data      {settings.data_dir.resolve()}
  try       curl -s {api}/v1/memories -H 'Content-Type: application/json' -d '{body}'
  stop      Ctrl-C
"""
