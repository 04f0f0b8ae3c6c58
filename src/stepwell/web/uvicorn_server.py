"""`serve`: run the HTTP server in this process with uvicorn until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from stepwell.app.awaited import AsyncStepwell
from stepwell.model.access import Identity, Role
from stepwell.web.app import stepwell_app
from stepwell.web.authentication import PEER, ProxyIdentity
from stepwell.web.settings import HttpLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["LOOPBACK", "HttpServer", "PatientProtocol", "serve"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_HEADER_SECONDS = 10.0
"""How long the head of a request may take to arrive: a client that sends a byte now and then must not hold a connection."""
_MOST_CONNECTIONS = 5_000


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request head does not arrive in time; uvicorn itself waits for ever."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close a stream of events at once, which its client opens again elsewhere; let any other reply be finished."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if (
            cycle is not None
            and not cycle.response_complete
            and any(name == b"accept" and b"text/event-stream" in value for name, value in cycle.scope["headers"])
        ):
            self.transport.close()
        else:
            super().shutdown()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(_HEADER_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None until the first request, whatever its annotation says
        if cycle is None or cycle.response_complete:
            self.transport.close()


class ForwardedAddress:
    """Believes ``X-Forwarded-For`` and ``X-Forwarded-Proto`` of these proxies, and keeps the connection's own address beside it.

    uvicorn's own option forgets that address, and with it whether the proxy itself is the one that names a person.
    """

    def __init__(self, app: ASGIApp, proxies: tuple[str, ...]) -> None:
        self._app = ProxyHeadersMiddleware(cast("Any", app), trusted_hosts=list(proxies))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        client = scope.get("client")
        if client is not None:
            scope[PEER] = client[0]
        await cast("ASGIApp", self._app)(scope, receive, send)


class HttpServer(uvicorn.Server):
    """uvicorn, which says when it listens.

    - ``on_ready``: called with the address once requests are answered.
    - ``on_stop``: called before connections are closed.
    """

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[str], Awaitable[None]], on_stop: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(config)
        self._on_ready, self._on_stop = on_ready, on_stop

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            name = f"[{host}]" if ":" in host else host
            await self._on_ready(f"http://{name}:{port}")

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop listening, and close the connections."""
        await self._on_stop()
        await super().shutdown(sockets)


def serve(
    well: AsyncStepwell,
    *,
    host: str = "127.0.0.1",
    port: int = 8420,
    allowed_hosts: tuple[str, ...] = (),
    open_admin: bool = False,
    proxy: ProxyIdentity | None = None,
    limits: HttpLimits | None = None,
    backups: str | Path | None = None,
    grace_seconds: float | None = None,
    prepare: Callable[[AsyncStepwell], Awaitable[None]] | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a well over HTTP until SIGTERM or Ctrl-C. Blocks the calling thread.

    - ``well``: it is opened and closed here.
    - ``host``, ``port``: where to listen. On loopback, the address that ``on_ready`` gets is a one-time link that signs in.
    - ``allowed_hosts``: the names of this server; on loopback, only the names of loopback by default.
    - ``open_admin``: True to answer metrics, the details of health, backups and migrations to other machines, too.
    - ``proxy``: a proxy in front that names signed-in people in a header; None: headers identify no caller.
    - ``backups``: the folder that backups are made into; None: none are made.
    - ``grace_seconds``: how long steps under way may take after the signal; None: they are waited for.
    - ``prepare``: called with the open well before the address is printed.
    - ``on_ready``: called with the address once requests are answered.
    """
    is_local = host in LOOPBACK
    names = allowed_hosts or (("localhost", "127.0.0.1", "::1") if is_local else ())
    app = stepwell_app(well, proxy=proxy, limits=limits, allowed_hosts=names, open_admin=open_admin, backups=backups)

    async def ready(address: str) -> None:
        if prepare is not None:
            await prepare(well)
        if is_local:
            ticket = await well.access.create_ticket(Identity(name="local", role=Role.ADMIN, workspace=None))
            address = f"{address}/enter?ticket={ticket}"
        on_ready(address)

    async def stop() -> None:
        await well.drain(grace_seconds)

    config = uvicorn.Config(
        ForwardedAddress(app, LOOPBACK[:2] if proxy is None else proxy.proxies),
        host=host,
        port=port,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=64 * 1024,
    )
    HttpServer(config, ready, stop).run()
