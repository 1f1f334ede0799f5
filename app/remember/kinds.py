"""KINDS: one row for each kind of memory. A new kind is one row here and one literal in app/memory.py."""

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class KindOfMemory:
    """What a kind is for, and the importance (1–5) of a memory whose writer names none."""

    name: str
    meaning: str
    default_importance: float


KINDS = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            KindOfMemory("user_preference", "what the user likes, dislikes or wants done", 3.0),
            KindOfMemory("task_state", "where a case or task stands", 3.0),
            KindOfMemory("domain_knowledge", "what is true of the tenant's products and rules", 3.0),
            KindOfMemory("interaction_history", "what was said or done", 2.0),
            KindOfMemory("profile", "a lasting fact about the user", 4.0),
            KindOfMemory("summary", "made from other memories", 3.0),
        )
    }
)
DEFAULT_KIND = "interaction_history"
