"""Middleware of every response: a request id, security headers, and a plain reply instead of a stack trace."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stepwell.model.ids import new_id

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CONTENT_SECURITY_POLICY", "Envelope"]

log = logging.getLogger(__name__)

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


class Envelope:
    """Wraps an ASGI application.

    - ``allowed_hosts``: names of this server; a request for another one is refused, so that a page of another site whose name was
      made to point here (DNS rebinding) gets nothing. Empty: any name.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str] = ()) -> None:
        self._app, self._hosts = app, frozenset(each.lower() for each in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"])
        asked = given.get(b"request-id", b"").decode("latin-1")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else new_id()
        scope["stepwell.request_id"] = request_id
        more = [(b"request-id", request_id.encode())]
        if _TRACEPARENT.fullmatch(traced := given.get(b"traceparent", b"").decode("latin-1")):
            more.append((b"traceparent", traced.encode()))
        has_begun = False

        async def send_more(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                known = {name.lower() for name, _ in message["headers"]}
                fixed = [(name.encode(), value.encode()) for name, value in _HEADERS.items() if name.encode() not in known]
                message = {**message, "headers": [*message["headers"], *fixed, *more]}
            await send(message)

        try:
            if self._hosts and _host_of(given) not in self._hosts:
                await _plain(send_more, 421, "This server does not answer for this host.\n")
                return
            await self._app(scope, receive, send_more)
        except Exception:
            log.exception("request %s failed", request_id)
            if has_begun:
                raise  # the connection is closed: a cut reply must not look whole
            await _plain(send_more, 500, f"The server failed. Its log has the reason under the request id {request_id}.\n")


def _host_of(headers: dict[bytes, bytes]) -> str:
    try:
        return (urlsplit(f"//{headers.get(b'host', b'').decode('latin-1')}").hostname or "").lower()
    except ValueError:
        return ""


async def _plain(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
