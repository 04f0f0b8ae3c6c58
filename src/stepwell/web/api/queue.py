"""Routes of the queue: items, named queues, lanes, demand and workers."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from stepwell.errors import Conflict, NotFound
from stepwell.model.access import Role
from stepwell.model.queue_item import DEFAULT_QUEUE, ItemStatus, QueueSettings
from stepwell.model.value import Value
from stepwell.queue.diagnosis import WaitingReason
from stepwell.queue.item import ItemSummary, no_item
from stepwell.queue.statistics import Demand, LaneStats
from stepwell.queue.worker_presence import LeasedRun, WorkerPresence
from stepwell.web.filters import parse_filter
from stepwell.web.paging import MOST_COUNTED, Count, Counting, page_reply
from stepwell.web.preconditions import check_edit, etag_of
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Page, PageCount, Reply, api_route

__all__ = ["ITEM_FIELDS", "ROUTES", "EnqueueBody", "EnqueuedItem"]

ITEM_FIELDS = {"status": frozenset(map(str, ItemStatus)), "workflow": None, "queue": None}
"""The fields by which items are filtered."""

_COUNTED_AT_ONCE = 1_000

Name = Annotated[str, Meta(min_length=1, max_length=512)]
Milliseconds = Annotated[int, Meta(ge=0, le=3_153_600_000_000)]


class ItemList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a list of items."""

    filter: str = ""
    """Terms such as ``status:FAILED queue:mail``."""
    limit: Count = 50
    cursor: str | None = None
    count: Counting | None = None
    """Count the items that match, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand."""


class EnqueueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a run when its workspace has capacity."""

    workflow: Name
    """The name of a workflow function of the server, or of a stored definition."""
    input: Value | UnsetType = UNSET
    """Without it, the workflow's parameters take their defaults."""
    queue: Name = DEFAULT_QUEUE
    """The named queue."""
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    """Items with a higher priority start first."""
    key: Name | None = None
    """The same key and request again is the same item."""
    singleton: bool | Name | None = None
    """True (per workflow) or a shared name: while an item of it has not ended, that item is returned."""
    debounce_ms: Milliseconds | None = None
    """A waiting item takes the newer input and waits again for that long."""
    delay_ms: Milliseconds | None = None
    """Start no earlier than this time from now."""
    run_at: datetime | None = None
    """Start no earlier than this moment."""
    execution_id: Name | None = None
    """An id of your own for the run; the same id again is the same item."""
    max_attempts: Annotated[int, Meta(ge=1, le=1_000)] = 3
    """How many times the item may be tried to start."""


class EnqueuedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that was accepted, or was there already."""

    item_id: str
    execution_id: str
    status: str
    is_new: bool


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a named queue over all workspaces; one that is not given stays, null removes it."""

    concurrency: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    """How many of its items run at once."""
    rate_per_second: Annotated[float, Meta(ge=0)] | UnsetType | None = UNSET
    """How many of its items start per second."""


class MarkDead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a worker is surely gone."""

    force: bool = False
    """True for a worker whose heartbeat still comes."""


class ReleasedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that a worker had."""

    released: list[str]
    """Their ids."""


async def list_items(call: Call) -> Reply:
    """Return a page of items, newest first."""
    query: ItemList = call.query
    terms = parse_filter(query.filter, ITEM_FIELDS)
    signer, binding = await call.server.signer(), ["items", call.workspace, terms]
    before = None
    if query.cursor is not None:
        before = msgspec.convert(signer.position(binding, query.cursor), ItemSummary)
    found = await call.well.queue.list(workspace=call.workspace, before=before, limit=query.limit + 1, **terms)
    page = found[: query.limit]
    cursor = signer.cursor(binding, msgspec.structs.replace(page[-1], input=None)) if len(found) > len(page) else None
    return page_reply(call, page, cursor, None if query.count is None else await _counted(call, terms, query.count))


async def _counted(call: Call, terms: dict[str, str], how: Counting) -> PageCount:
    """Return how many items match, without holding more than a page of them."""
    value, before = 0, None
    for _ in range(MOST_COUNTED[how] // _COUNTED_AT_ONCE):
        found = await call.well.queue.list(workspace=call.workspace, before=before, limit=_COUNTED_AT_ONCE, **terms)
        value += len(found)
        if len(found) < _COUNTED_AT_ONCE:
            return PageCount(value=value, is_exact=True)
        before = found[-1]
    return PageCount(value=value, is_exact=False)


async def enqueue_item(call: Call) -> Reply:
    """Request a run."""
    body: EnqueueBody = call.body
    key = body.key
    if call.request_key is not None:
        if key is not None or body.execution_id is not None or body.debounce_ms is not None:
            raise HttpProblem("invalid", "send either an Idempotency-Key, or key, execution_id or debounce_ms in the body")
        key = call.request_key.key
    try:
        item = await call.well.enqueue(
            body.workflow,
            body.input,
            workspace=call.workspace,
            queue=body.queue,
            priority=body.priority,
            key=key,
            singleton=body.singleton,
            debounce=None if body.debounce_ms is None else body.debounce_ms / 1000,
            delay=None if body.delay_ms is None else body.delay_ms / 1000,
            run_at=body.run_at,
            execution_id=body.execution_id,
            max_attempts=body.max_attempts,
        )
    except Conflict as error:
        if call.request_key is None:
            raise
        raise HttpProblem("idempotency_key_reused", error.message) from None
    headers = {"Location": f"{call.base}/queue/items/{quote(item.item_id, safe='')}"}
    if call.request_key is not None and not item.is_new:
        headers["Idempotency-Replayed"] = "true"
    view = EnqueuedItem(item_id=item.item_id, execution_id=item.execution_id, status=item.status, is_new=item.is_new)
    return Reply(view, 202, headers)


async def _owned_item(call: Call) -> tuple[Any, ItemSummary]:
    """Return the item that the address names; one of another workspace is answered like one that does not exist."""
    item_id = call.path["item_id"]
    try:
        handle = await call.well.queue.item(item_id)
    except NotFound:
        with suppress(NotFound):  # as many reads as for an item of another workspace: the time of the reply tells nothing either
            await call.well.queue.item(item_id)
        raise
    summary = await handle.state()
    if summary.workspace_id != call.workspace:
        raise no_item(item_id)
    return handle, summary


async def get_item(call: Call) -> Reply:
    """Return an item."""
    _, summary = await _owned_item(call)
    return Reply(summary)


async def explain_item(call: Call) -> Reply:
    """Return why an item waits."""
    handle, _ = await _owned_item(call)
    return Reply(await handle.why())


async def cancel_item(call: Call) -> Reply:
    """Cancel an item."""
    handle, _ = await _owned_item(call)
    return Reply(await handle.cancel(), 202)


async def redrive_item(call: Call) -> Reply:
    """Run a failed or cancelled item again."""
    _, summary = await _owned_item(call)
    item = await call.well.queue.redrive(summary.item_id)
    return Reply(EnqueuedItem(item_id=item.item_id, execution_id=item.execution_id, status=item.status, is_new=item.is_new), 202)


async def list_lanes(call: Call) -> Reply:
    """Return what waits and runs in each queue."""
    return Reply(Page(items=await call.well.queue.stats(call.workspace)))


async def get_demand(call: Call) -> Reply:
    """Return how much work there is."""
    return Reply(await call.well.queue.demand())


async def list_workers(call: Call) -> Reply:
    """Return the workers."""
    return Reply(Page(items=await call.well.queue.workers()))


async def list_worker_leases(call: Call) -> Reply:
    """Return the runs that a worker has."""
    return Reply(Page(items=await call.well.queue.worker_leases(call.path["worker"])))


async def drain_worker(call: Call) -> Reply:
    """Ask a worker to take nothing more and to hand back what it runs, at its next heartbeat."""
    return Reply(await call.well.queue.drain_worker(call.path["worker"]), 202)


async def resume_worker(call: Call) -> Reply:
    """Ask a draining worker to take work again."""
    return Reply(await call.well.queue.resume_worker(call.path["worker"]), 202)


async def mark_worker_dead(call: Call) -> Reply:
    """Release the runs of a worker that is gone, so that others take them now."""
    worker, force = call.path["worker"], call.body.force
    return Reply(ReleasedRuns(released=await call.well.queue.mark_worker_dead(worker, force=force)))


async def get_queue(call: Call) -> Reply:
    """Return the settings of a queue."""
    found = await call.well.queue.get(call.path["queue"])
    return Reply(found, etag=etag_of(found))


async def put_queue(call: Call) -> Reply:
    """Set limits of a queue."""
    body: QueueLimits = call.body
    name = call.path["queue"]
    async with call.server.edits:
        known = await call.well.queue.get(name)
        check_edit(call, etag_of(known), is_new=known == QueueSettings(name=name))
        changed = await call.well.queue.put(name, concurrency=body.concurrency, rate_per_second=body.rate_per_second)
    return Reply(changed, etag=etag_of(changed))


async def pause_queue(call: Call) -> Reply:
    """Start no more items of a queue."""
    return Reply(await call.well.queue.pause(call.path["queue"]))


async def resume_queue(call: Call) -> Reply:
    """Start items of a queue again."""
    return Reply(await call.well.queue.resume(call.path["queue"]))


ROUTES = (
    api_route("GET /queue/items", list_items, Page[ItemSummary], query=ItemList),
    api_route(
        "POST /queue/items",
        enqueue_item,
        EnqueuedItem,
        Role.OPERATOR,
        body=EnqueueBody,
        status=202,
        example={"workflow": "greet", "input": "Ada", "priority": 5},
        keeps_replies=False,
    ),
    api_route("GET /queue/items/{item_id}", get_item, ItemSummary),
    api_route("GET /queue/items/{item_id}/why", explain_item, WaitingReason),
    api_route("POST /queue/items/{item_id}/cancel", cancel_item, ItemSummary, Role.OPERATOR, status=202),
    api_route("POST /queue/items/{item_id}/redrive", redrive_item, EnqueuedItem, Role.OPERATOR, status=202),
    api_route("GET /queue/lanes", list_lanes, Page[LaneStats]),
    api_route("GET /queue/demand", get_demand, Demand, Role.ADMIN, is_store_wide=True),
    api_route("GET /workers", list_workers, Page[WorkerPresence], Role.ADMIN, is_store_wide=True),
    api_route("GET /workers/{worker}/leases", list_worker_leases, Page[LeasedRun], Role.ADMIN, is_store_wide=True),
    api_route("POST /workers/{worker}/drain", drain_worker, WorkerPresence, Role.ADMIN, status=202, is_store_wide=True),
    api_route("POST /workers/{worker}/resume", resume_worker, WorkerPresence, Role.ADMIN, status=202, is_store_wide=True),
    api_route(
        "POST /workers/{worker}/mark_dead",
        mark_worker_dead,
        ReleasedRuns,
        Role.ADMIN,
        body=MarkDead,
        is_body_optional=True,
        is_store_wide=True,
    ),
    api_route("GET /queues/{queue}", get_queue, QueueSettings),
    api_route(
        "PUT /queues/{queue}",
        put_queue,
        QueueSettings,
        Role.ADMIN,
        body=QueueLimits,
        conditions=("If-Match", "If-None-Match"),
        is_store_wide=True,
        example={"concurrency": 4},
    ),
    api_route("POST /queues/{queue}/pause", pause_queue, QueueSettings, Role.ADMIN, is_store_wide=True),
    api_route("POST /queues/{queue}/resume", resume_queue, QueueSettings, Role.ADMIN, is_store_wide=True),
)
