"""RULES: one row for each reason to forget. A rule only points at memories; the sweep archives them, or leaves them be.

Invariant: no rule sees what is pinned or under a legal hold, and whatever it points at is archived, never deleted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a rule that a tenant may set, and the bounds within which it may."""

    default: float
    least: float
    most: float
    meaning: str


Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to forget.

    `condition` is SQL over memories m and memory_usage u whose parameters `values` makes of the numbers and the time;
    `due` orders what it finds, the first to go first, along an index. `reason` is told with the numbers in it. A rule
    with `only_above_quota` takes no more than what is too much; one that `may_postpone` is asked again with the use.
    """

    name: str
    reason: str
    numbers: Mapping[str, Number]
    condition: str
    due: str
    values: Callable[[Numbers, datetime], dict[str, Any]]
    only_above_quota: bool = False
    may_postpone: bool = False
    on: bool = field(default=True)


def _before(name: str, unit: str = "days") -> Callable[[Numbers, datetime], dict[str, Any]]:
    """The parameter `before`: so long ago as the number of that name says."""
    return lambda numbers, now: {"before": now - timedelta(**{unit: numbers[name]})}


# A case is closed by what its memory says of itself in tags or metadata, or in these words; a memory of the same
# metadata.case_id may say it for all. What is denied or asked for is not closed.
CLOSED_STATES: Final = (
    "closed", "resolved", "done", "completed", "cancelled", "已关闭", "已解决", "已完成", "已取消", "已结案",
)  # fmt: skip
_CLOSED_WORDS: Final = (
    r"(已(经)?(关闭|解决|完成|结案|办结|取消|处理完|退款完成)"
    r"|\m(is|was|been|now) (closed|resolved|completed|cancelled|done)\M)"
)
_NOT_CLOSED: Final = r"(未|没|尚|吗|待|如果|？|\?|\mnot\M|n't|\munless\M|\mif\M|\muntil\M)"


def _closed(alias: str) -> str:
    states = ", ".join(f"'{state}'" for state in CLOSED_STATES)
    return f"""(
        {alias}.tags && ARRAY[{states}] OR lower({alias}.metadata ->> 'state') IN ({states})
        OR ({alias}.content ~* '{_CLOSED_WORDS}' AND {alias}.content !~* '{_NOT_CLOSED.replace("'", "''")}')
    )"""


_ACTIVE: Final = "m.status = 'active' AND NOT m.pinned"
# What came back is as old as its return; the others reckon from updated_at or a due date, which a return sets anew.
_RETURNED_SINCE: Final = """(
        SELECT e.event_id FROM memory_events e
        WHERE e.tenant_id = m.tenant_id AND e.subject_id = m.subject_id AND e.memory_id = m.memory_id
          AND e.action = 'restored' AND e.created_at >= :before
        LIMIT 1
    )"""

RULES: Final = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule(
                "trivial",
                "importance 1 and unchanged for {days:g} days",
                {"days": Number(7, 0, 3650, "days without a change")},
                f"{_ACTIVE} AND m.importance < 3 AND m.importance <= 1 AND m.updated_at < :before",
                "m.updated_at",
                _before("days"),
            ),
            Rule(
                "expired",
                "its expires_at has passed",
                {},
                f"{_ACTIVE} AND m.expires_at IS NOT NULL AND m.expires_at <= :before",
                "m.expires_at",
                lambda _, now: {"before": now},
            ),
            Rule(
                "task_closed",
                "state of a case that was closed, unchanged for {days:g} days",
                {"days": Number(30, 0, 3650, "days without a change of any memory of the case")},
                f"""
                {_ACTIVE} AND m.kind = 'task_state' AND m.updated_at < :before AND ({_closed("m")} OR EXISTS (
                    SELECT FROM memories c
                    WHERE c.tenant_id = m.tenant_id AND c.subject_id = m.subject_id AND c.kind = 'task_state'
                      AND c.status = 'active' AND c.metadata ->> 'case_id' = m.metadata ->> 'case_id'
                      AND c.updated_at < :before AND {_closed("c")}
                ))
                """,
                "m.updated_at",
                _before("days"),
            ),
            Rule(
                "superseded",
                "overruled for {days:g} days",
                {"days": Number(180, 0, 3650, "days since it was overruled")},
                "NOT m.pinned AND m.status = 'deprecated' AND m.deprecated_at < :before",
                "m.deprecated_at",
                _before("days"),
            ),
            Rule(
                "duplicate",
                "kept beside another that says the same, for {days:g} days",
                {"days": Number(180, 0, 3650, "days since it was recognised as a duplicate")},
                "NOT m.pinned AND m.status = 'duplicate' AND m.updated_at < :before",
                "m.updated_at",
                _before("days"),
            ),
            Rule(
                "stale",
                "unchanged for {days:g} days and importance below {importance:g} of 1",
                {
                    "days": Number(180, 1, 3650, "days without a change"),
                    "importance": Number(0.3, 0, 0.5, "importance from 0 to 1 below which it goes"),
                },
                f"""
                {_ACTIVE} AND m.importance < 3 AND m.importance < cast(:importance AS real) AND m.updated_at < :before
                """,
                "m.updated_at",
                lambda numbers, now: _before("days")(numbers, now) | {"importance": 1 + 4 * numbers["importance"]},
            ),
            Rule(
                "faded",
                "neither written nor used for so long that it is forgotten",
                {"days": Number(0, 0, 3650, "days after its forget_at")},
                "u.tenant_id = :tenant_id AND u.forget_at IS NOT NULL AND u.forget_at <= :before",
                "u.forget_at",
                _before("days"),
                may_postpone=True,
            ),
            Rule(
                "over_capacity",
                "too many memories: fewer than {uses:g} uses, importance below {importance:g}, older than {hours:g} h",
                {
                    "share": Number(0.8, 0.1, 1, "share of the quota above which memories go"),
                    "uses": Number(3, 0, 1000, "uses from which a memory stays"),
                    "importance": Number(2, 1, 3, "importance from 1 to 5 from which a memory stays"),
                    "hours": Number(720, 0, 87600, "age in hours below which a memory stays"),
                },
                f"""
                {_ACTIVE} AND m.importance < 3 AND m.importance < cast(:importance AS real)
                AND u.access_count < cast(:uses AS float8) AND m.created_at < :before AND {_RETURNED_SINCE} IS NULL
                """,
                "coalesce(u.last_accessed_at, m.created_at)",
                lambda numbers, now: (
                    _before("hours", "hours")(numbers, now)
                    | {"importance": numbers["importance"], "uses": numbers["uses"]}
                ),
                only_above_quota=True,
            ),
        )
    }
)
