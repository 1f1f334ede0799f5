"""What webhooks hear of memories: those that are new, and those that are overruled, on every path the same."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from app.remember.memory import Draft
from app.webhooks import Event


def news_of(drafts: Sequence[Draft]) -> list[Event]:
    """What somebody may want to know of drafts that were stored together: a duplicate is no news, and what is outdated
    from the start never was an active memory."""
    found = []
    born_overruled = {draft.memory_id for draft in drafts if draft.outdated_by is not None}
    for draft in drafts:
        assert draft.subject_id is not None
        if draft.twin_id is None and draft.outcome != "outdated":
            new = draft.new
            data = {"memory_id": str(draft.memory_id), "kind": new.kind, "key": new.key} | _whose(draft)
            found.append(Event("memory.created", draft.subject_id, data, draft.now))
        found += overruled(draft, draft.retired.keys() - born_overruled)
    return found


def overruled(draft: Draft, memories: Iterable[UUID] = ()) -> list[Event]:
    """What a draft overrules, and the draft itself if something newer overrules it."""
    assert draft.subject_id is not None
    ends = [(memory_id, draft.memory_id) for memory_id in sorted(memories)]
    if draft.outdated_by is not None:
        ends.append((draft.memory_id, draft.outdated_by[0]))
    return [deprecated(draft.subject_id, memory_id, by, draft.scope, draft.now) for memory_id, by in ends]


def deprecated(
    subject_id: UUID, memory_id: UUID, by: UUID | None, scope: tuple[str | None, str | None], at: datetime
) -> Event:
    """The event that a memory of this user and agent was overruled by another one (None: by time)."""
    data = {"memory_id": str(memory_id), "superseded_by": None if by is None else str(by)}
    return Event("memory.deprecated", subject_id, data | {"user_id": scope[0], "agent_id": scope[1]}, at)


def _whose(draft: Draft) -> dict[str, str | None]:
    return {"user_id": draft.new.user_id, "agent_id": draft.new.agent_id}
