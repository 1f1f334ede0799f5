"""KINDS: one row for each kind of memory. A new kind is one row here and one literal in app/memory.py."""

from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from app import strength


@dataclass(frozen=True, slots=True)
class KindOfMemory:
    """What a kind is for, the importance (1–5) of a memory whose writer names none, and how long it stays strong.

    `half_life_days` is that of a memory of importance 3 that nobody uses; it is forgotten after 4.3 of them.
    """

    name: str
    meaning: str
    default_importance: float
    half_life_days: float

    def forget_at(self, importance: float, uses: int, since: datetime) -> datetime:
        """When a memory of this kind, used so often and last at `since`, is forgotten if it stays unused."""
        return strength.forget_at(since, strength.half_life(self.half_life_days, importance, uses))


# Half-lives: an ordinary line of a conversation (importance 2) fades in half a year, where the rule `stale` ends, too;
# a case in about as long; what is true of a person or product in years.
KINDS = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            KindOfMemory("user_preference", "what the user likes, dislikes or wants done", 3.0, 365),
            KindOfMemory("task_state", "where a case or task stands", 3.0, 45),
            KindOfMemory("domain_knowledge", "what is true of the tenant's products and rules", 3.0, 365),
            KindOfMemory("interaction_history", "what was said or done", 2.0, 60),
            KindOfMemory("profile", "a lasting fact about the user", 4.0, 730),
            KindOfMemory("summary", "made from other memories", 3.0, 365),
        )
    }
)
DEFAULT_KIND = "interaction_history"
