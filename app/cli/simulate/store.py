"""One store that lives through the days: written to and searched as the service does it, with or without the jobs.

Invariant: no rule is here. What is written, found, forgotten and merged is decided by the use cases of the rooms and by
the workers' JOBS, which are handed the simulated moment.
"""

import importlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import SecretStr
from sqlalchemy import text

from app.api.deps import Services
from app.cli import schema
from app.cli.embedded import SUPERUSER, EmbeddedServer
from app.cli.simulate.lives import Day, Lives, Question
from app.connections import DatabaseConfig
from app.embed import EmbedConfig
from app.errand import Errand
from app.guard import DEFAULT_TENANT_ID, Caller
from app.idempotency import Answer
from app.main import open_services
from app.recall import Query, RecallConfig
from app.remember import NewMemory, Written
from app.settings import Settings

BATCH: Final = 100
TOP: Final = 10
OLD: Final = timedelta(days=90)
NIGHT_AFTER: Final = timedelta(hours=10)
"""The day's writes and questions are over; the jobs begin."""
BY_DAY: Final = ("large_subjects", "reinforce")
"""Jobs of every few minutes that work on memories, too: once a day is enough here."""
PATIENCE: Final = dict.fromkeys(
    ("statement_timeout_ms", "lock_timeout_ms", "idle_in_transaction_timeout_ms"), 600_000
) | dict.fromkeys(("pool_timeout_seconds", "connect_timeout_seconds"), 600)
"""Nobody waits for an answer, and a machine that is busy otherwise ends no year."""
CALLER: Final = Caller(DEFAULT_TENANT_ID, None, None, None, frozenset({"read", "write"}))


@dataclass(frozen=True, slots=True)
class Month:
    """What a month left in a store. Shares are of the month's questions (None: there were none), in [0, 1].

    `duplicates`: active memories that say of a fact what another active one says; `untrue`: those that say what is so
    no more. `found_old`: of facts that were told last more than 90 days before. `stale_5`: questions of which an answer
    of former times is among the first five. `bytes` are those of all tables and indexes. `jobs` says how many memories
    each job changed in the month.
    """

    month: int
    written: int
    active: int
    cold: int
    deprecated: int
    duplicate: int
    archived: int
    bytes: int
    duplicates: int
    untrue: int
    questions: int
    found_5: float | None
    found_10: float | None
    found_old: float | None
    stale_5: float | None
    p95_ms: float | None
    jobs: Mapping[str, int]


@dataclass(slots=True)
class _Asked:
    """The answers of a month: where the truth stood (None: nowhere), and where the first that is no longer true."""

    places: list[int | None] = field(default_factory=list)
    stale: list[int | None] = field(default_factory=list)
    old: list[bool] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)


def share_within(places: Sequence[int | None], most: int) -> float | None:
    """Share of the places among the first `most`; None if there is none to share."""
    return sum(place is not None and place < most for place in places) / len(places) if places else None


@dataclass(slots=True)
class Store:
    """A store with its services; `context`, of the workers, is there if the jobs run."""

    lives: Lives
    owner_url: str
    services: Services
    context: Any = None
    _asked: _Asked = field(default_factory=_Asked)
    _did: Counter[str] = field(default_factory=Counter)
    _written: int = 0
    _months: int = 0

    async def write(self, day: Day) -> None:
        """Store what is said on a day."""
        for start in range(0, len(day.writes), BATCH):
            await self._remember(day.writes[start : start + BATCH], day.at)
        self._written += len(day.writes)

    async def _remember(self, items: Sequence[NewMemory], at: datetime) -> None:
        def answer(_: list[Written]) -> Answer:
            return Answer(207, b"")

        await self.services.rememberer.remember(CALLER, items, answer, now=at)

    async def ask(self, question: Question, at: datetime) -> None:
        """Search as an agent would, and note where the truth stands among the hits."""
        query = Query(tenant_id=DEFAULT_TENANT_ID, user_id=question.user_id, text=question.text, top_k=TOP)
        began = time.perf_counter()
        recalled = await self.services.recaller.recall(query, now=at)
        self._asked.milliseconds.append(1000 * (time.perf_counter() - began))
        truth, place, stale = self.lives.truth(question.user_id, question.slot), None, None
        for number, hit in enumerate(recalled.hits):
            told = self.lives.meaning(question.user_id, hit.memory["content"])
            if told is not None and told[0] == question.slot:
                if told[1] == truth:
                    place = number if place is None else place
                else:
                    stale = number if stale is None else stale
        self._asked.places.append(place)
        self._asked.stale.append(stale)
        self._asked.old.append(at - question.told_at > OLD)

    async def end(self, day: Day) -> None:
        """Write down what was used, give vectors to what has none, and run the jobs of the night, if there are any."""
        at = day.at + NIGHT_AFTER
        await self.services.recaller.usage.flush()
        if self.context is None:
            return
        filler = await self.context.filler()
        while await filler.fill_pending(now=at):  # the job `embed` reads the clock for each batch
            pass
        for job in _nightly():
            self._did[job.name] += await job.run(self.context, Errand(at, tell=lambda *_: None))

    async def measure(self) -> Month:
        """What the month that ends now left; the store is vacuumed first, as autovacuum has done by then."""
        self._months += 1
        async with schema.connection(self.owner_url) as connection:
            await connection.execute(text("VACUUM (ANALYZE)"))
            rows = (await connection.execute(_STATES)).all()
            states = {(row.status, row.cold): row.memories for row in rows}
            size = (await connection.execute(_BYTES)).scalar_one()
            told = Counter(
                (row.user_id, *meaning)
                for row in await connection.execute(_FACTS)
                if (meaning := self.lives.meaning(row.user_id, row.content)) is not None
            )
        asked, self._asked = self._asked, _Asked()
        did, self._did = self._did, Counter()
        old = [place for place, is_old in zip(asked.places, asked.old, strict=True) if is_old]
        cold = states.get(("active", True), 0)
        return Month(
            month=self._months,
            written=self._written,
            active=states.get(("active", False), 0) + cold,
            cold=cold,
            deprecated=states.get(("deprecated", False), 0) + states.get(("deprecated", True), 0),
            duplicate=states.get(("duplicate", False), 0) + states.get(("duplicate", True), 0),
            archived=states.get(("archived", False), 0) + states.get(("archived", True), 0),
            bytes=int(size),
            duplicates=sum(told.values()) - len(told),
            untrue=sum(count for (user, slot, value), count in told.items() if value != self.lives.truth(user, slot)),
            questions=len(asked.places),
            found_5=share_within(asked.places, 5),
            found_10=share_within(asked.places, TOP),
            found_old=share_within(old, TOP),
            stale_5=share_within(asked.stale, 5),
            p95_ms=float(np.percentile(asked.milliseconds, 95)) if asked.milliseconds else None,
            jobs=dict(did),
        )


@asynccontextmanager
async def opened(
    server: EmbeddedServer, name: str, data_dir: Path, lives: Lives, *, jobs: bool
) -> AsyncIterator[Store]:
    """A store in a fresh database of `server`, on services with a hashing embedder and otherwise default settings.

    No subject is held in memory: a year's searches within minutes would hold more than a service ever does.
    """
    # Nothing is at stake here but the figures of searches, which no commit waits for.
    async with schema.connection(server.url(SUPERUSER, name)) as connection:
        await connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    # Not read from the environment: a run must neither reach another database or model nor follow other rules.
    settings = Settings.model_construct(
        data_dir=data_dir,
        database=DatabaseConfig(url=SecretStr(server.url(schema.LOGIN_ROLE, name)), **PATIENCE),
        embed=EmbedConfig(provider="hashing"),
        recall=RecallConfig(resident_mb=0, usage_flush_seconds=1e6),  # written at the end of each day
    )
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(open_services(settings))
        context = None
        if jobs:
            context = importlib.import_module("workers.context").Context(settings, services.database)
            stack.push_async_callback(context.close)
        yield Store(lives, server.url(SUPERUSER, name), services, context)


def _nightly() -> list[Any]:
    """The jobs that work on memories, in the order of the night; by name: no room of the app imports the workers."""
    jobs = importlib.import_module("workers.jobs").JOBS
    return [job for job in jobs if job.by_tenant or job.name in BY_DAY]


_STATES: Final = text("""
    SELECT status, cooled_by IS NOT NULL AS cold, count(*) AS memories FROM memories GROUP BY 1, 2
""")
_BYTES: Final = text("""
    SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
""")
_FACTS: Final = text("""
    SELECT s.user_id, m.content FROM memories m JOIN subjects s USING (tenant_id, subject_id)
    WHERE m.status = 'active' AND m.kind IN ('profile', 'user_preference')
""")
