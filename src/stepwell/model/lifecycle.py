"""How a queue item goes from one status to the next, as pure functions, for the stores that decide in Python.

Each gives the item afterwards, or the refusal. What they mean is said where the units are defined, in ``model.queue``.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stepwell.errors import Conflict, LeaseLost
from stepwell.model.queue import ACTIVE, Claimed, ClaimItems, Enqueued, Item, ItemMark, ItemStatus, NewItem, Redrive, ReturnItem
from stepwell.model.refusal import claim_lost, item_alive, item_driven, item_dropped, singleton_alive

__all__ = [
    "EXPIRED",
    "answer",
    "cancelled",
    "claimed",
    "claimed_answer",
    "debounced",
    "entered",
    "has_ended",
    "is_same",
    "marked",
    "ready_since",
    "recovered",
    "redriven",
    "returned",
    "run_at",
    "storable",
]

replace = msgspec.structs.replace

EXPIRED = "whoever had claimed the item did not come back in time"

Single = Callable[[str, str], Item | None]
"""Gives the item of a workspace with a singleton name that has not ended."""

_ENDED = frozenset((ItemStatus.COMPLETED, ItemStatus.FAILED, ItemStatus.CANCELLED))


def has_ended(item: Item) -> bool:
    """Whether nothing happens to it any more, unless it is driven again."""
    return item.status in _ENDED


def ready_since(item: Item) -> int:
    """When it became ready: it may have been given a time that had passed already."""
    return max(item.run_at_ms, item.enqueued_ms)


def entered(new: NewItem, number: int, now_ms: int) -> Item:
    """A new item as it is stored."""
    return Item(
        item_id=new.item_id,
        number=number,
        workspace_id=new.workspace_id,
        workflow_id=new.workflow_id,
        version=new.version,
        execution_id=new.execution_id,
        input=new.input,
        queue=new.queue,
        status=ItemStatus.PENDING,
        priority=new.priority,
        enqueued_ms=now_ms,
        run_at_ms=run_at(new, now_ms),
        key=new.key,
        body_digest=new.body_digest,
        singleton=new.singleton,
        debounce=new.debounce,
        max_attempts=new.max_attempts,
    )


def run_at(new: NewItem, now_ms: int) -> int:
    """When a new item should run."""
    return now_ms + new.delay_ms if new.run_at_ms is None else new.run_at_ms


def is_same(item: Item, new: NewItem) -> bool:
    """Whether a request is the one that an item came from."""
    return item.workspace_id == new.workspace_id and item.body_digest == new.body_digest


def answer(item: Item, *, is_new: bool = False) -> Enqueued:
    """What whoever asked for an item is told."""
    return Enqueued(item.item_id, item.execution_id, item.status.value, is_new)


def debounced(item: Item, new: NewItem, now_ms: int) -> Item:
    """A waiting item with what a later request of its name asks for."""
    return replace(item, workflow_id=new.workflow_id, version=new.version, input=new.input, run_at_ms=run_at(new, now_ms))


def claimed(item: Item, claim: ClaimItems, now_ms: int) -> Item:
    """An item that a claimer took."""
    return replace(
        item,
        status=ItemStatus.CLAIMED,
        holder=claim.holder,
        fence=item.fence + 1,
        attempts=item.attempts + 1,
        lease_until_ms=now_ms + round(claim.seconds * 1000),
        claimed_ms=now_ms,
    )


def claimed_answer(item: Item) -> Claimed:
    """What a claimer is told about an item that it took."""
    return Claimed(
        item.item_id,
        item.workspace_id,
        item.workflow_id,
        item.version,
        item.execution_id,
        item.input,
        item.fence,
        item.attempts,
        item.lease_until_ms or 0,
        item.queue,
        item.enqueued_ms,
    )


def marked(
    item: Item | None, mark: ItemMark, now_ms: int, execution_id: str | None, single: Single
) -> Item | LeaseLost | Conflict | None:
    """The item as it is marked; None if it stays as it is. With an execution, only that one's item is marked."""
    is_other = item is None or (execution_id is not None and item.execution_id != execution_id)
    if mark.status == ItemStatus.PENDING:
        if item is None:
            return item_dropped(mark.item_id)
        return item_driven(item.item_id, item.execution_id) if is_other else _again(item, now_ms, single)
    if mark.fence is not None and (item is None or is_other or item.status not in ACTIVE or item.fence != mark.fence):
        return claim_lost(mark.item_id, mark.fence)
    if item is None or is_other or has_ended(item) or item.status == mark.status:
        return None
    status = ItemStatus(mark.status)
    if status is ItemStatus.DISPATCHED:
        return replace(item, status=status, lease_until_ms=None, dispatched_ms=now_ms)
    return _ended(item, status, now_ms, storable(mark.error))


def returned(item: Item | None, unit: ReturnItem, now_ms: int) -> Item | LeaseLost:
    """A claimed item that is given back."""
    if item is None or item.status is not ItemStatus.CLAIMED or item.fence != unit.fence:
        return claim_lost(unit.item_id, unit.fence)
    error = storable(unit.error)
    if unit.is_final or (error is not None and item.attempts >= item.max_attempts):
        return _ended(item, ItemStatus.FAILED, now_ms, error)
    attempts = item.attempts - 1 if error is None else item.attempts
    return _waiting(item, now_ms + unit.delay_ms, attempts, item.error if error is None else error)


def storable(text: str | None) -> str | None:
    """An error's words as every store can keep them: they come from anywhere, and may hold what is no text."""
    if text is None:
        return None
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def recovered(item: Item, now_ms: int) -> Item:
    """An item whose claim has expired."""
    if item.attempts >= item.max_attempts:
        return _ended(item, ItemStatus.FAILED, now_ms, EXPIRED)
    return _waiting(item, now_ms, item.attempts, EXPIRED)


def cancelled(item: Item, now_ms: int) -> Item | None:
    """An item that is not wanted any more; None if it stays as it is."""
    if has_ended(item) or item.status is ItemStatus.DISPATCHED:
        return None
    return _ended(item, ItemStatus.CANCELLED, now_ms, item.error)


def orphaned(item: Item, now_ms: int) -> Item | None:
    """An item whose execution was deleted; None if it has ended, or has not come to be one: then that only had the same id."""
    return _ended(item, ItemStatus.CANCELLED, now_ms, item.error) if item.status is ItemStatus.DISPATCHED else None


def redriven(item: Item, unit: Redrive, now_ms: int, single: Single) -> Item | Conflict:
    """An item that failed or was cancelled, from the start."""
    return _revived(item, unit.execution_id, now_ms, single)


def _again(item: Item, now_ms: int, single: Single) -> Item | Conflict:
    """An item whose execution is to go on. Its input is on record there, so no later request may be taken for it."""
    after = _revived(item, item.execution_id, now_ms, single)
    return replace(after, debounce=None) if isinstance(after, Item) else after


def _revived(item: Item, execution_id: str, now_ms: int, single: Single) -> Item | Conflict:
    """An item that failed or was cancelled, as one that waits with all its attempts."""
    if item.status not in (ItemStatus.FAILED, ItemStatus.CANCELLED):
        return item_alive(item.item_id, item.status.value)
    if item.singleton is not None and single(item.workspace_id, item.singleton) is not None:
        return singleton_alive(item.singleton)
    return replace(_waiting(item, now_ms, 0, None), execution_id=execution_id)


def _waiting(item: Item, run_at_ms: int, attempts: int, error: str | None) -> Item:
    return replace(
        item,
        status=ItemStatus.PENDING,
        run_at_ms=run_at_ms,
        attempts=attempts,
        error=error,
        holder=None,
        lease_until_ms=None,
        claimed_ms=None,
        dispatched_ms=None,
        finished_ms=None,
    )


def _ended(item: Item, status: ItemStatus, now_ms: int, error: str | None) -> Item:
    return replace(item, status=status, lease_until_ms=None, finished_ms=now_ms, error=error)
