"""Remember: how memories come in, are judged, and are kept by hand."""

from app.remember.feedback import Feedback, give_feedback, undo_feedback
from app.remember.fill import Filler, backlog
from app.remember.kinds import DEFAULT_KIND, KINDS
from app.remember.memory import NewMemory, RememberConfig, Written
from app.remember.served import NOTHING_SAID
from app.remember.shelf import AMENDABLE, Listing, Shelf
from app.remember.write import Answer, Idempotency, Rememberer, expire_idempotency

__all__ = [
    "AMENDABLE",
    "DEFAULT_KIND",
    "KINDS",
    "NOTHING_SAID",
    "Answer",
    "Feedback",
    "Filler",
    "Idempotency",
    "Listing",
    "NewMemory",
    "RememberConfig",
    "Rememberer",
    "Shelf",
    "Written",
    "backlog",
    "expire_idempotency",
    "give_feedback",
    "undo_feedback",
]
