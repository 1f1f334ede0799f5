"""Memories by the million: rows as the service stores them, made in several processes and loaded by binary COPY.

Invariant: what a search reads is what writes and the job for large subjects would have left: row, usage, postings,
statistics and vector index; only events, which no search reads, are left out. The texts of a big lot come again, each
time with another number at their end.
"""

import asyncio
import multiprocessing
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from uuid_utils.compat import uuid7

from app.cli.bench import raw, texts
from app.cli.embedded import EmbeddedServer
from app.clock import now
from app.embed import EmbedConfig, load_embedder
from app.indexes import ann_indexes
from app.language import TOKENIZER_VERSION, KeywordVector, keyword_vector, word_ids
from app.remember import content_hash
from app.wire import halfvec, register_codecs, sparsevec

CHUNK: Final = 5_000  # rows of one COPY
POOL: Final = 4  # chunks of texts that come again in big lots; to tokenise more takes longer than to load them
SHARES: Final = {"in_10": 10, "in_100": 100, "in_1000": 1000}
"""Tag -> of how many memories one has it, at random: filters that keep 10 %, 1 % and 0.1 %."""
CENTRES: Final = 4_000
SPREAD: Final = 0.8  # length of the noise around a centre, whose own length is 1
_MEMORIES: Final = (
    "tenant_id", "subject_id", "memory_id", "status", "content", "content_type", "kind", "importance", "tags",
    "metadata", "session_id", "pinned", "version", "created_at", "updated_at", "content_hash", "keywords", "word_count",
    "tokenizer_version", "embedding", "generation_id", "window_count", "ann",
)  # fmt: skip
_USAGE: Final = ("tenant_id", "subject_id", "memory_id", "access_count", "hit_streak")
_NOTED: Final = """
    INSERT INTO memory_terms (tenant_id, subject_id, term_id, memory_id)
    SELECT $1, subject_id, unnest(term_ids), memory_id FROM noted
"""
_FACETS: Final = """
    INSERT INTO memory_facets (tenant_id, subject_id, facet, memory_id)
    SELECT m.tenant_id, m.subject_id, facet, m.memory_id
    FROM memories m CROSS JOIN LATERAL facets_of(m.tags, m.kind, m.content_type, m.metadata) AS facet WHERE m.ann
"""
# Rows come faster without what can be made after them; the primary keys that others point at stay.
_INDEXES: Final = """
    SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) AS away,
           format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) AS back
    FROM pg_constraint
    WHERE conrelid IN ('memory_terms'::regclass, 'memory_facets'::regclass) AND contype = 'p'
    UNION ALL
    SELECT format('DROP INDEX %s', indexrelid::regclass), pg_get_indexdef(indexrelid)
    FROM pg_index
    WHERE indrelid IN ('memories'::regclass, 'memory_terms'::regclass, 'memory_usage'::regclass)
      AND NOT indisprimary AND NOT starts_with(indexrelid::regclass::text, 'memories_ann_')
"""


@dataclass(frozen=True, slots=True)
class Lot:
    """Memories to load: `rows` dealt out in turn to the subjects `users`; `large`: into vector index and postings.

    Vectors are those of the texts by the hashing embedder, or `clustered`: unit vectors around random centres.
    """

    users: Sequence[str]
    rows: int
    large: bool = False
    vectors: Literal["texts", "clustered"] = "texts"


def load(server: EmbeddedServer, database: str, tenant_id: UUID, lots: Sequence[Lot]) -> None:
    """Load lots into an empty store whose generation 1 is active, and build the indexes after the rows."""
    asyncio.run(_before(server, database, tenant_id, lots))
    parts = [
        (server, database, tenant_id, lot, start, min(CHUNK, lot.rows - start))
        for lot in lots
        for start in range(0, lot.rows, CHUNK)
    ]
    spawned = multiprocessing.get_context("spawn")  # a fork would share the event loop's descriptors
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(parts)), mp_context=spawned) as workers:
        for _ in workers.map(_load_part, *zip(*parts, strict=True)):
            pass
    asyncio.run(_after(server, database))


def clustered(seed: int, count: int) -> NDArray[np.float32]:
    """Unit vectors (count, dimension): centres, the same for every seed, and noise."""
    centres = np.random.default_rng(0).standard_normal((CENTRES, raw.DIMENSION), dtype=np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    random = np.random.default_rng([1, seed])
    noise = random.standard_normal((count, raw.DIMENSION), dtype=np.float32) * (SPREAD / raw.DIMENSION**0.5)
    vectors = centres[random.integers(CENTRES, size=count)] + noise
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


async def _before(server: EmbeddedServer, database: str, tenant_id: UUID, lots: Sequence[Lot]) -> None:
    async with connected(server, database) as connection:
        subjects = [(tenant_id, subject_of(user), user, lot.large, now()) for lot in lots for user in lot.users]
        columns = ("tenant_id", "subject_id", "user_id", "ann", "created_at")
        await connection.copy_records_to_table("subjects", records=subjects, columns=columns)
        vector = ", ".join(ann_indexes(1, raw.DIMENSION))
        await connection.execute(f"DROP INDEX {vector}; CREATE TABLE bench_indexes (back text)")
        for away, back in await connection.fetch(_INDEXES):
            await connection.execute("INSERT INTO bench_indexes VALUES ($1)", back)
            await connection.execute(away)


async def _after(server: EmbeddedServer, database: str) -> None:
    async with connected(server, database) as connection:
        await connection.execute(_FACETS)  # no trigger has
        for (back,) in await connection.fetch("SELECT back FROM bench_indexes"):
            await connection.execute(back)
        await connection.execute("DROP TABLE bench_indexes; SELECT ensure_ann_index(1::smallint)")
    await raw.settle(server, database)


@asynccontextmanager
async def connected(server: EmbeddedServer, database: str) -> AsyncIterator[raw.Connection]:
    """A connection of the superuser that knows the binary forms."""
    connection = await raw.connect(server, database, teach=register_codecs)
    try:
        yield connection
    finally:
        await connection.close()


def subject_of(user: str) -> UUID:
    """The id of a user's subject, the same in every process."""
    return UUID(bytes=content_hash(user))


@dataclass(frozen=True, slots=True)
class _Text:
    content: str
    keywords: KeywordVector
    words: Sequence[int]
    vector: NDArray[np.float32]  # by the hashing embedder


@lru_cache(maxsize=POOL)
def _texts(seed: str, count: int = CHUNK) -> list[_Text]:
    """Texts, tokenised and embedded."""
    contents = list(islice(texts.memories(seed), count))
    windows = asyncio.run(load_embedder(EmbedConfig(provider="hashing"), Path()).embed_documents(contents))
    return [
        _Text(content, keyword_vector(content), word_ids(content), vector[0])
        for content, vector in zip(contents, windows, strict=True)
    ]


def _some(lot: Lot, start: int, count: int) -> list[_Text]:
    own = lot.large and lot.vectors == "texts"  # no two vectors are the same
    if own or lot.rows <= POOL * CHUNK:
        return _texts(f"{lot.users[0]} {start}", count)
    pool = [text for number in range(POOL) for text in _texts(f"pool {number}")]
    return [pool[number] for number in np.random.default_rng([3, start]).integers(len(pool), size=count)]


def _with(number: str, keywords: KeywordVector) -> KeywordVector:
    """The weights of a text with a number at its end."""
    more = keyword_vector(number)
    counts = dict(zip(more.ids, more.counts, strict=True)) | dict(zip(keywords.ids, keywords.counts, strict=True))
    ids = sorted(counts)
    return KeywordVector(tuple(ids), tuple(map(counts.__getitem__, ids)), keywords.word_count + more.word_count)


def _load_part(server: EmbeddedServer, database: str, tenant_id: UUID, lot: Lot, start: int, count: int) -> None:
    some = _some(lot, start, count)
    vectors: Sequence[NDArray[np.float32]] = [text.vector for text in some]
    if lot.vectors == "clustered":
        vectors = clustered(start, count)  # type: ignore[assignment]
    draw = np.random.default_rng([2, start]).integers(0, 1_000_000, size=count)
    memories, terms = [], []
    for number, (text, vector, drawn) in enumerate(zip(some, vectors, draw.tolist(), strict=True), start):
        subject_id, memory_id = subject_of(lot.users[number % len(lot.users)]), uuid7()
        moment = now() - timedelta(minutes=lot.rows - number)
        # Some templates have few fillings: a number of its own keeps each text distinct in a million.
        content, keywords = f"{text.content} [{number}]", _with(str(number), text.keywords)
        tags = ["bench", *(tag for tag, share in SHARES.items() if drawn % share == 0)]
        memories.append((
            tenant_id, subject_id, memory_id, "active", content, "text", "user_preference", 3.0, tags,
            {"channel": "chat"}, f"s{number // 20}", False, 1, moment, moment, content_hash(content),
            sparsevec(keywords.ids, keywords.counts), keywords.word_count, TOKENIZER_VERSION, halfvec(vector), 1, 1,
            lot.large,
        ))  # fmt: skip
        if lot.large:
            terms.append((subject_id, memory_id, [*{*text.words, *word_ids(str(number))}]))
    asyncio.run(_copy(server, database, tenant_id, memories, terms))


async def _copy(
    server: EmbeddedServer, database: str, tenant_id: UUID, memories: Sequence[Any], terms: Sequence[Any]
) -> None:
    async with connected(server, database) as connection:
        await connection.execute("SET session_replication_role = replica")  # no foreign key is checked row by row
        await connection.copy_records_to_table("memories", records=memories, columns=_MEMORIES)
        usage = [(*row[:3], 0, 0) for row in memories]
        await connection.copy_records_to_table("memory_usage", records=usage, columns=_USAGE)
        await connection.execute("CREATE TEMP TABLE noted (subject_id uuid, memory_id uuid, term_ids int[])")
        await connection.copy_records_to_table("noted", records=terms)
        await connection.execute(_NOTED, tenant_id)
