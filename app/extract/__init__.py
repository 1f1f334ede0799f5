"""Extract: what of a text or a conversation is worth keeping, and how much it matters. No database.

Invariant: nothing is kept that nobody said; a failure is an error and never "nothing found".
"""

from app.extract.conversation import Extraction, Fact, Message, Role, Skipped
from app.extract.facts import ExtractConfig, extract_facts
from app.extract.importance import LEAST_IMPORTANCE, importance_of
from app.extract.sentences import asks, requests_to_keep
from app.extract.served import NOTHING_SAID, SERVED, without_served
from app.extract.triviality import trivial

__all__ = [
    "LEAST_IMPORTANCE",
    "NOTHING_SAID",
    "SERVED",
    "ExtractConfig",
    "Extraction",
    "Fact",
    "Message",
    "Role",
    "Skipped",
    "asks",
    "extract_facts",
    "importance_of",
    "requests_to_keep",
    "trivial",
    "without_served",
]
