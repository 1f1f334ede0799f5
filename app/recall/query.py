"""The shapes of the three stages of recall: what is asked, what the one SELECT measured, what is answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

Fusion = Literal["weighted", "similarity", "similarity_time", "similarity_importance"]
Clock = Literal["created", "event", "accessed"]


class RecallConfig(BaseModel, extra="forbid"):
    """How patient recall is."""

    embedding_deadline_seconds: float = Field(
        1.0, gt=0, description="Longest wait for the query's vector; then keywords answer, marked degraded."
    )
    exact_scan_rows: int = Field(
        5_000, ge=100, description="Active memories above which a subject moves to the vector index and postings."
    )
    diversity: float = Field(
        0.2, ge=0, le=1, description="How much near-equal hits give way to others: 0 not at all, 1 as far as they can."
    )
    max_share_per_source: float = Field(
        1.0, gt=0, le=1, description="Largest share of top_k that hits of one source may have; 1: no limit."
    )
    probe_share: float = Field(
        0.01, ge=0, le=1, description="Share of the searches by vector index that are compared with an exact scan."
    )
    resident_mb: int = Field(
        256, ge=0, description="Room for subjects that are searched again and again; 0: SQL answers every search."
    )
    resident_after: int = Field(
        2, ge=1, description="Searches of a subject, none a minute after the other, until it is held in memory."
    )
    resident_rows: int = Field(5_000, ge=1, description="Active memories of the largest subject held in memory.")
    usage_flush_seconds: float = Field(
        1.0, gt=0, description="Pause between writings of access counts; longer where these take long."
    )
    usage_buffer_size: int = Field(
        50_000, ge=1, description="Memories whose counts may wait; more are dropped and counted."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Conditions on the hits; None and empty do not apply. Ranges include their start and exclude their end."""

    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    content_types: tuple[str, ...] = ()
    created_from: datetime | None = None
    created_to: datetime | None = None
    event_from: datetime | None = None
    event_to: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    min_trust: int = 0


NO_FILTERS: Final = Filters()


@dataclass(frozen=True, slots=True)
class TimeDecay:
    """How the time signal falls: exp(-per_hour · hours) since a memory was written, of its event, or last recalled.

    Without an event, or never recalled: since it was written. per_hour >= 0; 0 makes all memories equally fresh.
    """

    per_hour: float = 0.01
    clock: Clock = "created"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One question about one subject (user_id None: the shared one only).

    `as_of` asks as if at that moment: of what was valid and known then; None: now. `diversity`,
    `max_share_per_source` and `rerank` None: as configured.
    """

    tenant_id: UUID
    user_id: str | None
    text: str
    agent_id: str | None = None
    top_k: int = 10
    weights: Mapping[str, float] = field(default_factory=dict)
    fusion: Fusion = "weighted"
    similarity_threshold: float = 0.0
    filters: Filters = field(default_factory=Filters)
    include_shared: bool = True
    include_deprecated: bool = False
    include_cold: bool = False
    as_of: datetime | None = None
    time_decay: TimeDecay = TimeDecay()
    diversity: float | None = None
    max_share_per_source: float | None = None
    rerank: bool | None = None

    @property
    def looks_in_the_cold(self) -> bool:
        """Whether cold memories are candidates: what is cold now was known then."""
        return self.include_cold or self.as_of is not None


@dataclass(frozen=True, slots=True)
class Candidates:
    """Every memory in scope as columns of equal length, in order of time; what the pure functions judge.

    cosine is NaN where there is no vector to compare; frequency (rows, terms) counts the query's terms, of which the
    first `words` are words (0..3) and the others grams (0 or 1); times are seconds since 1970; before is the row of the
    memory before in the same session, the number of rows if there is none; matching says whether a row passes the
    request's filters (the others are context: term statistics and neighbours). commonness is the inner product with
    the mean vector of small talk, question_cosine (rows, questions) the cosine to each question of a text of many.
    accessed_at (last recall, else creation) and source (a number each, 0 none) are measured only if they are needed.
    """

    ids: Sequence[UUID]
    cosine: NDArray[np.float64]
    frequency: NDArray[np.float64]
    words: int
    word_count: NDArray[np.float64]
    created_at: NDArray[np.float64]
    happened_at: NDArray[np.float64]
    importance: NDArray[np.float64]
    before: NDArray[np.intp]
    matching: NDArray[np.bool_]
    commonness: NDArray[np.float64] | None = None
    question_cosine: NDArray[np.float64] | None = None
    accessed_at: NDArray[np.float64] | None = None
    source: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids)


def row_before(session: NDArray[np.int64]) -> NDArray[np.intp]:
    """Row of the memory before in the same session; the number of rows, one past the last, if there is none.

    Rows come in order of time; session 0 means none.
    """
    order = np.argsort(session, kind="stable")
    before = np.full(len(session), len(session))
    same = (session[order][1:] == session[order][:-1]) & (session[order][1:] != 0)
    before[order[1:][same]] = order[:-1][same]
    return before


class Hit(NamedTuple):
    """A memory in its JSON shape and its subject, its score in [0, 1] and, when asked to explain, the parts of it.

    `leads`: it is about as relevant as the best of its answer.
    """

    memory: Mapping[str, Any]
    subject_id: UUID
    score: float
    signals: Mapping[str, Any] | None = None
    leads: bool = True


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a memory is where it is: the reason, what it means here, and of what was measured, its rank and score.

    Reasons in the order in which they are looked at: unknown, other_agent, wrong_status, not_yet_known, expired,
    not_valid_then, filtered, cold, not_proposed, no_evidence, below_threshold, hit, same_source,
    displaced_by_diversity, below_top_k.
    """

    memory_id: UUID
    reason: str
    detail: str | None = None
    rank: int | None = None
    score: float | None = None
    signals: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Recalled:
    """The answer to a query: hits, best first, what was missing while it was made, and the fate of ids asked for."""

    hits: list[Hit]
    degraded: tuple[str, ...] = ()
    why_not: tuple[Absence, ...] = ()
