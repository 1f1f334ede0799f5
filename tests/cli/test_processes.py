"""`mneme serve` with several processes: one port, one account of what was done, and no word of it when one dies."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from app.cli import embedded, schema
from tests.cli.test_up import free_ports
from tests.conftest import TEMPLATE, administer

PATIENCE_SECONDS = 180


@pytest.fixture
def own_url(cluster: embedded.EmbeddedServer, database_name: str) -> str:
    """A database without a key: the door is open."""
    name = f"{database_name}_processes"
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    administer(superuser, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    return cluster.url(schema.LOGIN_ROLE, name)


@pytest.fixture
def address(own_url: str, tmp_path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Base URL and supervisor of an API of two processes."""
    [port] = free_ports(1)
    settings = {
        "MNEME_DATABASE__URL": own_url,
        "MNEME_DATA_DIR": str(tmp_path),
        "MNEME_API__PORT": str(port),
        "MNEME_API__PROCESSES": "2",
        "MNEME_EMBED__PROVIDER": "hashing",
    }
    process = subprocess.Popen([sys.executable, "-m", "app.cli", "serve"], env=os.environ | settings)
    supervisor, url = psutil.Process(process.pid), f"http://127.0.0.1:{port}"
    try:
        _until(lambda: len(_listening(supervisor)) == 2)
        yield url, supervisor
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        assert process.returncode == 0
        _until(lambda: not _answers(url))


def test_two_processes_share_port_and_metrics_and_survive_each_other(address: tuple[str, psutil.Process]) -> None:
    url, supervisor = address
    for number in range(40):  # a connection each, so that both get some
        written = httpx2.post(f"{url}/v1/memories", json={"user_id": f"p{number}", "content": f"parcel {number}"})
        assert written.status_code == 201, written.text
        found = httpx2.post(f"{url}/v1/memories:search", json={"user_id": f"p{number}", "query": "parcel"})
        assert [hit["memory"]["id"] for hit in found.json()["hits"]] == [written.json()["id"]]
    assert _count(url, 'mneme_memory_writes_total{outcome="created"}') == 40
    assert _count(url, 'mneme_http_requests_total{method="POST",route="/v1/memories:search",status_class="2xx"}') == 40

    one, other = _listening(supervisor)
    one.kill()
    _until(lambda: len(_listening(supervisor)) == 2)
    assert other in _listening(supervisor)
    assert one not in _listening(supervisor)
    for _ in range(20):
        assert httpx2.get(f"{url}/livez").status_code == 200
    assert _count(url, 'mneme_memory_writes_total{outcome="created"}') == 40  # what the dead one counted still counts


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_that_is_taken_is_refused(
    address: tuple[str, psutil.Process], own_url: str, tmp_path: Path, processes: str
) -> None:
    url, _ = address
    environment = os.environ | {
        "MNEME_API__PORT": url.rpartition(":")[2],
        "MNEME_API__PROCESSES": processes,
        "MNEME_DATABASE__URL": own_url,
        "MNEME_DATA_DIR": str(tmp_path),
        "MNEME_EMBED__PROVIDER": "hashing",
    }
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "serve"],
        check=False, env=environment, capture_output=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode != 0
    assert b"cannot listen on 127.0.0.1" in done.stderr, done.stderr


def _listening(supervisor: psutil.Process) -> list[psutil.Process]:
    return [child for child in supervisor.children() if any(c.status == "LISTEN" for c in child.net_connections())]


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/livez").status_code == 200
    except httpx2.HTTPError:
        return False


def _count(url: str, series: str) -> float:
    text = httpx2.get(f"{url}/metrics").text
    [value] = re.findall(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(value)


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)
