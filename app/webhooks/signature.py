"""Standard Webhooks: the secret of an endpoint and the signature of what is sent to it.

Invariant: a secret is derived from the service's pepper and the ids, and stored nowhere.
"""

import base64
import hmac
from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field

from app.guard import derive_secret


class WebhookConfig(BaseModel, extra="forbid"):
    """How patiently events are sent, and whereto they may go."""

    allow_private_targets: bool = Field(
        False, description="Also send to plain http and to private, loopback and link-local addresses."
    )
    timeout_seconds: float = Field(10.0, gt=0, le=60, description="Longest time of one attempt.")
    attempts: int = Field(10, ge=1, le=50, description="Attempts before an event is given up.")
    first_wait_seconds: float = Field(
        5.0, gt=0, description="Wait before the second attempt; four times that each next."
    )
    longest_wait_seconds: float = Field(21_600.0, gt=0, description="Longest wait between two attempts.")
    disable_after_hours: float = Field(72.0, gt=0, description="A webhook that failed for so long is switched off.")
    keep_days: float = Field(7.0, gt=0, description="How long events and their deliveries can be looked up.")
    concurrency: int = Field(16, ge=1, le=256, description="Most webhooks that a worker serves at once.")
    most_per_tenant: int = Field(20, ge=1, description="Most webhooks of a tenant.")


def secret_of(pepper: bytes, tenant_id: UUID, webhook_id: UUID) -> bytes:
    """The 32 bytes with which what goes to an endpoint is signed."""
    return derive_secret(pepper, f"webhook:{tenant_id}:{webhook_id}")


def secret_text(secret: bytes) -> str:
    """A secret as its receiver's library takes it."""
    return "whsec_" + base64.b64encode(secret).decode()


def headers_for(secret: bytes, event_id: UUID, at: datetime, body: bytes) -> dict[str, str]:
    """The headers of a signed message; `at` is the time of this attempt."""
    seconds = str(int(at.timestamp()))
    signed = hmac.digest(secret, f"{event_id}.{seconds}.".encode() + body, "sha256")
    return {
        "webhook-id": str(event_id),
        "webhook-timestamp": seconds,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
        "content-type": "application/json",
        "user-agent": "mneme-webhooks/1",
    }
