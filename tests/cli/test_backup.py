"""`mneme backup` as a person or cron uses it: what it prints, its exit codes, and the way back from nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from app.cli import embedded, schema
from tests.backup.conftest import MakeConfig, Site, filled, s3, s3_config, site
from tests.cli.test_commands import Ended, Run, mneme
from tests.conftest import administer

__all__ = ["filled", "mneme", "s3", "s3_config", "site"]  # fixtures


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.setenv("MNEME_DATABASE__URL", site.url)
    monkeypatch.setenv("MNEME_DATABASE__OWNER_URL", site.owner_url)
    monkeypatch.setenv("MNEME_DATA_DIR", str(site.data_dir))


def printed(ended: Ended) -> Any:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def dump_of(site: Site, backup: str) -> Path:
    return site.data_dir / "backups" / backup / "dump"


def test_a_backup_is_made_proved_listed_and_pruned(mneme: Run, configured: None) -> None:
    made = printed(mneme("backup", "create", "--json", "--quiet"))
    assert (made["state"], made["encrypted"]) == ("verified", False)
    second = printed(mneme("backup", "create", "--no-verify", "--json", "--quiet"))
    assert second["state"] == "unverified"
    listed = mneme("backup", "list")
    assert all(f"{made['rows']}" in line for line in listed.out.splitlines()[1:])
    assert [entry["state"] for entry in printed(mneme("backup", "list", "--json"))] == ["verified", "unverified"]
    proved = printed(mneme("backup", "verify", "--json", "--quiet"))
    assert (proved["backup"], proved["state"], proved["searches"]) == (second["backup"], "verified", 2)
    gone = printed(mneme("backup", "prune", "--dry-run", "--json"))
    assert gone == {"removed": [made["backup"]], "dry_run": True}  # of one day the last
    assert printed(mneme("backup", "prune", "--json"))["removed"] == [made["backup"]]
    assert [entry["backup"] for entry in printed(mneme("backup", "list", "--json"))] == [second["backup"]]


def test_damage_and_a_wrong_key_end_with_exit_code_5(
    mneme: Run, configured: None, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MNEME_BACKUP__KEY", "7f" * 32)
    made = printed(mneme("backup", "create", "--json", "--quiet"))
    monkeypatch.setenv("MNEME_BACKUP__KEY", "0b" * 32)
    wrong = mneme("backup", "verify", "--quiet")
    assert (wrong.code, "encrypted with the key" in wrong.err) == (5, True)
    monkeypatch.setenv("MNEME_BACKUP__KEY", "7f" * 32)
    assert mneme("backup", "verify", "--quiet").code == 0
    path = dump_of(site, made["backup"])
    whole = path.read_bytes()
    for data in (whole[:-100], whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]):
        path.write_bytes(data)
        damaged = mneme("backup", "verify", "--quiet")
        assert damaged.code == 5, damaged.err
        assert "failed" in mneme("backup", "list").out
        assert mneme("backup", "restore", made["backup"], "--user", "lin", "--quiet").code == 5
    path.unlink()
    assert mneme("backup", "verify", "--quiet").code == 5


def test_refusals_say_what_to_do(mneme: Run, configured: None, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no backup yet" in mneme("backup", "verify").err
    assert mneme("backup", "verify", "20200101T000000.000Z-000000").code == 1
    assert mneme("backup", "restore", "--user", "lin", "--shared").code == 1
    assert mneme("backup", "restore", "--replace").code == 1
    made = printed(mneme("backup", "create", "--no-verify", "--json", "--quiet"))
    for options in ((), ("--dry-run",)):
        full = mneme("backup", "restore", made["backup"], "--quiet", *options)
        assert (full.code, "goes into an empty one" in full.err) == (1, True)
    assert mneme("backup", "restore", "--user", "nobody", "--tenant", str(site.tenants[0]), "--quiet").code == 1
    monkeypatch.delenv("MNEME_DATABASE__OWNER_URL")
    without = mneme("backup", "create")
    assert (without.code, "MNEME_BACKUP__DATABASE_URL" in without.err) == (3, True)
    monkeypatch.setenv("MNEME_BACKUP__STORE", "ftp://somewhere")
    assert mneme("backup", "list").code == 3


def test_a_user_is_brought_back_after_a_look(mneme: Run, configured: None, site: Site) -> None:
    printed(mneme("backup", "create", "--json", "--quiet"))
    tenant = ("--tenant", str(site.tenants[0]))
    administer(site.owner_url, f"DELETE FROM subjects WHERE tenant_id = '{site.tenants[0]}' AND user_id = 'mary'")
    dry = printed(mneme("backup", "restore", *tenant, "--user", "mary", "--dry-run", "--json", "--quiet"))
    real = printed(mneme("backup", "restore", *tenant, "--user", "mary", "--json", "--quiet"))
    assert dry["restored"] == real["restored"] == 4
    shared = printed(mneme("backup", "restore", *tenant, "--shared", "--replace", "--yes", "--json", "--quiet"))
    assert (shared["removed"], shared["restored"]) == (1, 1)
    every = mneme("backup", "restore", *tenant)
    assert "kept: 11" in every.out
    assert "seconds: " in every.out


def test_everything_comes_back_into_an_empty_database(
    mneme: Run, configured: None, site: Site, cluster: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = printed(mneme("backup", "create", "--json", "--quiet"))
    name = f"mneme_new_{uuid7().hex[-8:]}"
    monkeypatch.setenv("MNEME_DATABASE__OWNER_URL", cluster.url(embedded.SUPERUSER, name))
    monkeypatch.setenv("MNEME_DATABASE__URL", cluster.url(schema.LOGIN_ROLE, name))
    assert printed(mneme("backup", "restore", "--dry-run", "--json", "--quiet"))["rows"] == made["rows"]
    back = printed(mneme("backup", "restore", "--json", "--quiet"))
    assert (back["rows"], back["erased_again"]) == (made["rows"], 0)
    assert mneme("db", "check").code == 0
    assert str(site.tenants[0]) in mneme("tenants", "list").out
    administer(cluster.url(embedded.SUPERUSER, "postgres"), f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def own_data(passable_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory of one's own, with nothing configured: as `mneme up` uses it."""
    directory = passable_directory / f"own-{uuid7().hex[-8:]}"
    directory.mkdir()
    directory.chmod(0o755)
    monkeypatch.setenv("MNEME_DATA_DIR", str(directory))
    embedded.start(directory / "postgres")  # as when `mneme up` runs, so that commands need not
    yield directory
    embedded.stop(directory / "postgres")


def test_the_embedded_server_comes_back_from_nothing(mneme: Run, own_data: Path) -> None:
    tenant = mneme("tenants", "create", "云启科技").out.strip()
    printed(mneme("backup", "create", "--json", "--quiet"))
    embedded.stop(own_data / "postgres")
    shutil.rmtree(own_data / "postgres")
    printed(mneme("backup", "restore", "--json", "--quiet"))
    assert tenant in mneme("tenants", "list").out


def test_as_a_process_of_its_own_it_ends_well_over_s3(configured: None, s3_config: MakeConfig, tmp_path: Path) -> None:
    """obstore's asyncio calls can abort an interpreter that ends; and progress for machines is on standard error."""
    config = s3_config()
    environment = os.environ | {
        "MNEME_BACKUP__STORE": str(config.store),
        "MNEME_BACKUP__S3_ENDPOINT": str(config.s3_endpoint),
        "MNEME_BACKUP__S3_ACCESS_KEY_ID": "test",
        "MNEME_BACKUP__S3_SECRET_ACCESS_KEY": "test",
    }
    for arguments in (("create", "--json"), ("list", "--json")):
        command = [sys.executable, "-m", "app.cli", "backup", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout
        assert "test" not in done.stderr
