"""Admission of queue items and their transitions, as pure functions, for the stores that decide in Python.

Each transition returns the item afterwards, or the refusal. The rules are stated with the units, in ``model.queue_item``.

The end of an execution ends the item that it came from, in the same commit, so that its slot is free at once. An execution that is
retried waits for a slot of its item as PENDING. Nothing else makes an execution that came from an item PENDING, since its first
commit says RUNNING; so that status means that no worker may run it, even if something wakes it. The commit that gives it its slot
makes it RUNNING, and its item DISPATCHED.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from stepwell.errors import Conflict, ExecutionCancelled, LeaseLost, LimitExceeded, NotFound, StepwellError
from stepwell.model.draft import Draft, Planned, quoted
from stepwell.model.execution_state import ONLY, State
from stepwell.model.mutation import ExitScope, RemoveToken, SetResult, SetStatus
from stepwell.model.queue_item import (
    ACTIVE,
    STARTED_QUEUE,
    Claimed,
    ClaimItems,
    DropItems,
    Enqueued,
    Item,
    ItemMark,
    ItemStatus,
    NewItem,
    Redrive,
    ReturnItem,
    workflow_for,
)
from stepwell.model.record import Metadata, decode_metadata
from stepwell.model.refusals import asked_otherwise, claim_lost, item_alive, item_driven, item_dropped, singleton_alive
from stepwell.model.status import FINAL, Status
from stepwell.model.value import decode, recode

__all__ = [
    "EXPIRED",
    "Desk",
    "admit",
    "answer",
    "cancelled",
    "cancelled_in_wait",
    "claimed",
    "claimed_answer",
    "debounced",
    "entered",
    "full",
    "has_ended",
    "is_plain",
    "is_same",
    "mark_of",
    "marked",
    "no_slot",
    "ready_since",
    "recovered",
    "redriven",
    "returned",
    "run_at",
    "slot_item",
    "storable",
    "unknown_workspace",
    "waits_for_slot",
]


_ENDS = {
    Status.COMPLETED: ItemStatus.COMPLETED,
    Status.PARTIALLY_COMPLETED: ItemStatus.COMPLETED,
    Status.FAILED: ItemStatus.FAILED,
    Status.CANCELLED: ItemStatus.CANCELLED,
}
_LONGEST_ERROR = 2_000


def mark_of(draft: Draft, given: ItemMark | None) -> ItemMark | None:
    """Return the mark that a commit carries: the one it was given, or the item's end if the execution ends with it.

    The two are one when the first commit of an execution is its last: the claim's fence is compared, and the item has ended.
    """
    # Derived from the changes, so that the commit of every writer frees the slot: of a session, a transaction or a cancel.
    if draft.status is None or draft.status not in FINAL:
        return given
    item_id = given.item_id if given is not None else _item_of(draft)
    if item_id is None:
        return None
    error = _error_of(draft) if draft.status == Status.FAILED else None
    return ItemMark(item_id, _ENDS[draft.status], None if given is None else given.fence, error)


def _item_of(draft: Draft) -> str | None:
    identity = draft.get("identity", ONLY)
    # Most executions come from no queue, and need not be decoded to know it.
    if identity is None or b'"item_id"' not in identity:
        return None
    return decode_metadata(identity).item_id


def _error_of(draft: Draft) -> str | None:
    data = draft.get("result", ONLY)
    result: Any = None if data is None else decode(data)
    match result:
        case {"error": {"kind": str() as kind, "message": str() as message}}:
            return f"{kind}: {message}"[:_LONGEST_ERROR]
        case _:
            return None


_PENDING = quoted(Status.PENDING)
_IN_WAIT = "it was cancelled while it waited for its slot"


def waits_for_slot(state: State) -> bool:
    """Return whether an execution is to go on only when its item is claimed."""
    return state.sections["status"].get(ONLY) == _PENDING and state.identity.item_id is not None


def cancelled_in_wait(state: State, message: str = _IN_WAIT) -> list[Planned]:
    """Return the mutations that end an execution as CANCELLED; none of its code runs."""
    batch: list[Planned] = [RemoveToken(token_id) for token_id in state.sections["tokens"]]
    batch += [ExitScope(scope_id) for scope_id in reversed(state.sections["scopes"]) if scope_id != "root"]
    error = {"kind": ExecutionCancelled.__name__, "message": message, "code": ExecutionCancelled.code}
    return [*batch, SetResult(msgspec.Raw(recode({"error": error}))), SetStatus(Status.CANCELLED)]


def slot_item(identity: Metadata, trigger: bytes, *, is_started: bool = True) -> NewItem:
    """Return the item by which an execution takes its slot in the commit that creates it, or waits for one from then on."""
    assert identity.item_id is not None, "an execution that takes a slot names its item"  # noqa: S101
    return NewItem(
        item_id=identity.item_id,
        workspace_id=identity.workspace_id,
        workflow_id=workflow_for(identity.workflow_id, identity.engine),
        version=identity.version,
        execution_id=identity.execution_id,
        input=trigger,
        queue=STARTED_QUEUE,
        is_started=is_started,
    )


replace = msgspec.structs.replace

EXPIRED = "the worker that had claimed the item died, or lost its lease"

Single = Callable[[str, str], Item | None]
"""Returns the item of a workspace with a singleton name that has not ended."""

_ENDED = frozenset((ItemStatus.COMPLETED, ItemStatus.FAILED, ItemStatus.CANCELLED))


def has_ended(item: Item) -> bool:
    """Return whether the item has ended; only a redrive changes it then."""
    return item.status in _ENDED


def ready_since(item: Item) -> int:
    """Return when an item became ready: its time may have passed before it was enqueued."""
    return max(item.run_at_ms, item.enqueued_ms)


def entered(new: NewItem, number: int, now_ms: int) -> Item:
    """Return a new item as it is stored."""
    item = Item(
        item_id=new.item_id,
        number=number,
        workspace_id=new.workspace_id,
        workflow_id=new.workflow_id,
        version=new.version,
        execution_id=new.execution_id,
        input=new.input,
        queue=new.queue,
        status=ItemStatus.QUEUED,
        priority=new.priority,
        enqueued_ms=now_ms,
        run_at_ms=run_at(new, now_ms),
        key=new.key,
        body_digest=new.body_digest,
        singleton=new.singleton,
        debounce=new.debounce,
        max_attempts=new.max_attempts,
    )
    if not new.is_started:
        return item
    return replace(item, status=ItemStatus.DISPATCHED, attempts=1, fence=1, claimed_ms=now_ms, dispatched_ms=now_ms)


def run_at(new: NewItem, now_ms: int) -> int:
    """Return when a new item should run."""
    return now_ms + new.delay_ms if new.run_at_ms is None else new.run_at_ms


def is_same(item: Item, new: NewItem) -> bool:
    """Return whether a request is the one that an item came from."""
    return item.workspace_id == new.workspace_id and item.body_digest == new.body_digest


def answer(item: Item, *, is_new: bool = False) -> Enqueued:
    """Return the answer to a request for an item."""
    return Enqueued(item.item_id, item.execution_id, item.status.value, is_new)


def debounced(item: Item, new: NewItem, now_ms: int) -> Item:
    """Return a waiting item with the workflow, input and time of a later request with its debounce name."""
    return replace(item, workflow_id=new.workflow_id, version=new.version, input=new.input, run_at_ms=run_at(new, now_ms))


def claimed(item: Item, claim: ClaimItems, now_ms: int) -> Item:
    """Return an item that a claimer took."""
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
    """Return the answer to the claimer of an item."""
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
    """Return the item as it is marked; None if it stays as it is. With an execution, only that one's item is marked."""
    is_other = item is None or (execution_id is not None and item.execution_id != execution_id)
    # A retry that finds no item is refused with its commit: the run would be PENDING for ever, since no claim would come.
    if mark.status == ItemStatus.QUEUED:
        if item is None:
            return item_dropped(mark.item_id)
        return item_driven(item.item_id, item.execution_id) if is_other else _again(item, now_ms, single)
    # Only a mark with a fence comes from a claimer, which may have lost its claim.
    if mark.fence is not None and (item is None or is_other or item.status not in ACTIVE or item.fence != mark.fence):
        return claim_lost(mark.item_id, mark.fence)
    # The first end wins. A redriven item belongs to its new execution, so that the end of the former one changes nothing.
    if item is None or is_other or has_ended(item) or item.status == mark.status:
        return None
    status = ItemStatus(mark.status)
    if status is ItemStatus.DISPATCHED:
        return replace(item, status=status, lease_until_ms=None, dispatched_ms=now_ms)
    return _ended(item, status, now_ms, storable(mark.error))


def returned(item: Item | None, unit: ReturnItem, now_ms: int) -> Item | LeaseLost:
    """Return a claimed item that is given back."""
    if item is None or item.status is not ItemStatus.CLAIMED or item.fence != unit.fence:
        return claim_lost(unit.item_id, unit.fence)
    error = storable(unit.error)
    if unit.is_final or (error is not None and item.attempts >= item.max_attempts):
        return _ended(item, ItemStatus.FAILED, now_ms, error)
    # Without an error the start was not tried, as when a worker stops: the item has its attempt back.
    attempts = item.attempts - 1 if error is None else item.attempts
    return _waiting(item, now_ms + unit.delay_ms, attempts, item.error if error is None else error)


def storable(text: str | None) -> str | None:
    """Return an error's message as every store can keep it: it may come from anywhere, and may contain invalid text."""
    if text is None:
        return None
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def is_droppable(item: Item, unit: DropItems, now_ms: int) -> bool:
    """Return whether an item is one that a unit drops."""
    return (
        item.finished_ms is not None
        and item.finished_ms <= now_ms - round(unit.seconds * 1000)
        and item.workspace_id in unit.workspaces
        and item.status in unit.statuses
    )


def recovered(item: Item, now_ms: int) -> Item:
    """Return an item whose claim has expired."""
    # The attempt counts, whatever killed its claimer, so that an item that kills its workers fails in the end.
    if item.attempts >= item.max_attempts:
        return _ended(item, ItemStatus.FAILED, now_ms, EXPIRED)
    return _waiting(item, now_ms, item.attempts, EXPIRED)


def cancelled(item: Item, now_ms: int) -> Item | None:
    """Return a cancelled item; None if it stays as it is."""
    # A DISPATCHED item ends with its execution, which gets a cancel request instead.
    if has_ended(item) or item.status is ItemStatus.DISPATCHED:
        return None
    return _ended(item, ItemStatus.CANCELLED, now_ms, item.error)


def orphaned(item: Item, now_ms: int) -> Item | None:
    """Return an item whose execution was deleted; None if the item has ended, or was not started: then another had its id."""
    return _ended(item, ItemStatus.CANCELLED, now_ms, item.error) if item.status is ItemStatus.DISPATCHED else None


def redriven(item: Item, unit: Redrive, now_ms: int, single: Single) -> Item | Conflict:
    """Return an item that failed or was cancelled, from the start."""
    return _revived(item, unit.execution_id, now_ms, single)


def _again(item: Item, now_ms: int, single: Single) -> Item | Conflict:
    """Return an item whose execution is to go on. Its input is on record there, so no later request may be taken for it."""
    after = _revived(item, item.execution_id, now_ms, single)
    return replace(after, debounce=None) if isinstance(after, Item) else after


def _revived(item: Item, execution_id: str, now_ms: int, single: Single) -> Item | Conflict:
    """Return an item that failed or was cancelled, as one that waits with all its attempts."""
    if item.status not in (ItemStatus.FAILED, ItemStatus.CANCELLED):
        return item_alive(item.item_id, item.status.value)
    if item.singleton is not None and single(item.workspace_id, item.singleton) is not None:
        return singleton_alive(item.singleton)
    return replace(_waiting(item, now_ms, 0, None), execution_id=execution_id)


def _waiting(item: Item, run_at_ms: int, attempts: int, error: str | None) -> Item:
    return replace(
        item,
        status=ItemStatus.QUEUED,
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


class Desk(Protocol):
    """The reads and writes of a store that admission needs."""

    def room(self, workspace_id: str) -> int | StepwellError:
        """Return how many more QUEUED items the workspace may have, or the refusal."""
        ...

    def slots(self, workspace_id: str) -> int | StepwellError:
        """Return how many executions the workspace may start now, or why there can be none."""
        ...

    def named(self, new: NewItem) -> Item | None:
        """Return the item with this id."""
        ...

    def keyed(self, workspace_id: str, key: str) -> Item | None:
        """Return the item of the workspace with this idempotency key."""
        ...

    def single(self, workspace_id: str, singleton: str) -> Item | None:
        """Return the item of the workspace with this singleton name that has not ended."""
        ...

    def bouncing(self, workspace_id: str, debounce: str) -> Item | None:
        """Return the newest QUEUED item of the workspace with this debounce name."""
        ...

    def enter(self, new: NewItem) -> Item:
        """Add an item."""
        ...

    def change(self, before: Item, after: Item) -> None:
        """Write an item anew."""
        ...


def is_plain(new: NewItem) -> bool:
    """Return whether only its id can identify an existing item, and it only waits."""
    return not new.is_started and new.key is None and new.singleton is None and new.debounce is None


def admit(new: NewItem, desk: Desk, now_ms: int) -> Enqueued | StepwellError:
    """Admit a request: write its item, and return the answer."""
    room = desk.slots(new.workspace_id) if new.is_started else desk.room(new.workspace_id)
    if isinstance(room, StepwellError):
        return room
    # Before the limits: a repeated request adds nothing, so that a full queue must not refuse it.
    found = _found(new, desk)
    if isinstance(found, StepwellError):
        return found
    if found is not None:
        return answer(found)
    waiting = None if new.debounce is None else desk.bouncing(new.workspace_id, new.debounce)
    if waiting is not None:
        desk.change(waiting, debounced(waiting, new, now_ms))
        return answer(waiting)
    if room > 0:
        return answer(desk.enter(new), is_new=True)
    return no_slot(new.workspace_id) if new.is_started else full(new.workspace_id)


def _found(new: NewItem, desk: Desk) -> Item | StepwellError | None:
    """Return the existing item of a request: by id, key, singleton or debounce name."""
    item = desk.named(new)
    if item is None and new.key is not None:
        item = desk.keyed(new.workspace_id, new.key)
    # An id or a key names one request, so that another body under it is an error. A singleton joins any request.
    if item is not None:
        return item if is_same(item, new) else asked_otherwise(item.item_id)
    return None if new.singleton is None else desk.single(new.workspace_id, new.singleton)


def full(workspace_id: str) -> LimitExceeded:
    """Return the refusal of a workspace with as many waiting items as its tier allows."""
    message = f"workspace {workspace_id!r} has as many items waiting as its tier allows; wait, or raise the tier's queue_depth"
    return LimitExceeded(message, limit="queue_depth")


def no_slot(workspace_id: str, *, is_paused: bool = False) -> LimitExceeded:
    """Return the refusal of a start in a workspace that is paused, or runs as many executions as its tier allows."""
    reason = "is paused" if is_paused else "runs as many executions as its tier allows"
    message = f"workspace {workspace_id!r} {reason}, so nothing can start in it now; well.enqueue(...) starts it when it can"
    return LimitExceeded(message, limit="concurrency")


def unknown_workspace(workspace_id: str) -> NotFound:
    """Return the refusal of a workspace that does not exist."""
    return NotFound(
        f"there is no workspace {workspace_id!r}; put it first, as in well.workspaces.put({workspace_id!r}, tier='free')"
    )
