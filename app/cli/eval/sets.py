"""Retrieval sets on disk, and the measures of a ranking.

A set is a folder with corpus.jsonl {"id", "user_id", "content", "created_at"?, …} and queries.jsonl {"id", "user_id",
"query", "gold": [corpus ids]}; only rows of the query's user are searched.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from app.errors import Invalid

CORPUS, QUERIES = "corpus.jsonl", "queries.jsonl"
SAME_IMPORTANCE: Final = 3.0
"""Of all rows, so that only relevance is measured; and high enough that none is filtered as small talk."""
GROUPS: Final = {
    "seven memory sets": (
        "memsim_zh", "memorybank_zh", "memorybank_en", "locomo", "locomo_observations", "realmem", "prefeval_en",
    ),
    "ten retrieval sets": (
        "memsim_zh", "memorybank_zh", "memorybank_en", "locomo", "locomo_observations", "realmem", "prefeval_en",
        "afqmc_retrieval_zh", "banking77_en", "jddc_cs_zh",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """One query of a user with the corpus ids that answer it."""

    user_id: str
    text: str
    gold: frozenset[str]


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """Memories by corpus id, as the API takes them, and questions about them."""

    name: str
    memories: dict[str, dict[str, Any]]
    questions: list[Question]


@dataclass(frozen=True, slots=True)
class Measures:
    """Mean over queries, each in [0, 1], binary relevance: nDCG@10, recall@5, recall@10, mean reciprocal rank."""

    ndcg_10: float
    recall_5: float
    recall_10: float
    mrr: float


def find_sets(folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """The sets in a folder (or the folder itself), known ones in their order first; only `names` if given.

    Raises Invalid if there is none.
    """
    here = [folder] if (folder / CORPUS).is_file() else sorted(path.parent for path in folder.glob(f"*/{CORPUS}"))
    found = {path.name: path for path in here if (path / QUERIES).is_file()}
    known = GROUPS["ten retrieval sets"]
    ordered = [*(name for name in known if name in found), *(name for name in found if name not in known)]
    chosen = [found[name] for name in ordered if not names or name in names]
    if not chosen:
        raise Invalid(f"no retrieval set in {folder}: a set is a folder with {CORPUS} and {QUERIES}")
    return chosen


def read_set(folder: Path, most_queries: int | None = None) -> RetrievalSet:
    """Read a set; of more than `most_queries` queries every n-th is kept, so that all users are asked."""
    rows, asked = (
        [orjson.loads(line) for line in (folder / name).read_bytes().split(b"\n") if line.strip()]
        for name in (CORPUS, QUERIES)
    )
    step = max(1, -(-len(asked) // most_queries)) if most_queries else 1
    questions = [Question(q["user_id"], q["query"], frozenset(q["gold"])) for q in asked[::step]]
    return RetrievalSet(folder.name, {row["id"]: _memory(row) for row in rows}, questions)


def _memory(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a memory: its session as the source names it, else its user's day; no date, no session."""
    memory: dict[str, Any] = {"user_id": row["user_id"], "content": row["content"], "importance": SAME_IMPORTANCE}
    if created := row.get("created_at"):
        moment = datetime.fromisoformat(created)
        memory["event_at"] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
        session = row.get("session_id") or row.get("session") or row.get("seq") or created[:10]
        memory["session_id"] = f"{row['user_id']}/{session}"
    return memory


def measure(rankings: Sequence[Sequence[str]], gold: Sequence[frozenset[str]]) -> Measures:
    """Judge rankings (ids, best first) by what should have been found; nDCG after Järvelin and Kekäläinen 2002."""
    rows = [_judge(ranking, wanted) for ranking, wanted in zip(rankings, gold, strict=True)]
    return Measures(*(math.fsum(column) / len(rows) for column in zip(*rows, strict=True)))


def _judge(ranking: Sequence[str], gold: frozenset[str]) -> tuple[float, float, float, float]:
    found = [rank for rank, memory in enumerate(ranking) if memory in gold]
    gain = math.fsum(1 / math.log2(rank + 2) for rank in found if rank < 10)
    ideal = math.fsum(1 / math.log2(rank + 2) for rank in range(min(10, len(gold))))
    recalls = [sum(rank < k for rank in found) / len(gold) for k in (5, 10)]
    return gain / ideal, recalls[0], recalls[1], 1 / (found[0] + 1) if found else 0.0


def fuse(rankings: Sequence[Sequence[str]], k: int = 60) -> list[str]:
    """Reciprocal rank fusion (Cormack, Clarke and Büttcher 2009): sum of 1 / (k + rank), rank from 1."""
    score: dict[str, float] = {}
    for ranking in rankings:
        for rank, memory in enumerate(ranking, start=1):
            score[memory] = score.get(memory, 0.0) + 1 / (k + rank)
    return sorted(score, key=lambda memory: -score[memory])
