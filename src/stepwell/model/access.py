"""Access to the HTTP server: roles, identities, access tokens and links, as values."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from stepwell.model.plain_data import PlainRecord

__all__ = ["AccessToken", "Identity", "IssuedToken", "Role", "SignalLink"]


class Role(StrEnum):
    """The rights of a caller: a viewer reads, an operator also starts and changes runs, an admin also manages the workspace."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        """Return whether this role may do what the ``needed`` role may do."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


class Identity(PlainRecord, frozen=True, kw_only=True):
    """The identity of a caller of the HTTP server."""

    name: str
    """For people and the audit: the name of the token, or what the host application calls its user."""
    role: Role
    workspace: str | None
    """The only workspace that the caller reaches; None for all of the store."""
    token_id: str | None = None


class AccessToken(PlainRecord, frozen=True, kw_only=True):
    """A token of the HTTP server, without its secret."""

    token_id: str
    name: str
    role: Role
    workspace: str | None
    """The only workspace that it opens; None for all of the store."""
    created_at: datetime
    expires_at: datetime | None = None


class IssuedToken(PlainRecord, frozen=True, kw_only=True):
    """A new token with its secret, which is shown only once."""

    token: AccessToken
    text: str
    """The token that a program sends as ``Authorization: Bearer ...``."""

    def __repr__(self) -> str:
        return f"<IssuedToken {self.token.token_id!r}>"


class SignalLink(PlainRecord, frozen=True, kw_only=True):
    """A link with which a person without an account sends one signal to one run."""

    execution_id: str
    workspace: str
    signal: str
    """The name of the signal, or the key of the approval."""
    by: str | None = None
    """The person to whom the link was given; None: the person who opens it gives a name."""
    created_by: str
    """The name of the caller that created the link, for the person who opens it and for the audit."""
    expires_at: datetime
