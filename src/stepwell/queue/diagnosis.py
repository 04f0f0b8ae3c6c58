"""Diagnosis: why a queue item waits, and whether a dispatcher starts what it could.

A worker that is alive and takes no items looks healthy from outside. A dispatcher is idle from the moment when it last started
something or had no room for more. If it has been idle for a while, and all that time there were items that it could have started,
something is wrong with it. Items that wait for a slot, a rate, a paused workspace or queue, or for a workflow that is not known
here, do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil

import msgspec

from stepwell.clock import from_ms
from stepwell.contract.store import Store
from stepwell.flow.function import registered_names
from stepwell.model.external_engines import TEMPORAL
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_fairness import later_rate_ms, rate_allowance
from stepwell.model.queue_item import (
    ACTIVE,
    Item,
    ItemQuery,
    ItemStatus,
    Lane,
    QueueSettings,
    Tier,
    Workspace,
    limits_by_workspace,
    tier_at,
    workflow_and_engine,
)
from stepwell.queue.dispatcher import POLL_SECONDS, Dispatcher
from stepwell.queue.worker_presence import WorkerPresence

__all__ = [
    "IDLE_SECONDS",
    "ItemContext",
    "Starts",
    "WaitingReason",
    "idleness",
    "reason_of",
    "startable_lanes",
    "surroundings_of",
]


_NAMED = 3

_MOST_STARTS = 500
"""How many recent starts of each status are read to see whether a rate is used up."""


class WaitingReason(PlainRecord, frozen=True):
    """The reason why an item waits; or that it has started or ended."""

    item_id: str
    status: ItemStatus
    codes: tuple[str, ...]
    """The stable name of the reason: ``workspace_paused``, ``queue_paused``, ``unserved_queue``, ``unknown_workflow``,
    ``newer_version``, ``delayed``, ``given_back``, ``at_capacity``, ``queue_at_capacity``, ``rate``, ``behind_others``,
    ``ready``; or ``started``, ``ended``."""
    message: str
    """The reason as a sentence."""

    def __str__(self) -> str:
        return self.message


class Starts(msgspec.Struct, frozen=True):
    """The times of recent claims, as far as items tell: an item that was returned has no time of its claim any more."""

    times_ms: tuple[int, ...] = ()
    """In ascending order."""
    is_cut: bool = False
    """Whether there were earlier starts that were not read."""


class ItemContext(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace, tier, queue, lanes and workers that decide whether an item can start."""

    workspace: Workspace
    tier: Tier
    queue: QueueSettings
    lanes: Sequence[Lane]
    holders: Sequence[Item]
    """Some of the items that use the workspace's slots, for the message."""
    workers: Sequence[WorkerPresence]
    """The workers with a heartbeat; None if they are not known."""
    now_ms: int
    starts: Starts = Starts()
    """The recent starts in the workspace, if its tier has a rate."""
    queue_starts: Starts = Starts()
    """The recent starts in the queue, if it has a rate."""


def surroundings_of(item: Item, store: Store, queue: QueueSettings, workers: Sequence[WorkerPresence]) -> ItemContext:
    """Read the workspace and the tier of an item in this queue, and the items that wait and run beside it."""
    workspace = next(each for each in store.workspaces() if each.workspace_id == item.workspace_id)
    now_ms = store.now_ms()
    tier = tier_at(next(tier for tier in store.tiers() if tier.name == workspace.tier), workspace, now_ms)
    return ItemContext(
        workspace=workspace,
        tier=tier,
        queue=queue,
        lanes=store.lanes(),
        holders=[
            each for status in ACTIVE for each in store.items(ItemQuery(workspace_id=item.workspace_id, status=status, limit=3))
        ],
        workers=workers,
        now_ms=now_ms,
        starts=_starts(store, tier.rate_per_second, workspace=item.workspace_id),
        queue_starts=_starts(store, queue.rate_per_second, queue=item.queue),
    )


def _starts(store: Store, rate: float | None, workspace: str | None = None, queue: str | None = None) -> Starts:
    """Return the recent starts that count for a rate."""
    if not rate:
        return Starts()
    most = min(2 * ceil(rate) + 2, _MOST_STARTS)  # two seconds' worth
    pages = [
        store.items(ItemQuery(workspace_id=workspace, queue=queue, status=status, limit=most))
        for status in ItemStatus
        if status is not ItemStatus.QUEUED
    ]
    times = sorted(item.claimed_ms for page in pages for item in page if item.claimed_ms is not None)
    return Starts(tuple(times), any(len(page) == most for page in pages))


def reason_of(item: Item, around: ItemContext) -> WaitingReason:
    """Return why an item does not start, the strongest reason first."""
    status = ItemStatus(item.status)
    if status is not ItemStatus.QUEUED:
        return _started(item, status)
    found = _found((_paused, _unknown, _delayed, _capacity, _queue_capacity), item, around)
    # An item that waits for something else does not wait for a rate, unless the rate is 0.
    found += _found((_rate if not found else _closed, _others), item, around)
    if not found:
        here = "" if around.workers else "; no worker is known to be running"
        found = [("ready", f"it is next: a dispatcher takes it as soon as one with room looks{here}")]
    message = f"queue item {item.item_id} waits: " + "; ".join(text for _, text in found)
    return WaitingReason(item.item_id, status, tuple(code for code, _ in found), message)


def _started(item: Item, status: ItemStatus) -> WaitingReason:
    if status is ItemStatus.CLAIMED:
        text = f"is being started by {item.holder}"
    elif status is ItemStatus.DISPATCHED:
        text = f"runs as execution {item.execution_id}"
    else:
        text = f"has ended as {status}" + (f": {item.error}" if item.error else "")
    code = "started" if status in (ItemStatus.CLAIMED, ItemStatus.DISPATCHED) else "ended"
    return WaitingReason(item.item_id, status, (code,), f"queue item {item.item_id} {text}")


Reasons = list[tuple[str, str]]
Look = Callable[[Item, ItemContext], Reasons]


def _found(looks: Iterable[Look], item: Item, around: ItemContext) -> Reasons:
    return [reason for look in looks for reason in look(item, around)]


def _paused(item: Item, around: ItemContext) -> Reasons:
    found: Reasons = []
    if around.workspace.is_paused:
        found.append(("workspace_paused", f"workspace {item.workspace_id!r} is paused"))
    if around.queue.is_paused:
        found.append(("queue_paused", f"queue {item.queue!r} is paused"))
    return found


def _unknown(item: Item, around: ItemContext) -> Reasons:
    serving = [each for each in around.workers if not each.queues or item.queue in each.queues]
    if around.workers and not serving:
        return [("unserved_queue", f"no worker that is running serves queue {item.queue!r}")]
    if not serving:
        return []
    where = "" if len(serving) == len(around.workers) else f" and serves queue {item.queue!r}"
    knowing = [each for each in serving if item.workflow_id in each.workflows]
    if not knowing:
        name, engine = workflow_and_engine(item.workflow_id, TEMPORAL)
        where = where if engine is None else f" with --engine {engine}{where}"
        return [("unknown_workflow", f"no worker that is running{where} knows workflow {name!r}")]
    newest = max(each.versions.get(item.workflow_id, item.version) for each in knowing)
    if newest >= item.version:
        return []
    text = (
        f"it needs version {item.version} of workflow {item.workflow_id!r}, and no worker that is running{where} has a later one "
    )
    return [("newer_version", f"{text}than {newest}; start one that has")]


def _delayed(item: Item, around: ItemContext) -> Reasons:
    if item.run_at_ms <= around.now_ms:
        return []
    left = (item.run_at_ms - around.now_ms) / 1000
    if item.fence and item.error is None:
        # A worker that could not start the item delayed it for a moment. If no worker can start it, that is the reason, not the
        # delay.
        text = f"a worker that could not start it gave it back, and it is looked at again in {left:,.1f} s"
        return [] if _unknown(item, around) else [("given_back", text)]
    again = f", after {item.attempts} attempts, the last of which failed with {item.error}" if item.error else ""
    return [("delayed", f"it is for {from_ms(item.run_at_ms).isoformat()}, in {left:,.1f} s{again}")]


def _capacity(item: Item, around: ItemContext) -> Reasons:
    cap = around.tier.concurrency
    used = sum(lane.claimed + lane.dispatched for lane in around.lanes if lane.workspace_id == item.workspace_id)
    if cap is None or used < cap:
        return []
    names = ", ".join(f"{each.workflow_id} ({each.execution_id})" for each in around.holders[:_NAMED])
    more = f" and {used - _NAMED} more" if used > _NAMED else ""
    held = f", held by {names}{more}" if names else ""
    return [("at_capacity", f"workspace {item.workspace_id!r} uses {used} of the {cap} slots of tier {around.tier.name!r}{held}")]


def _queue_capacity(item: Item, around: ItemContext) -> Reasons:
    cap = around.queue.concurrency
    used = sum(lane.claimed + lane.dispatched for lane in around.lanes if lane.queue == item.queue)
    if cap is None or used < cap:
        return []
    return [("queue_at_capacity", f"queue {item.queue!r} runs {used} items, and may run {cap}")]


def _rate(item: Item, around: ItemContext) -> Reasons:
    return [
        ("rate", f"{what} starts no more than {rate:g} a second")
        for what, rate, starts in _rates(item, around)
        if _is_used_up(rate, starts, around.now_ms)
    ]


def _closed(item: Item, around: ItemContext) -> Reasons:
    return [("rate", f"{what} starts no more than 0 a second") for what, rate, _ in _rates(item, around) if not rate]


def _rates(item: Item, around: ItemContext) -> list[tuple[str, float, Starts]]:
    tier, queue = around.tier, around.queue
    limits = (
        (f"tier {tier.name!r}", tier.rate_per_second, around.starts),
        (f"queue {item.queue!r}", queue.rate_per_second, around.queue_starts),
    )
    return [(what, rate, starts) for what, rate, starts in limits if rate is not None]


def _is_used_up(rate: float, starts: Starts, now_ms: int) -> bool:
    """Return whether a rate allows no start now.

    The store's counter is computed again from the starts that are known. Earlier starts are assumed to have left room only for
    the first of these.
    """
    due = starts.times_ms[0] + max(1000 - 1000 / rate, 0) if rate and starts.is_cut and starts.times_ms else 0.0
    for at in starts.times_ms:
        due = later_rate_ms(rate, due, at, 1)
    return not rate_allowance(rate, due, now_ms)


def _others(item: Item, around: ItemContext) -> Reasons:
    ready = sum(lane.ready for lane in around.lanes if lane.workspace_id == item.workspace_id and lane.queue == item.queue)
    others = ready - 1 if item.run_at_ms <= around.now_ms else ready
    if others <= 0:
        return []
    return [("behind_others", f"{others:,} others of its workspace wait in queue {item.queue!r}, some perhaps before it")]


IDLE_SECONDS = 3 * POLL_SECONDS
"""Longer than it takes to notice an item whose notification was lost, and to repeat a claim that failed."""

_LOOKED_AT = 100


def idleness(store: Store, dispatcher: Dispatcher, now_ms: int) -> str:
    """Return ``ok``, or how long a dispatcher has started nothing although items wait.

    ``now_ms`` is by this process's clock.
    """
    idle_seconds = (now_ms - dispatcher.idle_since_ms) / 1000
    if dispatcher.is_stopping or idle_seconds < IDLE_SECONDS:
        return "ok"
    store_ms, workspaces = store.now_ms(), store.workspaces()
    limits = limits_by_workspace(workspaces, store.tiers(), store_ms)
    lanes = startable_lanes(store.lanes(), workspaces, limits, store.queues(), dispatcher.queues)
    latest = store_ms - round(IDLE_SECONDS * 1000)
    names = {*registered_names(), *dispatcher.workflows}
    for lane in lanes:
        if lane.oldest_ready_ms is not None and lane.oldest_ready_ms <= latest and _has_known(store, lane, names, latest):
            return (
                f"nothing was started for {idle_seconds:,.0f} s, though {lane.ready:,} items of workspace {lane.workspace_id!r} in "
                f"queue {lane.queue!r} are ready and could start; the log of this process says why, and a restart may help"
            )
    return "ok"


def startable_lanes(
    lanes: Sequence[Lane],
    workspaces: Iterable[Workspace],
    limits_of: Mapping[str, Tier],
    queues: Iterable[QueueSettings],
    served: Sequence[str] = (),
) -> list[Lane]:
    """Return the lanes of the served queues (none named: all) that have an item which could start now."""
    owners = {each.workspace_id: each for each in workspaces}
    settings = {each.name: each for each in queues}
    used_by: dict[str, int] = {}
    used_in: dict[str, int] = {}
    for lane in lanes:
        active = lane.claimed + lane.dispatched
        used_by[lane.workspace_id] = used_by.get(lane.workspace_id, 0) + active
        used_in[lane.queue] = used_in.get(lane.queue, 0) + active

    def is_open(lane: Lane) -> bool:
        owner, queue = owners.get(lane.workspace_id), settings.get(lane.queue, QueueSettings(name=lane.queue))
        if owner is None or owner.is_paused or queue.is_paused or (served and lane.queue not in served):
            return False
        limits = ((limits_of[owner.workspace_id], used_by[lane.workspace_id]), (queue, used_in[lane.queue]))
        return all(each.rate_per_second is None and _has_slot(each.concurrency, used) for each, used in limits)

    return [lane for lane in lanes if lane.ready and is_open(lane)]


def _has_slot(concurrency: int | None, used: int) -> bool:
    return concurrency is None or used < concurrency


def _has_known(store: Store, lane: Lane, names: Iterable[str], latest_ms: int) -> bool:
    """Return whether an item of a known workflow has been ready since a time.

    Only the newest items are read. An older item that is missed is found at a later look, when these are older, too.
    """
    for name in names:
        query = ItemQuery(
            workspace_id=lane.workspace_id, queue=lane.queue, status=ItemStatus.QUEUED, workflow_id=name, limit=_LOOKED_AT
        )
        if any(max(item.run_at_ms, item.enqueued_ms) <= latest_ms for item in store.items(query)):
            return True
    return False
