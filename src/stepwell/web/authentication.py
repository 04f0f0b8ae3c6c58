"""Authentication of callers: by access token, by a session of the dashboard, by a proxy, or by the host application.

Everything is refused unless one of these says who calls. The workspace comes from the identity alone; only a caller for all of the
store chooses one, with the query parameter ``workspace``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from stepwell.app.awaited import AsyncStepwell
from stepwell.errors import InvalidInput
from stepwell.model.access import Identity, Role
from stepwell.model.ids import check_key
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.web.problem import HttpProblem
from stepwell.web.request_body import form_of

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = [
    "COOKIE",
    "CSRF_HEADER",
    "PEER",
    "Authenticator",
    "Identify",
    "ProxyIdentity",
    "check_csrf",
    "check_same_origin",
    "credentials_of",
    "csrf_token",
    "is_loopback",
    "workspace_of",
]

COOKIE = "stepwell_session"
CSRF_HEADER = "x-csrf-token"
PEER = "stepwell.peer"
"""The key of the connection's own address in the ASGI scope, where the server replaces ``client`` by what a proxy forwards."""
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_LONGEST_NAME = 256
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)

Identify = Callable[["Request"], "Identity | Awaitable[Identity | None] | None"]
"""A function of the host application that returns a request's caller; None: the host names no callers."""


def csrf_token(session: str) -> str:
    """Return the token that a form of this session must send back: a page of another site does not know it."""
    return sha256(f"stepwell csrf {session}".encode()).hexdigest()


def is_loopback(request: Request) -> bool:
    """Return whether a request comes from this machine."""
    host = "" if request.client is None else request.client.host
    return host in ("::1", "localhost") or host.startswith("127.")


def credentials_of(request: Request) -> tuple[str, str] | None:
    """Return what tells the credentials of a request from others; None if they are not a token or a session of Stepwell."""
    found = request.headers.get("authorization", ""), request.cookies.get(COOKIE, "")
    return found if any(found) else None


class ProxyIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Trust in a proxy that signs people in and names them in a header. A connection from any other address is not believed.

    The proxy must remove these headers from what clients send.
    """

    user_header: str
    """Such as ``X-Forwarded-User``: who signed in, for people and the audit."""
    role: Role = Role.VIEWER
    """The role of all callers whom the proxy lets through, unless ``role_header`` names another."""
    role_header: str | None = None
    """A header with ``viewer``, ``operator`` or ``admin``; another value is no identity."""
    workspace: str | None = None
    """The only workspace that they reach; None for all of the store."""
    proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    """The addresses of the proxy."""

    def __post_init__(self) -> None:
        for header in (self.user_header, self.role_header or "x"):
            if not _HEADER_NAME.fullmatch(header):
                raise InvalidInput(f"{header!r} is no name of a header")
        if not self.proxies:
            raise InvalidInput("name the proxy's address: a header that every client can send identifies no caller")

    def identity_of(self, request: Request) -> Identity | None:
        """Return the caller whom the proxy names; None if it names none, or the request came from elsewhere."""
        peer = request.scope.get(PEER) or ("" if request.client is None else request.client.host)
        names = request.headers.getlist(self.user_header)
        if peer not in self.proxies or len(names) != 1:  # two: one of them is the client's own
            return None
        name = names[0].strip()
        role = str(self.role) if self.role_header is None else request.headers.get(self.role_header, "").strip()
        if not name or not name.isprintable() or len(name) > _LONGEST_NAME or role not in frozenset(Role):
            return None
        return Identity(name=name, role=Role(role), workspace=self.workspace)


class Authenticator:
    """Finds out who makes a request.

    - ``identify``: the host application's own authentication, which is then the only one; None: tokens and sessions.
    - ``proxy``: the proxy whose word is taken for a caller without a token; None: no proxy's.
    """

    def __init__(self, well: AsyncStepwell, identify: Identify | None, proxy: ProxyIdentity | None = None) -> None:
        self._well, self._identify, self._proxy = well, identify, proxy

    async def identity_of(self, request: Request) -> Identity | None:
        """Return the caller of a request; None if it is unknown.

        Raise ``HttpProblem`` (403) for a change that is sent with a session and without its CSRF token.
        """
        if self._identify is not None:
            found = self._identify(request)
            identity = await found if inspect.isawaitable(found) else found
            if identity is not None:
                check_same_origin(request)
            return identity
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            return await self._well.access.identify(token.strip()) if scheme.lower() == "bearer" else None
        if self._proxy is not None and (named := self._proxy.identity_of(request)) is not None:
            check_same_origin(request)
            return named
        session = request.cookies.get(COOKIE)
        if not session:
            return None
        identity = await self._well.access.session(session)
        if identity is not None and request.method not in _SAFE:
            await check_csrf(request, session)
        return identity


def check_same_origin(request: Request) -> None:
    """Raise ``HttpProblem`` (403) for a change that a browser sends from another site."""
    if request.method in _SAFE:
        return
    origin = request.headers.get("origin")
    is_foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")
    if is_foreign or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HttpProblem("forbidden", "this change was sent by a page of another site")


async def check_csrf(request: Request, session: str) -> None:
    """Raise ``HttpProblem`` (403) unless a change carries the token of its session, in the header or the form field ``csrf``."""
    check_same_origin(request)
    given = request.headers.get(CSRF_HEADER, "")
    if not given and request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        given = (await form_of(request)).get("csrf", "")
    if not compare_digest(given.encode(), csrf_token(session).encode()):
        raise HttpProblem("forbidden", f"send the session's CSRF token in the header {CSRF_HEADER} or the form field csrf")


def workspace_of(identity: Identity, asked: str | None) -> str:
    """Return the workspace of a request.

    - ``asked``: the query parameter ``workspace``, which only a caller for all of the store may use.
    """
    if identity.workspace is not None:
        if asked is not None:
            raise HttpProblem("malformed", "the workspace comes from the token; leave the parameter `workspace` out")
        return identity.workspace
    try:
        return DEFAULT_WORKSPACE if asked is None else check_key(asked, "a workspace id")
    except InvalidInput as error:
        raise HttpProblem("malformed", error.message) from None
