"""Backup: dumps that are proved good, and ways back from them: everything, one tenant, one subject."""

from app.backup.archive import Archive, clear_erased
from app.backup.backups import Backups
from app.backup.catalog import Entry
from app.backup.config import BackupConfig
from app.backup.content import plain_connection
from app.backup.manifest import Manifest
from app.backup.merge import Wanted
from app.backup.restore import SCRATCH

__all__ = [
    "SCRATCH",
    "Archive",
    "BackupConfig",
    "Backups",
    "Entry",
    "Manifest",
    "Wanted",
    "clear_erased",
    "plain_connection",
]
