"""The use cases of backup as one object: where backups are, with which keys, of which database.

Invariant: none of them loses a good backup; whatever goes wrong is raised, and stands in the store for all to see.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from app.backup.catalog import Entry, chosen, entries, prune
from app.backup.config import BackupConfig
from app.backup.dump import Progress, create, no_progress
from app.backup.manifest import Manifest
from app.backup.merge import Wanted, merge
from app.backup.metrics import FAILURES, show
from app.backup.restore import check_target, erase_again, restore_all, scratch
from app.backup.seal import load_keys
from app.backup.store import Depot
from app.backup.verify import verify
from app.database import Database
from app.errors import StartupRefused, VerificationFailed


@dataclass(frozen=True, slots=True)
class Backups:
    """Backups of one database. url: of a login that reads past row security, None where none is configured."""

    config: BackupConfig
    depot: Depot
    keys: tuple[bytes, ...]
    url: str | None

    @staticmethod
    def open(config: BackupConfig, data_dir: Path, url: str | None = None) -> "Backups":
        """The backups that the settings name; `url` stands in for MNEME_BACKUP__DATABASE_URL. Raises StartupRefused."""
        named = config.database_url.get_secret_value() if config.database_url else url
        return Backups(config, Depot.open(config, data_dir), load_keys(config), named)

    async def entries(self) -> list[Entry]:
        """All backups, oldest first."""
        return await asyncio.to_thread(entries, self.depot, self.keys)

    async def manifest(self, asked: str) -> Manifest:
        """The manifest of a backup or of `latest`; raises Invalid for an unknown one, VerificationFailed."""
        name = chosen(await self.entries(), asked)
        return await asyncio.to_thread(Manifest.read, self.depot, name, self.keys)

    async def create(self, *, version: str, now: datetime, progress: Progress = no_progress) -> Manifest:
        """Make a backup; see dump.create(). Raises VerificationFailed when it has far fewer rows than the one before,
        which is kept then, as is this one.
        """
        before = [entry for entry in await self.entries() if entry.state == "verified"]
        made = await create(self.config, self.depot, self.keys, self._url, version=version, now=now, progress=progress)
        least = before[-1].rows * (1 - self.config.shrink_limit) if before else 0
        if made.total_rows < least:
            raise self._counted(
                VerificationFailed(
                    "shrunk",
                    f"{made.backup} has {made.total_rows} rows, the one before had {before[-1].rows}: look why, and "
                    f"run `mneme backup verify {made.backup}` when this is as it should be",
                )
            )
        return made

    async def verify(self, asked: str, *, now: datetime, progress: Progress = no_progress) -> Manifest:
        """Prove that a backup (or `latest`: the newest, verified or not) is good; see verify.verify()."""
        known = await self.entries()
        complete = [entry.backup for entry in known if entry.state != "incomplete"]
        name = complete[-1] if asked == "latest" and complete else chosen(known, asked)
        try:
            return await verify(self.config, self.depot, self.keys, name, self._scratch_url, now=now, progress=progress)
        except VerificationFailed as failure:
            raise self._counted(failure) from failure

    async def prune(self, *, now: datetime, dry_run: bool = False) -> list[Entry]:
        """Remove the backups whose time is over; see catalog.expendable()."""
        known = await self.entries()
        return await asyncio.to_thread(prune, self.depot, known, self.config, now=now, dry_run=dry_run)

    async def nightly(self, *, version: str, clock: Callable[[], datetime]) -> int:
        """Make one, prove it, and only then remove old ones; returns how many rows it has."""
        try:
            made = await self.create(version=version, now=clock())
            await self.verify(made.backup, now=clock())
            await self.prune(now=clock())
        finally:
            await self.show()
        return made.total_rows

    async def show(self) -> None:
        """Set the gauges from what is in the store."""
        show(await self.entries())

    async def check_target(self, manifest: Manifest, url: str) -> None:
        """Find out, changing nothing, what would stop restore_all() at once."""
        await check_target(self.depot, manifest, url)

    async def restore_all(self, manifest: Manifest, url: str, *, progress: Progress = no_progress) -> int:
        """Restore everything into the empty database of `url`, and erase again whom a later backup knows as erased.

        Returns how many subjects that were; see restore.restore_all().
        """
        await restore_all(self.config, self.depot, manifest, self.keys, url, progress=progress)
        later = [entry.backup for entry in await self.entries() if entry.backup > manifest.backup]
        erased = set(manifest.content.erasures)
        for name in later:
            try:
                read = await asyncio.to_thread(Manifest.read, self.depot, name, self.keys)
            except VerificationFailed:
                continue  # broken off, or of another key
            erased |= set(read.content.erasures)
        return await erase_again(url, sorted(erased))

    async def bring_back(
        self, manifest: Manifest, database: Database, wanted: Wanted, *, migrate: Callable[[str], None], now: datetime,
        progress: Progress = no_progress, subjects: Callable[[int, int], None] = no_progress,
    ) -> dict[str, int]:  # fmt: skip
        """Bring a tenant or a subject back into the running system of `database`; see merge.merge().

        migrate: brings the schema of a scratch database, given by its URL, to this program's.
        """
        async with self.opened(manifest, now=now, progress=progress) as place:
            await asyncio.to_thread(migrate, place)
            return await merge(database, place, wanted, manifest.backup, now=now, progress=subjects)

    def opened(
        self, manifest: Manifest, *, now: datetime, progress: Progress = no_progress
    ) -> AbstractAsyncContextManager[str]:
        """The URL of a scratch database that holds a backup, to look into; see restore.scratch()."""
        return scratch(self.config, self.depot, manifest, self.keys, self._scratch_url, now=now, progress=progress)

    @property
    def _url(self) -> str:
        if self.url is None:
            raise StartupRefused(
                "no login for backups: set MNEME_BACKUP__DATABASE_URL to a role with BYPASSRLS "
                "(`mneme db roles` prints its SQL)"
            )
        return self.url

    @property
    def _scratch_url(self) -> str:
        return self.config.scratch_url.get_secret_value() if self.config.scratch_url else self._url

    def _counted(self, failure: VerificationFailed) -> VerificationFailed:
        FAILURES.labels(failure.reason).inc()
        return failure
