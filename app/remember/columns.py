"""The parameters of the statement that stores drafts: memories column by column, then the rows of the tables beside.

Invariant: a column says the same of each draft however short it is made (see _stated and _alike).
"""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from app.language import TOKENIZER_VERSION, word_ids
from app.remember.memory import Draft, weigh
from app.wire import halfvec, new_id


def signed(drafts: Sequence[Draft]) -> dict[str, list[Any]]:
    """Who and when, draft by draft: those of several requests may be stored together."""
    return {"actors": [draft.actor for draft in drafts], "moments": [draft.now for draft in drafts]}


def text_array(values: Sequence[str]) -> str:
    """The text form of a text[]: unnest() cannot take an array of arrays apart by one dimension."""
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


def _stated(values: Iterable[Any]) -> list[Any]:
    """Nothing of a column that has no value: unnest() puts a null where an array has ended."""
    column = list(values)
    return column if column.count(None) < len(column) else []


def _alike(values: Iterable[Any]) -> list[Any]:
    """Of a column without nulls whose values are all equal the first, which SQL takes for the others."""
    column = list(values)
    return column[:1] if column.count(column[0]) == len(column) else column


def columns_of(drafts: Sequence[Draft], tenant_id: UUID, generation_id: int) -> dict[str, Any]:
    """The parameters of an insert: memories column by column, then the rows of the tables beside them."""
    weigh(drafts)
    news, keywords = [draft.new for draft in drafts], [draft.weigh() for draft in drafts]
    subjects = {draft.subject_id: draft for draft in reversed(drafts) if draft.new_subject}
    return {
        "tenant_id": tenant_id,
        "new_subjects": list(subjects),
        "users": [draft.new.user_id for draft in subjects.values()],
        "subject_moments": [draft.now for draft in subjects.values()],
        "subjects": [draft.subject_id for draft in drafts],
        "memories": [draft.memory_id for draft in drafts],
        "agents": _stated(new.agent_id for new in news),
        "statuses": _alike(draft.status for draft in drafts),
        "contents": [new.content for new in news],
        "content_types": _alike(new.content_type for new in news),
        "kinds": _alike(new.kind for new in news),
        "keys": _stated(new.key for new in news),
        "importances": _alike(draft.importance for draft in drafts),
        "tags": _alike(text_array(new.tags) for new in news),
        "metadata": [new.metadata for new in news],
        "sources": _stated(new.source for new in news),
        "sessions": _stated(new.session_id for new in news),
        "pinned": _alike(new.pinned for new in news),
        "event_at": _stated(new.event_at for new in news),
        "valid_from": _stated(new.valid_from for new in news),
        "valid_to": _stated(new.valid_to for new in news),
        "expires_at": _stated(new.expires_at for new in news),
        "hashes": [draft.content_hash for draft in drafts],
        "keywords": [words for words, _ in keywords],
        "word_counts": [count for _, count in keywords],
        "tokenizer_version": TOKENIZER_VERSION,
        "embeddings": [draft.embedding for draft in drafts],
        "generations": [None if draft.windows is None else generation_id for draft in drafts],
        "window_counts": _alike(1 if draft.windows is None else len(draft.windows) for draft in drafts),
        "large": _alike(draft.large for draft in drafts),
        "trusts": _alike(draft.trust for draft in drafts),
        "forget_at": _stated(draft.forget_at for draft in drafts),
        **signed(drafts),
        **_events(drafts),
        **_besides(drafts),
    }


def _events(drafts: Sequence[Draft]) -> dict[str, Any]:
    """What the audit trail says of new rows."""
    return {
        "events": [new_id() for _ in drafts],
        "actions": _alike("duplicate" if draft.outcome == "duplicate" else "created" for draft in drafts),
        "details": _alike({"review": draft.review} if draft.in_review else {} for draft in drafts),
    }


def _besides(drafts: Sequence[Draft]) -> dict[str, Any]:
    links = [(draft, *link) for draft in drafts for link in draft.links]
    windows = [
        (draft.subject_id, draft.memory_id, number, halfvec(draft.windows[number - 1]))
        for draft in drafts
        if draft.windows is not None
        for number in range(2, len(draft.windows) + 1)
    ]
    terms = [
        (draft.subject_id, draft.memory_id, term_id)
        for draft in drafts
        if draft.large
        for term_id in word_ids(draft.new.content)
    ]
    pending = [draft for draft in drafts if draft.windows is None and draft.status == "active"]
    ended = [(draft, *draft.outdated_by) for draft in drafts if draft.outdated_by is not None]
    return {
        "link_subjects": [link[0].subject_id for link in links],
        "link_memories": [link[1] for link in links],
        "link_relations": [link[2] for link in links],
        "link_others": [link[3] for link in links],
        "link_moments": [link[0].now for link in links],
        "window_subjects": [window[0] for window in windows],
        "window_memories": [window[1] for window in windows],
        "window_numbers": [window[2] for window in windows],
        "window_embeddings": [window[3] for window in windows],
        "term_subjects": [term[0] for term in terms],
        "term_memories": [term[1] for term in terms],
        "term_ids": [term[2] for term in terms],
        "pending_subjects": [draft.subject_id for draft in pending],
        "pending_memories": [draft.memory_id for draft in pending],
        "pending_moments": [draft.now for draft in pending],
        "ended_subjects": [draft.subject_id for draft, _, _ in ended],
        "ended_memories": [draft.memory_id for draft, _, _ in ended],
        "ended_events": [new_id() for _ in ended],
        "ended_actors": [draft.actor for draft, _, _ in ended],
        "ended_moments": [draft.now for draft, _, _ in ended],
        "ended_details": [{"reason": reason, "by": str(by)} for _, by, reason in ended],
    }
