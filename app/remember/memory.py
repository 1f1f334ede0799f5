"""What comes in and what became of it: the shapes of the write path, and all that is computed without a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import numpy as np
from pydantic import BaseModel, Field

from app.guard import FULL_TRUST
from app.kinds import KINDS
from app.language import keyword_arrays, keyword_vector, normalise
from app.wire import halfvec, halfvecs, new_id, sparsevec, sparsevec_of

IfTrivial = Literal["filter", "expire", "keep"]
"""Small talk is left out; or stored, at importance 1 unless another is given, which expires; or stored for good."""


class RememberConfig(BaseModel, extra="forbid"):
    """How writing judges and how long it waits."""

    duplicate_similarity: float = Field(
        0.65, ge=0, le=1, description="Calibrated similarity from which two texts are compared word by word."
    )
    candidate_similarity: float = Field(
        0.8, ge=0, le=1, description="Calibrated similarity from which an undecided pair is linked as candidate."
    )
    most_retired: int = Field(
        3, ge=0, le=100, description="Most memories that one write may overrule by its words; more go to review."
    )
    ask_llm: bool = Field(
        False, description="Ask the language model about conflicts before a write; it waits for the answer."
    )
    embedding_deadline_seconds: float = Field(
        2.0, gt=0, description="Longest wait for vectors; then the memory is accepted as pending."
    )
    idempotency_hours: float = Field(24, gt=0, description="How long a stored answer is replayed.")
    unimportant_days: float = Field(
        7, gt=0, description="Life of what is kept at importance 1, unless it is pinned or has an expires_at."
    )


LATE: Final = timedelta(days=1)


@dataclass(slots=True, kw_only=True)  # frozen, to make one takes four times as long
class NewMemory:
    """One memory as its writer states it; limits were checked at the door. Nobody changes it."""

    user_id: str | None
    content: str
    kind: str
    agent_id: str | None = None
    content_type: str = "text"
    key: str | None = None
    importance: float | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    session_id: str | None = None
    event_at: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    expires_at: datetime | None = None
    pinned: bool = False
    if_trivial: IfTrivial = "filter"
    left_out: str | None = None
    """Why part or all of the text was not taken: set by settled()."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of one memory: outcome (created, duplicate, superseded, outdated, filtered), the memory that now says
    it (None: filtered), links, the reason if part or all of the text was not taken, and who could not be asked about
    conflicts."""

    outcome: str
    memory: Mapping[str, Any] | None
    related: tuple[tuple[UUID, str], ...] = ()
    reason: str | None = None
    degraded: tuple[str, ...] = ()


class Link(NamedTuple):
    """How one memory stands to another, as memory_links keeps it."""

    memory_id: UUID
    relation: str
    other_id: UUID


class Draft:
    """A memory on its way into the tables: identity is fixed, verdict and vector come later."""

    __slots__ = (
        "actor", "content_hash", "in_review", "large", "links", "memory_id", "new", "new_subject", "now", "opinions",
        "outcome", "outdated_by", "packed", "reason", "retired", "stated_at", "status", "subject_id", "trust",
        "twin_id", "weighed", "windows", "woken",
    )  # fmt: skip

    def __init__(self, new: NewMemory, actor: str, now: datetime, trust: int = FULL_TRUST) -> None:
        self.new = new
        self.trust = trust  # 0 to 100: never the writer's own word
        self.actor, self.now = actor, now  # who writes it, and when: drafts of several requests are stored together
        self.stated_at = now  # earlier than `now` if it is judged again
        self.woken = False  # whether it is judged again because it was cold
        self.memory_id: UUID = new_id()
        self.content_hash = content_hash(new.content)
        self.weighed: tuple[bytes, int] | None = None  # see weigh()
        self.windows: Any = None  # float32 (windows, dimension) or None while pending
        self.packed: bytes | None = None  # see embedding
        self.subject_id: UUID | None = None
        self.new_subject = True
        self.large = False  # whether the subject has a vector index and postings
        self.outcome, self.status = "created", "active"
        self.reason: str | None = None  # why part or all of the text was not taken
        self.twin_id: UUID | None = None
        self.retired: dict[UUID, str] = {}  # what it overrules, and why
        self.opinions: dict[UUID, str] = {}  # what it contradicts, as a model says
        self.in_review: dict[UUID, str] = {}  # what it would overrule, if somebody agrees
        self.outdated_by: tuple[UUID, str] | None = None  # a newer memory that overrules it, and why
        self.links: list[Link] = []

    @property
    def review(self) -> dict[str, str]:
        """`in_review` as the audit trail has it."""
        return {str(other): reason for other, reason in self.in_review.items()}

    @property
    def scope(self) -> tuple[str | None, str | None]:
        return self.new.user_id, self.new.agent_id

    @property
    def embedding(self) -> bytes | None:
        """The first window as a parameter; None while pending."""
        if self.packed is None and self.windows is not None:
            self.packed = halfvec(self.windows[0])
        return self.packed

    def weigh(self) -> tuple[bytes, int]:
        """Its words with their weights as a parameter, and how many they are; only what is stored needs them."""
        if self.weighed is None:
            words = keyword_vector(self.new.content)
            self.weighed = sparsevec(words.ids, words.counts), words.word_count
        return self.weighed

    @property
    def true_since(self) -> datetime:
        """When what it says happened, or was said: what happens later is a plan of that moment."""
        happened, stated = self.new.event_at, self.stated_at
        return stated if happened is None or happened > stated else happened

    @property
    def late(self) -> bool:
        """Whether something newer may be known: it is told long after it happened, or was cold for long."""
        return self.woken or self.stated_at - self.true_since > LATE

    @property
    def forget_at(self) -> datetime | None:
        """When it is forgotten, if nobody uses it; None: never, for it is pinned or not active."""
        if self.new.pinned or self.status != "active":
            return None
        return KINDS[self.new.kind].forget_at(self.importance, 0, self.now)

    @property
    def importance(self) -> float:
        given = self.new.importance
        return KINDS[self.new.kind].default_importance if given is None else given


def weigh(drafts: Sequence[Draft]) -> None:
    """What Draft.weigh() does, for many at once: in half the time."""
    left = [draft for draft in drafts if draft.weighed is None]
    if len(left) == 1:
        left[0].weigh()
    elif left:
        for draft, words in zip(left, keyword_arrays([draft.new.content for draft in left]), strict=True):
            draft.weighed = sparsevec_of(words.ids, words.counts), words.word_count


def pack(drafts: Sequence[Draft]) -> None:
    """Make the parameters of the first windows of many at once."""
    left = [draft for draft in drafts if draft.packed is None and draft.windows is not None]
    if len(left) > 1:
        for draft, packed in zip(left, halfvecs(np.stack([draft.windows[0] for draft in left])), strict=True):
            draft.packed = packed


def content_hash(text: str) -> bytes:
    """16 bytes that are equal exactly when two texts are the same after normalisation."""
    return blake2b(normalise(text).encode(), digest_size=16).digest()
