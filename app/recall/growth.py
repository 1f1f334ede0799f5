"""Tending large subjects: once one outgrows the exact scan, its rows enter the vector index and the postings.

Invariant: search uses index and postings of a subject only after every row of it is in them (`ann_ready`); from the
moment a subject is marked (`ann`, under its lock) each new row is put into them by the write itself.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from app.database import Database, sql, subject_lock
from app.language import keyword_vector, word_ids
from app.recall.query import RecallConfig

BATCH_ROWS = 500
BATCH_SECONDS = 60
REFRESH_SECONDS = 600
DRIFT = 0.01
"""How far a subject may grow or shrink before its statistics are counted again, which reads every posting of it."""
SAMPLE_ROWS = 4_000  # memories from which the frequencies of character grams are estimated


async def tend_large_subjects(database: Database, config: RecallConfig, *, now: datetime) -> dict[str, int]:
    """Mark subjects that outgrew config.exact_scan_rows, index their rows in batches and refresh their statistics.

    Safe in any number of processes and resumable after a kill at any moment. Returns counts by what was done.
    """
    counts: Counter[str] = Counter()
    async with database.work() as transaction:
        tenants = [row["tenant_id"] for row in await transaction.fetch(_TENANTS)]
    for tenant_id in tenants:
        async with database.read(tenant_id) as transaction:
            large = await transaction.fetch(_LARGE, tenant_id=tenant_id, most=config.exact_scan_rows)
        for subject in large:
            if not subject["ann"]:
                async with database.write(tenant_id, subject_lock(tenant_id, subject["user_id"])) as transaction:
                    await transaction.execute(_MARK, tenant_id=tenant_id, subject_id=subject["subject_id"])
                counts["marked"] += 1
            after: UUID | None = UUID(int=0)
            entered = 0
            while after is not None:
                after, indexed = await _index_batch(database, tenant_id, subject["subject_id"], after)
                entered += indexed
            counts["indexed"] += entered
            if not entered and subject["ann_ready"] and subject["drift"] <= DRIFT:
                continue
            counts["refreshed"] += await _refresh_statistics(database, tenant_id, subject, now)
    return dict(counts)


async def _index_batch(database: Database, tenant_id: UUID, subject_id: UUID, after: UUID) -> tuple[UUID | None, int]:
    """Put the next BATCH_ROWS rows into index and postings; returns the last id (None: end) and how many."""
    async with database.write(tenant_id) as transaction:
        await transaction.allow(BATCH_SECONDS)
        rows = await transaction.fetch(
            _UNINDEXED, tenant_id=tenant_id, subject_id=subject_id, after=after, limit=BATCH_ROWS
        )
        if rows:
            terms = [(row["memory_id"], term_id) for row in rows for term_id in word_ids(row["content"])]
            await transaction.execute(
                _INDEX,
                tenant_id=tenant_id,
                subject_id=subject_id,
                memories=[row["memory_id"] for row in rows],
                term_memories=[memory_id for memory_id, _ in terms],
                term_ids=[term_id for _, term_id in terms],
            )
    return (rows[-1]["memory_id"] if len(rows) == BATCH_ROWS else None), len(rows)


async def _refresh_statistics(database: Database, tenant_id: UUID, subject: Mapping[str, Any], now: datetime) -> bool:
    """Document frequencies: of words exactly, from the postings; of grams, which have none, from a sample.

    Returns whether they were counted: not those of an empty subject, nor while another process is at it.
    """
    names = {"tenant_id": tenant_id, "subject_id": subject["subject_id"]}
    async with database.read(tenant_id) as transaction:
        await transaction.allow(REFRESH_SECONDS)
        sample = await transaction.fetch(_SAMPLE, **names, rows=SAMPLE_ROWS)
        total = await transaction.fetch_row(_TOTALS, **names, now=now)
    if total is None or not total["memories"] or not sample:
        return False
    # Seconds of reckoning on a busy machine: beside the loop, and in no transaction, which would end as idle.
    grams = await asyncio.to_thread(_gram_frequencies, [row["content"] for row in sample])
    scale = total["memories"] / len(sample)
    async with database.write(tenant_id) as transaction:
        await transaction.allow(REFRESH_SECONDS)
        turn = subject_lock(tenant_id, f"statistics of {subject['subject_id']}")
        if not await transaction.fetch_value(_TAKE_TURN, turn=turn):
            return False
        await transaction.execute(_FORGET_STATISTICS, **names)
        await transaction.execute(_WORD_STATISTICS, **names)
        await transaction.execute(
            _GRAM_STATISTICS,
            **names,
            terms=list(grams),
            counts=[round(count * scale) for count in grams.values()],
        )
        await transaction.execute(
            _READY, **names, memory_count=total["memories"], mean_word_count=float(total["mean_word_count"])
        )
    return True


def _gram_frequencies(contents: Sequence[Any]) -> Counter[int]:
    frequencies: Counter[int] = Counter()
    for content in contents:
        frequencies.update(set(keyword_vector(content).ids) - set(word_ids(content)))
    return frequencies


_TENANTS = sql("SELECT tenant_id FROM tenants ORDER BY tenant_id")
_LARGE = sql("""
    SELECT s.subject_id, s.user_id, s.ann, s.ann_ready,
           abs(grown.memories - s.memory_count) / grown.memories::float8 AS drift
    FROM subjects s
    JOIN (
        SELECT subject_id, count(*) AS memories FROM memories
        WHERE tenant_id = :tenant_id AND status = 'active' AND cooled_by IS NULL
        GROUP BY subject_id HAVING count(*) > :most
    ) AS grown ON grown.subject_id = s.subject_id
    WHERE s.tenant_id = :tenant_id
""")
_TAKE_TURN = sql("SELECT pg_try_advisory_xact_lock(:turn)")
_MARK = sql("UPDATE subjects SET ann = true WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
_UNINDEXED = sql("""
    SELECT memory_id, content FROM memories
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id > :after AND NOT ann
      AND cooled_by IS NULL
    ORDER BY memory_id LIMIT :limit FOR UPDATE SKIP LOCKED
""")
_INDEX = sql("""
    WITH noted AS (
        INSERT INTO memory_terms (tenant_id, subject_id, memory_id, term_id)
        SELECT :tenant_id, :subject_id, item.*
        FROM unnest(cast(:term_memories AS uuid[]), cast(:term_ids AS int[])) AS item
        ON CONFLICT DO NOTHING
    )
    UPDATE memories SET ann = true
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND memory_id = ANY (cast(:memories AS uuid[]))
""")
_SAMPLE = sql("""
    SELECT content FROM memories
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND status = 'active' AND cooled_by IS NULL
    ORDER BY hashtextextended(memory_id::text, 0) LIMIT :rows
""")
_TOTALS = sql("""
    SELECT count(*) AS memories, coalesce(avg(word_count), 0) AS mean_word_count FROM memories
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND status = 'active' AND cooled_by IS NULL
      AND (expires_at IS NULL OR expires_at > :now)
""")
_FORGET_STATISTICS = sql("DELETE FROM term_statistics WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
_WORD_STATISTICS = sql("""
    INSERT INTO term_statistics (tenant_id, subject_id, term_id, document_count)
    SELECT :tenant_id, :subject_id, term_id, count(*) FROM memory_terms
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id GROUP BY term_id
    ON CONFLICT DO NOTHING
""")
_GRAM_STATISTICS = sql("""
    INSERT INTO term_statistics (tenant_id, subject_id, term_id, document_count)
    SELECT :tenant_id, :subject_id, item.* FROM unnest(cast(:terms AS int[]), cast(:counts AS int[])) AS item
    ON CONFLICT DO NOTHING
""")
_READY = sql("""
    UPDATE subjects s SET memory_count = :memory_count, mean_word_count = :mean_word_count, ann_ready = NOT EXISTS (
        SELECT FROM memories m WHERE m.tenant_id = s.tenant_id AND m.subject_id = s.subject_id AND NOT m.ann
          AND m.cooled_by IS NULL
    )
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id
""")
