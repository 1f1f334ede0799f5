"""The parameters of the statement that stores drafts: memories column by column, then the rows of the tables beside.

Invariant: a column says the same of each draft however short it is made (see _stated and _alike).
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from app.language import TOKENIZER_VERSION, word_ids
from app.memory import as_bytes
from app.remember.memory import Draft, weigh
from app.wire import halfvec, new_id


def signed(drafts: Sequence[Draft]) -> dict[str, list[Any]]:
    """Who and when, draft by draft: those of several requests may be stored together."""
    return {"actors": [draft.actor for draft in drafts], "moments": [draft.now for draft in drafts]}


def text_array(values: Sequence[str]) -> str:
    """The text form of a text[]: unnest() cannot take an array of arrays apart by one dimension."""
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


class _Column(NamedTuple):
    name: str
    parameter: str
    kind: str
    same: str = ""

    @property
    def first(self) -> str:
        """Its only value for all rows, if there is but one."""
        only = f"(:{self.parameter})[1]"
        return f"CASE cardinality(:{self.parameter}) WHEN 1 THEN {only} ELSE {self.name} END AS {self.name}"


class Rows:
    """Rows that come as parameters: an array for each column, or single values where it is one row alone.

    A column is written as `name parameter type`, with `=` behind it if one that is the same of all rows may come as its
    first value alone (see same()); one without any value may always come empty (see stated()).
    """

    def __init__(self, *columns: str) -> None:
        self._columns = [_Column(*column.split()) for column in columns]
        self.parameters = tuple(each.parameter for each in self._columns)

    def sql(self, *, alone: bool) -> str:
        """What stands behind FROM, before an alias; its column `number` counts from 1."""
        if alone:  # to take arrays apart costs both sides more than what is in them
            values = [f"cast(:{each.parameter} AS {each.kind}) AS {each.name}" for each in self._columns]
            return f"(SELECT {', '.join(values)}, cast(1 AS bigint) AS number)"
        names = ", ".join(each.name for each in self._columns)
        arrays = ", ".join(f"cast(:{each.parameter} AS {each.kind}[])" for each in self._columns)
        values = [each.first if each.same else each.name for each in self._columns]
        return f"(SELECT {', '.join(values)}, number FROM unnest({arrays}) WITH ORDINALITY AS item ({names}, number))"


def lone(columns: Mapping[str, Any], parameters: Container[str]) -> dict[str, Any]:
    """The values of the only row where these parameters are its columns; other parameters stay as they are."""
    return {
        name: (value[0] if value else None) if name in parameters else value for name, value in columns.items()
    }  # fmt: skip


def stated(values: Iterable[Any]) -> list[Any]:
    """Nothing of a column that has no value: unnest() puts a null where an array has ended."""
    column = list(values)
    return column if column.count(None) < len(column) else []


def same(values: Iterable[Any]) -> list[Any]:
    """Of a column whose values are all equal the first, which SQL takes for the others."""
    column = list(values)
    return column[:1] if column.count(column[0]) == len(column) else column


def same_documents(documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The same of JSON, where 1 and true are not equal."""
    first = as_bytes(documents[0])
    return list(documents[:1] if all(as_bytes(document) == first for document in documents[1:]) else documents)


def stated_columns(drafts: Sequence[Draft], generation_id: int) -> dict[str, Any]:
    """Those parameters of an insert that no verdict changes, so that they can be made before it."""
    weigh(drafts)
    news, keywords = [draft.new for draft in drafts], [draft.weigh() for draft in drafts]
    return {
        "memories": [draft.memory_id for draft in drafts],
        "agents": same(new.agent_id for new in news),
        "contents": [new.content for new in news],
        "content_types": same(new.content_type for new in news),
        "kinds": same(new.kind for new in news),
        "keys": stated(new.key for new in news),
        "importances": same(draft.importance for draft in drafts),
        "tags": same(text_array(new.tags) for new in news),
        "metadata": same_documents([new.metadata for new in news]),
        "sources": same(new.source for new in news),
        "sessions": same(new.session_id for new in news),
        "pinned": same(new.pinned for new in news),
        "event_at": stated(new.event_at for new in news),
        "valid_from": stated(new.valid_from for new in news),
        "valid_to": stated(new.valid_to for new in news),
        "expires_at": stated(new.expires_at for new in news),
        "hashes": [draft.content_hash for draft in drafts],
        "keywords": [words for words, _ in keywords],
        "word_counts": [count for _, count in keywords],
        "tokenizer_version": TOKENIZER_VERSION,
        "embeddings": [draft.embedding for draft in drafts],
        "generation_id": generation_id,
        "window_counts": same(1 if draft.windows is None else len(draft.windows) for draft in drafts),
        "trusts": same(draft.trust for draft in drafts),
        "events": [new_id() for _ in drafts],
        "actors": same(draft.actor for draft in drafts),
        "moments": same(draft.now for draft in drafts),
    }


def judged_columns(drafts: Sequence[Draft], tenant_id: UUID) -> dict[str, Any]:
    """The other parameters of an insert of judged drafts: of memories, and the rows of the tables beside them."""
    subjects = {draft.subject_id: draft for draft in reversed(drafts) if draft.new_subject}
    return {
        "tenant_id": tenant_id,
        "new_subjects": list(subjects),
        "users": [draft.new.user_id for draft in subjects.values()],
        "subject_moments": [draft.now for draft in subjects.values()],
        "subjects": same(draft.subject_id for draft in drafts),
        "statuses": same(draft.status for draft in drafts),
        "large": same(draft.large for draft in drafts),
        "forget_at": same(draft.forget_at for draft in drafts),
        # What the audit trail says of new rows.
        "actions": same("duplicate" if draft.outcome == "duplicate" else "created" for draft in drafts),
        "details": same({"review": draft.review} if draft.in_review else {} for draft in drafts),
        **_besides(drafts),
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
