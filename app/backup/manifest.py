"""What a backup says about itself: the manifest beside the dump, and the verdict of its last verification.

Invariant: a backup without a manifest is none; a manifest that does not fit its signature is not believed. Neither
holds text of memories or names of users: counts, versions and ids only.
"""

from collections.abc import Sequence
from typing import Final, Literal, Self
from uuid import UUID

import orjson
from pydantic import AwareDatetime, BaseModel, ValidationError

from app.backup.seal import key_named, signature
from app.backup.store import Depot
from app.errors import VerificationFailed

DUMP: Final = "dump"
MANIFEST: Final = "manifest.json"
VERDICT: Final = "verdict.json"


class Search(BaseModel, frozen=True):
    """One search, by the vector and words of a memory that is there, and what it found."""

    tenant_id: UUID
    subject_id: UUID
    memory_id: UUID
    hits: tuple[UUID, ...]


class Content(BaseModel, frozen=True):
    """What is in a database: rows by table, and by tenant where rows have one; versions; searches with their hits."""

    server_version: int  # as in server_version_num
    extensions: dict[str, str]
    revision: str | None
    roles: tuple[str, ...]  # that its grants and policies name
    generations: tuple[dict[str, str], ...]
    rows: dict[str, int]
    tenant_rows: dict[str, dict[str, int]]
    searches: tuple[Search, ...]
    erasures: tuple[tuple[UUID, UUID], ...] = ()  # tenant and subject: whoever was erased stays erased


class Manifest(BaseModel, frozen=True):
    """The manifest of one backup; sizes in bytes, sha256 of what is stored, `key` None: not encrypted."""

    format: Literal[1] = 1
    backup: str
    made_at: AwareDatetime
    seconds: float
    mneme_version: str
    dump_version: int  # major version of pg_dump
    dump_bytes: int
    stored_bytes: int
    sha256: str
    key: str | None
    content: Content

    def write(self, depot: Depot, key: bytes | None) -> None:
        """Store the manifest, signed."""
        document = orjson.dumps(self.model_dump(mode="json"))
        signed = {"manifest": document.decode(), "signature": signature(key, document)}
        depot.write_bytes(f"{self.backup}/{MANIFEST}", orjson.dumps(signed))

    @classmethod
    def read(cls, depot: Depot, backup: str, keys: Sequence[bytes]) -> Self:
        """A backup's manifest; raises VerificationFailed when it is missing, damaged or made with another key."""
        damaged = VerificationFailed("damaged", f"the manifest of {backup} is damaged")
        try:
            stored = orjson.loads(depot.read_bytes(f"{backup}/{MANIFEST}"))
            document, signed = stored["manifest"].encode(), stored["signature"]
            manifest = cls.model_validate_json(document)
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
            raise damaged from None
        key = None if manifest.key is None else key_named(keys, manifest.key)
        if signature(key, document) != signed or manifest.backup != backup:
            raise damaged
        return manifest

    @property
    def total_rows(self) -> int:
        return sum(self.content.rows.values())


class Verdict(BaseModel, frozen=True):
    """How the last verification of a backup ended; reason: a code of VerificationFailed, or `` when it is good."""

    reason: str
    at: AwareDatetime
    seconds: float

    def write(self, depot: Depot, backup: str) -> None:
        depot.write_bytes(f"{backup}/{VERDICT}", self.model_dump_json().encode())
