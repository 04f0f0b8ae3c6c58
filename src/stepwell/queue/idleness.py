"""Whether a dispatcher starts what it should: a worker that is alive and takes nothing looks well from outside, and is not.

A dispatcher is idle from when it last started something or had no room for more. If it has been so for a while, and all that time
there were items that it could have started, something is wrong with it, whatever that is. Items that wait for a slot, a rate, a
paused workspace or queue, or for a workflow that is not known here, are not its fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepwell.contract.store import Store
from stepwell.flow.function import registered_names
from stepwell.model.queue_item import ItemQuery, ItemStatus, Lane, QueueSettings, Tier, Workspace
from stepwell.queue.dispatcher import POLL_SECONDS, Dispatcher

__all__ = ["IDLE_SECONDS", "idleness", "startable_lanes"]

IDLE_SECONDS = 3 * POLL_SECONDS
"""Longer than it takes to notice an item of which no word came, and to try a claim again that failed."""

_LOOKED_AT = 100


def idleness(store: Store, dispatcher: Dispatcher, now_ms: int) -> str:
    """``ok``, or how long a dispatcher has started nothing and what it leaves lying. ``now_ms`` by this process's clock."""
    idle_seconds = (now_ms - dispatcher.idle_since_ms) / 1000
    if dispatcher.is_stopping or idle_seconds < IDLE_SECONDS:
        return "ok"
    lanes = startable_lanes(store.lanes(), store.workspaces(), store.tiers(), store.queues(), dispatcher.queues)
    latest = store.now_ms() - round(IDLE_SECONDS * 1000)
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
    tiers: Iterable[Tier],
    queues: Iterable[QueueSettings],
    served: Sequence[str] = (),
) -> list[Lane]:
    """The lanes of the served queues (none named: all) of which an item could start now."""
    tier_of = {tier.name: tier for tier in tiers}
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
        limits = ((tier_of[owner.tier], used_by[lane.workspace_id]), (queue, used_in[lane.queue]))
        return all(each.rate_per_second is None and _has_slot(each.concurrency, used) for each, used in limits)

    return [lane for lane in lanes if lane.ready and is_open(lane)]


def _has_slot(concurrency: int | None, used: int) -> bool:
    return concurrency is None or used < concurrency


def _has_known(store: Store, lane: Lane, names: Iterable[str], latest_ms: int) -> bool:
    """Whether an item of a known workflow has been ready since a time. Only the newest are looked at: with more than those, one
    that was overlooked is found at the next look, when these have grown old, too."""
    for name in names:
        query = ItemQuery(
            workspace_id=lane.workspace_id, queue=lane.queue, status=ItemStatus.PENDING, workflow_id=name, limit=_LOOKED_AT
        )
        if any(max(item.run_at_ms, item.enqueued_ms) <= latest_ms for item in store.items(query)):
            return True
    return False
