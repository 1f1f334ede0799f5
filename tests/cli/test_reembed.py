"""`mneme reembed`: what it refuses, and what it tells of a store that does not move."""

import json
from collections.abc import Iterator

import pytest

from app.cli import embedded, schema
from tests.cli.test_commands import Run, mneme
from tests.conftest import TEMPLATE, administer

__all__ = ["mneme"]


@pytest.fixture
def own_database(cluster: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    administer(superuser, f"CREATE DATABASE unmoved TEMPLATE {TEMPLATE}")
    monkeypatch.setenv("MNEME_DATABASE__URL", cluster.url(schema.LOGIN_ROLE, "unmoved"))
    monkeypatch.setenv("MNEME_DATABASE__OWNER_URL", cluster.url(embedded.SUPERUSER, "unmoved"))
    monkeypatch.setenv("MNEME_EMBED__PROVIDER", "hashing")
    yield
    administer(superuser, "DROP DATABASE unmoved")


def test_a_store_that_does_not_move(mneme: Run, own_database: None) -> None:
    assert mneme("reembed", "status").out == ""
    nobody = mneme("reembed", "--to", "hashing", "--dimension", "64")
    assert (nobody.code, nobody.out) == (3, "")
    assert "start the service once" in nobody.err
    assert mneme("model", "calibrate", "--write").code == 0  # claims the store, but says not where its model comes from
    assert "start the service once" in mneme("reembed", "--to", "hashing", "--dimension", "64").err
    (line,) = map(json.loads, mneme("reembed", "status", "--json").out.splitlines())
    assert (line["state"], line["model"], line["dimension"], line["lacking"]) == ("active", "hashing", 384, None)
    for command in ("switch", "back"):
        refused = mneme("reembed", command)
        assert (refused.code, refused.out) == (1, ""), command
        assert "mneme reembed status" in refused.err
    assert "0 vectors are gone" in mneme("reembed", "purge").out
    for wrong in (("--rate", "0"), ("--rate", "fast"), ("--rate", "inf/s")):
        assert mneme("reembed", "--to", "hashing", *wrong).code == 2
    assert mneme("reembed", "--only-used").code == 2
