"""The ASGI application of a well: the API, the dashboard, health, metrics and sessions put together."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from stepwell.app.awaited import AsyncStepwell
from stepwell.errors import StepwellError
from stepwell.web.api.route_table import TABLE
from stepwell.web.authentication import Identify, ProxyIdentity, is_loopback
from stepwell.web.dashboard.application import Dashboard
from stepwell.web.dispatch import RequestDispatcher, problem_response
from stepwell.web.hooks import HookPage
from stepwell.web.links import LinkPages
from stepwell.web.metrics import store_metrics
from stepwell.web.middleware import Envelope
from stepwell.web.problem import HttpProblem
from stepwell.web.server_state import Server
from stepwell.web.sessions import SessionPages
from stepwell.web.settings import HttpLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["application"]

Page = Callable[[Request], Awaitable[Response]]


def application(
    well: AsyncStepwell,
    identify: Identify | None,
    proxy: ProxyIdentity | None,
    limits: HttpLimits,
    allowed_hosts: Iterable[str],
    backups: str | Path | None,
    *,
    is_admin_open: bool,
) -> ASGIApp:
    """Return the application; `stepwell_app` describes the parameters."""
    folder = None if backups is None else Path(backups)
    server = Server(well, TABLE, identify, limits, proxy=proxy, backups=folder, is_admin_open=is_admin_open)
    routes = [*_health_routes(server), *_session_routes(server), _LineMount("/api/v1", app=_ApiApp(server))]
    routes.append(Mount("/", app=Dashboard(server)))

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[None]:
        async with well:
            yield
            await server.hub.close()
            await server.bulk.close()

    return Envelope(Starlette(routes=routes, lifespan=lifespan, exception_handlers={HttpProblem: _on_problem}), allowed_hosts)


class _LineMount(Mount):
    """A mount below which a path may have line breaks, as a key may: the pattern of another one ends at the first."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        super().__init__(path, app)
        self.path_regex = re.compile(self.path_regex.pattern, re.DOTALL)


class _ApiApp:
    """The API as an ASGI application of its own: it matches the path before it is decoded."""

    def __init__(self, server: Server) -> None:
        self._dispatcher = RequestDispatcher(server)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The mount moved the root to the API's; links in replies begin at the application's own.
        root = scope.get("root_path", "").removesuffix("/api/v1")
        request = Request({**scope, "root_path": root}, receive)
        encoded = scope.get("raw_path") or quote(scope["path"]).encode()
        raw_path = encoded.decode("latin-1").partition("?")[0].removeprefix(f"{quote(root)}/api/v1")
        response = await self._dispatcher.answer(request, raw_path)
        if scope["method"] == "HEAD" and isinstance(response, Response):
            response.body = b""
        await response(scope, receive, send)


async def _on_problem(request: Request, error: Exception) -> Response:
    return problem_response(request, error if isinstance(error, HttpProblem) else HttpProblem("internal"))


def _health_routes(server: Server) -> list[BaseRoute]:
    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        health = await server.well.health()
        parts = health.parts
        if not (server.is_admin_open or is_loopback(request)):  # the reason may name hosts and files
            parts = {name: state if state == "ok" else "failing" for name, state in parts.items()}
        body = {"status": "ok" if health.is_ok else "failing", "parts": parts}
        return JSONResponse(body, 200 if health.is_ok else 503, {"cache-control": "no-store"})

    async def metrics(request: Request) -> Response:
        if not (server.is_admin_open or is_loopback(request)):
            raise HttpProblem("no_such_route")
        server.metrics.streams.set(server.hub.clients)
        health = await server.well.health()
        try:
            queue, workers = await server.well.queue.metrics(), len(await server.well.queue.workers())
        except StepwellError:  # the rest says that the store is away
            queue, workers = "", 0
        text = (
            queue.rstrip()
            + "\n"
            + store_metrics(server.well.write_statistics, parts=health.parts, workers=workers, leases=server.well.leases)
        )
        return Response(text.lstrip() + server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    pages: dict[str, Page] = {"/livez": livez, "/readyz": readyz, "/metrics": metrics}
    return [Route(path, page, methods=["GET"]) for path, page in pages.items()]


def _session_routes(server: Server) -> list[BaseRoute]:
    pages, links = SessionPages(server), LinkPages(server)
    return [
        Route("/login", pages.show_login, methods=["GET"]),
        Route("/login", pages.login, methods=["POST"]),
        Route("/enter", pages.enter, methods=["GET"]),
        Route("/logout", pages.logout, methods=["POST"]),
        Route("/links/{secret}", links.show, methods=["GET"]),
        Route("/links/{secret}", links.answer, methods=["POST"]),
        Route("/hooks/{workspace}/{name}", HookPage(server).receive, methods=["POST"]),
    ]
