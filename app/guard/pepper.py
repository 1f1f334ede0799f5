"""The service's own secret: without it a stolen table of key fingerprints verifies nothing."""

import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from app.errors import StartupRefused

SHORTEST_PEPPER: Final = 16
_OTHERS = 0o007  # the group may read: Kubernetes hands volumes to a group


def load_pepper(configured: str | None, data_dir: Path, *, production: bool) -> bytes:
    """The configured pepper, or in development one made once in `data_dir/pepper`, readable by the owner only.

    All processes of a service must share it; a new one makes every key and cursor invalid. Raises StartupRefused
    when it is missing in production, shorter than 16 characters, or readable by everybody.
    """
    if configured is not None:
        if len(configured) < SHORTEST_PEPPER:
            raise StartupRefused(f"MNEME_AUTH__PEPPER needs at least {SHORTEST_PEPPER} characters")
        return configured.encode()
    if production:
        raise StartupRefused(
            "MNEME_AUTH__PEPPER is not set; production needs one secret shared by all processes, "
            "for example from `openssl rand -hex 32`"
        )
    path = data_dir / "pepper"
    if not path.exists():
        _create(path)
    if path.stat().st_mode & _OTHERS:
        raise StartupRefused(f"{path} is readable by everybody: run `chmod 600 {path}`")
    pepper = path.read_text(encoding="ascii").strip()
    if len(pepper) < SHORTEST_PEPPER:
        raise StartupRefused(f"{path} holds no pepper; if no key was made with it yet, delete the file")
    return pepper.encode()


def derive_secret(pepper: bytes, purpose: str) -> bytes:
    """A 32-byte secret for one purpose (such as signing cursors) that reveals nothing about the pepper."""
    return hmac.digest(pepper, b"derive:" + purpose.encode(), "sha256")


def _create(path: Path) -> None:
    # Written aside and linked into place: of two processes that start together one wins, and neither reads half a file.
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"pepper.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(draft)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
