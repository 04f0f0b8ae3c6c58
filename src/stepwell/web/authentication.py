"""Authentication of callers: by access token, by a session of the dashboard, or by the host application.

Everything is refused unless one of these says who calls. The workspace comes from the identity alone; only a caller for all of the
store chooses one, with the query parameter ``workspace``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stepwell.app.awaited import AsyncStepwell
from stepwell.errors import InvalidInput
from stepwell.model.access import Identity
from stepwell.model.ids import check_key
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.web.problem import HttpProblem
from stepwell.web.request_body import form_of

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["COOKIE", "CSRF_HEADER", "Authenticator", "Identify", "csrf_token", "is_loopback", "workspace_of"]

COOKIE = "stepwell_session"
CSRF_HEADER = "x-csrf-token"
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))

Identify = Callable[["Request"], "Identity | Awaitable[Identity | None] | None"]
"""A function of the host application that returns a request's caller; None: the host names no callers."""


def csrf_token(session: str) -> str:
    """Return the token that a form of this session must send back: a page of another site does not know it."""
    return sha256(f"stepwell csrf {session}".encode()).hexdigest()


def is_loopback(request: Request) -> bool:
    """Return whether a request comes from this machine."""
    host = "" if request.client is None else request.client.host
    return host in ("::1", "localhost") or host.startswith("127.")


class Authenticator:
    """Finds out who makes a request.

    - ``identify``: the host application's own authentication, which is then the only one; None: tokens and sessions.
    """

    def __init__(self, well: AsyncStepwell, identify: Identify | None) -> None:
        self._well, self._identify = well, identify

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
