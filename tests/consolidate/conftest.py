"""A tenant whose memories are of any age, written by the write path; and runs of consolidation over them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from app.consolidate import ConsolidateConfig, Tools
from app.database import Database, sql
from app.embed import EmbedConfig, Embedder, claim_generation, load_embedder
from app.errand import Change, Errand
from app.guard import Caller
from app.idempotency import Answer
from app.language import TOKENIZER_VERSION
from app.llm import LanguageModel, LlmConfig
from app.remember import NewMemory, RememberConfig, Rememberer, Shelf, Written
from app.runs import touched
from tests.embed.server import Endpoint, Script, serving

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
TOUCHED = ("memory_id", "rule", "reason", "before", "after", "other_id")
Job = Callable[[Tools, Errand], Awaitable[int]]


def days_ago(days: float) -> datetime:
    return NOON - timedelta(days=days)


@dataclass(slots=True)
class Store:
    """The memories of one test's tenant."""

    database: Database
    tenant_id: UUID
    rememberer: Rememberer
    asked_for: int = 0

    @property
    def caller(self) -> Caller:
        return Caller(self.tenant_id, None, None, None, frozenset({"admin", "write", "delete", "read"}))

    @property
    def shelf(self) -> Shelf:
        one = self.rememberer
        return Shelf(one.database, one.embedder, one.generation, one.config)

    async def add(self, content: str, *, at: datetime = NOON, user_id: str | None = "lin", **fields: Any) -> UUID:
        """A memory written at that moment."""
        written: list[Written] = []

        def answer(what: list[Written]) -> Answer:
            written.extend(what)
            return Answer(200, b"")

        new: dict[str, Any] = {"kind": "interaction_history", "importance": 3.0, "if_trivial": "keep"} | fields
        await self.rememberer.remember(
            self.caller, [NewMemory(user_id=user_id, content=content, **new)], answer, now=at
        )
        assert written[0].memory is not None
        return UUID(str(written[0].memory["id"]))

    async def link(self, one: UUID, relation: str, other: UUID) -> None:
        async with self.database.write(self.tenant_id) as transaction:
            await transaction.execute(_LINK, tenant=self.tenant_id, one=one, relation=relation, other=other, now=NOON)

    async def alter(self, memory_id: UUID, **columns: Any) -> None:
        """Change columns behind the back of every rule."""
        names = ", ".join(f"{name} = :{name}" for name in columns)
        async with self.database.write(self.tenant_id) as transaction:
            statement = sql(f"UPDATE memories SET {names} WHERE tenant_id = :tenant AND memory_id = :id")
            assert await transaction.execute(statement, tenant=self.tenant_id, id=memory_id, **columns) == 1

    async def look(self, memory_id: UUID) -> dict[str, Any]:
        async with self.database.read(self.tenant_id) as transaction:
            row = await transaction.fetch_row(_LOOK, tenant=self.tenant_id, id=memory_id)
        assert row is not None
        return dict(row)

    async def statuses(self, *memories: UUID) -> list[str]:
        return [(await self.look(memory_id))["status"] for memory_id in memories]

    async def touched(self, errand: Errand) -> list[tuple[UUID, str, str | None, str | None, str, UUID | None]]:
        """What a run says that it did to each memory: rule, reason, before, after, and the other one."""
        rows = await touched(self.database, self.tenant_id, errand.run_id)
        return [tuple(row[name] for name in TOUCHED) for row in rows]

    async def links(self) -> set[tuple[UUID, str, UUID]]:
        async with self.database.read(self.tenant_id) as transaction:
            rows = await transaction.fetch(_LINKS, tenant=self.tenant_id)
        return {(row["memory_id"], row["relation"], row["other_id"]) for row in rows}

    async def events(self, memory_id: UUID) -> list[str]:
        async with self.database.read(self.tenant_id) as transaction:
            rows = await transaction.fetch(_EVENTS, tenant=self.tenant_id, id=memory_id)
        return [row["action"] for row in rows]

    async def active(self, kind: str) -> list[dict[str, Any]]:
        async with self.database.read(self.tenant_id) as transaction:
            rows = await transaction.fetch(_ACTIVE, tenant=self.tenant_id, kind=kind)
        return [dict(row) for row in rows]

    async def run(
        self,
        job: Job,
        *,
        dry_run: bool = False,
        now: datetime = NOON,
        model: LanguageModel | None = None,
        **config: Any,
    ) -> tuple[Errand, list[tuple[UUID, str, str]]]:
        """One run: the errand, and what it told of each memory: id, before, after."""
        told: list[Change] = []
        errand = Errand(now, tenant_id=self.tenant_id, dry_run=dry_run, tell=lambda _, change: told.append(change))

        async def rememberer() -> Rememberer:
            self.asked_for += 1
            return self.rememberer

        done = await job(Tools(self.database, ConsolidateConfig(**config), rememberer, model), errand)
        assert done == len(told)
        return errand, [(change.memory_id, change.before, change.after) for change in told]


@pytest.fixture
async def store(database: Database, tenant: UUID, tmp_path: Path) -> AsyncIterator[Store]:
    embedder: Embedder = load_embedder(EmbedConfig(provider="hashing"), tmp_path)
    await embedder.start()
    generation = await claim_generation(database, embedder.spec, TOKENIZER_VERSION, NOON)
    yield Store(database, tenant, Rememberer(database, embedder, generation, RememberConfig()))
    await embedder.close()


def says(answer: str) -> Script:
    """A language model's answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
    return lambda _: (200, {}, {"choices": [choice]})


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr("app.endpoint.FIRST_WAIT_SECONDS", 0.001)
    with serving("/v1", says('{"answer": "second"}')) as endpoint:
        yield endpoint


async def _model(endpoint: Endpoint) -> AsyncIterator[LanguageModel]:
    model = LanguageModel(LlmConfig(url=endpoint.url, model="qwen", deadline_seconds=5))
    yield model
    await model.close()


model = pytest.fixture(_model)
fresh = pytest.fixture(_model)
"""The same once more, whose breaker has seen nothing."""


def unknown_run() -> UUID:
    return UUID(str(uuid7()))


_LINK = sql("""
    INSERT INTO memory_links (tenant_id, subject_id, memory_id, relation, other_id, created_at)
    SELECT tenant_id, subject_id, memory_id, cast(:relation AS text), cast(:other AS uuid), cast(:now AS timestamptz)
    FROM memories WHERE tenant_id = :tenant AND memory_id = :one
    ON CONFLICT DO NOTHING
""")
_LOOK = sql("""
    SELECT m.status, m.content, m.importance, m.version, m.deprecated_at, m.agent_id, m.kind, m.tags, m.metadata,
           m.event_at, m.embedding IS NOT NULL AS embedded, u.forget_at, u.access_count
    FROM memories m
    JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.subject_id = m.subject_id AND u.memory_id = m.memory_id
    WHERE m.tenant_id = :tenant AND m.memory_id = :id
""")
_LINKS = sql("SELECT memory_id, relation, other_id FROM memory_links WHERE tenant_id = :tenant")
_EVENTS = sql(
    "SELECT action FROM memory_events WHERE tenant_id = :tenant AND memory_id = :id ORDER BY created_at, action"
)
_ACTIVE = sql("""
    SELECT memory_id, content, agent_id, importance, tags, metadata, event_at, source, trust FROM memories
    WHERE tenant_id = :tenant AND kind = :kind AND status = 'active' ORDER BY memory_id
""")
