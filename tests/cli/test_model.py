"""`mneme model calibrate`: shows what it found, changes nothing unless told to, and services then use it."""

import re
from collections.abc import Iterator

import pytest

from app.cli import embedded, schema
from tests.cli.test_commands import Run, mneme
from tests.conftest import TEMPLATE, administer

__all__ = ["mneme"]


@pytest.fixture
def own_database(cluster: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A database of this test alone, with the hashing embedder: the generation belongs to the whole database."""
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    administer(superuser, f"CREATE DATABASE calibrated TEMPLATE {TEMPLATE}")
    monkeypatch.setenv("MNEME_DATABASE__URL", cluster.url(schema.LOGIN_ROLE, "calibrated"))
    monkeypatch.setenv("MNEME_EMBED__PROVIDER", "hashing")
    yield
    administer(superuser, "DROP DATABASE calibrated")


def windows(shown: str) -> dict[str, tuple[str, str]]:
    """Before and after by name."""
    found = re.findall(r"^(\w+_window)\s+before (\S+ to \S+)\s+after (\S+ to \S+)", shown, re.MULTILINE)
    return {name: (before, after) for name, before, after in found}


def test_calibration_is_shown_then_stored(mneme: Run, own_database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = mneme("model", "calibrate")
    assert seen.code == 0, seen.err
    before, after = windows(seen.out)["query_window"]
    assert before == "0.0000 to 0.6000" != after
    assert "Nothing was changed" in seen.out
    assert {line.split()[0] for line in seen.out.splitlines() if "same_memory" in line} == {"zh", "en"}
    assert windows(mneme("model", "calibrate", "--write").out) == windows(seen.out)
    again = windows(mneme("model", "calibrate").out)
    assert again["query_window"] == (after, after)
    monkeypatch.setenv("MNEME_EMBED__QUERY_WINDOW", "[0.1, 0.5]")
    stated = mneme("model", "calibrate", "--write")
    assert windows(stated.out)["query_window"] == (after, "0.1000 to 0.5000")
    assert "(stated in the settings)" in stated.out
