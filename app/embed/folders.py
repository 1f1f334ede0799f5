"""Folders that are slow to write and are written once.

Invariant: such a folder appears whole or not at all, and on the disk before under its name, however many processes want
it at once.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LEFT_OVER: Final = ".preparing-"


def appear(folder: Path, write: Callable[[Path], None], whole: Callable[[Path], bool]) -> None:
    """Have `write` fill `folder` unless it is `whole` already; what is not whole is replaced.

    One process writes, the others wait for it. Raises OSError, and what `write` raises: then nothing is left behind.
    """
    shelf = folder.parent
    with lock_file(shelf).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if whole(folder):
            return
        for left_over in shelf.glob(f"{_LEFT_OVER}*"):  # of a killed start: nobody else holds the lock
            shutil.rmtree(left_over)
        temporary = Path(tempfile.mkdtemp(prefix=_LEFT_OVER, dir=shelf))
        try:
            write(temporary)
            _settle(temporary)
            if folder.exists():
                shutil.rmtree(folder)
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def lock_file(shelf: Path) -> Path:
    """The file that is locked while a folder of `shelf` is written; the shelf is made. Raises OSError."""
    shelf.mkdir(parents=True, exist_ok=True)
    return shelf / ".lock"


def _settle(folder: Path) -> None:
    """Onto the disk, since a name may outlive a power cut that its content does not; and readable by all."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
