"""The place where backups are kept: a folder, or a bucket of any S3-compatible service.

Invariant: an object appears whole or not at all, and is read and written in pieces, never held as a whole. Calls block;
run them in a thread. (obstore's own asyncio calls can abort the interpreter at its exit, see docs/decisions/0014.)
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, S3Store

from app.backup.config import BackupConfig
from app.errors import StartupRefused, VerificationFailed

PIECE_BYTES: Final = 8 << 20
MOST_PARTS: Final = 8_000  # S3 takes 10,000
Result = TypeVar("Result")


class Depot:
    """Objects named `backup/part`; every call raises StartupRefused when the place does not answer."""

    def __init__(self, store: ObjectStore, folder: Path | None = None) -> None:
        self._store, self._folder = store, folder

    @staticmethod
    def open(config: BackupConfig, data_dir: Path, retries: int = 5) -> "Depot":
        """The place that the settings name; a folder is made, readable by its owner only."""
        named = config.store or ""
        if not named.startswith("s3://"):
            if "://" in named and not named.startswith("file://"):
                raise StartupRefused("wrong setting\n  MNEME_BACKUP__STORE: must be a folder or s3://bucket/prefix")
            path = named.removeprefix("file://")
            folder = (Path(path).expanduser() if path else data_dir / "backups").resolve()
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise StartupRefused(f"{folder} cannot be made: {error.strerror}", dependency=True) from error
            return Depot(LocalStore(folder), folder)
        place = urlsplit(named)
        given = {
            "endpoint": config.s3_endpoint,
            "access_key_id": config.s3_access_key_id and config.s3_access_key_id.get_secret_value(),
            "secret_access_key": config.s3_secret_access_key and config.s3_secret_access_key.get_secret_value(),
        }
        options: Any = {name: value for name, value in given.items() if value}
        store = S3Store(
            place.netloc,
            prefix=place.path.strip("/") or None,
            region=config.s3_region,
            client_options={
                "allow_http": bool(config.s3_endpoint and config.s3_endpoint.startswith("http://")),
                "timeout": "300s",  # of one piece, over whatever line
                "connect_timeout": "10s",
            },
            retry_config={"max_retries": retries, "retry_timeout": timedelta(minutes=3)},
            **options,
        )
        return Depot(store)

    def backups(self) -> list[str]:
        """The names of all backups, complete or not, oldest first."""
        listed = _asked(lambda: obstore.list(self._store).collect())
        return sorted({item["path"].partition("/")[0] for item in listed if "/" in item["path"]})

    def write(self, path: str, chunks: Iterable[bytes], expected_bytes: int = 0) -> None:
        """Store a stream; when it raises, nothing is stored. `expected_bytes` (about) decides the size of the parts."""
        part_bytes = max(PIECE_BYTES, expected_bytes // MOST_PARTS)
        _asked(lambda: obstore.put(self._store, path, chunks, chunk_size=part_bytes, max_concurrency=2))
        self._settle(path)

    def write_bytes(self, path: str, document: bytes) -> None:
        """Store a small object."""
        _asked(lambda: obstore.put(self._store, path, document))
        self._settle(path)

    def read(self, path: str) -> Iterator[bytes]:
        """Give a stored stream in pieces; raises VerificationFailed when it is not there."""
        start, size = 0, self.size(path)
        while start < size:
            length = min(PIECE_BYTES, size - start)
            piece = _found(path, lambda: bytes(obstore.get_range(self._store, path, start=start, length=length)))  # noqa: B023
            yield piece
            start += len(piece)

    def read_bytes(self, path: str) -> bytes:
        """A small object; raises VerificationFailed when it is not there."""
        return _found(path, lambda: bytes(obstore.get(self._store, path).bytes()))

    def size(self, path: str) -> int:
        """Bytes of an object; raises VerificationFailed when it is not there."""
        return int(_found(path, lambda: obstore.head(self._store, path))["size"])

    def delete(self, backup: str) -> None:
        """Remove everything of a backup, its manifest first: what is half removed is no backup any more."""
        listed = _asked(lambda: obstore.list(self._store, prefix=backup).collect())
        paths = sorted((item["path"] for item in listed), key=lambda path: "manifest" not in path)
        for path in paths:
            _asked(lambda: obstore.delete(self._store, path))  # noqa: B023
        if self._folder is not None and (self._folder / backup).is_dir():
            (self._folder / backup).rmdir()

    def _settle(self, path: str) -> None:
        """Wait until the disk has a local file and its name."""
        if self._folder is not None:
            for place in (self._folder / path, (self._folder / path).parent, self._folder):
                descriptor = os.open(place, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


def _asked(call: Callable[[], Result]) -> Result:
    try:
        return call()
    except FileNotFoundError as error:  # of a bucket; what is read is asked for by _found
        raise StartupRefused("the place of the backups does not exist", dependency=True) from error
    except (BaseError, OSError) as error:
        code = re.search(r"<Code>(\w+)</Code>", str(error))  # the rest quotes addresses and requests
        said = code[1] if code else type(error).__name__
        raise StartupRefused(
            f"the place of the backups does not answer as it should: {said}", dependency=True
        ) from error


def _found(path: str, call: Callable[[], Result]) -> Result:
    try:
        return _asked(call)
    except StartupRefused as refusal:
        if isinstance(refusal.__cause__, FileNotFoundError):
            raise VerificationFailed("missing", f"{path} is missing") from None
        raise
