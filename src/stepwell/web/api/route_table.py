"""The table of all routes of the API."""

from __future__ import annotations

from stepwell.web.api import (
    approvals,
    bulk,
    definitions,
    errors,
    maintenance,
    queue,
    retention,
    runs,
    schedules,
    state,
    system,
    webhooks,
    workspaces,
)
from stepwell.web.route import RouteTable

__all__ = ["TABLE"]

TABLE = RouteTable(
    (
        *system.ROUTES,
        *approvals.ROUTES,
        *runs.ROUTES,
        *bulk.ROUTES,
        *errors.ROUTES,
        *queue.ROUTES,
        *schedules.ROUTES,
        *definitions.ROUTES,
        *workspaces.ROUTES,
        *retention.ROUTES,
        *state.ROUTES,
        *webhooks.ROUTES,
        *maintenance.ROUTES,
    )
)
