"""The objects that all requests of one server share: the well, its limits, callers, routes and running streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stepwell.app.awaited import AsyncStepwell
from stepwell.web.authentication import Authenticator, Identify, ProxyIdentity
from stepwell.web.bulk_operations import BulkOperations
from stepwell.web.events import EventHub
from stepwell.web.metrics import ServerMetrics
from stepwell.web.paging import CursorSigner
from stepwell.web.rate_limit import RateLimiter
from stepwell.web.route import Route, RouteTable
from stepwell.web.settings import HttpLimits

__all__ = ["Server"]


class Server:
    """The parts of one server.

    - ``well``: what it serves.
    - ``table``: the routes of the API.
    - ``identify``: the host application's authentication, or None.
    - ``limits``: what requests may use.
    - ``proxy``: the proxy whose header names callers, or None.
    - ``backups``: the folder that backups are made into, or None.
    - ``is_admin_open``: whether routes of the admin bind answer other machines, too.
    """

    def __init__(
        self,
        well: AsyncStepwell,
        table: RouteTable[Route],
        identify: Identify | None,
        limits: HttpLimits,
        *,
        proxy: ProxyIdentity | None = None,
        backups: Path | None = None,
        is_admin_open: bool,
    ) -> None:
        self.well, self.table, self.limits, self.is_admin_open = well, table, limits, is_admin_open
        self.backups = backups
        self.authenticator = Authenticator(well, identify, proxy)
        self.rates = RateLimiter(limits)
        self.hub = EventHub(well, limits)
        self.bulk = BulkOperations()
        self.metrics = ServerMetrics()
        self.edits = asyncio.Lock()
        """Held from the check of a precondition to the write that it is about."""
        self._signer: CursorSigner | None = None

    async def signer(self) -> CursorSigner:
        """Return what signs cursors, with a key that all servers of this store share."""
        if self._signer is None:
            self._signer = CursorSigner(await self.well.access.server_key())
        return self._signer
