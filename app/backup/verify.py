"""Proving that a backup gives back what went in: read in full, restored into a scratch database, counted and searched.

Invariant: only a proof moves the time of the last verified backup; what fails it is written down beside the backup, so
that every process that looks at the store knows.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime

from app.backup.config import BackupConfig
from app.backup.content import compare, plain_connection
from app.backup.dump import Progress, no_progress
from app.backup.manifest import Manifest, Verdict
from app.backup.programs import ProgramFailed
from app.backup.restore import scratch
from app.backup.store import Depot
from app.errors import VerificationFailed


async def verify(
    config: BackupConfig, depot: Depot, keys: Sequence[bytes], backup: str, url: str, *, now: datetime,
    progress: Progress = no_progress,
) -> Manifest:  # fmt: skip
    """Restore a backup into a scratch database on the server of `url`, and compare rows, walls and searches.

    Returns its manifest; raises VerificationFailed when it is not good, StartupRefused when that could not be tried,
    which says nothing about the backup.
    """
    started = time.monotonic()
    try:
        manifest = await asyncio.to_thread(Manifest.read, depot, backup, keys)
        async with (
            scratch(config, depot, manifest, keys, url, now=now, progress=progress) as place,
            plain_connection(place) as connection,
        ):
            await compare(connection, manifest.content)
    except (VerificationFailed, ProgramFailed) as error:
        failure = VerificationFailed("restore", error.detail) if isinstance(error, ProgramFailed) else error
        await _write(depot, backup, failure.reason, now, started)
        raise failure from error
    await _write(depot, backup, "", now, started)
    return manifest


async def _write(depot: Depot, backup: str, reason: str, now: datetime, started: float) -> None:
    verdict = Verdict(reason=reason, at=now, seconds=round(time.monotonic() - started, 3))
    await asyncio.to_thread(verdict.write, depot, backup)
