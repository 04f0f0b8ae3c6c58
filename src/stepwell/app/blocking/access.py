# Generated from app/awaited/access.py by `make blocking`. Do not edit: change that module and generate again.
"""Access tokens of the HTTP server, sessions and one-time tickets."""

from __future__ import annotations

from stepwell.duration import Span
from stepwell.model.access import AccessToken, Identity, IssuedToken, SignalLink
from stepwell.model.ids import Id, id_text
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.pipeline.operations import Driver
from stepwell.state.access import AccessOperations

__all__ = ["Access"]


class Access:
    """Access to the HTTP server of a store: ``well.access``.

    The store keeps only digests of secrets. A secret is returned once, by the call that makes it.
    """

    def __init__(self, operations: AccessOperations, driver: Driver) -> None:
        self._do, self._driver = operations, driver

    def create_token(self, name: str, *, role: str = "viewer", workspace: Id | None = None, ttl: Span | None = None) -> IssuedToken:
        """Create a token, and return it with its secret.

        - ``name``: a name for people, which the audit shows.
        - ``role``: ``viewer``, ``operator`` or ``admin``.
        - ``workspace``: the only workspace that it opens; None for all of the store.
        - ``ttl``: after this time it is refused; None: it lasts until it is revoked.

        Raise ``InvalidInput`` for an unknown role, and ``NotFound`` for an unknown workspace.

        Example:

            issued = well.access.create_token("ci", role="operator", workspace="acme", ttl="90d")
            print(issued.text)
        """
        return self._driver.run(self._do.create_token(name, role, id_text(workspace), ttl))

    def tokens(self) -> list[AccessToken]:
        """Return all tokens that have not expired, without their secrets, the oldest first."""
        return self._driver.run(self._do.tokens())

    def revoke_token(self, token_id: str) -> bool:
        """Revoke a token at once, with the sessions that it opened; return whether it existed.

        - ``token_id``: the id of the token, as ``tokens`` lists it.
        """
        return self._driver.run(self._do.revoke_token(token_id))

    def identify(self, text: str) -> Identity | None:
        """Return who a token's text stands for; None if it is unknown, wrong, expired or revoked.

        - ``text``: the token as a caller sent it.
        """
        return self._driver.run(self._do.identify(text))

    def open_session(self, identity: Identity, *, ttl: Span = "12h") -> str:
        """Open a session for a caller, and return its secret.

        - ``identity``: who it stands for.
        - ``ttl``: after this time it ends.
        """
        return self._driver.run(self._do.open_session(identity, ttl))

    def session(self, secret: str) -> Identity | None:
        """Return who a session stands for; None if it has ended or its token was revoked.

        - ``secret``: what ``open_session`` returned.
        """
        return self._driver.run(self._do.session(secret))

    def close_session(self, secret: str) -> bool:
        """End a session; return whether it existed.

        - ``secret``: what ``open_session`` returned.
        """
        return self._driver.run(self._do.close_session(secret))

    def create_ticket(self, identity: Identity, *, ttl: Span = "10m") -> str:
        """Create a ticket that opens one session, and return its secret.

        - ``identity``: who the session will stand for.
        - ``ttl``: after this time the ticket is refused.
        """
        return self._driver.run(self._do.create_ticket(identity, ttl))

    def redeem_ticket(self, secret: str) -> Identity | None:
        """Use a ticket up, and return who it stands for; None if it is unknown, expired or was used.

        - ``secret``: what ``create_ticket`` returned.
        """
        return self._driver.run(self._do.redeem_ticket(secret))

    def create_stream_ticket(self, identity: Identity, *, ttl: Span = "1m") -> str:
        """Create a ticket that opens one stream of events, once, with the role viewer, and return its secret.

        - ``identity``: who reads the stream.
        - ``ttl``: after this time the ticket is refused; a stream that it opened goes on.
        """
        return self._driver.run(self._do.create_stream_ticket(identity, ttl))

    def redeem_stream_ticket(self, secret: str) -> Identity | None:
        """Use a ticket for a stream up, and return who it stands for; None if it is unknown, expired or was used.

        - ``secret``: what ``create_stream_ticket`` returned.
        """
        return self._driver.run(self._do.redeem_stream_ticket(secret))

    def is_valid(self, identity: Identity) -> bool:
        """Return whether the token of an identity is still valid; True for one that comes from no token.

        - ``identity``: as ``identify`` or a ticket returned it.
        """
        return self._driver.run(self._do.is_valid(identity))

    def create_link(
        self,
        execution_id: Id,
        signal: str,
        *,
        workspace: Id = DEFAULT_WORKSPACE,
        by: str | None = None,
        created_by: str = "",
        ttl: Span = "3d",
    ) -> tuple[str, SignalLink]:
        """Create a link that sends one signal to one run once, and return its secret: the page is ``/links/SECRET``.

        - ``execution_id``: the run.
        - ``signal``: the name of the signal, or the key of the approval.
        - ``workspace``: the workspace of the run.
        - ``by``: the person to whom the link is given, whose name the answer carries; None: the person who opens it gives a name.
        - ``created_by``: who asks, for the person who opens it.
        - ``ttl``: after this time it is refused.

        Example:

            secret, link = well.access.create_link("order-7", "approve", by="ann", ttl="3d")
        """
        execution_id, workspace = id_text(execution_id), id_text(workspace)
        return self._driver.run(self._do.create_link(execution_id, signal, workspace, by, created_by, ttl))

    def link(self, secret: str) -> SignalLink | None:
        """Return what a link does; None if it is unknown, expired or was used.

        - ``secret``: what ``create_link`` returned.
        """
        return self._driver.run(self._do.link(secret))

    def redeem_link(self, secret: str) -> SignalLink | None:
        """Use a link up, and return what it does; None if it is unknown, expired or was used.

        - ``secret``: what ``create_link`` returned.
        """
        return self._driver.run(self._do.redeem_link(secret))

    def server_key(self) -> bytes:
        """Return the key that the HTTP servers of this store sign cursors and links with; the first call makes it."""
        return self._driver.run(self._do.server_key())
