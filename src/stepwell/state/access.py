"""Access to the HTTP server: tokens of programs, sessions of people, tickets that open a session, links that send a signal.

The store has only the SHA-256 of a secret, so that a copy of the store opens no door. Secrets are random (256 bits): a slow hash
would protect nothing more. All rows live in one scope of Stepwell's own records, and expire by the store's clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest

import msgspec

from stepwell.clock import from_ms
from stepwell.duration import Span, held_seconds
from stepwell.errors import InvalidInput, NotFound
from stepwell.model.access import AccessToken, Identity, IssuedToken, Role, SignalLink
from stepwell.model.commit import StateBatch, Written
from stepwell.model.ids import check_key
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import ABSENT, Delete, Put
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.state.scoped_state import StateOperations

__all__ = ["AccessOperations"]

_PATH = internal_path("access", DEFAULT_WORKSPACE)
_TOKEN, _SESSION, _TICKET, _STREAM, _LINK = "token/", "session/", "ticket/", "stream/", "link/"
_SERVER_KEY = "server-key"
_PREFIX = "swt"

# An unknown token is compared with this, so that it takes as long as a wrong secret.
_NO_DIGEST = "0" * 64


class _Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The stored form of a token, session or ticket."""

    digest: str = ""
    name: str
    role: Role
    workspace: str | None = None
    created_ms: int = 0
    token_id: str | None = None
    """Of a session that was opened with a token: it ends when that is revoked."""


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(_Row).decode
_decode_link = msgspec.json.Decoder(SignalLink).decode


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


class AccessOperations:
    """Operations on the tokens and sessions of one store."""

    def __init__(self, shared: StateOperations, new_secret: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> None:
        self._shared, self._store, self._new_secret = shared, shared.store, new_secret

    def create_token(self, name: str, role: str, workspace: str | None, ttl: Span | None) -> Operation[IssuedToken]:
        """Store a new token, and return it with its secret."""
        name = check_key(name, "a token's name", 256, is_fixed=True)
        kind = _role_of(role)
        if workspace is not None:
            check_key(workspace, "a workspace id")
            yield from self._check_workspace(workspace)
        seconds = None if ttl is None else held_seconds(ttl, "ttl")
        now = yield from read(self._store.now_ms)
        token_id, secret = secrets.token_hex(8), self._new_secret()
        row = _Row(digest=_digest(secret), name=name, role=kind, workspace=workspace, created_ms=now)
        yield from self._put(_TOKEN + token_id, row, seconds)
        expires = None if seconds is None else now + round(seconds * 1000)
        return IssuedToken(token=_token(token_id, row, expires), text=f"{_PREFIX}_{token_id}_{secret}")

    def _check_workspace(self, workspace: str) -> Operation[None]:
        found = yield from read(self._store.workspaces)
        if workspace not in {each.workspace_id for each in found}:
            raise NotFound(f"there is no workspace {workspace!r}; make it with well.workspaces.put")

    def tokens(self) -> Operation[list[AccessToken]]:
        """Return all tokens that have not expired, the oldest first."""
        rows = yield from read(lambda: list(all_entries(self._store, _PATH, prefix=_TOKEN)))
        found = [_token(key.removeprefix(_TOKEN), _decode(row.data or b""), row.expires_ms) for key, row in rows]
        return sorted(found, key=lambda each: (each.created_at, each.token_id))

    def revoke_token(self, token_id: str) -> Operation[bool]:
        """Delete a token; return whether it existed. Its sessions end with it."""
        token_id = check_key(token_id, "a token's id")
        return (yield from self._delete(_TOKEN + token_id))

    def identify(self, text: str) -> Operation[Identity | None]:
        """Return who a token stands for; None if it is unknown, expired, revoked or wrong."""
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        is_formed = prefix == _PREFIX and token_id.isascii() and token_id.isalnum() and secret.isascii() and len(text) < 200
        row = (yield from self._row(_TOKEN + token_id)) if is_formed else None
        is_same = compare_digest(_digest(secret) if is_formed else _NO_DIGEST, _NO_DIGEST if row is None else row.digest)
        if row is None or not is_same:
            return None
        return Identity(name=row.name, role=row.role, workspace=row.workspace, token_id=token_id)

    def open_session(self, identity: Identity, ttl: Span) -> Operation[str]:
        """Store a session of a caller, and return its secret for the cookie."""
        return (yield from self._issue(_SESSION, identity, ttl))

    def session(self, secret: str) -> Operation[Identity | None]:
        """Return who a session stands for; None if it is unknown or has ended, or its token was revoked."""
        row = yield from self._row(_SESSION + _digest(secret))
        if row is None:
            return None
        if row.token_id is not None and (yield from self._row(_TOKEN + row.token_id)) is None:
            return None
        return Identity(name=row.name, role=row.role, workspace=row.workspace, token_id=row.token_id)

    def close_session(self, secret: str) -> Operation[bool]:
        """End a session; return whether it existed."""
        return (yield from self._delete(_SESSION + _digest(secret)))

    def create_ticket(self, identity: Identity, ttl: Span) -> Operation[str]:
        """Store a ticket that opens one session, and return its secret for the link."""
        return (yield from self._issue(_TICKET, identity, ttl))

    def redeem_ticket(self, secret: str) -> Operation[Identity | None]:
        """Use a ticket up, and return who it stands for; None if it is unknown, expired or was used."""
        return (yield from self._redeem(_TICKET, secret))

    def create_stream_ticket(self, identity: Identity, ttl: Span) -> Operation[str]:
        """Store a ticket that opens one stream of events, and return its secret. It opens no session and changes nothing."""
        return (yield from self._issue(_STREAM, msgspec.structs.replace(identity, role=Role.VIEWER), ttl))

    def redeem_stream_ticket(self, secret: str) -> Operation[Identity | None]:
        """Use a ticket for a stream up, and return who it stands for; None if it is unknown, expired or was used."""
        found = yield from self._redeem(_STREAM, secret)
        return found if found is not None and (yield from self.is_valid(found)) else None

    def is_valid(self, identity: Identity) -> Operation[bool]:
        """Return whether the token that an identity comes from, if it comes from one, was not revoked and has not expired."""
        return identity.token_id is None or (yield from self._row(_TOKEN + identity.token_id)) is not None

    def _redeem(self, kind: str, secret: str) -> Operation[Identity | None]:
        row = yield from self._row(kind + _digest(secret))
        if row is None or not (yield from self._delete(kind + _digest(secret))):
            return None  # used up at this very moment
        return Identity(name=row.name, role=row.role, workspace=row.workspace, token_id=row.token_id)

    def create_link(
        self, execution_id: str, signal: str, workspace: str, by: str | None, created_by: str, ttl: Span
    ) -> Operation[tuple[str, SignalLink]]:
        """Store a link that sends one signal, and return its secret."""
        check_key(execution_id, "an execution id")
        check_key(signal, "a signal's name")
        check_key(workspace, "a workspace id")
        seconds = held_seconds(ttl, "ttl")
        now = yield from read(self._store.now_ms)
        link = SignalLink(
            execution_id=execution_id,
            workspace=workspace,
            signal=signal,
            by=by,
            created_by=created_by,
            expires_at=from_ms(now + round(seconds * 1000)),
        )
        secret = self._new_secret()
        row = msgspec.Raw(_encode(link))
        yield from self._shared.write(Put(_PATH, _LINK + _digest(secret), row, ttl_ms=round(seconds * 1000), expected=ABSENT))
        return secret, link

    def link(self, secret: str) -> Operation[SignalLink | None]:
        """Return what a link does; None if it is unknown, expired or was used."""
        key = _LINK + _digest(secret)
        found = yield from read(lambda: self._store.entries(_PATH, (key,)))
        return None if key not in found else _decode_link(found[key].data or b"")

    def redeem_link(self, secret: str) -> Operation[SignalLink | None]:
        """Use a link up, and return what it does; None if it is unknown, expired or was used."""
        found = yield from self.link(secret)
        return found if found is not None and (yield from self._delete(_LINK + _digest(secret))) else None

    def server_key(self) -> Operation[bytes]:
        """Return the key that the HTTP server signs cursors and links with; the first call makes it."""
        row = _Row(digest=self._new_secret(), name="server", role=Role.VIEWER)
        for _ in range(2):
            known = yield from self._row(_SERVER_KEY)
            if known is not None:
                return sha256(known.digest.encode()).digest()
            put = Put(_PATH, _SERVER_KEY, msgspec.Raw(_encode(row)), expected=ABSENT, strict=False)
            yield from self._shared.write(put)
        return sha256(row.digest.encode()).digest()

    def _issue(self, kind: str, identity: Identity, ttl: Span) -> Operation[str]:
        secret = self._new_secret()
        row = _Row(name=identity.name, role=identity.role, workspace=identity.workspace, token_id=identity.token_id)
        yield from self._put(kind + _digest(secret), row, held_seconds(ttl, "ttl"))
        return secret

    def _put(self, key: str, row: _Row, seconds: float | None) -> Operation[None]:
        ttl_ms = None if seconds is None else round(seconds * 1000)
        yield from self._shared.write(Put(_PATH, key, msgspec.Raw(_encode(row)), ttl_ms=ttl_ms, expected=ABSENT))

    def _delete(self, key: str) -> Operation[bool]:
        outcome = yield from write_or_raise(StateBatch((Delete(_PATH, key),)))
        return bool(isinstance(outcome, Written) and outcome.answers[0])

    def _row(self, key: str) -> Operation[_Row | None]:
        found = yield from read(lambda: self._store.entries(_PATH, (key,)))
        return None if key not in found else _decode(found[key].data or b"")


def _role_of(role: object) -> Role:
    if not isinstance(role, str) or role not in frozenset(Role):
        raise InvalidInput(f"{role!r} is no role; use one of {', '.join(Role)}")
    return Role(role)


def _token(token_id: str, row: _Row, expires_ms: int | None) -> AccessToken:
    return AccessToken(
        token_id=token_id,
        name=row.name,
        role=row.role,
        workspace=row.workspace,
        created_at=from_ms(row.created_ms),
        expires_at=None if expires_ms is None else from_ms(expires_ms),
    )
