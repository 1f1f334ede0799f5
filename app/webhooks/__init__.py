"""Webhooks: what happened is told to whom a tenant named, signed, again and again until it is heard or given up.

Invariant: an event is written in the transaction of what happened, and holds ids, never text.
"""

from app.webhooks.courier import Courier, forget_events, pending
from app.webhooks.endpoints import NewWebhook, Webhooks
from app.webhooks.events import EVENTS, Event, Subscriptions, tell
from app.webhooks.signature import WebhookConfig, secret_of

__all__ = [
    "EVENTS",
    "Courier",
    "Event",
    "NewWebhook",
    "Subscriptions",
    "WebhookConfig",
    "Webhooks",
    "forget_events",
    "pending",
    "secret_of",
    "tell",
]
