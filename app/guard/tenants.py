"""Tenants: the companies that share one service and never each other's rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
from uuid_utils.compat import uuid7

from app.database import Database, sql
from app.errors import Conflict, FieldError, Invalid
from app.tables import DEFAULT_TENANT

DEFAULT_TENANT_ID: Final = UUID(DEFAULT_TENANT)
LONGEST_NAME: Final = 200

_INSERT = sql("INSERT INTO tenants (tenant_id, name, created_at) VALUES (:tenant_id, :name, :created_at)")
_LIST = sql("SELECT tenant_id, name, created_at FROM tenants ORDER BY created_at, tenant_id")

_SETTINGS = sql("SELECT settings FROM tenants WHERE tenant_id = :tenant_id")
_SETTINGS_TO_CHANGE = sql("SELECT settings FROM tenants WHERE tenant_id = :tenant_id FOR UPDATE")
_KEEP_SETTINGS = sql("UPDATE tenants SET settings = :settings WHERE tenant_id = :tenant_id")


@dataclass(frozen=True, slots=True)
class Tenant:
    """One company."""

    tenant_id: UUID
    name: str
    created_at: datetime


async def create_tenant(database: Database, name: str, *, now: datetime) -> Tenant:
    """Store a tenant; raises Invalid for a blank or long name (200 characters) and Conflict for a taken one."""
    tenant = Tenant(uuid7(nanoseconds=int(now.timestamp() * 1e9)), checked_name(name), now)
    try:
        async with database.write(tenant.tenant_id) as transaction:
            await transaction.execute(_INSERT, tenant_id=tenant.tenant_id, name=tenant.name, created_at=now)
    except asyncpg.UniqueViolationError as error:
        raise Conflict("a tenant of this name exists") from error
    return tenant


async def list_tenants(database: Database) -> list[Tenant]:
    """All tenants, oldest first."""
    async with database.work() as transaction:
        return [Tenant(**row) for row in await transaction.fetch(_LIST)]


async def tenant_settings(database: Database, tenant_id: UUID) -> dict[str, dict[str, Any]]:
    """What a tenant has set for itself, by group and name; what it has not is as the service's own settings say."""
    async with database.read(tenant_id) as transaction:
        return dict(await transaction.fetch_value(_SETTINGS, tenant_id=tenant_id) or {})


async def amend_tenant_settings(
    database: Database, tenant_id: UUID, changes: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Set what `changes` names, by group and name, and return all; None takes a setting of the tenant's own back."""
    async with database.write(tenant_id) as transaction:
        settings = dict(await transaction.fetch_value(_SETTINGS_TO_CHANGE, tenant_id=tenant_id) or {})
        for group, values in changes.items():
            merged = settings.get(group, {}) | values
            settings[group] = {name: value for name, value in merged.items() if value is not None}
        await transaction.execute(_KEEP_SETTINGS, tenant_id=tenant_id, settings=settings)
    return settings


def checked_name(name: str) -> str:
    """A tenant's or key's name without outer blanks; raises Invalid when it is blank, too long or unprintable."""
    name = name.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise Invalid(errors=[FieldError("/name", "name", f"1 to {LONGEST_NAME} printable characters")])
    return name
