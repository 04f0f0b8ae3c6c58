"""The dashboard as an ASGI application: it finds the screen of a request, checks who looks, and draws the page."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from stepwell.errors import StepwellError
from stepwell.model.access import Identity, Role
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.web.authentication import workspace_of
from stepwell.web.dashboard.assets import asset_response
from stepwell.web.dashboard.frame import error_response, page_response
from stepwell.web.dashboard.rendering import THEMES, ZONES, html_page, new_nonce
from stepwell.web.dashboard.screen import Screen, ScreenTable, Shown, View, remember
from stepwell.web.dashboard.screen_table import SCREENS
from stepwell.web.dispatch import query_of, request_id_of
from stepwell.web.problem import HttpProblem, problem_of
from stepwell.web.server_state import Server
from stepwell.web.sessions import local_target

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["Dashboard"]

log = logging.getLogger(__name__)

_NOBODY = Identity(name="", role=Role.VIEWER, workspace=DEFAULT_WORKSPACE)
_PREFERENCES = {"theme": THEMES, "zone": ZONES, "keys": ("on", "off")}


class Dashboard:
    """Answers everything that is neither the API nor health, sign-in or metrics."""

    def __init__(self, server: Server, table: ScreenTable = SCREENS) -> None:
        self._server, self._table = server, table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        response = await self._answer(request)
        if scope["method"] == "HEAD" and isinstance(response, Response):
            response.body = b""
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        began = monotonic()
        root = request.scope.get("root_path", "")
        encoded = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
        raw_path = encoded.decode("latin-1").partition("?")[0].removeprefix(quote(root)) or "/"
        if raw_path.startswith("/assets/"):
            try:
                return asset_response(request, raw_path.removeprefix("/assets/"))
            except HttpProblem:
                return Response("There is no such file.\n", 404, media_type="text/plain")
        name = "page_unknown"
        try:
            identity = await self._server.authenticator.identity_of(request)
            if identity is None:
                return _sign_in(request, raw_path)
            if raw_path == "/preferences" and request.method == "POST":
                return await _preferences(request)
            screen, path = self._table.find(request.method, raw_path)
            name = f"page_{screen.name}"
            response = await self._shown(request, identity, screen, path)
        except (HttpProblem, StepwellError) as error:
            response = await self._failed(request, error)
        except Exception:
            log.exception("request %s of %s failed", request_id_of(request), name)
            response = await self._failed(request, HttpProblem("internal"))
        self._server.metrics.count(name, response.status_code, monotonic() - began)
        return response

    async def _shown(self, request: Request, identity: Identity, screen: Screen, path: dict[str, str]) -> Response:
        self._server.rates.take(identity, is_write=screen.method == "POST")
        view = self._view(request, identity, screen, path)
        try:
            view.workspace = workspace_of(identity, view.request.query_params.get("workspace"))
            view.check_role()
            found = await screen.show(view)
            response = await page_response(view, found, self._table) if isinstance(found, Shown) else found
            for name, value in view.remembered.items():
                remember(request, response, name, value)
            return response
        except (HttpProblem, StepwellError) as error:
            return await error_response(view, error, self._table, request_id_of(request))

    def _view(self, request: Request, identity: Identity, screen: Screen, path: dict[str, str]) -> View:
        query = query_of(request)
        query.pop("workspace", None)
        return View(
            server=self._server,
            request=request,
            screen=screen,
            identity=identity,
            workspace=identity.workspace or DEFAULT_WORKSPACE,
            path=path,
            query=query,
            nonce=new_nonce(),
            now=datetime.now(UTC),
        )

    async def _failed(self, request: Request, error: HttpProblem | StepwellError) -> Response:
        """Return the page for a request that has no screen, or whose caller cannot be known."""
        status, problem, headers = problem_of(error, instance=request.url.path, request_id=request_id_of(request), root="")
        response = html_page(request, "refused.html", {"title": "Error", "problem": problem}, status=status)
        for key, value in headers.items():
            response.headers.setdefault(key, value)
        return response


def _sign_in(request: Request, raw_path: str) -> Response:
    """Lead a caller who is not signed in to the form, and back afterwards."""
    root = request.scope.get("root_path", "")
    if "hx-request" in request.headers:  # the page reloads, and is led to the form then
        return Response(status_code=401, headers={"HX-Refresh": "true"})
    query = request.scope.get("query_string", b"").decode("latin-1")
    target = raw_path + (f"?{query}" if query else "") if request.method in ("GET", "HEAD") else "/"
    return RedirectResponse(f"{root}/login?{urlencode({'next': target})}", 303)


async def _preferences(request: Request) -> Response:
    """Keep a preference in a cookie, and go back to the page."""
    from stepwell.web.request_body import form_of

    form, root = await form_of(request), request.scope.get("root_path", "")
    back = urlsplit(request.headers.get("referer", ""))
    path = back.path.removeprefix(root) or "/"
    response = RedirectResponse(local_target(request, path + (f"?{back.query}" if back.query else "")), 303)
    for name, allowed in _PREFERENCES.items():
        if form.get(name) in allowed:
            remember(request, response, name, form[name])
    return response
