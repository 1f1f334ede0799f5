"""Consolidate: what says the same becomes one, what is no longer true is overruled, what is old is told in short.

It stands one floor above remember, whose verdicts and write path it uses.
"""

from app.consolidate.config import ConsolidateConfig, Tools
from app.consolidate.dedup import merge_duplicates
from app.consolidate.deprecate import deprecate_overruled
from app.consolidate.summarise import summarise_old
from app.consolidate.undo import undo_consolidation

__all__ = [
    "ConsolidateConfig",
    "Tools",
    "deprecate_overruled",
    "merge_duplicates",
    "summarise_old",
    "undo_consolidation",
]
