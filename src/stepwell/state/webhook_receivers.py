"""Incoming webhooks: receivers, each with a secret, whose verified messages are requests for runs.

The id of a message is the idempotency key of its request, so that a message that is sent again is enqueued once.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from urllib.parse import quote

import msgspec

from stepwell.clock import from_ms
from stepwell.contract.store import Store
from stepwell.model.commit import StateBatch, Written
from stepwell.model.ids import check_key
from stepwell.model.queue_item import DEFAULT_QUEUE
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import Delete, Put
from stepwell.model.webhook import WebhookReceiver, is_signed
from stepwell.pipeline.operations import Operation, read, write_or_raise

__all__ = ["WebhookReceiverOperations"]

_PATH = internal_path("webhook_receiver", DEFAULT_WORKSPACE)
_PAGE = 1_000
_NO_SECRET = "whsec_" + b64encode(bytes(32)).decode()
_TOLERANCE_SECONDS = 300
"""The largest difference of a message's time from the store's. It refuses the replay of a recorded message."""


class _Receiver(msgspec.Struct, frozen=True, omit_defaults=True):
    """A receiver as it is stored."""

    name: str
    workspace: str
    workflow: str
    secret: str
    queue: str = DEFAULT_QUEUE

    def view(self) -> WebhookReceiver:
        return WebhookReceiver(name=self.name, workspace=self.workspace, workflow=self.workflow, queue=self.queue)


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(_Receiver).decode


class WebhookReceiverOperations:
    """Operations on the receivers of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, workspace: str, name: str, workflow: str, queue: str) -> Operation[tuple[WebhookReceiver, str | None]]:
        """Create or change a receiver; return it, and its secret if it is new."""
        name = check_key(name, "a webhook's name", 256, is_fixed=True)
        workspace, workflow = check_key(workspace, "a workspace id"), check_key(workflow, "a workflow's name")
        known = yield from self._find(workspace, name)
        secret = "whsec_" + b64encode(secrets.token_bytes(32)).decode() if known is None else known.secret
        receiver = _Receiver(name, workspace, workflow, secret, check_key(queue, "a queue's name"))
        yield from write_or_raise(StateBatch((Put(_PATH, _key(workspace, name), msgspec.Raw(_encode(receiver))),)))
        return receiver.view(), secret if known is None else None

    def receivers(self, workspace: str) -> Operation[list[WebhookReceiver]]:
        """Return the receivers of a workspace, sorted by name."""
        prefix, after = _key(workspace, ""), None
        found: list[WebhookReceiver] = []
        while True:
            page = yield from read(lambda: self._store.scan(_PATH, prefix=prefix, after=after, limit=_PAGE))  # noqa: B023 - read at once
            found += [_decode(row.data or b"").view() for _, row in page]
            if len(page) < _PAGE:
                return sorted(found, key=lambda each: each.name)
            after = page[-1][0]

    def delete(self, workspace: str, name: str) -> Operation[bool]:
        """Delete a receiver; return whether it existed."""
        outcome = yield from write_or_raise(StateBatch((Delete(_PATH, _key(workspace, name)),)))
        return bool(isinstance(outcome, Written) and outcome.answers[0])

    def verified(
        self, workspace: str, name: str, message_id: str, timestamp: str, signature: str, body: bytes
    ) -> Operation[WebhookReceiver | None]:
        """Return the receiver of a message; None for an unknown one, a wrong signature and a message of another time."""
        known = (yield from self._find(workspace, name)) if workspace and name else None
        now = from_ms((yield from read(self._store.now_ms))).timestamp()
        is_now = timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 12
        is_now = is_now and abs(int(timestamp) - now) <= _TOLERANCE_SECONDS
        # An unknown receiver costs what a known one does.
        is_true = is_signed(_NO_SECRET if known is None else known.secret, message_id, timestamp, body, signature)
        return known.view() if known is not None and is_true and is_now else None

    def _find(self, workspace: str, name: str) -> Operation[_Receiver | None]:
        key = _key(workspace, name)
        row = (yield from read(lambda: self._store.entries(_PATH, (key,)))).get(key)
        return None if row is None else _decode(row.data or b"")


def _key(workspace: str, name: str) -> str:
    return f"{quote(workspace, safe='')}/{quote(name, safe='')}"
