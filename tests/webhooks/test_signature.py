"""Signatures are those of Standard Webhooks, checked here by its text and not by our code."""

import base64
import hmac
from datetime import UTC, datetime
from uuid import UUID

from app.webhooks.courier import wait_seconds
from app.webhooks.signature import WebhookConfig, headers_for, secret_of, secret_text

TENANT, HOOK = UUID(int=1), UUID(int=2)


def test_the_signature_covers_id_time_and_body() -> None:
    secret = secret_of(b"a pepper of sixteen", TENANT, HOOK)
    at = datetime(2026, 11, 30, 8, tzinfo=UTC)
    body = b'{"type":"memory.created"}'
    headers = headers_for(secret, UUID(int=3), at, body)
    assert headers["webhook-timestamp"] == "1796025600"
    key = base64.b64decode(secret_text(secret).removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    version, _, signature = headers["webhook-signature"].partition(",")
    assert version == "v1"
    assert base64.b64decode(signature) == hmac.new(key, signed, "sha256").digest()


def test_every_webhook_has_a_secret_of_its_own_that_the_pepper_alone_gives() -> None:
    secrets = {
        secret_of(pepper, tenant, hook)
        for pepper in (b"a pepper of sixteen", b"b pepper of sixteen")
        for tenant in (TENANT, UUID(int=9))
        for hook in (HOOK, UUID(int=8))
    }
    assert len(secrets) == 8
    assert all(len(secret) == 32 for secret in secrets)


def test_waits_grow_fourfold_up_to_the_longest() -> None:
    config = WebhookConfig(first_wait_seconds=5, longest_wait_seconds=1_000)
    assert [wait_seconds(config, attempts) for attempts in (1, 2, 3, 4, 5, 60)] == [5, 20, 80, 320, 1_000, 1_000]
