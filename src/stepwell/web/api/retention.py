"""Routes of retention: policies, planned removals, and tombstones of what was removed.

Policies are set in Python or on the command line alone, since they name folders of the machines that workers run on.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from stepwell.maintenance.retention import RetentionPlan
from stepwell.model.access import Role
from stepwell.model.retention import RetentionPolicy, Tombstone, no_tombstone
from stepwell.web.paging import CountedQuery, PageQuery, page_reply, sorted_page
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES"]

_LONGEST_MS = 3_155_760_000_000
"""A hundred years."""


class PlanQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time to look ahead, and the number of runs to list."""

    within_ms: Annotated[int, Meta(ge=0, le=_LONGEST_MS)] = 0
    """How far to look ahead; 0: what the next round removes."""
    limit: Annotated[int, Meta(ge=0, le=1_000)] = 100
    """How many runs to list; all are counted."""


async def list_retention(call: Call) -> Reply:
    """Return the retention policies of the tiers."""
    return await sorted_page(call, await call.well.retention.list(), lambda each: each.tier, "retention")


async def plan_retention(call: Call) -> Reply:
    """Return what retention will remove, and when; nothing is removed."""
    query: PlanQuery = call.query
    return Reply(await call.well.retention.plan(within=query.within_ms / 1000, limit=query.limit))


async def list_tombstones(call: Call) -> Reply:
    """Return what is left of the runs of the workspace that retention removed."""
    query: PageQuery = call.query
    signer, binding = await call.server.signer(), ["tombstones", call.workspace]
    after = None if query.cursor is None else signer.position(binding, query.cursor)
    found = await call.well.retention.tombstones(workspace=call.workspace, after=after, limit=query.limit + 1)
    page = found[: query.limit]
    return page_reply(call, page, signer.cursor(binding, page[-1].execution_id) if len(found) > len(page) else None)


async def get_tombstone(call: Call) -> Reply:
    """Return what is left of a run that retention removed."""
    execution_id = call.path["execution_id"]
    found = await call.well.retention.tombstone(execution_id)
    if found.workspace_id != call.workspace:
        raise no_tombstone(execution_id)
    return Reply(found)


ROUTES = (
    api_route("GET /retention", list_retention, Page[RetentionPolicy], query=CountedQuery, is_store_wide=True),
    api_route("GET /retention/plan", plan_retention, RetentionPlan, Role.VIEWER, query=PlanQuery, is_store_wide=True),
    api_route("GET /tombstones", list_tombstones, Page[Tombstone], query=PageQuery),
    api_route("GET /tombstones/{execution_id}", get_tombstone, Tombstone),
)
