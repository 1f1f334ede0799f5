"""Which pg_dump fits a server, how it reaches it, and that its messages carry no data."""

from pathlib import Path

import pytest

from app.backup.programs import environment, programs_for, without_data
from app.errors import StartupRefused


def fake(folder: Path, major: int) -> Path:
    """A folder whose programs say that they are of this version."""
    folder.mkdir()
    for name in ("pg_dump", "pg_restore"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {major}.4'\n")
        (folder / name).chmod(0o755)
    return folder


def test_the_wheel_brings_programs_and_the_servers_own_version_is_preferred() -> None:
    assert [programs_for(major, None).major for major in (16, 17, 18)] == [16, 18, 18]


def test_programs_older_than_the_server_are_refused_with_what_to_do(tmp_path: Path) -> None:
    assert programs_for(18, fake(tmp_path / "eighteen", 18)).major == 18
    for folder in (fake(tmp_path / "sixteen", 16), tmp_path):
        with pytest.raises(StartupRefused, match="MNEME_BACKUP__PROGRAMS") as refused:
            programs_for(18, folder)
        assert refused.value.exit_code == 4


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql+asyncpg://anna:s%40fe@db.example:6543/mneme?ssl=require",
            {"PGHOST": "db.example", "PGPORT": "6543", "PGUSER": "anna", "PGPASSWORD": "s@fe", "PGSSLMODE": "require"},
        ),
        ("postgresql+asyncpg://anna@/mneme?host=%2Frun%2Fpg&port=5433", {"PGHOST": "/run/pg", "PGPORT": "5433"}),
    ],
)
def test_a_url_becomes_the_environment_of_a_program(
    url: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOSTADDR", "10.0.0.1")
    monkeypatch.setenv("MNEME_BACKUP__KEY", "secret")
    made = environment(url)
    assert expected.items() <= made.items()
    assert made["PGDATABASE"] == "mneme"
    assert "PATH" in made
    assert not {"PGHOSTADDR", "MNEME_BACKUP__KEY"} & made.keys()


QUOTED = """\
pg_restore: error: COPY failed for table "memories": ERROR:  invalid input syntax for type json: "我对芒果过敏"
CONTEXT:  COPY memories, line 1: 我对芒果过敏"""
DETAILED = """\
pg_restore: error: could not execute query: ERROR:  duplicate key value violates unique constraint "a_pkey"
DETAIL:  Key (content)=(secret) already exists."""
COUNTED = 'pg_restore: error: could not execute query: ERROR:  value "secret" is out of range for type integer'


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", ""),
        (QUOTED, 'COPY failed for table "memories": ERROR:  invalid input syntax for type json'),
        (COUNTED, "could not execute query: ERROR:  value  is out of range for type integer"),
        (DETAILED, 'could not execute query: ERROR:  duplicate key value violates unique constraint "a_pkey"'),
        ("pg_dump: detail: reading\npg_dump: error: connection to server failed", "connection to server failed"),
    ],
)
def test_messages_of_the_programs_lose_the_data_that_they_quote(said: str, shown: str) -> None:
    assert without_data(said) == shown
