"""Making a backup: pg_dump of one snapshot streamed into the store; counts and searches of the same snapshot beside it.

Invariant: the manifest is written last, so a backup that was broken off at any moment is none.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

from app.backup.catalog import name_of
from app.backup.config import BackupConfig
from app.backup.content import measure, plain_connection
from app.backup.manifest import DUMP, Content, Manifest
from app.backup.programs import Dump, programs_for
from app.backup.seal import key_id, seal
from app.backup.store import Depot
from app.errors import StartupRefused

Progress = Callable[[int, int], None]
"""Told bytes done and bytes in all; 0 in all: unknown."""


def no_progress(_done: int, _total: int) -> None:
    """For those who do not watch."""


@dataclass(slots=True)
class Flow:
    """Counts and hashes a stream as it passes."""

    progress: Progress = no_progress
    total: int = 0
    size: int = 0
    digest: Any = field(default_factory=sha256)

    def through(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.size += len(chunk)
            self.digest.update(chunk)
            self.progress(self.size, self.total)
            yield chunk


async def create(
    config: BackupConfig, depot: Depot, keys: Sequence[bytes], url: str, *, version: str, now: datetime,
    progress: Progress = no_progress,
) -> Manifest:  # fmt: skip
    """Make one backup of the database of `url`, encrypted with the first key if there is one; it is not verified yet.

    Raises StartupRefused when the login may not read past row security, programs are missing or the store does not
    answer, ProgramFailed when pg_dump fails. Nothing is left then but what prune removes.
    """
    started = time.monotonic()
    backup, key = name_of(now, secrets.token_hex(3)), keys[0] if keys else None
    async with plain_connection(url) as connection:
        server = await connection.fetchrow(_SERVER)
        if not server["reads_all"]:
            raise StartupRefused(
                f"the login {server['login']} is stopped by row security, a backup by it would be empty: "
                "MNEME_BACKUP__DATABASE_URL needs a role with BYPASSRLS (`mneme db roles` prints its SQL)"
            )
        programs = programs_for(server["version"] // 10_000, config.programs)
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            snapshot = await connection.fetchval("SELECT pg_export_snapshot()")
            plain, stored = Flow(progress), Flow()
            dump = Dump(programs, url, snapshot)

            def stream() -> Iterator[bytes]:
                chunks = plain.through(dump)
                return stored.through(chunks if key is None else seal(chunks, key, backup))

            storing = asyncio.create_task(asyncio.to_thread(depot.write, f"{backup}/{DUMP}", stream(), server["size"]))
            content = await _measured(connection, config.searches, storing, dump)
    manifest = Manifest(
        backup=backup,
        made_at=now,
        seconds=round(time.monotonic() - started, 3),
        mneme_version=version,
        dump_version=programs.major,
        dump_bytes=plain.size,
        stored_bytes=stored.size,
        sha256=stored.digest.hexdigest(),
        key=None if key is None else key_id(key),
        content=content,
    )
    await asyncio.to_thread(manifest.write, depot, key)
    return manifest


async def _measured(connection: Any, searches: int, storing: "asyncio.Task[None]", dump: Dump) -> Content:
    """The content of the snapshot, once the dump of it is stored; whichever fails first ends the other."""
    measuring = asyncio.create_task(measure(connection, searches))
    try:
        done, _ = await asyncio.wait((measuring, storing), return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return measuring.result()
    finally:
        dump.stop()
        measuring.cancel()
        await asyncio.gather(measuring, storing, return_exceptions=True)


_SERVER = """
SELECT current_setting('server_version_num')::int AS version, session_user AS login,
       pg_database_size(current_database()) AS size,
       (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = session_user) AS reads_all
"""
