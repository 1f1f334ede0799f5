"""The door of the walls: who asks (tenants, API keys), and the secret that proves it.

Invariant: a caller's tenant comes from the key alone, never from a body or a path.
"""

from app.guard.caller import FULL_TRUST, SCOPES, Caller
from app.guard.keyring import OPEN_DOOR, Keyring
from app.guard.keys import IssuedKey, KeyGrant, KeyRecord, create_key, list_keys, revoke_key
from app.guard.pepper import derive_secret, load_pepper
from app.guard.tenants import (
    DEFAULT_TENANT_ID,
    Tenant,
    amend_tenant_settings,
    create_tenant,
    list_tenants,
    tenant_settings,
)

__all__ = [
    "DEFAULT_TENANT_ID",
    "FULL_TRUST",
    "OPEN_DOOR",
    "SCOPES",
    "Caller",
    "IssuedKey",
    "KeyGrant",
    "KeyRecord",
    "Keyring",
    "Tenant",
    "amend_tenant_settings",
    "create_key",
    "create_tenant",
    "derive_secret",
    "list_keys",
    "list_tenants",
    "load_pepper",
    "revoke_key",
    "tenant_settings",
]
