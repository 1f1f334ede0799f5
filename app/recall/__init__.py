"""Recall: how memories are found, measured and judged."""

from app.recall.context import Context, ContextRequest, make_context
from app.recall.growth import tend_large_subjects
from app.recall.probe import RecallProbe
from app.recall.query import Absence, Clock, Filters, Fusion, Hit, Query, RecallConfig, Recalled, TimeDecay
from app.recall.replica import Replica
from app.recall.residents import Residents
from app.recall.search import Recaller
from app.recall.small_talk import SmallTalk
from app.recall.usage import UsageBuffer

__all__ = [
    "Absence",
    "Clock",
    "Context",
    "ContextRequest",
    "Filters",
    "Fusion",
    "Hit",
    "Query",
    "RecallConfig",
    "RecallProbe",
    "Recalled",
    "Recaller",
    "Replica",
    "Residents",
    "SmallTalk",
    "TimeDecay",
    "UsageBuffer",
    "make_context",
    "tend_large_subjects",
]
