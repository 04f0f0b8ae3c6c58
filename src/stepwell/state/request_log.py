"""Records of HTTP requests: replies kept under idempotency keys, and an audit of every change.

Both are rows of Stepwell's own records that expire. A scope holds a limited number of keys, so the rows are spread over buckets:
replies by the digest of their key, the audit by the hour, and by parts of an hour that fills more than one scope.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from functools import partial
from hashlib import sha256
from time import time_ns

import msgspec

from stepwell.clock import from_ms
from stepwell.errors import LimitExceeded
from stepwell.model.commit import StateBatch
from stepwell.model.ids import NewId, check_key
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import internal_path, is_internal
from stepwell.model.scoped_operations import ABSENT, Delete, Put, StateOp, StoredEntry
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.state.scoped_state import StateOperations

__all__ = ["AuditEntry", "KeptReply", "RequestKey", "RequestLog"]

_REPLY_TTL_MS = 25 * 3_600_000
"""A day is what clients may count on; an hour more covers a retry that was sent just before its end."""
_RUNNING_TTL_MS = 60_000
"""How long a request whose server died blocks its key."""
_AUDIT_TTL_MS = 90 * 86_400_000


class RequestKey(msgspec.Struct, frozen=True):
    """The idempotency key of one request, with the fingerprint of what was requested."""

    workspace: str
    route: str
    key: str
    fingerprint: str

    @property
    def name(self) -> str:
        """Return the name of the row: the same key on another route is another request."""
        return sha256(f"{self.route}\0{self.key}".encode()).hexdigest()

    @property
    def path(self) -> str:
        """Return the scope that holds the row."""
        return internal_path("idempotency", self.workspace, self.name[:2])


class KeptReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply as it is kept; a status of 0 means that the request is still running."""

    fingerprint: str
    status: int = 0
    headers: dict[str, str] = {}
    body: str = ""


class AuditEntry(PlainRecord, frozen=True, kw_only=True):
    """One change that was requested over HTTP."""

    entry_id: str
    at: datetime
    actor: str
    """The name of the token or user."""
    token_id: str | None = None
    action: str
    """The name of the route, such as ``cancel_run``."""
    resource: str
    """The path of the request."""
    status: int
    """Of the reply."""
    reason: str | None = None
    """The header ``Stepwell-Reason`` of the caller."""
    request_id: str


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode_reply = msgspec.json.Decoder(KeptReply).decode
_decode_entry = msgspec.json.Decoder(AuditEntry).decode


def _next_part(part: str) -> str:
    """Return the name of the part of an hour after another one; names sort in the order of time."""
    hour, _, number = part.partition(".")
    return f"{hour}.{int(number or 0) + 1:06d}"


class RequestLog:
    """Operations on kept replies and on the audit of one store."""

    def __init__(self, shared: StateOperations, new_id: NewId) -> None:
        self._shared, self._store, self._new_id = shared, shared.store, new_id
        self._parts: dict[str, str] = {}
        """The part of the present hour that each workspace's audit has come to."""

    def reply(self, key: RequestKey) -> Operation[KeptReply | None]:
        """Return the reply that is kept under a key, or None."""
        found = yield from read(lambda: self._store.entries(key.path, (key.name,)))
        return None if key.name not in found else _decode_reply(found[key.name].data or b"")

    def reserve(self, key: RequestKey) -> Operation[None]:
        """Note that a request is running. Raise ``Conflict`` if the key is in use."""
        row = msgspec.Raw(_encode(KeptReply(key.fingerprint)))
        yield from self._shared.write(Put(key.path, key.name, row, ttl_ms=_RUNNING_TTL_MS, expected=ABSENT))

    def keep(self, key: RequestKey, reply: KeptReply) -> Operation[None]:
        """Keep the reply of a request that ran."""
        yield from self._shared.write(Put(key.path, key.name, msgspec.Raw(_encode(reply)), ttl_ms=_REPLY_TTL_MS))

    def release(self, key: RequestKey) -> Operation[None]:
        """Free the key of a request that failed, so that a retry runs it again."""
        yield from write_or_raise(StateBatch((Delete(key.path, key.name),)))

    def keeping(self, key: RequestKey, reply: KeptReply) -> StateOp:
        """Return the operation that keeps a reply, for the commit that does what was requested."""
        return Put(key.path, key.name, msgspec.Raw(_encode(reply)), ttl_ms=_REPLY_TTL_MS, expected=ABSENT)

    def note(self, workspace: str, entry: AuditEntry) -> Operation[None]:
        """Add an entry to the audit of a workspace. Its id and time are set here."""
        now = yield from read(self._store.now_ms)
        at = from_ms(now)
        # In the order in which one process notes them, to the nanosecond.
        named = msgspec.structs.replace(entry, entry_id=f"{time_ns():020d}.{self._new_id()}", at=at)
        part = max(f"{at:%Y-%m-%dT%H}", self._parts.get(workspace, ""))
        while True:
            path = internal_path("audit", workspace, part)
            put = Put(path, named.entry_id, msgspec.Raw(_encode(named)), ttl_ms=_AUDIT_TTL_MS, expected=ABSENT)
            try:
                yield from self._shared.write(put)
            except LimitExceeded as error:
                if error.limit != "scope_keys":
                    raise
                part = _next_part(part)
            else:
                self._parts[workspace] = part
                return

    def entries(self, workspace: str, before: str | None, limit: int) -> Operation[list[AuditEntry]]:
        """Return the newest entries of the audit, or those before an entry's id.

        - ``before``: the last entry's id of the page before.
        """
        check_key(workspace, "a workspace id")
        prefix = internal_path("audit", workspace, "x").removesuffix("x")
        paths = yield from read(lambda: list(self._store.scopes(workspace)))
        found: list[AuditEntry] = []
        for path in sorted((path for path in paths if is_internal(path) and path.startswith(prefix)), reverse=True):
            newest = yield from read(partial(self._newest, path, before, limit - len(found)))
            found += [_decode_entry(row.data or b"") for row in newest]
            if len(found) >= limit:
                break
        return found

    def _newest(self, path: str, before: str | None, count: int) -> list[StoredEntry]:
        """Return the newest entries of a part of the audit, newest first. Their ids are in the order of their time."""
        rows = (row for key, row in all_entries(self._store, path) if before is None or key < before)
        return list(reversed(deque(rows, maxlen=count)))
