"""Quotas as a wall: where a tenant's policy says so, a user or tenant that is full gets no new memory.

Invariant: by default no write is refused: the rule `over_capacity` makes room at night. Counts are as old as
FRESH_SECONDS, with what this process wrote since: many processes at once may go beyond a quota by what they write then.
"""

from collections import OrderedDict
from datetime import timedelta
from time import monotonic
from typing import Final
from uuid import UUID

from app import work_metrics
from app.database import Database, sql
from app.errors import QuotaExceeded
from app.forget.policy import GROUP, ForgetConfig, Policy, policy_of
from app.guard import tenant_settings

FRESH_SECONDS: Final = timedelta(seconds=10).total_seconds()
REMEMBERED: Final = 10_000
COUNT_SECONDS: Final = 10.0


class Quotas:
    """The quotas of one process."""

    def __init__(self, database: Database, config: ForgetConfig) -> None:
        self._database, self._config = database, config
        self._policies: OrderedDict[UUID, tuple[float, Policy]] = OrderedDict()
        self._counts: OrderedDict[tuple[UUID, str | None, bool], tuple[float, int]] = OrderedDict()

    async def admit(self, tenant_id: UUID, user_id: str | None) -> None:
        """Let one memory of a user (None: the shared subject) in. Raises QuotaExceeded."""
        policy = await self._policy(tenant_id)
        if not policy.refuse_at_quota:
            return
        for whole, quota in ((False, policy.subject_quota), (True, policy.tenant_quota)):
            if quota:
                await self._admit(tenant_id, user_id, quota, whole=whole)

    async def _admit(self, tenant_id: UUID, user_id: str | None, quota: int, *, whole: bool) -> None:
        place = tenant_id, None if whole else user_id, whole
        until, count = self._counts.pop(place, (0.0, 0))
        if until < monotonic():
            async with self._database.read(tenant_id) as transaction:
                await transaction.allow(COUNT_SECONDS)
                count = await transaction.fetch_value(
                    _OF_TENANT if whole else _OF_SUBJECT, tenant_id=tenant_id, user_id=user_id, most=quota
                )
            until = monotonic() + FRESH_SECONDS
        full = count >= quota
        self._counts[place] = until, count + (not full)
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)
        if full:
            work_metrics.WRITES_REFUSED.labels("tenant_quota" if whole else "subject_quota").inc()
            raise QuotaExceeded(f"{'the tenant' if whole else 'this user'} may have {quota} active memories")

    async def _policy(self, tenant_id: UUID) -> Policy:
        until, policy = self._policies.pop(tenant_id, (0.0, None))
        if policy is None or until < monotonic():
            settings = await tenant_settings(self._database, tenant_id)
            policy, until = policy_of(settings.get(GROUP, {}), self._config), monotonic() + FRESH_SECONDS
        self._policies[tenant_id] = until, policy
        if len(self._policies) > REMEMBERED:
            self._policies.popitem(last=False)
        return policy


_OF_SUBJECT = sql("""
    SELECT count(*) FROM (
        SELECT FROM memories
        WHERE tenant_id = :tenant_id AND status = 'active' AND subject_id = (
            SELECT subject_id FROM subjects
            WHERE tenant_id = :tenant_id AND user_id IS NOT DISTINCT FROM cast(:user_id AS text)
        )
        LIMIT :most
    ) AS found
""")
_OF_TENANT = sql("""
    SELECT count(*) FROM (
        SELECT FROM memories WHERE tenant_id = :tenant_id AND status = 'active' LIMIT :most
    ) AS found
""")
