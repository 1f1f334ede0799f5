"""What the vector index finds: recall() itself, in this process, against all distances of the same rows.

The vectors of questions are given, not embedded; a search for likeness alone returns the ten nearest. A hit counts if
it is as near as the tenth: which of several that are equally near come back is no fault.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from uuid import UUID

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

TOP: Final = 10
KEEPING: Final = {"100 %": None, "10 %": "in_10", "1 %": "in_100", "0.1 %": "in_1000"}
"""What a filter keeps, and the tag that it asks for."""
TIE: Final = 1e-5  # distances that differ by less are one
CHUNK: Final = 20_000
_ALL: Final = "SELECT tags, embedding FROM memories WHERE tenant_id = $1 AND subject_id = $2 AND status = 'active'"
_HITS: Final = """
    SELECT embedding FROM memories WHERE tenant_id = $1 AND subject_id = $2 AND memory_id = ANY ($3)
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
    async with stock.connected(server, database) as connection:
        place = DEFAULT_TENANT_ID, stock.subject_of(user)
        truth = await _tenth(connection, place, list(questions.values()))
        table = {}
        for label, tag in KEEPING.items():
            shares, milliseconds, before = [], [], _underfilled()
            for (text, vector), distances in zip(questions.items(), truth[label], strict=True):
                asked = Query(
                    tenant_id=DEFAULT_TENANT_ID, user_id=user, text=text, top_k=TOP, fusion="similarity", diversity=0.0,
                    filters=Filters(tags_all=() if tag is None else (tag,)),
                )  # fmt: skip
                begin = perf_counter()
                recalled = await recall.recall(asked, now=now())
                milliseconds.append((perf_counter() - begin) * 1000)
                hits = await connection.fetch(_HITS, *place, [hit.memory["id"] for hit in recalled.hits])
                near = _distances([row["embedding"] for row in hits], [vector])[:, 0] <= distances.max(initial=0) + TIE
                shares.append(int(near.sum()) / len(distances) if len(distances) else 1.0)
            table[f"{user}, filter keeps {label}"] = {
                "recall@10": float(np.mean(shares)),
                "p50 ms": float(np.median(milliseconds)),
                "p95 ms": float(np.percentile(milliseconds, 95)),
                "under-filled": _underfilled() - before,
                "searches": len(shares),
            }
    return table


async def _tenth(
    connection: raw.Connection, place: tuple[UUID, UUID], vectors: Sequence[NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """By what a filter keeps, the ascending distances (questions, up to TOP) of the truly nearest."""
    nearest = {label: np.empty((len(vectors), 0), np.float32) for label in KEEPING}
    async with connection.transaction():
        cursor = await connection.cursor(_ALL, *place)
        while rows := await cursor.fetch(CHUNK):
            distances = _distances([row["embedding"] for row in rows], vectors)
            for label, tag in KEEPING.items():
                some = distances if tag is None else distances[[tag in row["tags"] for row in rows]]
                nearest[label] = np.sort(np.hstack([nearest[label], some.T]))[:, :TOP]
    return nearest


def _distances(memories: Sequence[NDArray[np.float32]], vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Cosine distances (memories, vectors)."""
    if not memories:
        return np.empty((0, len(vectors)), np.float32)
    ones, others = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in map(np.array, (memories, vectors)))
    return np.asarray(1 - ones @ others.T, np.float32)


async def both_ways(recall: Recaller, users: Sequence[str]) -> dict[str, dict[str, float]]:
    """Median milliseconds of one search that measures all and of one as it is served, in turn, of large subjects."""
    exact: Any = Unaware()
    ways = {"all measured ms": replace(recall, large=exact), "as served ms": recall}
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
