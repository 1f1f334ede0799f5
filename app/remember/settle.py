"""What of a new memory is kept, how much it matters and how long it stays, before any model or database is asked.

Invariant: pure; a text that is left out wholly has a reason and no content is invented or shortened otherwise.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from app.extract import LEAST_IMPORTANCE, SERVED, importance_of, trivial, without_served
from app.remember.memory import NewMemory, RememberConfig

FILTERED_BELOW: Final = 2.0
"""Who names an importance from here on wants the text kept, whatever it says."""


def settled(new: NewMemory, config: RememberConfig, now: datetime) -> NewMemory:
    """The memory as it will be stored: without what Mneme served, with its importance and its expiry.

    `left_out` says why part of the text was not taken, or all of it: then the content is empty. Small talk is left out
    unless it is pinned, holds a key, is no text, has an importance of 2 or more from its writer, or `if_trivial` says
    otherwise.
    """
    said = without_served(new.content)
    reason = None if said == new.content else SERVED
    if not said:
        return replace(new, content="", left_out=reason)
    small_talk = None if _deliberate(new) else trivial(said)
    if small_talk is not None and new.if_trivial == "filter":
        return replace(new, content="", left_out=reason or small_talk)
    weight = new.importance
    if weight is None:
        ordinary = small_talk is None or new.if_trivial == "keep"  # what has importance 1 is archived after a week
        weight = importance_of(new.kind, said) if ordinary else LEAST_IMPORTANCE
    expires_at = new.expires_at
    if weight <= LEAST_IMPORTANCE and expires_at is None and not new.pinned and new.if_trivial != "keep":
        expires_at = now + timedelta(days=config.unimportant_days)
    kept = (said, weight, expires_at, reason)
    if kept == (new.content, new.importance, new.expires_at, new.left_out):
        return new
    return replace(new, content=said, importance=weight, expires_at=expires_at, left_out=reason)


def _deliberate(new: NewMemory) -> bool:
    weighty = new.importance is not None and new.importance >= FILTERED_BELOW
    return new.pinned or new.key is not None or new.content_type != "text" or weighty
