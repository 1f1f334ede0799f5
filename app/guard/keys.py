"""API keys: made, listed, revoked. The text `mnk_<tenant><key>_<secret>` exists once, in the answer that makes it;
stored is only its HMAC-SHA256 under the pepper. The tenant inside the text chooses the rows that may be looked at."""

import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg
from uuid_utils.compat import uuid7

from app.database import Database, sql
from app.errors import FieldError, Invalid, NotFound
from app.guard.caller import FULL_TRUST, SCOPES
from app.guard.tenants import checked_name

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_ID_LENGTH: Final = 22  # 62^22 > 2^128
_SECRET_LENGTH: Final = 43  # 62^43 > 2^256
_SHAPE: Final = re.compile(
    rf"mnk_([0-9A-Za-z]{{{_ID_LENGTH}}})([0-9A-Za-z]{{{_ID_LENGTH}}})_[0-9A-Za-z]{{{_SECRET_LENGTH}}}"
)
_LONGEST_BOND: Final = 255

_INSERT = sql("""
    INSERT INTO api_keys (
        tenant_id, key_id, name, secret_hmac, scopes, trust, agent_id, user_id, created_at, expires_at
    )
    VALUES (:tenant_id, :key_id, :name, :secret_hmac, :scopes, :trust, :agent_id, :user_id, :created_at, :expires_at)
""")
_LIST = sql("""
    SELECT tenant_id, key_id, name, scopes, trust, agent_id, user_id, created_at, expires_at, revoked_at
    FROM api_keys WHERE tenant_id = :tenant_id ORDER BY created_at, key_id
""")
_REVOKE = sql("""
    UPDATE api_keys SET revoked_at = coalesce(revoked_at, :now) WHERE tenant_id = :tenant_id AND key_id = :key_id
""")


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What a new key shall allow; bound to one user or agent where these are given.

    `trust`, 0 to 100: how far what is written with it is to be believed.
    """

    tenant_id: UUID
    name: str
    scopes: frozenset[str]
    agent_id: str | None = None
    user_id: str | None = None
    expires_at: datetime | None = None
    trust: int = FULL_TRUST


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A stored key, without anything that could be used as one."""

    tenant_id: UUID
    key_id: UUID
    name: str
    scopes: tuple[str, ...]
    trust: int
    agent_id: str | None
    user_id: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class IssuedKey(NamedTuple):
    """A new key: its id for the list, and the text that is shown this once."""

    key_id: UUID
    text: str


async def create_key(database: Database, pepper: bytes, grant: KeyGrant, *, now: datetime) -> IssuedKey:
    """Store a new key and return its text; raises Invalid for a bad grant and NotFound for an unknown tenant."""
    _check(grant, now)
    key_id = uuid7(nanoseconds=int(now.timestamp() * 1e9))
    secret = "".join(secrets.choice(_DIGITS) for _ in range(_SECRET_LENGTH))
    text = f"mnk_{_encode(grant.tenant_id)}{_encode(key_id)}_{secret}"
    try:
        async with database.write(grant.tenant_id) as transaction:
            await transaction.execute(
                _INSERT,
                tenant_id=grant.tenant_id,
                key_id=key_id,
                name=checked_name(grant.name),
                secret_hmac=fingerprint(pepper, text),
                scopes=sorted(grant.scopes),
                trust=grant.trust,
                agent_id=grant.agent_id,
                user_id=grant.user_id,
                created_at=now,
                expires_at=grant.expires_at,
            )
    except asyncpg.ForeignKeyViolationError as error:
        raise NotFound("no such tenant") from error
    return IssuedKey(key_id, text)


async def list_keys(database: Database, tenant_id: UUID) -> list[KeyRecord]:
    """Every key of a tenant, also revoked and expired ones, oldest first."""
    async with database.read(tenant_id) as transaction:
        rows = await transaction.fetch(_LIST, tenant_id=tenant_id)
    return [KeyRecord(**(dict(row) | {"scopes": tuple(row["scopes"])})) for row in rows]


async def revoke_key(database: Database, tenant_id: UUID, key_id: UUID, *, now: datetime) -> None:
    """Stop a key for good; running services notice within the Keyring's few seconds. Raises NotFound."""
    async with database.write(tenant_id) as transaction:
        if not await transaction.execute(_REVOKE, tenant_id=tenant_id, key_id=key_id, now=now):
            raise NotFound("no such key")


def fingerprint(pepper: bytes, text: str) -> bytes:
    """HMAC-SHA256 of the whole key text, so that a row cannot be moved to another tenant or key id."""
    return hmac.digest(pepper, text.encode(), "sha256")


def parse(text: str) -> tuple[UUID, UUID] | None:
    """Tenant and key id inside a key's text, or None if it has another shape."""
    match = _SHAPE.fullmatch(text)
    ids = [_decode(group) for group in match.groups()] if match else []
    return None if len(ids) != 2 or ids[0] is None or ids[1] is None else (ids[0], ids[1])


def _check(grant: KeyGrant, now: datetime) -> None:
    errors = []
    if not grant.scopes or not grant.scopes <= set(SCOPES):
        errors.append(FieldError("/scopes", "scopes", f"one or more of {', '.join(SCOPES)}"))
    if not 0 <= grant.trust <= FULL_TRUST:
        errors.append(FieldError("/trust", "trust", f"0 to {FULL_TRUST}"))
    for field, bond in (("agent_id", grant.agent_id), ("user_id", grant.user_id)):
        if bond is not None and not (0 < len(bond) <= _LONGEST_BOND and bond == bond.strip() and bond.isprintable()):
            errors.append(FieldError(f"/{field}", field, f"1 to {_LONGEST_BOND} printable characters, no outer blanks"))
    if grant.expires_at is not None and (grant.expires_at.tzinfo is None or grant.expires_at <= now):
        errors.append(FieldError("/expires_at", "expires_at", "a time in the future, with its zone"))
    if errors:
        raise Invalid(errors=errors)


def _encode(identifier: UUID) -> str:
    rest, digits = identifier.int, []
    for _ in range(_ID_LENGTH):
        rest, digit = divmod(rest, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def _decode(digits: str) -> UUID | None:
    number = 0
    for digit in digits:
        number = number * 62 + _VALUES[digit]
    return UUID(int=number) if number < 1 << 128 else None
