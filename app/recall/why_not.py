"""Why a memory is not among the hits: the first wall of a search at which it stopped.

Invariant: of what the search could never have shown to the caller (another tenant's or user's) nothing is said but
`unknown`, exactly as of an id that does not exist.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np

from app.database import Statement, Transaction, sql
from app.recall.candidates import FILTERS, SUBJECTS, Asked, Shape, parameters
from app.recall.diversity import Choice, most_alike
from app.recall.query import Absence, Candidates, Query
from app.recall.ranking import Judged


async def look_up(
    transaction: Transaction, query: Query, asked: Asked, shape: Shape, ids: Sequence[UUID], *, now: datetime
) -> dict[UUID, Any]:
    """What keeps each memory from being a candidate, by id; only of the user's own and the tenant's shared ones."""
    values = parameters(query, asked, now=now) | {"shared": [query.tenant_id], "ids": ids}
    return {row["memory_id"]: row for row in await transaction.fetch(_walls(shape), **values)}


@lru_cache(maxsize=64)
def _walls(shape: Shape) -> Statement:
    filters = "".join(f", ({FILTERS[name]}) IS TRUE AS {name}" for name in shape.filters)
    return sql(f"""
        SELECT m.memory_id, m.subject_id, m.agent_id, m.status, m.cooled_by, m.created_at, m.deprecated_at,
               m.expires_at, m.valid_from, m.valid_to {filters}
        FROM memories m
        WHERE m.tenant_id = :tenant_id AND {SUBJECTS} AND m.memory_id = ANY (cast(:ids AS uuid[]))
    """)


def explain_absence(
    memory_id: UUID, row: Any, query: Query, candidates: Candidates, judged: Judged, choice: Choice, *, at: datetime
) -> Absence:
    """The reason for one id, whose row of look_up is None if nobody may know of it."""
    if row is None:
        return Absence(memory_id, "unknown")
    if (wall := _wall(row, query, at)) is not None:
        return Absence(memory_id, *wall)
    try:
        number = candidates.ids.index(memory_id)
    except ValueError:
        missed = "neither among the nearest, nor the best-worded, nor the latest of a large subject"
        if row["cooled_by"] is not None:
            missed = "neither the signs of its vector nor words put it among the likeliest cold ones"
        return Absence(memory_id, "not_proposed", missed)
    [measured] = judged.ranked([number])
    reason, detail, rank = _verdict(number, query, candidates, judged, choice)
    return Absence(memory_id, reason, detail, rank, measured.score, measured.signals)


def _wall(row: Any, query: Query, at: datetime) -> tuple[str, str | None] | None:
    """What keeps a memory from being measured at all: reason and detail."""
    past = query.as_of is not None
    overruled = row["status"] == "deprecated" and not query.include_deprecated
    if past and overruled:
        overruled = row["deprecated_at"] <= at
    missed = [name for name in FILTERS if not row.get(name, True)]
    if row["subject_id"] == query.tenant_id and query.user_id is not None and not query.include_shared:
        missed.append("include_shared")
    walls = (
        ("other_agent", query.agent_id is not None and row["agent_id"] not in (None, query.agent_id), None),
        ("wrong_status", overruled or row["status"] not in ("active", "deprecated"), row["status"]),
        ("not_yet_known", past and row["created_at"] > at, _when("written", row["created_at"])),
        ("expired", _reached(row["expires_at"], at), _when("expired", row["expires_at"])),
        ("not_valid_then", row["valid_from"] is not None and row["valid_from"] > at, _when("from", row["valid_from"])),
        ("not_valid_then", _reached(row["valid_to"], at), _when("until", row["valid_to"])),
        ("filtered", bool(missed), ", ".join(missed)),
        ("cold", row["cooled_by"] is not None and not query.looks_in_the_cold, "include_cold finds it"),
    )
    return next(((reason, detail) for reason, stands, detail in walls if stands), None)


def _reached(moment: datetime | None, at: datetime) -> bool:
    return moment is not None and moment <= at


def _when(word: str, moment: datetime | None) -> str:
    return "" if moment is None else f"{word} {moment:%Y-%m-%dT%H:%M:%SZ}"


def _verdict(
    number: int, query: Query, candidates: Candidates, judged: Judged, choice: Choice
) -> tuple[str, str | None, int | None]:
    """Reason, detail and rank of a measured row."""
    places = np.flatnonzero(judged.order == number)
    if not len(places):
        if not judged.evidence[number]:
            return "no_evidence", None, None
        alike = judged.similarity[number]
        return "below_threshold", f"similarity {alike:.3f} is below {query.similarity_threshold:.3f}", None
    rank = int(places[0]) + 1
    if number in choice.chosen:
        return "hit", None, rank
    if candidates.source is not None and (source := candidates.source[number]):
        full = np.count_nonzero(candidates.source[list(choice.chosen)] == source) >= choice.most
        if full or (rank <= query.top_k and number not in choice.considered):
            return "same_source", f"at most {choice.most} hits of one source", rank
    place = choice.considered.index(number) + 1 if number in choice.considered else rank
    if place <= query.top_k and choice.same is not None:
        chosen = [choice.considered.index(one) for one in choice.chosen]
        twin = most_alike(choice.considered.index(number), chosen, choice.same)
        return "displaced_by_diversity", f"says nearly the same as {candidates.ids[choice.considered[twin]]}", rank
    moved = f", the reranker moved it from place {rank} to {place}" if choice.reranked and place != rank else ""
    return "below_top_k", f"top_k is {query.top_k}{moved}", rank
