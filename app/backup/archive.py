"""The archive outside the database: archived memories of one user as JSON lines in a store, and the way back.

Invariant: a memory leaves the database only after it was read back from the store, whole and as it was. What is or gets
there of who was erased is removed within minutes by clear_erased(), and nothing of it comes back. A name or a manifest
holds ids and counts, no text.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, Self
from uuid import UUID

import orjson
from pydantic import AwareDatetime, BaseModel, ValidationError
from uuid_utils.compat import uuid7

from app import telemetry
from app.backup.config import BackupConfig
from app.backup.fates import columns_of
from app.backup.seal import key_id, key_named, load_keys, seal, signature, unseal
from app.backup.store import Depot
from app.backup.subject import add_of_subject
from app.database import Database, Transaction, sql, subject_lock
from app.errors import Conflict, VerificationFailed

LINES: Final = "memories.jsonl.gz"
MANIFEST: Final = "manifest.json"
MOST_MEMORIES: Final = 2_000
"""In one object: what is held in memory while it is made and read back."""
SECONDS: Final = 120.0
ACTOR: Final = "archive"
PARTS: Final = ("memory_usage", "memory_archive", "memory_versions", "memory_sources", "memory_links")


class Box(BaseModel, frozen=True):
    """What lies in the store of one user: the manifest of one object, whose name is its own; `key` None: not encrypted.

    Sizes in bytes, sha256 of what is stored.
    """

    format: Literal[1] = 1
    name: str
    tenant_id: UUID
    subject_id: UUID
    made_at: AwareDatetime
    memories: int
    stored_bytes: int
    sha256: str
    key: str | None

    @classmethod
    def read(cls, depot: Depot, name: str, keys: Sequence[bytes]) -> Self:
        """Raises VerificationFailed when it is missing, damaged or made with another key."""
        damaged = VerificationFailed("damaged", f"the manifest of {name} is damaged")
        try:
            stored = orjson.loads(depot.read_bytes(f"{name}/{MANIFEST}"))
            document, signed = stored["manifest"].encode(), stored["signature"]
            box = cls.model_validate_json(document)
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
            raise damaged from None
        key = None if box.key is None else key_named(keys, box.key)
        if signature(key, document) != signed or box.name != name:
            raise damaged
        return box


@dataclass(frozen=True, slots=True)
class Archive:
    """The store of archived memories; calls raise StartupRefused when it does not answer."""

    depot: Depot
    keys: Sequence[bytes]

    @staticmethod
    def open(config: BackupConfig, data_dir: Path) -> "Archive":
        """The archive that the settings name. Raises StartupRefused."""
        place = config.model_copy(update={"store": config.archive_store or str(data_dir / "archive")})
        return Archive(Depot.open(place, data_dir), load_keys(config))

    async def boxes(self) -> list[Box]:
        """What is in the store, oldest first. Raises VerificationFailed for the first that is not as it was written."""
        return await asyncio.to_thread(self._boxes)

    async def export(
        self, database: Database, tenant_id: UUID, *, before: datetime, now: datetime, dry_run: bool = False
    ) -> int:
        """Move what was archived before a moment and is under no legal hold to the store; returns how many memories."""
        await self.prune(database, tenant_id, now=now, dry_run=dry_run)
        moved = 0
        async for subject_id, rows in self._due(database, tenant_id, before):
            if dry_run:
                moved += len(rows)
                continue
            documents = [row["document"] for row in rows]
            box = await asyncio.to_thread(self._put, tenant_id, subject_id, documents, now)
            moved += await self._take_out(database, box, rows, now)
        return moved

    async def restore(self, database: Database, name: str, *, now: datetime) -> int:
        """Put the memories of an object back among the archived ones of now, for a new grace time; returns how many.

        `:restore` makes one active, and the worker its vector. What is there already stays as it is. Raises
        VerificationFailed, and Conflict for a user who was erased.
        """
        box, documents = await asyncio.to_thread(self._take, name)
        lines = [orjson.loads(document) for document in documents]
        user_id = lines[0]["user_id"] if lines else None
        async with database.write(box.tenant_id, subject_lock(box.tenant_id, user_id)) as transaction:
            await transaction.allow(SECONDS)
            names = {"tenant_id": box.tenant_id, "subject_id": box.subject_id}
            if await transaction.fetch_value(_ERASED, **names):
                raise Conflict("this user was erased")
            await transaction.execute(_SUBJECT, **names, user_id=user_id, now=now)
            place = await transaction.fetch_value(_PLACE, tenant_id=box.tenant_id, user_id=user_id)
            return await _bring(transaction, lines, place, box, now)

    async def prune(self, database: Database, tenant_id: UUID, *, now: datetime, dry_run: bool = False) -> int:
        """Remove from the store what is of users who were erased, and note that it was; returns how many objects."""
        async with database.read(tenant_id) as transaction:
            erased = {row["subject_id"] for row in await transaction.fetch(_ERASURES, tenant_id=tenant_id)}
        known = await asyncio.to_thread(self.depot.backups)
        names = [name for name in known if (whose := _whose(name)) and whose[0] == tenant_id and whose[1] in erased]
        if not dry_run:
            for name in names:
                await asyncio.to_thread(self.depot.delete, name)
            async with database.write(tenant_id) as transaction:
                await transaction.execute(_CLEARED, tenant_id=tenant_id, subjects=list(erased), now=now)
            if names:
                telemetry.log().info("erased_archives_removed", tenant_id=str(tenant_id), objects=len(names))
        return len(names)

    async def _due(
        self, database: Database, tenant_id: UUID, before: datetime
    ) -> AsyncIterator[tuple[UUID, Sequence[Any]]]:
        after = UUID(int=0)
        while True:
            async with database.read(tenant_id) as transaction:
                subject_id = await transaction.fetch_value(
                    _NEXT_SUBJECT, tenant_id=tenant_id, before=before, after=after
                )
            if subject_id is None:
                return
            last = UUID(int=0)
            while True:
                async with database.read(tenant_id) as transaction:
                    await transaction.allow(SECONDS)
                    rows = await transaction.fetch(
                        _DUE, tenant_id=tenant_id, subject_id=subject_id, before=before, after=last, limit=MOST_MEMORIES
                    )
                if rows:
                    yield subject_id, rows
                if len(rows) < MOST_MEMORIES:
                    break
                last = rows[-1]["memory_id"]
            after = subject_id

    def _put(self, tenant_id: UUID, subject_id: UUID, documents: Sequence[str], now: datetime) -> Box:
        """Store lines, read them back, and only then say so in a manifest."""
        name = f"{tenant_id}.{subject_id}.{uuid7()}"
        key = self.keys[0] if self.keys else None
        packed = gzip.compress("".join(f"{document}\n" for document in documents).encode(), mtime=0)
        stored = packed if key is None else b"".join(seal([packed], key, name))
        self.depot.write(f"{name}/{LINES}", [stored], len(stored))
        box = Box(
            name=name, tenant_id=tenant_id, subject_id=subject_id, made_at=now, memories=len(documents),
            stored_bytes=len(stored), sha256=sha256(stored).hexdigest(), key=None if key is None else key_id(key),
        )  # fmt: skip
        if self._lines(box) != list(documents):
            raise VerificationFailed("damaged", f"{name} is not as it was written")
        document = orjson.dumps(box.model_dump(mode="json"))
        signed = {"manifest": document.decode(), "signature": signature(key, document)}
        self.depot.write_bytes(f"{name}/{MANIFEST}", orjson.dumps(signed))
        return box

    def _take(self, name: str) -> tuple[Box, list[str]]:
        box = Box.read(self.depot, name, self.keys)
        return box, self._lines(box)

    def _lines(self, box: Box) -> list[str]:
        stored = b"".join(self.depot.read(f"{box.name}/{LINES}"))
        if len(stored) != box.stored_bytes or sha256(stored).hexdigest() != box.sha256:
            raise VerificationFailed("damaged", f"{box.name} is not as it was written")
        packed = stored
        if box.key is not None:
            packed = b"".join(unseal([stored], key_named(self.keys, box.key), box.name))
        lines = gzip.decompress(packed).decode().split("\n")[:-1]  # not splitlines: a text may hold other ends of lines
        if len(lines) != box.memories:
            raise VerificationFailed("damaged", f"{box.name} holds {len(lines)} memories, not {box.memories}")
        return lines

    def _boxes(self) -> list[Box]:
        found = [Box.read(self.depot, name, self.keys) for name in self.depot.backups() if _whose(name) is not None]
        return sorted(found, key=lambda box: box.name.rpartition(".")[2])

    async def _take_out(
        self, database: Database, box: Box, rows: Sequence[Any], now: datetime
    ) -> int:  # fmt: skip
        """Delete what is in the store and was not touched since it was read; of who was erased meanwhile, the object.

        An erasure that ends after this was looked at finds the object in the store.
        """
        async with database.write(box.tenant_id) as transaction:
            await transaction.allow(SECONDS)
            done = await transaction.execute(
                _TAKE_OUT, tenant_id=box.tenant_id, subject_id=box.subject_id,
                memories=[row["memory_id"] for row in rows], versions=[row["version"] for row in rows],
                events=[uuid7() for _ in rows], name=box.name, actor=ACTOR, now=now,
            )  # fmt: skip
            erased = await transaction.fetch_value(_ERASED, tenant_id=box.tenant_id, subject_id=box.subject_id)
        if erased:
            await asyncio.to_thread(self.depot.delete, box.name)
        telemetry.log().info("memories_exported", tenant_id=str(box.tenant_id), memories=done, to=box.name)
        return done


async def clear_erased(database: Database, config: BackupConfig, data_dir: Path, *, now: datetime) -> int:
    """Remove from the store what is of users who were erased since this was done last; returns how many objects.

    Raises StartupRefused when the store does not answer: then it is still to be done.
    """
    async with database.work() as transaction:
        tenants = [row["tenant_id"] for row in await transaction.fetch(_OPEN)]
    if not tenants:
        return 0  # and the store is not asked
    archive = await asyncio.to_thread(Archive.open, config, data_dir)
    return sum([await archive.prune(database, tenant_id, now=now) for tenant_id in tenants])


def _whose(name: str) -> tuple[UUID, UUID] | None:
    """Tenant and subject of an object's name; None: not one of ours."""
    try:
        tenant_id, subject_id, _ = map(UUID, name.split("."))
    except ValueError:
        return None
    return tenant_id, subject_id


async def _bring(
    transaction: Transaction, lines: Sequence[Mapping[str, Any]], place: UUID, box: Box, now: datetime
) -> int:
    there = await transaction.fetch(_THERE, tenant_id=box.tenant_id, memories=[line["memory_id"] for line in lines])
    known = {str(row["memory_id"]) for row in there}
    lines = [line for line in lines if line["memory_id"] not in known]
    for table in ("memories", *PARTS):
        rows = [row for line in lines for row in line[table]]
        if table == "memory_archive":
            rows = [row | {"archived_at": now.isoformat()} for row in rows]
        if table == "memory_links":
            ids = [row["other_id"] for row in rows]
            found = await transaction.fetch(_THERE, tenant_id=box.tenant_id, memories=ids)
            others = {str(row["memory_id"]) for row in found}
            rows = [row for row in rows if row["other_id"] in others]
        await transaction.execute(add_of_subject(table), rows=orjson.dumps(rows).decode(), subject_id=place)
    await transaction.execute(
        _NOTE, tenant_id=box.tenant_id, subject_id=place, memories=[line["memory_id"] for line in lines],
        events=[uuid7() for _ in lines], name=box.name, actor=ACTOR, now=now,
    )  # fmt: skip
    return len(lines)


# As if it were cold: vector and keywords are made anew when it is active again.
_BARE: Final = {
    "embedding": "NULL", "generation_id": "NULL", "window_count": "1",
    "other_embedding": "NULL", "other_generation_id": "NULL", "other_window_count": "1",
    "signs": "NULL", "signs_generation_id": "NULL", "cooled_by": "coalesce(m.cooled_by, m.memory_id)",
    "keywords": "'{}/1000000000'::sparsevec", "ann": "false",
}  # fmt: skip
_MEMORY: Final = ", ".join(f"'{name}', {_BARE.get(name, f'm.{name}')}" for name in columns_of("memories"))
_ALL_PARTS: Final = ", ".join(
    f"""'{table}', (
        SELECT coalesce(jsonb_agg(to_jsonb(t)), '[]') FROM {table} t
        WHERE t.tenant_id = m.tenant_id AND t.subject_id = m.subject_id AND t.memory_id = m.memory_id
    )"""
    for table in PARTS
)
_NOT_HELD: Final = """NOT EXISTS (
    SELECT FROM legal_holds h
    WHERE h.tenant_id = m.tenant_id AND h.subject_id = m.subject_id
      AND (h.memory_id IS NULL OR h.memory_id = m.memory_id)
)"""
_NEXT_SUBJECT = sql("""
    SELECT subject_id FROM memory_archive
    WHERE tenant_id = :tenant_id AND archived_at < :before AND subject_id > :after ORDER BY subject_id LIMIT 1
""")
_DUE = sql(f"""
    SELECT m.memory_id, m.version, cast(jsonb_build_object(
               'memory_id', m.memory_id, 'user_id', s.user_id,
               'memories', jsonb_build_array(jsonb_build_object({_MEMORY})), {_ALL_PARTS}
           ) AS text) AS document
    FROM memory_archive a
    JOIN memories m ON m.tenant_id = a.tenant_id AND m.subject_id = a.subject_id AND m.memory_id = a.memory_id
    JOIN subjects s ON s.tenant_id = a.tenant_id AND s.subject_id = a.subject_id
    WHERE a.tenant_id = :tenant_id AND a.subject_id = :subject_id AND a.archived_at < :before AND a.memory_id > :after
      AND m.status = 'archived' AND {_NOT_HELD}
    ORDER BY m.memory_id LIMIT :limit
""")
_TAKE_OUT = sql(f"""
    WITH gone AS (
        DELETE FROM memories m
        USING unnest(cast(:memories AS uuid[]), cast(:versions AS int[]), cast(:events AS uuid[]))
              AS item (memory_id, version, event_id)
        WHERE m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = item.memory_id
          AND m.version = item.version AND m.status = 'archived' AND {_NOT_HELD}
        RETURNING m.memory_id, m.version, item.event_id
    )
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT :tenant_id, :subject_id, event_id, memory_id, 'exported', :actor, version,
           jsonb_build_object('to', cast(:name AS text)), :now
    FROM gone
""")
_ERASED = sql("SELECT EXISTS (SELECT FROM erasures WHERE tenant_id = :tenant_id AND subject_id = :subject_id)")
_ERASURES = sql("SELECT DISTINCT subject_id FROM erasures WHERE tenant_id = :tenant_id")
_OPEN = sql("SELECT DISTINCT tenant_id FROM erasures WHERE cleared_at IS NULL ORDER BY tenant_id")
_CLEARED = sql("""
    UPDATE erasures SET cleared_at = :now
    WHERE tenant_id = :tenant_id AND subject_id = ANY (cast(:subjects AS uuid[])) AND cleared_at IS NULL
""")
_SUBJECT = sql("""
    INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
    VALUES (:tenant_id, :subject_id, :user_id, :now) ON CONFLICT DO NOTHING
""")
_PLACE = sql("""
    SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id IS NOT DISTINCT FROM cast(:user_id AS text)
""")
_THERE = sql("""
    SELECT memory_id FROM memories WHERE tenant_id = :tenant_id AND memory_id = ANY (cast(:memories AS uuid[]))
""")
_NOTE = sql("""
    INSERT INTO memory_events (tenant_id, subject_id, event_id, memory_id, action, actor, version, detail, created_at)
    SELECT m.tenant_id, m.subject_id, noted.event_id, m.memory_id, 'recovered', :actor, m.version,
           jsonb_build_object('from', cast(:name AS text)), :now
    FROM unnest(cast(:memories AS uuid[]), cast(:events AS uuid[])) AS noted (memory_id, event_id)
    JOIN memories m ON m.tenant_id = :tenant_id AND m.subject_id = :subject_id AND m.memory_id = noted.memory_id
""")
