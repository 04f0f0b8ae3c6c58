"""Outgoing webhooks as values: endpoints, deliveries, and signatures by the rules of Standard Webhooks 1.0."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from stepwell.model.plain_data import PlainRecord

__all__ = [
    "EVENTS",
    "RETRY_SECONDS",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookReceiver",
    "is_signed",
    "payload_of",
    "signature_of",
]

EVENTS = ("run.completed", "run.partially_completed", "run.failed", "run.cancelled")
"""The events that an endpoint can subscribe to."""

RETRY_SECONDS = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""How long after each failed attempt the next one is made: three days in all."""


_MOST_SIGNATURES = 10


class WebhookEndpoint(PlainRecord, frozen=True, kw_only=True):
    """An address that gets a message when a run of a workspace ends."""

    name: str
    workspace: str
    url: str
    events: tuple[str, ...] = EVENTS
    is_disabled: bool = False
    """Whether nothing is delivered, because deliveries failed for three days."""


class WebhookDelivery(PlainRecord, frozen=True, kw_only=True):
    """A message that was not accepted yet."""

    delivery_id: str
    """The ``webhook-id``, which stays the same over all attempts."""
    endpoint: str
    workspace: str
    type: str
    execution_id: str
    revision: int
    created_at: datetime
    attempts: int = 0
    next_at: datetime | None = None
    """When the next attempt is made; None: it was given up."""
    last_error: str | None = None


class WebhookReceiver(PlainRecord, frozen=True, kw_only=True):
    """An address of this server that takes messages, each a request for a run of a workflow."""

    name: str
    workspace: str
    workflow: str
    """The workflow that a message starts, with the body as its input."""
    queue: str = "default"


def payload_of(delivery: WebhookDelivery) -> bytes:
    """Return the body of a delivery: thin, so that the receiver asks the API for what it may see."""
    data = {"execution_id": delivery.execution_id, "revision": delivery.revision}
    return msgspec.json.encode({"type": delivery.type, "timestamp": delivery.created_at, "data": data})


def signature_of(secrets: Sequence[str], delivery_id: str, timestamp: int, body: bytes) -> str:
    """Return the ``webhook-signature`` of a body: one signature for each secret, so that a rotation loses no message.

    - ``secrets``: as ``whsec_`` and base64.
    """
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    keys = [b64decode(secret.removeprefix("whsec_")) for secret in secrets]
    return " ".join("v1," + b64encode(hmac.new(key, signed, sha256).digest()).decode() for key in keys)


def is_signed(secret: str, message_id: str, timestamp: str, body: bytes, signatures: str) -> bool:
    """Return whether one of the signatures of a message is that of a secret.

    - ``signatures``: the ``webhook-signature``, with one signature or several.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    key = b64decode(secret.removeprefix("whsec_"))
    expected = b"v1," + b64encode(hmac.new(key, signed, sha256).digest())
    return any(hmac.compare_digest(each.encode(), expected) for each in signatures.split(" ")[:_MOST_SIGNATURES])
