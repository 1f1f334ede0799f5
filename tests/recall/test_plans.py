"""Query plans: the very statements of the service read the indexes that they should, under row-level security.

One small subject among two hundred, one large subject with index and postings; each plan with the values of a request,
and generic: prepared statements turn generic after a few runs, and those of writes always are.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pydantic import SecretStr

from app.cli import embedded, schema
from app.clock import now
from app.connections import DatabaseConfig
from app.database import Database, Statement, Transaction, sql
from app.embed import Generation, ModelSpec, claim_generation
from app.guard import DEFAULT_TENANT_ID
from app.indexes import ann_index, part_of
from app.language import keyword_query
from app.recall import (
    Filters,
    Query,
    RecallConfig,
    TimeDecay,
    candidates,
    hydrate,
    large,
    narrow,
    proposals,
    tend_large_subjects,
    why_not,
)
from app.remember import neighbours, shelf
from app.remember.columns import lone
from app.wire import halfvec
from tests.conftest import TEMPLATE, administer

DIMENSION, SUBJECTS, ROWS_EACH, ROWS_LARGE = 64, 200, 100, 3_000
SPEC = ModelSpec("random", "1", DIMENSION, "", "", 512, (0.0, 1.0), (0.0, 1.0))
NOW = now()
FILL = f"""
    INSERT INTO subjects (tenant_id, subject_id, user_id, created_at)
    SELECT tenant_id, gen_random_uuid(), CASE WHEN n = 0 THEN 'large' ELSE 'user-' || n END, now()
    FROM tenants, generate_series(0, {SUBJECTS}) AS n;
    INSERT INTO memories (
        tenant_id, subject_id, memory_id, status, content, content_type, kind, importance, tags, metadata, pinned,
        version, created_at, updated_at, content_hash, keywords, word_count, tokenizer_version, embedding, generation_id
    )
    SELECT s.tenant_id, s.subject_id, gen_random_uuid(), 'active', 'word' || n % 300 || ' 发票 case-' || n, 'text',
           'profile', 3, ARRAY['t' || n % 50], '{{}}', false, 1, now() - n * interval '1 minute', now(),
           sha256((s.subject_id::text || n)::bytea), '{{1:1,2:1}}/1000000000', 4, 1, v.embedding, 1
    FROM subjects s
    CROSS JOIN LATERAL generate_series(1, CASE WHEN s.user_id = 'large' THEN {ROWS_LARGE} ELSE {ROWS_EACH} END) AS n
    CROSS JOIN LATERAL (
        SELECT array_agg(random() - 0.5)::real[]::halfvec AS embedding FROM generate_series(1, {DIMENSION} + n * 0)
    ) AS v;
    INSERT INTO memory_usage (tenant_id, subject_id, memory_id, access_count, hit_streak)
    SELECT tenant_id, subject_id, memory_id, 0, 0 FROM memories;
    INSERT INTO memory_windows (tenant_id, subject_id, memory_id, window_number, embedding)
    SELECT tenant_id, subject_id, memory_id, 2, embedding FROM memories WHERE right(memory_id::text, 1) = '0';
    INSERT INTO memory_versions (tenant_id, subject_id, memory_id, version, snapshot, replaced_at)
    SELECT tenant_id, subject_id, memory_id, 1, '{{}}', now() FROM memories WHERE right(memory_id::text, 1) = '1'
"""


@dataclass(frozen=True, slots=True)
class Store:
    """A database with many memories, the generation of their vectors, and the URL of its owner."""

    database: Database
    generation: Generation
    owner_url: str


@pytest.fixture(scope="module")
async def store(cluster: embedded.EmbeddedServer) -> AsyncIterator[Store]:
    """A database of this module: its rows and statistics are nobody else's."""
    name = f"mneme_plans_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    superuser, owner = cluster.url(embedded.SUPERUSER, "postgres"), cluster.url(embedded.SUPERUSER, name)
    await asyncio.to_thread(administer, superuser, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    url = SecretStr(cluster.url(schema.LOGIN_ROLE, name))
    database = await Database.connect(DatabaseConfig(url=url))
    generation = await claim_generation(database, SPEC, 1, NOW)
    await asyncio.to_thread(administer, owner, *FILL.split(";"))
    await tend_large_subjects(database, RecallConfig(exact_scan_rows=1_000), now=NOW)
    await asyncio.to_thread(administer, owner, "ANALYZE")
    yield Store(database, generation, owner)
    await database.close()
    await asyncio.to_thread(administer, superuser, f"DROP DATABASE {name} WITH (FORCE)")


async def plan(transaction: Transaction, statement: Statement, values: dict[str, Any], *, generic: bool) -> str:
    if generic:
        await transaction.execute(sql("SET LOCAL plan_cache_mode = force_generic_plan"))
        await transaction.execute(sql(f"PREPARE explained AS {statement.sql}"))
        nulls = f"({', '.join(['NULL'] * len(statement.names))})" if statement.names else ""
        lines = await transaction.fetch(sql(f"EXPLAIN EXECUTE explained {nulls}"))
        await transaction.execute(sql("DEALLOCATE explained"))
    else:
        explain = sql(f"EXPLAIN {statement.sql}")
        explain.names = statement.names
        lines = await transaction.fetch(explain, **values)
    return "\n".join(line[0] for line in lines)


VECTOR = np.ones(DIMENSION, dtype=np.float32) / np.sqrt(DIMENSION, dtype=np.float32)
ASKED = candidates.Asked(keyword_query("发票 word7 case-42"), VECTOR, (), VECTOR)
SUBJECT = sql("SELECT subject_id FROM subjects WHERE user_id = :user_id")
SOME = sql("SELECT memory_id FROM memories WHERE subject_id = :subject_id LIMIT 30")
# Asked also of what is not large.
EVERYWHERE = {"small", "marked", "walls", "hydrate", "hydrate with vectors", "as of"}
SEQUENTIAL = re.compile(r"Seq Scan on (memories|memory_\w+|term_statistics|subjects)\b")


PLAIN = Query(tenant_id=DEFAULT_TENANT_ID, user_id="user-5", text="")
RICH = replace(
    PLAIN, agent_id="a1", as_of=NOW, filters=Filters(tags_any=("t1",), kinds=("profile",), metadata={"n": 1}),
    time_decay=TimeDecay(0.01, "accessed"), max_share_per_source=0.5,
)  # fmt: skip


def parts(walk: proposals.Walk) -> tuple[str, ...]:
    return tuple(f"using {ann_index(1, part)} on memories m" for part in walk.parts)


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("query", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("user_id", ["user-5", "large"])
async def test_a_search(store: Store, user_id: str, query: Query, generic: bool) -> None:
    query = replace(query, user_id=user_id)
    shape = candidates.shape_of(query, ASKED, store.generation.generation_id)
    async with store.database.read(DEFAULT_TENANT_ID) as transaction:
        subject_id = await transaction.fetch_value(SUBJECT, user_id=user_id)
    walk, past = proposals.Walk((part_of(subject_id),)), query.as_of is not None
    near, terms = (*parts(walk), "memory_terms_pkey"), ("memory_windows_pkey", "term_statistics_pkey")
    two = proposals.Walk((2, 5))
    wanted = {
        "small": (candidates._select(shape), ("memories_warm_idx on memories m", "memory_windows_pkey")),
        "large": (proposals.proposals(shape, DIMENSION, True, 1, walk), (*near, *terms)),
        "large beside small": (proposals.proposals(shape, DIMENSION, False, 1, walk), (*near, *terms)),
        "large, nearest": (proposals.nearest(shape, DIMENSION, 1, walk), near[:1]),
        "large, beside nearest": (proposals.beside_nearest(shape, True, 1, 1), (near[1], *terms)),
        "large, beside nearest and small": (proposals.beside_nearest(shape, False, 1, 2), (near[1], *terms)),
        "large in two parts": (proposals.proposals(shape, DIMENSION, True, 1, two), (*parts(two), *terms)),
        "large, read": (
            proposals.proposals(shape, DIMENSION, True, 1, proposals.Read()),
            ("memories_warm_idx on memories m", "(memory_id = ANY ((InitPlan", near[-1], *terms),
        ),
        "large, read by facets": (
            proposals.proposals(shape, DIMENSION, True, 1, proposals.Read("facets")),
            ("memory_facets_pkey on memory_facets f", "(memory_id = ANY ((InitPlan", near[-1], *terms),
        ),
        "passing": (proposals.passing(shape), ("memories_pkey on memories m",)),
        "probe": (proposals.probed(shape, DIMENSION, walk.parts), near[:1]),
        "whole": (proposals.whole(shape, True, None), ("memories_warm_idx on memories m", terms[1])),
        "by facets": (
            proposals.whole(shape, True, "facets"),
            ("memory_facets_pkey on memory_facets f", "(memory_id = ANY ((InitPlan"),
        ),
        "marked": (large._LARGE, ("subjects_large_idx",)),
        "walls": (why_not._walls(shape), ()),
        "hydrate": (hydrate._HYDRATE[False, past, False], ("memory_usage_pkey",)),
        "hydrate with vectors": (hydrate._HYDRATE[False, past, True], ("memory_usage_pkey",)),
        "as of": (hydrate._AS_OF, ("memory_versions_pkey",)),
    }
    async with store.database.read(DEFAULT_TENANT_ID, ordered=True) as transaction:
        assert await transaction.fetch_value(sql("SELECT current_user")) == "mneme_app"
        ids = [row["memory_id"] for row in await transaction.fetch(SOME, subject_id=subject_id)]
        words = ASKED.keywords.word_ids
        values = candidates.parameters(query, ASKED, now=NOW) | {
            "ids": ids[:10], "generation_id": 1, "large": [subject_id],
            "small_shared": [DEFAULT_TENANT_ID], "word_ids": words,
            "term_ids": [*words, *ASKED.keywords.gram_ids], "memories": float(ROWS_LARGE), "facets": [1],
            "looks": "100",
        }  # fmt: skip
        for name, (statement, indexes) in wanted.items():
            if user_id != "large" and name not in EVERYWHERE:
                continue  # is never asked this
            found = await plan(transaction, statement, values, generic=generic)
            assert all(index in found for index in indexes), (name, found)
            assert not SEQUENTIAL.search(found), (name, found)


@pytest.mark.parametrize(
    "query", [PLAIN, RICH, replace(PLAIN, as_of=NOW), replace(PLAIN, filters=Filters(created_to=NOW))]
)
async def test_among_many_small_subjects_no_large_one_is_read_whole_for_a_few_ids(store: Store, query: Query) -> None:
    shape = candidates.shape_of(query, ASKED, store.generation.generation_id)
    walk = proposals.Walk((1,))
    said = {("memories", "subject_id"): 10_000, ("memory_terms", "term_id"): 3}
    changed = [f"ALTER TABLE {table} ALTER COLUMN {column} {{}}" for table, column in said]
    try:
        known = [one.format(f"SET (n_distinct = {n})") for one, n in zip(changed, said.values(), strict=True)]
        await asyncio.to_thread(administer, store.owner_url, *known, "ANALYZE memories, memory_terms")
        async with store.database.read(DEFAULT_TENANT_ID, ordered=True) as transaction:
            for statement in (
                proposals.proposals(shape, DIMENSION, True, 1, walk),
                proposals.proposals(shape, DIMENSION, True, 1, proposals.Read()),
                *([proposals.beside_nearest(shape, True, 1, 1)] if query == PLAIN else ()),  # never asked of others
                hydrate._HYDRATE[False, query.as_of is not None, True],
            ):
                found = await plan(transaction, statement, {}, generic=True)
                assert "memories_id_idx on memories m" in found, found
                assert not re.search(r"(Join )?Filter: .*\b(ranked\.memory_id = m_\d|memory_id = ANY)", found), found
    finally:
        forgotten = [one.format("RESET (n_distinct)") for one in changed]
        await asyncio.to_thread(administer, store.owner_url, *forgotten, "ANALYZE memories, memory_terms")


BY_INDEX: dict[narrow.Index, tuple[Filters, str]] = {
    "facets": (Filters(tags_any=("t1",), tags_all=("t1",), kinds=("profile",), content_types=("image",),
                       metadata={"channel": "chat"}), "memory_facets_pkey on memory_facets f"),
    "created": (Filters(created_from=NOW, created_to=NOW), "memories_created_idx on memories m"),
    "event": (Filters(event_to=NOW), "memories_event_idx on memories m"),
    "session": (Filters(session_id="s1"), "memories_session_idx on memories m"),
}  # fmt: skip


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("index", BY_INDEX)
async def test_a_selective_filter(store: Store, index: narrow.Index, generic: bool) -> None:
    filters, wanted = BY_INDEX[index]
    query = replace(PLAIN, user_id="large", filters=filters)
    shape = candidates.shape_of(query, ASKED, store.generation.generation_id)
    async with store.database.read(DEFAULT_TENANT_ID, ordered=True) as transaction:
        subject_id = await transaction.fetch_value(SUBJECT, user_id="large")
        values = candidates.parameters(query, ASKED, now=NOW) | {
            "large": [subject_id], "small_shared": [DEFAULT_TENANT_ID], "facets": [1], "memories": 1.0,
            "word_ids": [1], "term_ids": [1],
        }  # fmt: skip
        read = proposals.proposals(shape, DIMENSION, True, 1, proposals.Read(index))
        for statement in (narrow._narrowest(shape), proposals.whole(shape, True, index), read):
            found = await plan(transaction, statement, values, generic=generic)
            assert wanted in found, found
            assert not SEQUENTIAL.search(found), found


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("user_id", ["user-5", "large"])
async def test_the_verdict_on_a_write(store: Store, user_id: str, generic: bool) -> None:
    values = {
        "tenant_id": DEFAULT_TENANT_ID, "users": [user_id], "agents": [None], "hashes": [b"x"],
        "keys": ["slot"], "embeddings": [halfvec(VECTOR)], "distances": [0.1],
    }  # fmt: skip
    async with store.database.write(DEFAULT_TENANT_ID) as transaction:
        found = await plan(transaction, neighbours._near(1, alone=False), values, generic=generic)
        one = lone(values, neighbours._ITEM.parameters)
        alone = await plan(transaction, neighbours._near(1, alone=True), one, generic=generic)
        subject_id = await transaction.fetch_value(SUBJECT, user_id=user_id)
        part, values = part_of(subject_id), values | {"subjects": [subject_id]}
        by_index = await plan(transaction, neighbours._near_by_index(1, DIMENSION, part), values, generic=generic)
    for index in ("content_key", "slot_key", "warm_idx"):
        assert f"Index Scan using memories_{index} on memories" in found, found
        assert f"Index Scan using memories_{index} on memories" in alone, alone
    assert f"Index Scan using {ann_index(1, part)} on memories m" in by_index, by_index
    assert not SEQUENTIAL.search(found + alone + by_index), found


async def test_the_verdict_on_the_first_writes_of_a_store(cluster: embedded.EmbeddedServer) -> None:
    """Plans are made before there are statistics, and kept until there are some."""
    name = f"mneme_young_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    superuser = cluster.url(embedded.SUPERUSER, "postgres")
    await asyncio.to_thread(administer, superuser, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    database = await Database.connect(DatabaseConfig(url=SecretStr(cluster.url(schema.LOGIN_ROLE, name))))
    async with database.write(DEFAULT_TENANT_ID) as transaction:
        several, one = [
            await plan(transaction, neighbours._near(1, alone=alone), {}, generic=True) for alone in (False, True)
        ]
    await database.close()
    await asyncio.to_thread(administer, superuser, f"DROP DATABASE {name} WITH (FORCE)")
    for index in ("content_key", "slot_key"):
        assert f"using memories_{index} on memories" in several, several
        assert f"using memories_{index} on memories" in one, one


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("user_id", ["user-5", "large"])
async def test_the_shelf(store: Store, user_id: str, generic: bool) -> None:
    async with store.database.read(DEFAULT_TENANT_ID) as transaction:
        subject_id = await transaction.fetch_value(SUBJECT, user_id=user_id)
        one, *_ = await transaction.fetch(SOME, subject_id=subject_id)
        values = {
            "tenant_id": DEFAULT_TENANT_ID, "memory_id": one["memory_id"], "user_id": user_id, "status": "active",
            "limit": 50, "before": UUID(int=1 << 127),  # ids are random here: half of them come after it
        }  # fmt: skip
        by_id = await plan(transaction, shelf._BY_ID, values, generic=generic)
        assert "memories_id_idx on memories m" in by_id
        assert not SEQUENTIAL.search(by_id), by_id
        for names, index in (
            (("user_id",), "pkey"), (("user_id", "before"), "pkey"), ((), "id_idx"), (("before",), "id_idx"),
        ):  # fmt: skip
            statement = shelf._listing(tuple(shelf._CONDITIONS[name] for name in names))
            found = await plan(transaction, statement, values, generic=generic)
            assert f"Index Scan Backward using memories_{index} on memories m" in found, found
            assert "Sort" not in found, found
            assert not SEQUENTIAL.search(found), found
