"""The commands against a real database: what they print, what they leave, the exit code of every refusal."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy.engine import make_url

from app.cli import main
from app.database import Database
from app.guard import list_keys
from tests.conftest import administer

Run = Callable[..., "Ended"]
PASSWORD = "hunter2-hunter2"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def mneme(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `mneme …` in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["mneme", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        captured = capsys.readouterr()
        return Ended(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, database_url: str, owner_url: str) -> None:
    monkeypatch.setenv("MNEME_DATABASE__URL", database_url)
    monkeypatch.setenv("MNEME_DATABASE__OWNER_URL", owner_url)


def test_a_tenant_and_its_keys_are_made_listed_and_revoked(mneme: Run, configured: None) -> None:
    name = f"公司 {uuid4().hex[:8]}"
    tenant = UUID(mneme("tenants", "create", name).out.strip())
    assert f"{tenant}" in mneme("tenants", "list").out
    bonds = ("--user", "lin", "--scope", "read", "--days", "1", "--trust", "40")
    made = mneme("keys", "create", "客服", "--tenant", str(tenant), *bonds)
    assert re.fullmatch(r"mnk_[0-9A-Za-z]{44}_[0-9A-Za-z]{43}\n", made.out)
    key_id = re.findall(r"key id ([0-9a-f-]{36})", made.err)[0]
    listed = mneme("keys", "list", "--tenant", str(tenant)).out
    assert listed.split() == [key_id, "valid", "read", "user=lin", "trust=40", "客服"]
    assert made.out.strip() not in listed
    assert mneme("keys", "revoke", key_id, "--tenant", str(tenant)).code == 0
    assert "revoked" in mneme("keys", "list", "--tenant", str(tenant)).out


async def test_a_key_allows_reading_writing_and_deleting_unless_told_otherwise(
    mneme: Run, configured: None, database: Database, tenant: UUID
) -> None:
    import asyncio  # noqa: PLC0415

    await asyncio.to_thread(mneme, "keys", "create", "an agent", "--tenant", str(tenant))
    (key,) = await list_keys(database, tenant)
    assert set(key.scopes) == {"read", "write", "delete"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("tenants", "create", "default"), 1, "exists"),
        (("tenants", "create", " "), 1, "name: 1 to 200"),
        (("keys", "create", "x", "--scope", "everything"), 1, "scopes"),
        (("keys", "create", "x", "--trust", "101"), 2, "less than or equal to 100"),
        (("keys", "create", "x", "--tenant", "01900000-0000-7000-8000-00000000dead"), 1, "no such tenant"),
        (("keys", "revoke", "01900000-0000-7000-8000-00000000dead"), 1, "no such key"),
        (("keys", "revoke", "not-an-id"), 2, "should be a valid UUID"),
        (("no-such-command",), 2, "No such command"),
    ],
)
def test_refusals_are_one_line_with_their_own_exit_code(
    mneme: Run, configured: None, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = mneme(*arguments)
    assert ended.code == code
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_settings_are_shown_with_their_source_and_without_secrets(mneme: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNEME_DATABASE__URL", f"postgresql+asyncpg://mneme:{PASSWORD}@db/mneme")
    monkeypatch.setenv("MNEME_AUTH__PEPPER", PASSWORD)
    shown = mneme("config", "show").out
    assert "MNEME_DATABASE__URL=(hidden)  # environment" in shown
    assert "MNEME_API__PORT=8000  # default" in shown
    assert PASSWORD not in shown
    monkeypatch.setenv("MNEME_API__PORT", "many")
    wrong = mneme("config", "check")
    assert (wrong.code, wrong.out) == (3, "")
    assert "MNEME_API__PORT" in wrong.err


def test_the_schema_is_compared_migrated_and_its_login_made(
    mneme: Run, monkeypatch: pytest.MonkeyPatch, owner_url: str
) -> None:
    """An empty database of one's own: refused, migrated, given a login role, accepted."""
    name, role = f"own_{uuid4().hex[:8]}", f"login_{uuid4().hex[:8]}"
    administer(owner_url, f"CREATE DATABASE {name}")
    owner = make_url(owner_url).set(database=name)
    service = owner.set(username=role, password=PASSWORD)
    monkeypatch.setenv("MNEME_DATABASE__OWNER_URL", owner.render_as_string(hide_password=False))
    monkeypatch.setenv("MNEME_DATABASE__URL", service.render_as_string(hide_password=False))
    monkeypatch.setenv("MNEME_DATABASE__START_TIMEOUT_SECONDS", "0")
    try:
        assert mneme("db", "check").code == 3
        assert mneme("tenants", "list").code == 4  # the login role does not exist
        assert mneme("db", "migrate").code == 0
        assert mneme("db", "migrate").code == 0
        assert mneme("db", "roles", "--apply").code == 0
        assert mneme("db", "roles", "--apply").code == 0
        assert mneme("db", "check").code == 0
        assert "default" in mneme("tenants", "list").out
    finally:
        administer(owner_url, f"DROP DATABASE {name}", f"DROP ROLE IF EXISTS {role}")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql+asyncpg://x@127.0.0.1:1/x", 4),
        ("postgresql://x@127.0.0.1:1/x", 3),
        ("nonsense", 3),
    ],
)
@pytest.mark.parametrize("command", [("db", "current"), ("db", "migrate"), ("tenants", "list")])
def test_a_database_that_cannot_be_had_is_a_plain_message(
    mneme: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, str], url: str, code: int
) -> None:
    monkeypatch.setenv("MNEME_DATABASE__URL", url)
    monkeypatch.setenv("MNEME_DATABASE__START_TIMEOUT_SECONDS", "0")
    ended = mneme(*command)
    assert ended.code == code, ended.err
    assert ended.err.startswith("mneme: ")


@pytest.mark.parametrize("command", [("up",), ("serve",), ("worker",), ("keys", "list"), ("db", "migrate")])
def test_production_refuses_the_embedded_server(
    mneme: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("MNEME_ENV", "production")
    ended = mneme(*command)
    assert ended.code == 3
    assert "MNEME_DATABASE__URL" in ended.err
    assert not (tmp_path / ".data" / "postgres").exists()


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_process_alone_says_how_to_get_a_database(mneme: Run, command: str) -> None:
    ended = mneme(command)
    assert ended.code == 3
    assert "mneme up" in ended.err


def test_openapi_is_printed_as_json(mneme: Run) -> None:
    assert json.loads(mneme("openapi").out)["info"]["title"] == "Mneme"
