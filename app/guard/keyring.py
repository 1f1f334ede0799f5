"""Which caller a key text stands for, answered from a short memory or the database.

Invariant: missing, malformed, unknown, revoked and expired keys are all the same Unauthenticated; only the metric
tells them apart. A database that does not answer is an error of its own, never a wrong key.
"""

import hmac
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from app import telemetry
from app.database import Database, sql
from app.errors import Unauthenticated
from app.guard.caller import SCOPES, Caller
from app.guard.keys import fingerprint, parse
from app.guard.tenants import DEFAULT_TENANT_ID

TRUST: Final = timedelta(seconds=5)
"""How long a verified key is believed without asking again: the longest delay of a revocation."""
DOOR_CHECK: Final = timedelta(seconds=2)
"""How long after the first key of all an open service may stay open."""
LARGEST: Final = 10_000

OPEN_DOOR: Final = Caller(DEFAULT_TENANT_ID, None, None, None, frozenset(SCOPES))

_FIND = sql("""
    SELECT secret_hmac, scopes, trust, agent_id, user_id, expires_at, revoked_at
    FROM api_keys WHERE tenant_id = :tenant_id AND key_id = :key_id
""")
# Any key counts, also a revoked or expired one: taking the last key away must not open the service.
_ANY = sql("SELECT EXISTS (SELECT tenant_id FROM api_keys)")


class Keyring:
    """Verifies keys for one process; holds at most 10,000 callers by fingerprint, never a key's text."""

    __slots__ = ("_database", "_keys_exist", "_known", "_pepper", "_recheck_at")

    def __init__(self, database: Database, pepper: bytes, *, required: bool = False) -> None:
        self._database, self._pepper = database, pepper
        self._known: dict[bytes, tuple[Caller, datetime]] = {}
        self._keys_exist = required
        self._recheck_at: datetime | None = None

    async def closed(self, *, now: datetime) -> bool:
        """Whether a key is needed: because the configuration says so, or since the first key was made.

        Once closed a process stays closed; while open it looks again every 2 seconds.
        """
        if not self._keys_exist and (self._recheck_at is None or now >= self._recheck_at):
            async with self._database.work() as transaction:
                self._keys_exist = bool(await transaction.fetch_value(_ANY))
            self._recheck_at = now + DOOR_CHECK
        return self._keys_exist

    async def authenticate(self, text: str, *, now: datetime) -> Caller:
        """The caller of a key's text; raises Unauthenticated, or the database's own error when it cannot be asked."""
        digest = fingerprint(self._pepper, text)
        known = self._known.get(digest)
        # The upper bound: a clock that was set back must not stretch the trust.
        if known is not None and timedelta(0) < known[1] - now <= TRUST:
            return known[0]
        self._known.pop(digest, None)
        ids = parse(text)
        if ids is None:
            raise _refused("malformed")
        caller, expires_at = await self._verified(*ids, digest, now)
        if len(self._known) >= LARGEST:
            del self._known[next(iter(self._known))]
        self._known[digest] = caller, min(now + TRUST, expires_at or now + TRUST)
        return caller

    async def _verified(
        self, tenant_id: UUID, key_id: UUID, digest: bytes, now: datetime
    ) -> tuple[Caller, datetime | None]:
        async with self._database.read(tenant_id) as transaction:
            row = await transaction.fetch_row(_FIND, tenant_id=tenant_id, key_id=key_id)
        if row is None or not hmac.compare_digest(row["secret_hmac"], digest):
            raise _refused("unknown")
        if row["revoked_at"] is not None:
            raise _refused("revoked")
        expires_at: datetime | None = row["expires_at"]
        if expires_at is not None and expires_at <= now:
            raise _refused("expired")
        caller = Caller(tenant_id, key_id, row["agent_id"], row["user_id"], frozenset(row["scopes"]), row["trust"])
        return caller, expires_at


def _refused(reason: str) -> Unauthenticated:
    telemetry.AUTH_FAILURES.labels(reason).inc()
    return Unauthenticated()
