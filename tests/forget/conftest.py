"""A tenant whose memories are of any age: written straight into the tables, looked at there."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from app.database import Database, sql
from app.errand import Change, Errand
from app.forget import ForgetConfig, forget
from app.guard import Caller

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
CONFIG = ForgetConfig()


def days_ago(days: float) -> datetime:
    return NOON - timedelta(days=days)


@dataclass(frozen=True, slots=True)
class Store:
    """The memories of one test's tenant."""

    database: Database
    tenant_id: UUID

    @property
    def caller(self) -> Caller:
        return Caller(self.tenant_id, None, None, None, frozenset({"admin", "write", "delete", "read"}))

    async def add(self, user_id: str = "lin", **fields: Any) -> UUID:
        """A memory, by default one that was just written and that no rule points at."""
        memory_id = UUID(str(uuid7()))
        row: dict[str, Any] = {
            "status": "active", "content": f"text {memory_id}", "kind": "interaction_history", "importance": 3.0,
            "key": None, "tags": [], "metadata": {}, "pinned": False, "created_at": NOON, "updated_at": NOON,
            "expires_at": None, "deprecated_at": None, "access_count": 0, "last_accessed_at": None, "forget_at": None,
            "agent_id": None,
        }  # fmt: skip
        assert fields.keys() <= row.keys()
        async with self.database.write(self.tenant_id) as transaction:
            await transaction.execute(
                _ADD, tenant_id=self.tenant_id, user_id=user_id, new_id=UUID(str(uuid7())), memory_id=memory_id,
                **(row | fields),
            )  # fmt: skip
        return memory_id

    async def multiply(self, times: int) -> None:
        """So many more memories like each that the tenant has."""
        async with self.database.write(self.tenant_id) as transaction:
            await transaction.allow(60)
            await transaction.execute(_MULTIPLY, tenant=self.tenant_id, times=times)

    async def look(self, memory_id: UUID) -> dict[str, Any]:
        """Everything that the tables say of a memory; empty when it is gone."""
        async with self.database.read(self.tenant_id) as transaction:
            row = await transaction.fetch_row(_LOOK, tenant_id=self.tenant_id, memory_id=memory_id)
        return {} if row is None else dict(row)

    async def events(self, memory_id: UUID) -> list[tuple[str, dict[str, Any]]]:
        async with self.database.read(self.tenant_id) as transaction:
            rows = await transaction.fetch(_EVENTS, tenant_id=self.tenant_id, memory_id=memory_id)
        return [(row["action"], row["detail"]) for row in rows]

    def errand(self, *, now: datetime = NOON, dry_run: bool = False) -> tuple[Errand, list[Change]]:
        """A run of this tenant only, and the list of what it will tell."""
        told: list[Change] = []
        errand = Errand(now, tenant_id=self.tenant_id, dry_run=dry_run, tell=lambda _, change: told.append(change))
        return errand, told

    async def sweep(self, *, now: datetime = NOON, dry_run: bool = False) -> dict[UUID, str]:
        """One run of forgetting: the rule by memory."""
        errand, told = self.errand(now=now, dry_run=dry_run)
        assert await forget(self.database, CONFIG, errand) == len(told)
        return {change.memory_id: change.rule for change in told}


@pytest.fixture
def store(database: Database, tenant: UUID) -> Store:
    return Store(database, tenant)


_ADD = sql("""
    WITH whose AS (
        SELECT subject_id FROM subjects WHERE tenant_id = :tenant_id AND user_id = :user_id
    ), made AS (
        INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
        SELECT :tenant_id, :new_id, :user_id, :created_at WHERE NOT EXISTS (SELECT FROM whose)
        RETURNING subject_id
    ), added AS (
        INSERT INTO memories (
            tenant_id, subject_id, memory_id, agent_id, status, content, content_type, kind, key, importance, tags,
            metadata, pinned, version, created_at, updated_at, expires_at, deprecated_at, content_hash, keywords,
            word_count, tokenizer_version
        )
        SELECT :tenant_id, subject_id, :memory_id, :agent_id, :status, :content, 'text', :kind, :key, :importance,
               :tags, :metadata, :pinned, 1, :created_at, :updated_at, :expires_at, :deprecated_at,
               uuid_send(:memory_id), '{}/1000000000', 0, 1
        FROM (SELECT * FROM whose UNION ALL SELECT * FROM made) AS s
        RETURNING subject_id
    )
    INSERT INTO memory_usage (
        tenant_id, subject_id, memory_id, access_count, hit_streak, last_accessed_at, forget_at
    )
    SELECT :tenant_id, subject_id, :memory_id, :access_count, 0, :last_accessed_at, :forget_at FROM added
""")
_MULTIPLY = sql("""
    WITH more AS (
        INSERT INTO memories (
            tenant_id, subject_id, memory_id, status, content, content_type, kind, importance, tags, metadata, pinned,
            version, created_at, updated_at, content_hash, keywords, word_count, tokenizer_version
        )
        SELECT tenant_id, subject_id, gen_random_uuid(), status, content, content_type, kind, importance, tags,
               metadata, pinned, version, created_at, updated_at, uuid_send(gen_random_uuid()), keywords, word_count,
               tokenizer_version
        FROM memories, generate_series(1, cast(:times AS int)) WHERE tenant_id = :tenant
        RETURNING tenant_id, subject_id, memory_id
    )
    INSERT INTO memory_usage (tenant_id, subject_id, memory_id, access_count, hit_streak)
    SELECT tenant_id, subject_id, memory_id, 0, 0 FROM more
""")
_LOOK = sql("""
    SELECT m.status, m.importance, m.version, m.updated_at, m.deprecated_at, m.expires_at, u.forget_at, u.hit_streak,
           u.gained, u.access_count, a.rule, a.was, a.run_id, a.archived_at
    FROM memories m
    JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
    LEFT JOIN memory_archive a ON a.tenant_id = m.tenant_id AND a.subject_id = m.subject_id
         AND a.memory_id = m.memory_id
    WHERE m.tenant_id = :tenant_id AND m.memory_id = :memory_id
""")
_EVENTS = sql("""
    SELECT action, detail FROM memory_events WHERE tenant_id = :tenant_id AND memory_id = :memory_id
    ORDER BY created_at, event_id
""")
