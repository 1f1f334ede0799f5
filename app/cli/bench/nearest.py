"""What the vector index finds: recall() itself, in this process, against an exact scan of the same rows by plain SQL.

The vectors of questions are given, not embedded; a search for likeness alone returns the ten nearest.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client import REGISTRY

from app.cli.bench import raw, stock
from app.cli.embedded import EmbeddedServer
from app.clock import now
from app.connections import DatabaseConfig
from app.embed import EmbedConfig
from app.guard import DEFAULT_TENANT_ID
from app.main import open_services
from app.recall import Filters, Query, RecallConfig, Recaller
from app.settings import Settings
from app.wire import halfvec, register_codecs

TOP: Final = 10
KEEPING: Final = {"100 %": None, "10 %": "in_10", "1 %": "in_100", "0.1 %": "in_1000"}
"""What a filter keeps, and the tag that it asks for."""
_TRUTH: Final = f"""
    SELECT memory_id FROM memories
    WHERE tenant_id = $1 AND subject_id = $2 AND status = 'active' AND ($4::text IS NULL OR tags @> ARRAY[$4])
    ORDER BY embedding <=> $3, memory_id LIMIT {TOP}
"""
Questions = Mapping[str, NDArray[np.float32]]
"""Texts with their vectors."""


@dataclass(frozen=True, slots=True)
class Given:
    """An embedder of texts whose vectors are known."""

    vectors: Questions

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector of a known text."""
        return self.vectors[text]


class Unaware:
    """In the place of what knows the large subjects: knows none, so that all of a subject is measured."""

    async def among(self, transaction: object, query: Query, generation_id: int) -> list[object]:  # noqa: ARG002
        """None of them."""
        return []


@asynccontextmanager
async def reading(url: str, data_dir: Path, questions: Questions) -> AsyncIterator[Recaller]:
    """The read path of the service for known questions; no subject is held in memory, all likeness is evidence."""
    settings = Settings(
        data_dir=data_dir,
        database=DatabaseConfig.model_validate({"url": url, "statement_timeout_ms": 60_000}),
        embed=EmbedConfig(provider="hashing"),
        recall=RecallConfig(probe_share=0, resident_mb=0),
    )
    async with open_services(settings) as services:
        generation = replace(services.generation, spec=replace(services.generation.spec, query_window=(-1.0, 1.0)))
        given: Any = Given(questions)
        yield replace(services.recaller, embedder=given, generation=generation)


async def found(
    server: EmbeddedServer, database: str, recall: Recaller, user: str, questions: Questions
) -> dict[str, dict[str, float]]:
    """By what a filter keeps: share of the truly nearest ten that recall() returns, its time, under-filled searches."""
    connection = await raw.connect(server, database, teach=register_codecs)
    await connection.execute("SET enable_indexscan = off; SET work_mem = '64MB'; SET jit = off")
    table = {}
    for label, tag in KEEPING.items():
        shares, milliseconds, before = [], [], _underfilled()
        for text, vector in questions.items():
            nearest = await connection.fetch(_TRUTH, DEFAULT_TENANT_ID, stock.subject_of(user), halfvec(vector), tag)
            asked = Query(
                tenant_id=DEFAULT_TENANT_ID, user_id=user, text=text, top_k=TOP, fusion="similarity", diversity=0.0,
                filters=Filters(tags_all=() if tag is None else (tag,)),
            )  # fmt: skip
            begin = perf_counter()
            recalled = await recall.recall(asked, now=now())
            milliseconds.append((perf_counter() - begin) * 1000)
            truth = {row["memory_id"] for row in nearest}
            shares.append(len(truth & {hit.memory["id"] for hit in recalled.hits}) / len(truth) if truth else 1.0)
        table[f"{user}, filter keeps {label}"] = {
            "recall@10": float(np.mean(shares)),
            "p50 ms": float(np.median(milliseconds)),
            "under-filled": _underfilled() - before,
            "searches": len(shares),
        }
    await connection.close()
    return table


async def both_ways(recall: Recaller, users: Sequence[str]) -> dict[str, dict[str, float]]:
    """Median milliseconds of one search by exact scan and by index, in turn, of subjects that are ready for both."""
    exact: Any = Unaware()
    ways = {"exact ms": replace(recall, large=exact), "index ms": recall}
    table = {}
    for user in users:
        times: dict[str, list[float]] = {name: [] for name in ways}
        for text in recall.embedder.vectors:  # type: ignore[attr-defined]
            for name, way in ways.items():
                begin = perf_counter()
                await way.recall(
                    Query(tenant_id=DEFAULT_TENANT_ID, user_id=user, text=text, top_k=raw.TOP_K), now=now()
                )
                times[name].append((perf_counter() - begin) * 1000)
        table[user] = {name: float(np.median(values[5:])) for name, values in times.items()}
    return table


def _underfilled() -> float:
    return REGISTRY.get_sample_value("mneme_search_underfilled_total", {"reason": "ann_budget"}) or 0.0
