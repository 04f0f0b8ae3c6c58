"""Outgoing webhooks: endpoints, and deliveries that land in the commit that ends a run.

Endpoints of all workspaces are in one scope of Stepwell's own records. Each process reads it when it opens, and each worker again
every few seconds. Deliveries are in scopes of the workspace ``default``, so that a workspace without room for state still ends
its runs. They are spread over a few scopes, since a scope holds a limited number of keys.
"""

from __future__ import annotations

import logging
import secrets
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import msgspec

from stepwell.clock import from_ms, to_ms
from stepwell.contract.store import Store
from stepwell.errors import Conflict, InvalidInput, NotFound
from stepwell.model.commit import StateBatch, Written
from stepwell.model.ids import NewId, check_key
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import Delete, Put, StateOp, StoredEntry
from stepwell.model.status import FINAL
from stepwell.model.webhook import EVENTS, RETRY_SECONDS, WebhookDelivery, WebhookEndpoint
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.state.scoped_state import StateOperations

__all__ = ["ClaimedDelivery", "WebhookOperations"]

log = logging.getLogger(__name__)

_ENDPOINTS = internal_path("webhook", DEFAULT_WORKSPACE)
_BUCKETS = tuple(internal_path("webhook_delivery", DEFAULT_WORKSPACE, f"{number:x}") for number in range(16))
_LEASE_MS = 60_000
"""How long an attempt belongs to the worker that makes it."""
_ROTATION_MS = 86_400_000
_GIVEN_UP_TTL_MS = 7 * 86_400_000
_NEVER_MS = 2**53

_TYPES = {str(status): f"run.{status.lower()}" for status in FINAL}
"""The event of each ending."""


class _Endpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """An endpoint as it is stored."""

    name: str
    workspace: str
    url: str
    events: tuple[str, ...]
    secret: str
    old_secret: str | None = None
    old_until_ms: int = 0
    is_disabled: bool = False

    def view(self) -> WebhookEndpoint:
        return WebhookEndpoint(
            name=self.name, workspace=self.workspace, url=self.url, events=self.events, is_disabled=self.is_disabled
        )


class _Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delivery as it is stored."""

    endpoint: str
    workspace: str
    type: str
    execution_id: str
    revision: int
    created_ms: int
    next_ms: int
    attempts: int = 0
    last_error: str | None = None


class ClaimedDelivery(msgspec.Struct, frozen=True):
    """A delivery for whose attempt this process has a lease."""

    delivery: WebhookDelivery
    url: str
    secrets: tuple[str, ...]
    path: str
    revision: int
    """Of the row."""


_encode = msgspec.json.Encoder(order="deterministic").encode
_read_endpoint = msgspec.json.Decoder(_Endpoint).decode
_read_delivery = msgspec.json.Decoder(_Delivery).decode


class WebhookOperations:
    """Operations on the endpoints and deliveries of one store."""

    def __init__(self, shared: StateOperations, new_id: NewId) -> None:
        self._shared, self._store, self._new_id = shared, shared.store, new_id
        self._by_workspace: Mapping[str, list[_Endpoint]] = {}

    @property
    def has_endpoints(self) -> bool:
        """Return whether any workspace has an endpoint, as far as this process knows."""
        return bool(self._by_workspace)

    def load(self) -> Operation[None]:
        """Read the endpoints of all workspaces."""
        yield from read(self.load_now)

    def load_now(self) -> None:
        """Read the endpoints of all workspaces, blocking. A row that cannot be read is left out, and named in the log."""
        found: dict[str, list[_Endpoint]] = {}
        for key, row in all_entries(self._store, _ENDPOINTS):
            try:
                endpoint = _read_endpoint(row.data or b"")
            except msgspec.DecodeError as error:
                log.warning("webhook %r cannot be read, and is left out: %s", key, error)
                continue
            found.setdefault(endpoint.workspace, []).append(endpoint)
        self._by_workspace = found

    def messages(self, workspace: str, execution_id: str, revision: int, status: str, now_ms: int) -> tuple[StateOp, ...]:
        """Return the operations that enqueue the deliveries for a run that ends, for the commit that ends it."""
        endpoints = self._by_workspace.get(workspace)
        if not endpoints:
            return ()
        kind = _TYPES[status]
        ops: list[StateOp] = []
        for endpoint in endpoints:
            if kind in endpoint.events and not endpoint.is_disabled:
                delivery = _Delivery(endpoint.name, workspace, kind, execution_id, revision, now_ms, now_ms)
                delivery_id = f"msg_{self._new_id()}"
                ops.append(Put(_bucket(delivery_id), delivery_id, msgspec.Raw(_encode(delivery))))
        return tuple(ops)

    def put(self, workspace: str, name: str, url: str, events: tuple[str, ...]) -> Operation[tuple[WebhookEndpoint, str | None]]:
        """Create or change an endpoint; return it, and its secret if it is new."""
        name = check_key(name, "a webhook's name", 256, is_fixed=True)
        workspace = check_key(workspace, "a workspace id")
        _check_url(url)
        unknown = [each for each in events if each not in EVENTS]
        if unknown or not events:
            raise InvalidInput(f"events are some of {', '.join(EVENTS)}, not {list(events)!r}")
        known = yield from self._find(workspace, name)
        secret = _new_secret() if known is None else known.secret
        endpoint = _Endpoint(name, workspace, url, tuple(dict.fromkeys(events)), secret)
        yield from self._save(endpoint)
        return endpoint.view(), secret if known is None else None

    def rotate(self, workspace: str, name: str) -> Operation[str]:
        """Give an endpoint a new secret, and return it; for a day messages are signed with both."""
        known = yield from self._known(workspace, name)
        now = yield from read(self._store.now_ms)
        fresh = _new_secret()
        yield from self._save(
            msgspec.structs.replace(known, secret=fresh, old_secret=known.secret, old_until_ms=now + _ROTATION_MS)
        )
        return fresh

    def get(self, workspace: str, name: str) -> Operation[WebhookEndpoint]:
        """Return an endpoint. Raise ``NotFound`` if there is none."""
        return (yield from self._known(workspace, name)).view()

    def endpoints(self, workspace: str) -> Operation[list[WebhookEndpoint]]:
        """Return the endpoints of a workspace, sorted by name."""
        yield from self.load()
        return sorted((each.view() for each in self._by_workspace.get(workspace, ())), key=lambda each: each.name)

    def delete(self, workspace: str, name: str) -> Operation[bool]:
        """Delete an endpoint; return whether it existed. Deliveries that wait for it are dropped."""
        outcome = yield from write_or_raise(StateBatch((Delete(_ENDPOINTS, _key(workspace, name)),)))
        yield from self.load()
        return bool(isinstance(outcome, Written) and outcome.answers[0])

    def deliveries(self, workspace: str) -> Operation[list[WebhookDelivery]]:
        """Return the deliveries of a workspace that were not accepted yet, the oldest first."""
        found: list[WebhookDelivery] = []
        for path in _BUCKETS:
            rows = yield from read(lambda: _stored_deliveries(self._store, path))  # noqa: B023 - read at once
            found += [_view_of(key, stored) for key, _, stored in rows if stored.workspace == workspace]
        return sorted(found, key=lambda each: (each.created_at, each.delivery_id))

    def replay(self, workspace: str, delivery_id: str) -> Operation[WebhookDelivery]:
        """Attempt a delivery again now, with all its attempts. Raise ``NotFound`` if there is none."""
        check_key(delivery_id, "a delivery's id")
        path = _bucket(delivery_id)
        row = (yield from read(lambda: self._store.entries(path, (delivery_id,)))).get(delivery_id)
        stored = None if row is None else _read_delivery(row.data or b"")
        if row is None or stored is None or stored.workspace != workspace:
            raise NotFound(f"there is no delivery {delivery_id!r}; it was accepted, or dropped after a week")
        now = yield from read(self._store.now_ms)
        again = msgspec.structs.replace(stored, next_ms=now, attempts=0)
        yield from self._shared.write(Put(path, delivery_id, msgspec.Raw(_encode(again)), expected=row.revision))
        return _view_of(delivery_id, again)

    def claim_due(self, limit: int) -> Operation[list[ClaimedDelivery]]:
        """Take a lease on the attempts that are due, so that one worker makes each."""
        now = yield from read(self._store.now_ms)
        claimed: list[ClaimedDelivery] = []
        for path in _BUCKETS:
            rows = yield from read(lambda: _stored_deliveries(self._store, path))  # noqa: B023 - read at once
            for key, row, stored in rows:
                if stored.next_ms > now or len(claimed) >= limit:
                    continue
                endpoint = yield from self._find(stored.workspace, stored.endpoint)
                if endpoint is None or endpoint.is_disabled:
                    yield from write_or_raise(StateBatch((Delete(path, key),)))
                    continue
                leased = msgspec.structs.replace(stored, next_ms=now + _LEASE_MS, attempts=stored.attempts + 1)
                try:
                    answers = yield from self._shared.write(Put(path, key, msgspec.Raw(_encode(leased)), expected=row.revision))
                except Conflict:
                    continue  # another worker was first
                revision = answers[0].revision if isinstance(answers[0], StoredEntry) else 0
                has_old = endpoint.old_secret is not None and endpoint.old_until_ms > now
                keys = (endpoint.secret, endpoint.old_secret) if has_old and endpoint.old_secret else (endpoint.secret,)
                claimed.append(ClaimedDelivery(_view_of(key, leased), endpoint.url, keys, path, revision))
        return claimed

    def settle(self, claimed: ClaimedDelivery, error: str | None) -> Operation[None]:
        """Note how an attempt ended: drop an accepted delivery; plan the next attempt of another one, or give it up.

        - ``error``: why it was not accepted, or None.
        """
        delivery = claimed.delivery
        if error is None:
            yield from write_or_raise(StateBatch((Delete(claimed.path, delivery.delivery_id),)))
            return
        now = yield from read(self._store.now_ms)
        is_last = delivery.attempts > len(RETRY_SECONDS)
        following = _NEVER_MS if is_last else now + RETRY_SECONDS[delivery.attempts - 1] * 1000
        row = _Delivery(
            delivery.endpoint,
            delivery.workspace,
            delivery.type,
            delivery.execution_id,
            delivery.revision,
            to_ms(delivery.created_at),
            following,
            delivery.attempts,
            error[:500],
        )
        ttl = _GIVEN_UP_TTL_MS if is_last else None
        try:
            put = Put(claimed.path, delivery.delivery_id, msgspec.Raw(_encode(row)), ttl_ms=ttl, expected=claimed.revision)
            yield from self._shared.write(put)
        except Conflict:
            return  # it was replayed meanwhile, or its lease expired
        if is_last:
            known = yield from self._find(delivery.workspace, delivery.endpoint)
            if known is not None:
                yield from self._save(msgspec.structs.replace(known, is_disabled=True))

    def _find(self, workspace: str, name: str) -> Operation[_Endpoint | None]:
        key = _key(workspace, name)
        row = (yield from read(lambda: self._store.entries(_ENDPOINTS, (key,)))).get(key)
        return None if row is None else _read_endpoint(row.data or b"")

    def _known(self, workspace: str, name: str) -> Operation[_Endpoint]:
        name = check_key(name, "a webhook's name", 256, is_fixed=True)
        found = yield from self._find(workspace, name)
        if found is None:
            raise NotFound(f"there is no webhook {name!r}")
        return found

    def _save(self, endpoint: _Endpoint) -> Operation[None]:
        put = Put(_ENDPOINTS, _key(endpoint.workspace, endpoint.name), msgspec.Raw(_encode(endpoint)))
        yield from self._shared.write(put)
        yield from self.load()


def _stored_deliveries(store: Store, path: str) -> list[tuple[str, StoredEntry, _Delivery]]:
    """Return the deliveries of a scope with their rows. A delivery that cannot be read is logged and left out."""
    found: list[tuple[str, StoredEntry, _Delivery]] = []
    for key, row in all_entries(store, path):
        try:
            found.append((key, row, _read_delivery(row.data or b"")))
        except msgspec.DecodeError as error:
            log.warning("message %r of a webhook cannot be read, and is left out: %s", key, error)
    return found


def _key(workspace: str, name: str) -> str:
    return f"{quote(workspace, safe='')}/{quote(name, safe='')}"


def _bucket(delivery_id: str) -> str:
    return _BUCKETS[sum(delivery_id.encode()) % len(_BUCKETS)]


def _new_secret() -> str:
    return "whsec_" + b64encode(secrets.token_bytes(32)).decode()


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidInput("the url of a webhook cannot be read") from None
    if parts.scheme != "https" or not parts.hostname or parts.username is not None or not url.isascii() or not url.isprintable():
        raise InvalidInput("the url of a webhook begins with https:// and has a host, no name and no password")


def _view_of(key: str, stored: _Delivery) -> WebhookDelivery:
    return WebhookDelivery(
        delivery_id=key,
        endpoint=stored.endpoint,
        workspace=stored.workspace,
        type=stored.type,
        execution_id=stored.execution_id,
        revision=stored.revision,
        created_at=from_ms(stored.created_ms),
        attempts=stored.attempts,
        next_at=None if stored.next_ms >= _NEVER_MS else from_ms(stored.next_ms),
        last_error=stored.last_error,
    )
