"""Whose memories they are, and the keys that open them. A tenant comes from a key, and from nothing else."""

from sqlalchemy import (
    ARRAY,
    Column,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.tables.base import metadata, of_tenant, tenant_column, text_column, time_column

DEFAULT_TENANT = "00000000-0000-7000-8000-000000000001"

tenants = Table(
    "tenants",
    metadata,
    tenant_column(),
    text_column("name"),
    Column("settings", JSONB, nullable=False, server_default=text("'{}'")),  # what differs from the service's own
    time_column("created_at"),
    UniqueConstraint("name"),
)

api_keys = Table(
    "api_keys",
    metadata,
    tenant_column(),
    Column("key_id", Uuid, primary_key=True),
    text_column("name"),
    Column("secret_hmac", LargeBinary, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("trust", SmallInteger, nullable=False, server_default=text("100")),
    text_column("agent_id", nullable=True),
    text_column("user_id", nullable=True),
    time_column("created_at"),
    time_column("expires_at", nullable=True),
    time_column("revoked_at", nullable=True),
    of_tenant(),
)
