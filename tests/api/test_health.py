"""What operations sees: probes that tell the truth, metrics, the OpenAPI document, and starts that are refused."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate
from prometheus_client.metrics import MetricWrapperBase
from sqlalchemy.engine import make_url

from app import telemetry
from app.api.health import FRESH_SECONDS, Readiness
from app.api.openapi import describe
from app.cli import embedded
from app.clock import now
from app.database import Database
from app.errors import StartupRefused
from app.guard import DEFAULT_TENANT_ID, KeyGrant, create_key
from app.main import open_services
from tests.api.conftest import PEPPER, MakeKey, Service, bearer, make_settings, run
from tests.conftest import TEMPLATE, administer


@pytest.fixture
async def own_database(
    cluster: embedded.EmbeddedServer, database_name: str, tmp_path: Path
) -> AsyncIterator[tuple[str, str]]:
    """A database that a test may break: its name, and the service's URL for it."""
    name = f"{database_name}_{re.sub('[^a-z0-9]', '', tmp_path.name)}"[:60]
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    await asyncio.to_thread(administer, superuser, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    yield name, cluster.url("mneme", name)
    await asyncio.to_thread(administer, superuser, f"DROP DATABASE {name} WITH (FORCE)")


async def ready(service: Service) -> tuple[int, dict[str, Any]]:
    """Ask a service afresh, without the second for which it remembers."""
    service.app.state.readiness = Readiness()
    response = await service.client.get("/readyz?verbose")
    return response.status_code, response.json()


async def test_probes_need_no_key(service: Service) -> None:
    assert (await service.client.get("/livez")).json() == {"status": "alive"}
    for path in ("/readyz", "/healthz"):
        response = await service.client.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ready"})


async def test_readiness_in_detail(service: Service) -> None:
    status, body = await ready(service)
    checks = body["checks"]
    assert status == 200
    assert checks["db"]["ok"]
    assert checks["db"]["pool_size"] == 4
    assert checks["migrations"]["ok"]
    assert checks["migrations"]["database"] == checks["migrations"]["code"]
    assert checks["auth"] == "keys"
    assert set(checks["embedding"]) == {"state", "model", "dim", "generation"}
    assert checks["rerank"] == {"state": "none"}


async def test_a_storm_of_probes_asks_the_database_once(service: Service) -> None:
    asked = 0
    services = service.app.state.mneme

    async def counted() -> Any:
        nonlocal asked
        asked += 1
        return await services.revisions()

    service.app.state.mneme = replace(services, revisions=counted)
    service.app.state.readiness = Readiness()
    try:
        await asyncio.gather(*(service.client.get("/readyz") for _ in range(40)))
    finally:
        service.app.state.mneme = services
    assert FRESH_SECONDS == 1.0
    assert 1 <= asked <= 2


@dataclass
class Proxy:
    """Between the service and its database: can be cut, with every connection through it, and put back."""

    url: str
    near: Path
    far: Path
    server: asyncio.Server | None = None
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def up(self) -> None:
        self.server = await asyncio.start_unix_server(self._join, self.near)

    async def down(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        await self.server.wait_closed()
        self.near.unlink(missing_ok=True)
        self.writers.clear()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self.far)
        self.writers |= {writer, far_writer}
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.fixture
async def proxy(database_url: str, cluster: embedded.EmbeddedServer) -> AsyncIterator[Proxy]:
    """A proxy that is up, in a directory short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="mneme-") as directory:
        url = make_url(database_url).update_query_dict({"host": directory}).render_as_string(hide_password=False)
        name = f".s.PGSQL.{embedded.PORT}"
        proxy = Proxy(url, Path(directory, name), Path(cluster.sockets, name))
        await proxy.up()
        yield proxy
        await proxy.down()


async def test_database_down_and_up_again(proxy: Proxy, tmp_path: Path, make_key: MakeKey) -> None:
    async with run(make_settings(proxy.url, tmp_path)) as service:
        key, unknown = bearer(await make_key()), bearer(await make_key())
        question = {"query": "茶", "user_id": "amy"}
        assert (await ready(service))[0] == 200
        assert (await service.client.post("/v1/memories:search", json=question, headers=key)).status_code == 200
        await proxy.down()

        status, body = await ready(service)
        assert (status, body["status"], body["checks"]["db"]["ok"]) == (503, "unready", False)
        assert (await service.client.get("/livez")).status_code == 200
        for headers in (key, unknown):  # a key that was not seen yet cannot be checked now: 503, not 401
            refused = await service.client.post("/v1/memories:search", json=question, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
            assert int(refused.headers["Retry-After"]) >= 1

        await proxy.up()
        assert (await ready(service))[0] == 200
        assert (await service.client.post("/v1/memories:search", json=question, headers=unknown)).status_code == 200


async def test_another_schema_makes_it_unready_and_refuses_the_start(
    own_database: tuple[str, str], cluster: embedded.EmbeddedServer, tmp_path: Path
) -> None:
    name, url = own_database
    settings = make_settings(url, tmp_path)
    async with run(settings) as service:
        code = (await ready(service))[1]["checks"]["migrations"]["code"]
        owner = cluster.url(embedded.SUPERUSER, name)
        await asyncio.to_thread(administer, owner, "UPDATE alembic_version SET version_num = 'of tomorrow'")
        status, body = await ready(service)
        assert status == 503
        assert body["checks"]["migrations"] == {"database": "of tomorrow", "code": code, "ok": False}
    with pytest.raises(StartupRefused, match="mneme db migrate") as refusal:
        async with open_services(settings):
            pass
    assert refusal.value.exit_code == 4


async def test_draining_wants_no_new_clients(service: Service) -> None:
    service.app.state.mneme.switch.draining = True
    try:
        status, body = await ready(service)
    finally:
        service.app.state.mneme.switch.draining = False
    assert (status, body["status"]) == (503, "draining")


# --- the open door -----------------------------------------------------------------------------------------


async def test_without_keys_only_this_machine_is_let_in(own_database: tuple[str, str], tmp_path: Path) -> None:
    async with run(make_settings(own_database[1], tmp_path, required=False)) as service:
        welcome = await service.client.get("/v1/memories")
        assert (welcome.status_code, welcome.headers["X-Mneme-Auth"]) == (200, "open")
        port = service.client.base_url.port
        for headers, status in (
            ({"Host": f"localhost:{port}"}, 200),
            ({"Host": "[::1]"}, 200),
            ({"Host": "evil.example"}, 401),
            ({"Host": f"127.0.0.1.evil.example:{port}"}, 401),
            ({"X-Forwarded-For": "127.0.0.1"}, 401),
            ({"Forwarded": "for=127.0.0.1"}, 401),
            ({"Via": "1.1 proxy"}, 401),
            ({"X-API-Key": "mnk_wrong"}, 401),
        ):
            response = await service.client.get("/v1/memories", headers=headers)
            assert response.status_code == status, headers
        page = await service.client.post(
            "/v1/memories", content=b'{"content": "x"}', headers={"Content-Type": "text/plain"}
        )
        assert page.status_code == 415  # what a web page may send without asking first


async def test_without_keys_no_other_address_is_served(own_database: tuple[str, str], tmp_path: Path) -> None:
    settings = make_settings(own_database[1], tmp_path, required=False, host="0.0.0.0")  # the point of the test
    with pytest.raises(StartupRefused, match="mneme keys create"):
        async with open_services(settings):
            pass
    database = await Database.connect(settings.database)
    await create_key(database, PEPPER.encode(), KeyGrant(DEFAULT_TENANT_ID, "k", frozenset({"read"})), now=now())
    await database.close()
    async with open_services(settings) as services:
        assert await services.keyring.closed(now=now())


# --- metrics and description -------------------------------------------------------------------------------


async def test_metrics_have_bounded_labels_that_begin_at_zero(service: Service, make_key: MakeKey) -> None:
    key = bearer(await make_key())
    for path in ("/livez", "/nothing/of/the/kind", "/v1/memories/01900000-0000-7000-8000-000000000001"):
        await service.client.get(path, headers=key)
    await service.client.request("PROPFIND", "/v1/memories", headers=key)
    text = (await service.client.get("/metrics", headers=key)).text
    assert 'mneme_http_requests_total{method="GET",route="/livez",status_class="2xx"}' in text
    assert 'mneme_http_requests_total{method="GET",route="unmatched",status_class="4xx"}' in text
    assert 'mneme_http_requests_total{method="other",' in text
    assert 'route="/v1/memories/{memory_id}"' in text
    assert "01900000" not in text
    for operation in telemetry.OPERATIONS:
        for outcome in telemetry.OUTCOMES:
            assert f'mneme_operation_duration_seconds_count{{operation="{operation}",outcome="{outcome}"}}' in text
    assert re.search(r'mneme_db_pool_connections\{state="checked_out"\} \d', text)
    assert re.search(r'mneme_auth_failures_total\{reason="revoked"\} \d', text)
    assert "mneme_event_loop_lag_seconds_bucket" in text
    assert re.search(r'mneme_build_info\{embedding_model="[^"]+",python="3[^"]+",version="[^"]+"\} 1.0', text)


def test_every_metric_has_our_prefix_a_help_and_a_unit_or_total() -> None:
    metrics = {
        name: each for name, each in vars(telemetry).items() if isinstance(each, MetricWrapperBase) and name.isupper()
    }
    assert len(metrics) > 20
    for name, metric in metrics.items():
        family = next(iter(metric.describe()))
        assert family.name == f"mneme_{name.lower()}"
        assert family.documentation.endswith((".", "()"))


async def test_operations_are_measured_by_outcome(service: Service, make_key: MakeKey) -> None:
    def counted(outcome: str) -> float:
        metric = telemetry.OPERATION_DURATION_SECONDS.labels("search", outcome)
        return next(sample.value for sample in metric._child_samples() if sample.name == "_count")

    before = {outcome: counted(outcome) for outcome in telemetry.OUTCOMES}
    key = bearer(await make_key())
    await service.client.post("/v1/memories:search", json={"query": "茶", "user_id": "amy"}, headers=key)
    bound = bearer(await make_key(user_id="bo"))
    await service.client.post("/v1/memories:search", json={"query": "茶", "user_id": "amy"}, headers=bound)
    assert {outcome: counted(outcome) - before[outcome] for outcome in before} == {"ok": 1, "refused": 1, "failed": 0}


async def test_the_description_is_valid_and_names_every_refusal(service: Service) -> None:
    document = describe(service.app)
    validate(document)
    operations = {
        (method, path): operation for path, item in document["paths"].items() for method, operation in item.items()
    }
    names = [operation["operationId"] for operation in operations.values()]
    assert len(names) == len(set(names)) == len(operations)
    for (method, path), operation in operations.items():
        if path in ("/livez", "/readyz", "/healthz"):
            continue
        expected = {"401", "403", "500", "503", "504"}
        expected |= {"400", "413", "415", "422"} if "requestBody" in operation else set()
        expected |= {"400", "422"} if operation.get("parameters") else set()
        assert expected <= set(operation["responses"]), (method, path)
        assert operation["security"] == [{"bearer": []}, {"apiKey": []}]
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (method, path, status)
    served = await service.client.get("/openapi.json")
    assert served.status_code == 401


async def test_documentation_pages(service: Service, make_key: MakeKey) -> None:
    key = bearer(await make_key())
    assert (await service.client.get("/openapi.json", headers=key)).json() == service.app.openapi()
    assert "swagger" in (await service.client.get("/docs", headers=key)).text
