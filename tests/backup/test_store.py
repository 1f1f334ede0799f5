"""Where backups are kept: the same in a folder and over the S3 protocol, in pieces, whole or not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.backup.config import BackupConfig
from app.backup.store import PIECE_BYTES, Depot
from app.errors import StartupRefused, VerificationFailed
from tests.backup.conftest import MakeConfig

PIECE = bytes(range(256)) * 4096  # 1 MiB


def stream(pieces: int, *, broken: bool = False) -> Iterator[bytes]:
    for _ in range(pieces):
        yield PIECE
    if broken:
        raise RuntimeError("the source failed")


def test_a_stream_of_many_pieces_comes_back(depot: Depot) -> None:
    pieces = 2 * PIECE_BYTES // len(PIECE) + 3
    depot.write("20261130T030000Z-aa/dump", stream(pieces))
    depot.write_bytes("20261130T030000Z-aa/manifest.json", b"{}")
    depot.write_bytes("20261129T030000Z-bb/manifest.json", b"{}")
    assert depot.backups() == ["20261129T030000Z-bb", "20261130T030000Z-aa"]
    assert depot.size("20261130T030000Z-aa/dump") == pieces * len(PIECE)
    read = list(depot.read("20261130T030000Z-aa/dump"))
    assert max(map(len, read)) <= PIECE_BYTES
    assert b"".join(read) == PIECE * pieces
    depot.write_bytes("20261130T030000Z-aa/manifest.json", b"[]")
    assert depot.read_bytes("20261130T030000Z-aa/manifest.json") == b"[]"


def test_a_stream_that_breaks_leaves_nothing(depot: Depot) -> None:
    with pytest.raises(RuntimeError, match="the source failed"):
        depot.write("20261130T030000Z-aa/dump", stream(2 * PIECE_BYTES // len(PIECE), broken=True))
    assert depot.backups() == []


def test_deleting_takes_one_backup_with_all_its_parts(depot: Depot) -> None:
    for name in ("20261130T030000Z-aa", "20261130T030000Z-ab"):
        for part in ("dump", "manifest.json", "verdict.json"):
            depot.write_bytes(f"{name}/{part}", b"x")
    depot.delete("20261130T030000Z-aa")
    assert depot.backups() == ["20261130T030000Z-ab"]
    assert depot.size("20261130T030000Z-ab/dump") == 1


def test_what_is_missing_is_said_to_be_missing(depot: Depot) -> None:
    for ask in (depot.size, depot.read_bytes, lambda path: list(depot.read(path))):
        with pytest.raises(VerificationFailed) as refused:
            ask("20261130T030000Z-aa/dump")
        assert refused.value.reason == "missing"


def test_a_bucket_that_is_not_there_and_a_server_that_is_not_there(s3_config: MakeConfig, tmp_path: Path) -> None:
    config = s3_config()
    gone = config.model_copy(update={"store": "s3://no-such-bucket"})
    away = config.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"})
    for wrong in (gone, away):
        with pytest.raises(StartupRefused) as refused:
            Depot.open(wrong, tmp_path, retries=0).write("20261130T030000Z-aa/dump", stream(1))
        assert refused.value.exit_code == 4
        assert "127.0.0.1" not in refused.value.message


def test_a_folder_is_made_for_its_owner_only_and_other_places_are_refused(tmp_path: Path) -> None:
    Depot.open(BackupConfig(), tmp_path)
    assert (tmp_path / "backups").stat().st_mode & 0o077 == 0
    named = tmp_path / "elsewhere"
    Depot.open(BackupConfig(store=f"file://{named}"), tmp_path).write_bytes("a/b", b"x")
    assert (named / "a" / "b").read_bytes() == b"x"
    with pytest.raises(StartupRefused, match="MNEME_BACKUP__STORE"):
        Depot.open(BackupConfig(store="ftp://host/folder"), tmp_path)
