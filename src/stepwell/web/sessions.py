"""Pages to sign in and out: a form that takes a token, and the one-time link that ``stepwell serve`` prints."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from stepwell.clock import from_ms
from stepwell.errors import StepwellError
from stepwell.model.access import Identity
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.state.request_log import AuditEntry
from stepwell.web.authentication import COOKIE, check_csrf, check_same_origin
from stepwell.web.dashboard.rendering import html_page
from stepwell.web.request_body import form_of
from stepwell.web.server_state import Server

__all__ = ["SESSION_SECONDS", "SessionPages", "local_target"]

log = logging.getLogger(__name__)

SESSION_SECONDS = 12 * 3600


def local_target(request: Request, target: str) -> str:
    """Return where to go after signing in: always a path of this server."""
    root = request.scope.get("root_path", "")
    is_local = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return f"{root}{target}" if is_local else f"{root}/"


class SessionPages:
    """Handlers of ``/login``, ``/enter`` and ``/logout``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def show_login(self, request: Request) -> Response:
        """Show the form that takes a token."""
        return self._form(request, "", 200, request.query_params.get("next", "/"))

    async def login(self, request: Request) -> Response:
        """Open a session with the token of the form."""
        check_same_origin(request)
        form = await form_of(request)
        identity = await self._server.well.access.identify(form.get("token", "").strip())
        if identity is None:
            return self._form(request, "This token is unknown, expired or revoked.", 401, form.get("next", "/"))
        return await self._entered(request, identity, form.get("next", "/"))

    async def enter(self, request: Request) -> Response:
        """Open a session with the ticket of a one-time link."""
        if request.method == "HEAD":  # a program that looks where links lead does not use this one up
            return Response(headers={"cache-control": "no-store"})
        identity = await self._server.well.access.redeem_ticket(request.query_params.get("ticket", ""))
        if identity is None:
            return self._form(
                request, "This link was used or has expired. Start the server again for a new one, or use a token.", 401
            )
        return await self._entered(request, identity, "/")

    async def logout(self, request: Request) -> Response:
        """End the session."""
        secret = request.cookies.get(COOKIE, "")
        if secret:
            identity = await self._server.well.access.session(secret)
            await check_csrf(request, secret)
            await self._server.well.access.close_session(secret)
            if identity is not None:
                await self._note(request, identity, "sign_out")
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
        response.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")
        return response

    async def _entered(self, request: Request, identity: Identity, target: str) -> Response:
        secret = await self._server.well.access.open_session(identity, ttl=SESSION_SECONDS)
        response = RedirectResponse(local_target(request, target), 303)
        response.set_cookie(
            COOKIE,
            secret,
            max_age=SESSION_SECONDS,
            path=request.scope.get("root_path", "") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        response.headers["cache-control"] = "no-store"
        await self._note(request, identity, "sign_in")
        return response

    async def _note(self, request: Request, identity: Identity, action: str) -> None:
        entry = AuditEntry(
            entry_id="",
            at=from_ms(0),  # the store sets both
            actor=identity.name,
            token_id=identity.token_id,
            action=action,
            resource=request.url.path,
            status=303,
            request_id=str(request.scope.get("stepwell.request_id", "")),
        )
        try:
            await self._server.well.requests.note(identity.workspace or DEFAULT_WORKSPACE, entry)
        except StepwellError as error:
            log.error("the audit lacks request %s (%s by %s): %s", entry.request_id, action, identity.name, error)

    def _form(self, request: Request, message: str, status: int, target: str = "/") -> Response:
        values = {"title": "Sign in to Stepwell", "message": message, "next": target}
        return html_page(request, "login.html", values, status=status)
