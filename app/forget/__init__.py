"""Forget: rules that archive, the ways back, the purge, legal holds, erasure, and what use strengthens."""

from app.forget.archive import Undone, purge, undo_run
from app.forget.erase import Erased, erase_subject
from app.forget.holds import list_holds, place_hold, release_hold
from app.forget.policy import ForgetConfig, put_policy, read_policy
from app.forget.quota import Quotas
from app.forget.reinforcement import reinforce
from app.forget.rules import RULES, Rule
from app.forget.sweep import HELD, forget
from app.forget.tiers import Centre, cool, report_tiers, undo_cooling

__all__ = [
    "HELD",
    "RULES",
    "Centre",
    "Erased",
    "ForgetConfig",
    "Quotas",
    "Rule",
    "Undone",
    "cool",
    "erase_subject",
    "forget",
    "list_holds",
    "place_hold",
    "purge",
    "put_policy",
    "read_policy",
    "reinforce",
    "release_hold",
    "report_tiers",
    "undo_cooling",
    "undo_run",
]
