"""The verdict on every draft before it is stored: new, duplicate, successor of what it overrules, or outdated.

SQL finds what stands near (same text, same key, nearest vectors), pure rules decide; earlier items of the same batch
count as stored. Invariant: runs inside the writing transaction, under the subject's lock.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app import telemetry
from app.database import Transaction
from app.embed import Generation
from app.remember.conflict import cued, denies, overrules
from app.remember.memory import Draft, Link, NewMemory, RememberConfig
from app.remember.neighbours import most_near, stored_near
from app.remember.twins import compare
from app.wire import new_id

NEAR: Final = 0.3
"""Calibrated similarity from which a neighbour may say the opposite: a negation moves a vector far."""
PAIR: Final = "pair"
Window = tuple[float, float]
"""Cosines of two memories that mean 0 and 1."""


class Neighbour(NamedTuple):
    """A memory of the same scope near a draft: same text, same key, or close as a vector (similarity, else 0).

    `true_since` is when what it says happened or was said.
    """

    memory_id: UUID
    content: str
    key: str | None
    same_text: bool
    similarity: float
    true_since: datetime
    pinned: bool


@dataclass(frozen=True, slots=True)
class Scale:
    """From cosine to calibrated similarity of two memories, clipped below only: what is nearer is nearer."""

    low: float
    high: float

    def similarity(self, cosine: float) -> float:
        return max(0.0, (cosine - self.low) / (self.high - self.low))

    def cosine(self, similarity: float) -> float:
        return self.low + similarity * (self.high - self.low)


@dataclass(slots=True)
class Judging:
    """Drafts whose neighbours are known. The verdicts are given in order, and can be given in parts."""

    drafts: Sequence[Draft]
    neighbours: Sequence[tuple[UUID | None, bool | None, list[Any]]]
    in_batch: Sequence[Sequence[tuple[Draft, float]]]
    scale: Scale
    config: RememberConfig
    stored: bool
    count: int = 0
    subject_of: dict[str | None, UUID] = field(default_factory=dict)
    overruled: set[UUID] = field(default_factory=set)

    def until(self, end: int) -> None:
        """Give the first `end` drafts their verdict; those that have it keep it."""
        while self.count < end:
            self._judge(self.drafts[self.count], self.in_batch[self.count], *self.neighbours[self.count])
            self.count += 1

    def _judge(
        self, draft: Draft, in_batch: Sequence[tuple[Draft, float]], subject_id: UUID | None, large: bool | None,
        found: Sequence[Any],
    ) -> None:  # fmt: skip
        user_id, scale = draft.new.user_id, self.scale
        draft.new_subject, draft.large = large is None and user_id not in self.subject_of, bool(large)
        if user_id not in self.subject_of:
            self.subject_of[user_id] = subject_id or new_id()
        draft.subject_id = self.subject_of[user_id]
        there: dict[UUID, Neighbour] = {}
        for row in found:  # by its text, its key and its vector, so perhaps more than once
            if row["memory_id"] not in self.overruled and row["memory_id"] != draft.memory_id:
                similarity = 0.0 if row["distance"] is None else scale.similarity(1 - row["distance"])
                known = there.get(row["memory_id"])
                there[row["memory_id"]] = Neighbour(
                    row["memory_id"], row["content"], row["key"], row["same_text"],
                    similarity if known is None else max(similarity, known.similarity),
                    row["true_since"], row["pinned"],
                )  # fmt: skip
        near = list(there.values())
        near += [
            _as_neighbour(earlier, draft, scale.similarity(cosine) if cosine > -1 else 0.0)
            for earlier, cosine in in_batch
            if earlier.status == "active" and earlier.outcome != "duplicate"
        ]
        decide(draft, near, self.config)
        if draft.retired and not self.stored:
            self.overruled.update(draft.retired)
            for earlier, _ in in_batch:
                if earlier.memory_id in draft.retired:  # overruled within its own batch: born deprecated, unless it is
                    earlier.status = "deprecated"  # stored already, and is retired like any other
                    earlier.outdated_by = draft.memory_id, draft.retired[earlier.memory_id]


async def look(
    transaction: Transaction,
    tenant_id: UUID,
    drafts: Sequence[Draft],
    generation: Generation,
    config: RememberConfig,
    *,
    stored: bool = False,
) -> Judging:
    """Find what stands near the drafts, stored or earlier among themselves; nothing is judged yet."""
    scale = Scale(*generation.spec.pair_window)
    floor = scale.cosine(min(NEAR, config.duplicate_similarity))
    least = [-1.0 if looks_far(draft) else floor for draft in drafts]
    neighbours = await stored_near(transaction, tenant_id, drafts, generation, least)
    in_batch: list[list[tuple[Draft, float]]] = [[] for _ in drafts] if stored else _near_in_batch(drafts, least)
    return Judging(drafts, neighbours, in_batch, scale, config, stored)


async def judge(
    transaction: Transaction,
    tenant_id: UUID,
    drafts: Sequence[Draft],
    generation: Generation,
    config: RememberConfig,
    *,
    stored: bool = False,
) -> None:
    """Set subject, outcome, status, twin, retired and links of each draft, in order.

    `stored`: the drafts are memories already, and each is judged by itself beside all others that are there.
    """
    judging = await look(transaction, tenant_id, drafts, generation, config, stored=stored)
    judging.until(len(drafts))


async def find_far(
    transaction: Transaction, tenant_id: UUID, drafts: Sequence[Draft], generation: Generation
) -> list[list[Any]]:
    """Rows of the FAR_NEIGHBOURS active memories nearest to each draft, nearest first, itself and its text left out."""
    found = await stored_near(transaction, tenant_id, drafts, generation, [-1.0] * len(drafts))
    return [
        sorted(
            (row for row in rows if not row["same_text"] and row["distance"] is not None), key=lambda r: r["distance"]
        )
        for _, _, rows in found
    ]


def looks_far(draft: Draft) -> bool:
    """Whether what a draft overrules, or is overruled by, may stand far from it."""
    return bool(draft.opinions) or draft.late or denies(draft.new.content) or cued(draft.new.content)


def _as_neighbour(earlier: Draft, draft: Draft, similarity: float) -> Neighbour:
    new = earlier.new
    same_text = earlier.content_hash == draft.content_hash
    return Neighbour(
        earlier.memory_id, new.content, new.key, same_text, similarity, earlier.true_since, new.pinned
    )  # fmt: skip


def decide(draft: Draft, near: Sequence[Neighbour], config: RememberConfig) -> None:
    """The verdict on one draft given its neighbours; sets what judge() sets.

    Strongest first: the same text, a near-duplicate, the same key, words of change or the opposite. An older event
    never overrules a newer one: then the draft itself is stored as deprecated, `outdated`.
    """
    key = draft.new.key
    if len(near) > 1:
        near = sorted(near, key=lambda n: (not n.same_text, -n.similarity))
    if _is_twin(draft, near, config):
        return
    holder = next((n for n in near if key is not None and n.key == key), None)
    newer = holder if holder is not None and holder.true_since > draft.true_since else _newer(draft, near)
    if newer is not None:
        draft.outcome, draft.status, draft.outdated_by = "outdated", "deprecated", (newer.memory_id, "older")
        draft.links.append(Link(newer.memory_id, "supersedes", draft.memory_id))
        return
    # A new value of a slot overrules the old one; the same text outside of the slot moves into it.
    draft.retired = {n.memory_id: "key" if n is holder else "same_text" for n in near if n is holder or n.same_text}
    _overrule(draft, [n for n in near if n.memory_id not in draft.retired] if draft.retired else near, config)
    if draft.retired:
        draft.outcome = "superseded"
        draft.links += [Link(draft.memory_id, "supersedes", memory_id) for memory_id in sorted(draft.retired)]


def _is_twin(draft: Draft, near: Sequence[Neighbour], config: RememberConfig) -> bool:
    """Whether an active memory already says it; one that may say it is linked."""
    key, candidate = draft.new.key, None
    for twin in near:
        if key is not None and twin.key != key:
            continue  # the slot must come to hold this text
        if twin.same_text:
            draft.outcome, draft.twin_id = "duplicate", twin.memory_id
            return True
        if twin.similarity < config.duplicate_similarity:
            break
        verdict = compare(draft.new.content, twin.content)
        if verdict == "same":
            draft.outcome, draft.status, draft.twin_id = "duplicate", "duplicate", twin.memory_id
            draft.links.append(Link(draft.memory_id, "duplicate_of", twin.memory_id))
            return True
        if verdict == "unsure" and candidate is None and twin.similarity >= config.candidate_similarity:
            candidate = twin
    if candidate is not None:
        draft.links.append(Link(draft.memory_id, "candidate", candidate.memory_id))
    return False


def _newer(draft: Draft, near: Sequence[Neighbour]) -> Neighbour | None:
    """A memory of something later that overrules the draft."""
    since = draft.true_since
    return next((n for n in near if n.true_since > since and overrules(n.content, draft.new.content)), None)


def _overrule(draft: Draft, near: Sequence[Neighbour], config: RememberConfig) -> None:
    """Retire what the draft's words overrule; what is pinned, and more than a write may retire, goes to review."""
    since, text = draft.true_since, draft.new.content
    found = [
        (n, reason)
        for n in near
        if n.true_since <= since
        and (reason := overrules(text, n.content) or (draft.opinions and draft.opinions.get(n.memory_id)))
    ]
    allowed = len(found) <= config.most_retired
    for neighbour, reason in found:
        if allowed and not neighbour.pinned:
            draft.retired[neighbour.memory_id] = reason
        else:
            draft.in_review[neighbour.memory_id] = reason
            draft.links.append(Link(draft.memory_id, "review", neighbour.memory_id))


def judge_pair(
    old: NewMemory, new: NewMemory, cosine: float, window: Window, config: RememberConfig, *, now: datetime
) -> Draft:
    """The verdict on a new memory if the old one is the only one there is, and both are said now.

    `cosine` is that of their vectors, `window` the pair window of the model: judge() without a database.
    """
    scale, draft = Scale(*window), Draft(new, PAIR, now)
    near = _as_neighbour(Draft(old, PAIR, now), draft, scale.similarity(cosine))
    found = near.same_text or near.similarity >= min(NEAR, config.duplicate_similarity) or looks_far(draft)
    decide(draft, [near] if found else [], config)
    return draft


def count_conflicts(draft: Draft) -> None:
    """Tell the metrics, once a judged draft is committed."""
    for verdict, found in (("retired", draft.retired), ("review", draft.in_review)):
        for reason in found.values():
            telemetry.CONFLICTS.labels(reason, verdict).inc()


def _near_in_batch(drafts: Sequence[Draft], least: Sequence[float]) -> list[list[tuple[Draft, float]]]:
    """For each draft the earlier ones of its scope with the same text, the same key or close as a vector (else -1)."""
    found: list[list[tuple[Draft, float]]] = [[] for _ in drafts]
    if len(drafts) == 1:
        return found
    vectors = np.zeros((len(drafts), max(0 if d.windows is None else d.windows.shape[1] for d in drafts)), np.float32)
    known = np.zeros(len(drafts), np.bool_)
    for number, draft in enumerate(drafts):
        if draft.windows is not None and len(draft.windows) == 1:
            vectors[number], known[number] = draft.windows[0], True
    here = np.tri(len(drafts), k=-1, dtype=np.bool_) & _equal([draft.scope for draft in drafts])
    cosine = vectors @ vectors.T
    cosine[(cosine < np.array(least)[:, None]) | ~known[:, None] | ~known] = -1
    rows, columns = np.nonzero(here & (cosine > -1))
    nearest = np.lexsort((-cosine[rows, columns], rows))
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)  # rows are in order, so this is the rank in each
    nearest = nearest[place < np.array([most_near(each) for each in least])[rows]]
    taken = _equal([draft.content_hash for draft in drafts])
    taken |= _equal([number if draft.new.key is None else draft.new.key for number, draft in enumerate(drafts)])
    taken &= here
    taken[rows[nearest], columns[nearest]] = True
    rows, columns = np.nonzero(taken)
    for number, earlier, close in zip(rows.tolist(), columns.tolist(), cosine[rows, columns].tolist(), strict=True):
        found[number].append((drafts[earlier], close))
    return found


def _equal(values: Sequence[Hashable]) -> NDArray[np.bool_]:
    """(n, n): which of the values are equal."""
    numbers: dict[Hashable, int] = {}
    numbered = np.array([numbers.setdefault(value, len(numbers)) for value in values])
    return np.asarray(numbered[:, None] == numbered)
