"""Routes of schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from stepwell.errors import AlreadyExists, NotFound
from stepwell.model.access import Role
from stepwell.model.queue_item import DEFAULT_QUEUE
from stepwell.model.value import Value
from stepwell.queue.schedule import ScheduleSummary, no_schedule
from stepwell.web.api.queue import EnqueuedItem
from stepwell.web.paging import CountedQuery, sorted_page
from stepwell.web.preconditions import check_edit, check_if_match, etag_of
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES"]

Name = Annotated[str, Meta(min_length=1, max_length=512)]


class PutSchedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule. Give one of ``cron``, ``every_ms`` and ``at``."""

    workflow: Name
    """The name of a workflow function of the server, or of a stored definition."""
    input: Value | UnsetType = UNSET
    """Without it, the workflow's parameters take their defaults."""
    cron: Annotated[str, Meta(max_length=200)] | None = None
    """Five or six fields, or ``@daily`` and the like."""
    zone: Annotated[str, Meta(max_length=100)] | None = None
    """The time zone of ``cron``, such as ``Europe/Berlin``; null: UTC."""
    every_ms: Annotated[int, Meta(ge=100, le=3_153_600_000_000)] | None = None
    """An interval."""
    at: datetime | None = None
    """One moment."""
    catch_up: Literal["none", "last", "all"] = "none"
    """Which ticks to fire that were missed while no worker ran."""
    queue: Name = DEFAULT_QUEUE
    """The named queue of its items."""
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    """Items with a higher priority start first."""
    max_attempts: Annotated[int, Meta(ge=1, le=1_000)] = 3
    """How many times an item may be tried to start."""


class Backfill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ticks to enqueue, both ends included."""

    start: datetime
    """The first moment."""
    end: datetime
    """The last moment."""


class SpanQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A span of time, both ends included."""

    start: datetime
    """The first moment."""
    end: datetime
    """The last moment."""


class NextQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of moments to return."""

    count: Annotated[int, Meta(ge=1, le=200)] = 5
    """How many moments."""


async def _owned(call: Call) -> ScheduleSummary:
    """Return the schedule that the address names; one of another workspace is answered like one that does not exist."""
    name = call.path["name"]
    found = await call.well.schedules.get(name)
    if found.workspace_id != call.workspace:
        raise no_schedule(name)
    return found


async def list_schedules(call: Call) -> Reply:
    """Return the schedules of the workspace."""
    found = [each for each in await call.well.schedules.list() if each.workspace_id == call.workspace]
    return await sorted_page(call, found, lambda each: each.name, "schedules")


async def get_schedule(call: Call) -> Reply:
    """Return a schedule."""
    found = await _owned(call)
    return Reply(found, etag=_etag(found))


def _etag(schedule: ScheduleSummary) -> str:
    """Return the ETag of the settings of a schedule: its ticks change nothing."""
    return etag_of(msgspec.structs.replace(schedule, next_at=None, last_at=None))


async def put_schedule(call: Call) -> Reply:
    """Create or replace a schedule."""
    async with call.server.edits:
        try:
            check_edit(call, _etag(await _owned(call)))
        except NotFound:
            if call.path["name"] in {each.name for each in await call.well.schedules.list()}:
                raise AlreadyExists("names of schedules are unique in a store, and this one is taken; choose another") from None
            check_edit(call, None)
        done = await _put(call)
    return Reply(done, etag=_etag(done))


async def _put(call: Call) -> ScheduleSummary:
    name, body = call.path["name"], call.body
    return await call.well.schedules.put(
        name,
        body.workflow,
        body.input,
        cron=body.cron,
        zone=body.zone,
        every=None if body.every_ms is None else body.every_ms / 1000,
        at=body.at,
        catch_up=body.catch_up,
        workspace=call.workspace,
        queue=body.queue,
        priority=body.priority,
        max_attempts=body.max_attempts,
    )


async def delete_schedule(call: Call) -> Reply:
    """Delete a schedule."""
    async with call.server.edits:
        found = await _owned(call)
        check_if_match(call, _etag(found))
        await call.well.schedules.delete(found.name)
    return Reply()


async def pause_schedule(call: Call) -> Reply:
    """Fire no more ticks."""
    return Reply(await call.well.schedules.pause((await _owned(call)).name))


async def resume_schedule(call: Call) -> Reply:
    """Fire ticks again."""
    return Reply(await call.well.schedules.resume((await _owned(call)).name))


async def run_schedule(call: Call) -> Reply:
    """Enqueue one item now."""
    return Reply(_enqueued(await call.well.schedules.run_now((await _owned(call)).name)), 202)


async def backfill_schedule(call: Call) -> Reply:
    """Enqueue an item for every tick of a span."""
    items = await call.well.schedules.backfill((await _owned(call)).name, call.body.start, call.body.end)
    return Reply(Page(items=[_enqueued(each) for each in items]), 202)


async def list_ticks(call: Call) -> Reply:
    """Return the ticks of a span: what a backfill would enqueue."""
    name = (await _owned(call)).name
    return Reply(Page(items=await call.well.schedules.ticks(name, call.query.start, call.query.end)))


async def list_next_ticks(call: Call) -> Reply:
    """Return the next moments at which a schedule fires."""
    return Reply(Page(items=await call.well.schedules.next((await _owned(call)).name, call.query.count)))


def _enqueued(item: Any) -> EnqueuedItem:
    return EnqueuedItem(item_id=item.item_id, execution_id=item.execution_id, status=item.status, is_new=item.is_new)


ROUTES = (
    api_route("GET /schedules", list_schedules, Page[ScheduleSummary], query=CountedQuery),
    api_route("GET /schedules/{name}", get_schedule, ScheduleSummary),
    api_route(
        "PUT /schedules/{name}",
        put_schedule,
        ScheduleSummary,
        Role.OPERATOR,
        body=PutSchedule,
        conditions=("If-Match", "If-None-Match"),
        example={"workflow": "greet", "cron": "0 3 * * *", "zone": "Europe/Berlin"},
    ),
    api_route("DELETE /schedules/{name}", delete_schedule, None, Role.OPERATOR, conditions=("If-Match",)),
    api_route("POST /schedules/{name}/pause", pause_schedule, ScheduleSummary, Role.OPERATOR),
    api_route("POST /schedules/{name}/resume", resume_schedule, ScheduleSummary, Role.OPERATOR),
    api_route("POST /schedules/{name}/run", run_schedule, EnqueuedItem, Role.OPERATOR, status=202),
    api_route(
        "POST /schedules/{name}/backfill",
        backfill_schedule,
        Page[EnqueuedItem],
        Role.OPERATOR,
        body=Backfill,
        status=202,
        example={"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"},
    ),
    api_route("GET /schedules/{name}/ticks", list_ticks, Page[datetime], query=SpanQuery),
    api_route("GET /schedules/{name}/next", list_next_ticks, Page[datetime], query=NextQuery),
)
