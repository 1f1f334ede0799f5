"""A tenant's policy: which rules are on, their numbers, quotas and the grace time, where not as the service says.

Invariant: what is stored was checked against RULES; a name or number that nobody knows is refused, never ignored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from app.database import Database
from app.errors import FieldError, Invalid
from app.forget.rules import RULES, Numbers, Rule
from app.guard import amend_tenant_settings, tenant_settings

GROUP = "forget"
_LIMITS = ("grace_days", "subject_quota", "tenant_quota", "cold_days", "refuse_at_quota")


class ForgetConfig(BaseModel, extra="forbid"):
    """How forgetting is done where a tenant's policy says nothing else."""

    grace_days: float = Field(30.0, ge=0, description="How long what was archived can be restored, until it is purged.")
    subject_quota: int = Field(
        10_000, ge=0, description="Active memories that a user should have at most; 0: no quota."
    )
    tenant_quota: int = Field(0, ge=0, description="The same for a whole tenant.")
    refuse_at_quota: bool = Field(
        False, description="Whether what is written beyond a quota is refused, instead of making room at night."
    )
    cold_days: float = Field(
        90.0, ge=0, description="Days without use after which a memory of little importance is cold; 0: never."
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """What is in force for a tenant: numbers of the rules that are on, in the order of RULES; quotas (0: none)."""

    rules: Mapping[str, Numbers]
    grace_days: float
    subject_quota: int
    tenant_quota: int
    cold_days: float
    refuse_at_quota: bool

    def quota_line(self, quota: int) -> int:
        """How many memories are not too many; 0: any number."""
        return max(1, int(quota * self.rules["over_capacity"]["share"])) if quota else 0


def policy_of(own: Mapping[str, Any], config: ForgetConfig) -> Policy:
    """The policy in force, of what a tenant has set itself."""
    rules = own.get("rules", {})
    return Policy(
        {rule.name: _numbers(rule, rules.get(rule.name, {})) for rule in RULES.values() if _is_on(rule, rules)},
        *(own.get(name, getattr(config, name)) for name in _LIMITS),
    )


async def read_policy(database: Database, tenant_id: UUID, config: ForgetConfig) -> dict[str, Any]:
    """The policy of a tenant, every rule with its meaning, and what of it the tenant has set itself."""
    settings = await tenant_settings(database, tenant_id)
    return _described(settings.get(GROUP, {}), config)


async def put_policy(
    database: Database, tenant_id: UUID, own: Mapping[str, Any], config: ForgetConfig
) -> dict[str, Any]:
    """Replace what a tenant has set itself and return the policy in force.

    `own` may hold `rules` by name (each `on` and `numbers`), grace_days and quotas; None: as the service says. Raises
    Invalid.
    """
    errors = list(_wrong(own.get("rules") or {}))
    if errors:
        raise Invalid(errors=errors)
    values = {name: own.get(name) for name in ("rules", *_LIMITS)}
    settings = await amend_tenant_settings(database, tenant_id, {GROUP: values})
    return _described(settings.get(GROUP, {}), config)


def _is_on(rule: Rule, rules: Mapping[str, Any]) -> bool:
    own = rules.get(rule.name, {}).get("on")
    return rule.on if own is None else bool(own)


def _numbers(rule: Rule, own: Mapping[str, Any]) -> Numbers:
    return {name: float(own.get("numbers", {}).get(name, number.default)) for name, number in rule.numbers.items()}


def _wrong(rules: Mapping[str, Any]) -> Iterator[FieldError]:
    for name, own in rules.items():
        rule = RULES.get(name)
        if rule is None:
            yield FieldError(f"/rules/{name}", "unknown_rule", f"one of {', '.join(RULES)}")
            continue
        for key, value in (own.get("numbers") or {}).items():
            number = rule.numbers.get(key)
            if number is None:
                known = ", ".join(rule.numbers) or "this rule has none"
                yield FieldError(f"/rules/{name}/numbers/{key}", "unknown_number", known)
            elif not number.least <= value <= number.most:
                bounds = f"{number.least:g} to {number.most:g}"
                yield FieldError(f"/rules/{name}/numbers/{key}", "out_of_range", bounds)


def _described(own: Mapping[str, Any], config: ForgetConfig) -> dict[str, Any]:
    rules = own.get("rules", {})
    limits = {name: own.get(name, getattr(config, name)) for name in _LIMITS}
    return limits | {
        "rules": {
            rule.name: {
                "on": _is_on(rule, rules),
                "numbers": (numbers := _numbers(rule, rules.get(rule.name, {}))),
                "reason": rule.reason.format(**numbers),
            }
            for rule in RULES.values()
        },
        "own": sorted([*(name for name in _LIMITS if name in own), *(f"rules.{name}" for name in rules)]),
    }
