"""What extraction takes and gives: messages of a conversation, facts with their source, what was left out and why."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Role = Literal["user", "assistant", "tool", "system"]
Skip = Literal[
    "system_text", "tool_text", "served_memory", "not_said_by_user", "asked_not_to", "question", "hypothetical",
    "command", "trivial", "nothing_new", "rejected",
]  # fmt: skip
Trigger = Literal["request", "slot", "preference", "profile", "task_state", "entity", "other_person", "model"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `at` carries its zone, None if nobody knows when it was said. Blank content is allowed."""

    role: Role
    content: str
    at: datetime | None = None
    tool: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One self-contained statement in the language and person of its source.

    `event_at`: when that happened of which it speaks (aware), None if the text and its time do not say. `importance`
    1 to 5. `message_index` and `role` name the source; `trigger` says why it was kept.
    """

    content: str
    kind: str
    message_index: int
    role: Role
    trigger: Trigger
    key: str | None = None
    entities: tuple[str, ...] = ()
    importance: float
    event_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A message, or a part of one, that gave no fact; `reason` is a stable code."""

    message_index: int
    reason: Skip


@dataclass(frozen=True, slots=True)
class Extraction:
    """The facts of a conversation in its order. No facts is an answer; a failure is an error and never comes as this.

    `degraded` names what was missing: `llm_unavailable` (the rules answered alone).
    """

    facts: tuple[Fact, ...]
    skipped: tuple[Skipped, ...]
    degraded: tuple[str, ...] = ()
