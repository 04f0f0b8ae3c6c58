"""Why an item waits: worked out from what the store says of it, its workspace, its tier and its queue, and told to people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.clock import from_ms
from stepwell.model.queue import Item, ItemStatus, Lane, QueueSettings, Tier, Workspace
from stepwell.queue.presence import WorkerPresence

__all__ = ["Surroundings", "WaitingReason", "reason_of"]

_NAMED = 3


class WaitingReason(msgspec.Struct, frozen=True):
    """Why an item has not started, or where it stands if it has."""

    item_id: str
    status: ItemStatus
    codes: tuple[str, ...]
    """Every reason by its stable name: ``workspace_paused``, ``queue_paused``, ``delayed``, ``at_capacity``, ``queue_at_capacity``,
    ``rate``, ``unserved_queue``, ``unknown_workflow``, ``behind_others``, ``ready``; or ``started``, ``ended``."""
    message: str
    """The same for people."""

    def __str__(self) -> str:
        return self.message


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What was read around an item."""

    workspace: Workspace
    tier: Tier
    queue: QueueSettings
    lanes: Sequence[Lane]
    holders: Sequence[Item]
    """Some of the items that use the workspace's slots."""
    workers: Sequence[WorkerPresence]
    """Those that are known to take items; none: that is not known."""
    now_ms: int


def reason_of(item: Item, around: Surroundings) -> WaitingReason:
    """All that keeps an item from starting, the strongest first."""
    status = ItemStatus(item.status)
    if status is not ItemStatus.PENDING:
        return _started(item, status)
    found = [
        reason
        for look in (_paused, _unknown, _delayed, _capacity, _queue_capacity, _rate, _others)
        for reason in look(item, around)
    ]
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


def _paused(item: Item, around: Surroundings) -> Reasons:
    found: Reasons = []
    if around.workspace.is_paused:
        found.append(("workspace_paused", f"workspace {item.workspace_id!r} is paused"))
    if around.queue.is_paused:
        found.append(("queue_paused", f"queue {item.queue!r} is paused"))
    return found


def _unknown(item: Item, around: Surroundings) -> Reasons:
    serving = [each for each in around.workers if not each.queues or item.queue in each.queues]
    if around.workers and not serving:
        return [("unserved_queue", f"no worker that is running serves queue {item.queue!r}")]
    if not serving or any(item.workflow_id in each.workflows for each in serving):
        return []
    where = "" if len(serving) == len(around.workers) else f" and serves queue {item.queue!r}"
    return [("unknown_workflow", f"no worker that is running{where} knows workflow {item.workflow_id!r}")]


def _delayed(item: Item, around: Surroundings) -> Reasons:
    if item.run_at_ms <= around.now_ms:
        return []
    left = (item.run_at_ms - around.now_ms) / 1000
    again = f", after {item.attempts} attempts, the last of which failed with {item.error}" if item.error else ""
    return [("delayed", f"it is for {from_ms(item.run_at_ms).isoformat()}, in {left:,.1f} s{again}")]


def _capacity(item: Item, around: Surroundings) -> Reasons:
    cap = around.tier.concurrency
    used = sum(lane.claimed + lane.dispatched for lane in around.lanes if lane.workspace_id == item.workspace_id)
    if cap is None or used < cap:
        return []
    names = ", ".join(f"{each.workflow_id} ({each.execution_id})" for each in around.holders[:_NAMED])
    more = f" and {used - _NAMED} more" if used > _NAMED else ""
    held = f", held by {names}{more}" if names else ""
    return [("at_capacity", f"workspace {item.workspace_id!r} uses {used} of the {cap} slots of tier {around.tier.name!r}{held}")]


def _queue_capacity(item: Item, around: Surroundings) -> Reasons:
    cap = around.queue.concurrency
    used = sum(lane.claimed + lane.dispatched for lane in around.lanes if lane.queue == item.queue)
    if cap is None or used < cap:
        return []
    return [("queue_at_capacity", f"queue {item.queue!r} runs {used} items, and may run {cap}")]


def _rate(item: Item, around: Surroundings) -> Reasons:
    found: Reasons = []
    for what, rate in (
        (f"tier {around.tier.name!r}", around.tier.rate_per_second),
        (f"queue {item.queue!r}", around.queue.rate_per_second),
    ):
        if rate is not None:
            found.append(("rate", f"{what} starts no more than {rate:g} a second"))
    return found


def _others(item: Item, around: Surroundings) -> Reasons:
    ready = sum(lane.ready for lane in around.lanes if lane.workspace_id == item.workspace_id and lane.queue == item.queue)
    others = ready - 1 if item.run_at_ms <= around.now_ms else ready
    if others <= 0:
        return []
    return [("behind_others", f"{others:,} others of its workspace wait in queue {item.queue!r}, some perhaps before it")]
