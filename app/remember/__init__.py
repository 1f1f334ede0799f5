"""Remember: how memories come in, are judged, and are kept by hand."""

from app.kinds import DEFAULT_KIND, KINDS
from app.remember.conversation import Extraction, Fact, Message, Skipped
from app.remember.extract import ExtractConfig, extract_facts
from app.remember.feedback import Feedback, give_feedback, undo_feedback
from app.remember.fill import Filler, backlog
from app.remember.judge import judge_pair
from app.remember.lineage import MOST_STEPS, Lineage, Restored, lineage_of, restore
from app.remember.memory import IfTrivial, NewMemory, RememberConfig, Written, content_hash
from app.remember.opinion import LlmOpinion, Opinion
from app.remember.served import NOTHING_SAID
from app.remember.shelf import AMENDABLE, Listing, Shelf
from app.remember.window import Conversation, SessionConfig, Sessions, Window, end_idle_sessions, end_in, held_in
from app.remember.write import Rememberer

__all__ = [
    "AMENDABLE",
    "DEFAULT_KIND",
    "KINDS",
    "MOST_STEPS",
    "NOTHING_SAID",
    "Conversation",
    "ExtractConfig",
    "Extraction",
    "Fact",
    "Feedback",
    "Filler",
    "IfTrivial",
    "Lineage",
    "Listing",
    "LlmOpinion",
    "Message",
    "NewMemory",
    "Opinion",
    "RememberConfig",
    "Rememberer",
    "Restored",
    "SessionConfig",
    "Sessions",
    "Shelf",
    "Skipped",
    "Window",
    "Written",
    "backlog",
    "content_hash",
    "end_idle_sessions",
    "end_in",
    "extract_facts",
    "give_feedback",
    "held_in",
    "judge_pair",
    "lineage_of",
    "restore",
    "undo_feedback",
]
