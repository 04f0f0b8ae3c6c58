"""The table of all routes of the API."""

from __future__ import annotations

from stepwell.web.api import runs, server
from stepwell.web.route import RouteTable

__all__ = ["TABLE"]

TABLE = RouteTable((*server.ROUTES, *runs.ROUTES))
