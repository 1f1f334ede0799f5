"""Remember: how memories come in, are judged, and are kept by hand."""

from app.kinds import DEFAULT_KIND, KINDS
from app.remember.feedback import Feedback, give_feedback, undo_feedback
from app.remember.fill import Filler, backlog
from app.remember.judge import judge as judge_drafts
from app.remember.judge import judge_pair
from app.remember.lineage import MOST_STEPS, Lineage, Restored, lineage_of, make_active, restore
from app.remember.memory import Draft, IfTrivial, Link, NewMemory, RememberConfig, Written, content_hash
from app.remember.opinion import LlmOpinion, Opinion, consult
from app.remember.reembed import Refill, keep_up
from app.remember.review import Pair, Review, accept_review, open_reviews, reject_review
from app.remember.shelf import AMENDABLE, Listing, Shelf
from app.remember.store import store as store_drafts
from app.remember.twins import compare
from app.remember.window import Conversation, SessionConfig, Sessions, Window, end_idle_sessions, end_in, held_in
from app.remember.write import Rememberer

__all__ = [
    "AMENDABLE",
    "DEFAULT_KIND",
    "KINDS",
    "MOST_STEPS",
    "Conversation",
    "Draft",
    "Feedback",
    "Filler",
    "IfTrivial",
    "Lineage",
    "Link",
    "Listing",
    "LlmOpinion",
    "NewMemory",
    "Opinion",
    "Pair",
    "Refill",
    "RememberConfig",
    "Rememberer",
    "Restored",
    "Review",
    "SessionConfig",
    "Sessions",
    "Shelf",
    "Window",
    "Written",
    "accept_review",
    "backlog",
    "compare",
    "consult",
    "content_hash",
    "end_idle_sessions",
    "end_in",
    "give_feedback",
    "held_in",
    "judge_drafts",
    "judge_pair",
    "keep_up",
    "lineage_of",
    "make_active",
    "open_reviews",
    "reject_review",
    "restore",
    "store_drafts",
    "undo_feedback",
]
