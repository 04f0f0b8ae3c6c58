"""The locked queue items of a group, as its units so far leave them; part of ``locked_rows``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stepwell.errors import StepwellError
from stepwell.model.commit import Commit, Deletion, Outcome, Unit, Written
from stepwell.model.queue_fairness import earlier_rate_ms, free_slots
from stepwell.model.queue_item import ACTIVE, CancelItem, Enqueue, Item, ItemMark, ItemStatus, NewItem, Redrive, ReturnItem
from stepwell.model.queue_lifecycle import (
    admit,
    cancelled,
    entered,
    has_ended,
    marked,
    no_slot,
    orphaned,
    redriven,
    returned,
    unknown_workspace,
)
from stepwell.model.refusals import no_item
from stepwell.stores.postgres.connection import StatementCall
from stepwell.stores.postgres.statements import Row, texts
from stepwell.stores.queue_rows import item_of

__all__ = ["DECIDED", "ItemFootprint", "LockedItems", "changed_row", "new_row"]

DECIDED = (Enqueue, ItemMark, ReturnItem, CancelItem, Redrive)
"""The units of the queue that are decided on locked rows. All others are one statement each."""


class ItemFootprint:
    """The items that a group may read or write."""

    def __init__(self) -> None:
        self._marked: set[str] = set()
        self._items: set[str] = set()
        self._unstarted: set[str] = set()
        """Items that are returned unstarted, so that their starts no longer count against a rate."""
        self._requests: list[NewItem] = []
        self._redriven: set[str] = set()
        self._executions: set[str] = set()

    def add(self, unit: Unit) -> None:
        """Add what one unit touches."""
        match unit:
            case Commit():
                self._requests += unit.items
                if unit.mark is not None:
                    self._mark(unit.mark)
            case Enqueue():
                self._requests += unit.items
            case Redrive():
                self._items.add(unit.item_id)
                self._redriven.add(unit.item_id)
            case Deletion():
                self._executions.add(unit.execution_id)
            case ItemMark():
                self._mark(unit)
            case ReturnItem():
                self._items.add(unit.item_id)
                if unit.error is None:
                    self._unstarted.add(unit.item_id)
            case CancelItem():
                self._items.add(unit.item_id)
            case _:
                return

    def _mark(self, mark: ItemMark) -> None:
        self._marked.add(mark.item_id)
        if mark.status == ItemStatus.QUEUED:
            self._redriven.add(mark.item_id)

    def advisory_locks(self) -> Iterator[StatementCall]:
        """Return the locks to take before any row: admission to workspaces, and rates that get starts back.

        Every process takes them first and in this order, so that none holds a row that another one waits for.
        """
        workspaces = sorted({new.workspace_id for new in self._requests})
        if workspaces:
            yield "lock_admissions", [texts(workspaces)]
        if started := self._started():
            yield "lock_slots", [texts(started)]
        if self._unstarted:
            yield "lock_rates", [texts(sorted(self._unstarted))]
            yield "lock_queue_rates", [texts(sorted(self._unstarted))]

    def _started(self) -> list[str]:
        """Return the workspaces in which executions start without waiting."""
        return sorted({new.workspace_id for new in self._requests if new.is_started})

    def calls(self, ahead_ms: int) -> Iterator[StatementCall]:
        """Return the statements that lock and read the items, and the limits of their workspaces now."""
        workspaces = sorted({new.workspace_id for new in self._requests})
        ids = sorted(self._items | {new.item_id for new in self._requests})
        marked = sorted(self._marked.difference(ids))
        if self._unstarted:
            yield "rates", [texts(sorted(self._unstarted)), ahead_ms]
            yield "queue_rates", [texts(sorted(self._unstarted))]
        if marked:
            yield "lock_marked", [texts(marked)]
        if ids:
            yield "lock_items", [texts(ids)]
        if self._requests or self._redriven or self._executions:
            named = [new for new in self._requests if new.key or new.singleton or new.debounce]
            yield (
                "lock_called",
                [
                    texts(new.workspace_id for new in named),
                    texts(new.key for new in named),
                    texts(new.singleton for new in named),
                    texts(new.debounce for new in named),
                    texts(sorted(self._redriven)),
                    texts(sorted(self._executions)),
                ],
            )
        if workspaces:
            # Up to this many waiting items may leave the queue before the last request of the group is decided.
            leaving = len(self._items) + len(self._marked) + len(self._executions)
            yield "waiting", [texts(workspaces), leaving, ahead_ms]
        if started := self._started():
            yield "slots", [texts(started), ahead_ms]


class LockedItems:
    """Items as the units so far leave them, and which of them are new or changed."""

    def __init__(self, now_ms: int, topics: set[str]) -> None:
        self._now_ms, self._topics = now_ms, topics
        self._items: dict[str, Item] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._rooms: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._paused: set[str] = set()
        self._rates: dict[tuple[str, str], tuple[float, float]] = {}
        """By statement (``rates`` of workspaces, ``queue_rates``) and name: the rate, and when the next start is due."""
        self._changed_rates: set[tuple[str, str]] = set()
        self._new: dict[str, None] = {}
        self._changed: set[str] = set()
        self._requested: set[str] = set()

    def fill(self, answers: dict[str, list[Row]]) -> None:
        """Add the rows that were read."""
        for row in (*answers.get("lock_marked", ()), *answers.get("lock_items", ()), *answers.get("lock_called", ())):
            self._note(item_of(row))
        for workspace_id, depth, waiting in answers.get("waiting", ()):
            # Negative if returned items wait beyond the depth: that many must leave before there is room.
            self._rooms[workspace_id] = free_slots(None, 0) if depth is None else depth - waiting
        for workspace_id, concurrency, is_paused, used in answers.get("slots", ()):
            self._slots[workspace_id] = free_slots(concurrency, used or 0)
            if is_paused:
                self._paused.add(workspace_id)
        for call in ("rates", "queue_rates"):
            for name, rate, rate_ms in answers.get(call, ()):
                self._rates[call, name] = float(rate), float(rate_ms)

    def has_changes(self) -> bool:
        """Return whether there is anything to write."""
        return bool(self._new or self._changed)

    def new_items(self) -> list[Item]:
        """Return the items to insert, in order."""
        return [self._items[item_id] for item_id in self._new]

    def changed_items(self) -> tuple[list[Item], list[Item]]:
        """Return the items to update: ended ones first, since that frees their singleton names for the others."""
        changed = [self._items[item_id] for item_id in sorted(self._changed) if item_id not in self._new]
        return [item for item in changed if has_ended(item)], [item for item in changed if not has_ended(item)]

    def requested_items(self) -> list[Item]:
        """Return the items whose workflow or input a later debounced request has replaced."""
        return [self._items[item_id] for item_id in sorted(self._requested) if item_id not in self._new]

    def changed_rates(self, call: str) -> list[Row]:
        """Return when the next starts are due, for workspaces (``rates``) or queues (``queue_rates``) that got a start back."""
        return [(key[1], repr(self._rates[key][1])) for key in sorted(self._changed_rates) if key[0] == call]

    # Admission of requests.

    def room(self, workspace_id: str) -> int | StepwellError:
        """Return how many more items may wait in a workspace, or the refusal."""
        room = self._rooms.get(workspace_id)
        return unknown_workspace(workspace_id) if room is None else room

    def slots(self, workspace_id: str) -> int | StepwellError:
        """Return how many executions a workspace may start now, or the refusal."""
        slots = self._slots.get(workspace_id)
        if slots is None:
            return unknown_workspace(workspace_id)
        return no_slot(workspace_id, is_paused=True) if workspace_id in self._paused else slots

    def named(self, new: NewItem) -> Item | None:
        """Return the item with a request's id."""
        return self._items.get(new.item_id)

    def keyed(self, workspace_id: str, key: str) -> Item | None:
        """Return the item with an idempotency key."""
        item_id = self._keys.get((workspace_id, key))
        return None if item_id is None else self._items[item_id]

    def single(self, workspace_id: str, singleton: str) -> Item | None:
        """Return the item with a singleton name that has not ended."""
        return self._last(lambda item: (item.workspace_id, item.singleton) == (workspace_id, singleton) and not has_ended(item))

    def bouncing(self, workspace_id: str, debounce: str) -> Item | None:
        """Return the newest QUEUED item with a debounce name."""
        return self._last(
            lambda item: (item.workspace_id, item.debounce) == (workspace_id, debounce) and item.status is ItemStatus.QUEUED
        )

    def enter(self, new: NewItem) -> Item:
        """Add an item. Its number is given when it is written; until then it counts as newer than all that have one."""
        item = entered(new, 2**62 + len(self._new), self._now_ms)
        self._note(item)
        self._new[item.item_id] = None
        if new.is_started:
            self._slots[item.workspace_id] -= 1
        else:
            self._rooms[item.workspace_id] -= 1
        self._topics.add("queue")  # also for a started one: a claim meanwhile has passed over the workspace that this one holds
        return item

    def change(self, before: Item, after: Item) -> None:
        """Replace an item."""
        self._items[before.item_id] = after
        self._changed.add(before.item_id)
        # Inputs are large and seldom change: a statement of its own writes them, and `update_items` leaves them out.
        if (before.workflow_id, before.version, before.input) != (after.workflow_id, after.version, after.input):
            self._requested.add(before.item_id)
        if before.workspace_id in self._rooms:
            self._rooms[before.workspace_id] += (before.status is ItemStatus.QUEUED) - (after.status is ItemStatus.QUEUED)
        if before.workspace_id in self._slots:
            self._slots[before.workspace_id] += (before.status in ACTIVE) - (after.status in ACTIVE)
        # A start frees nothing; every other change may make an item ready or a slot free.
        if after.status is not ItemStatus.DISPATCHED:
            self._topics.add("queue")

    def _note(self, item: Item) -> None:
        self._items[item.item_id] = item
        if item.key is not None:
            self._keys[item.workspace_id, item.key] = item.item_id

    def _last(self, is_wanted: Callable[[Item], bool]) -> Item | None:
        return max(filter(is_wanted, self._items.values()), key=lambda item: item.number, default=None)

    # Units, and the queue changes of a commit.

    def apply_commit(self, commit: Commit) -> StepwellError | None:
        """Apply all of a commit's queue changes, or none. Return the reason if they are refused."""
        if not commit.items:
            return None if commit.mark is None else self._mark(commit.mark, commit.execution_id)
        # Each request is admitted on the items as the one before left them, so a refusal in the middle has to undo all.
        before = dict(self._items), dict(self._keys), dict(self._rooms), dict(self._new), dict(self._slots)
        changes = set(self._changed), set(self._requested)
        answers = [admit(new, self, self._now_ms) for new in commit.items]
        refusal = next((answer for answer in answers if isinstance(answer, StepwellError)), None)
        if refusal is None and commit.mark is not None:
            refusal = self._mark(commit.mark, commit.execution_id)
        if refusal is not None:
            self._items, self._keys, self._rooms, self._new, self._slots = before
            self._changed, self._requested = changes
        return refusal

    def end_of(self, execution_id: str) -> None:
        """End the item of an execution that was deleted."""
        for item in [item for item in self._items.values() if item.execution_id == execution_id]:
            after = orphaned(item, self._now_ms)
            if after is not None:
                self.change(item, after)

    def write(self, unit: Any) -> Outcome:
        """Apply one unit and return its outcome."""
        match unit:
            case Enqueue():
                return Written([admit(new, self, self._now_ms) for new in unit.items])
            case ItemMark():
                return self._mark(unit, None) or Written()
            case ReturnItem():
                return self._returned(unit)
            case _:
                item = self._items.get(unit.item_id)
                if item is None:
                    return no_item(unit.item_id)
                if isinstance(unit, Redrive):
                    return self._moved(unit.item_id, redriven(item, unit, self._now_ms, self.single))
                return self._moved(unit.item_id, cancelled(item, self._now_ms))

    def _mark(self, mark: ItemMark, execution_id: str | None) -> StepwellError | None:
        after = marked(self._items.get(mark.item_id), mark, self._now_ms, execution_id, self.single)
        if isinstance(after, Item):
            self.change(self._items[after.item_id], after)
            return None
        return after

    def _returned(self, unit: ReturnItem) -> Outcome:
        item = self._items.get(unit.item_id)
        after = returned(item, unit, self._now_ms)
        if item is not None and isinstance(after, Item) and unit.error is None:
            self._give_back_start(("rates", item.workspace_id), item.claimed_ms or 0)
            self._give_back_start(("queue_rates", item.queue), item.claimed_ms or 0)
        return self._moved(unit.item_id, after)

    def _give_back_start(self, key: tuple[str, str], claimed_ms: int) -> None:
        if key in self._rates:
            rate, rate_ms = self._rates[key]
            self._rates[key] = rate, earlier_rate_ms(rate, rate_ms, claimed_ms, self._now_ms)
            self._changed_rates.add(key)

    def _moved(self, item_id: str, after: Item | StepwellError | None) -> Outcome:
        if isinstance(after, StepwellError):
            return after
        if after is not None:
            self.change(self._items[item_id], after)
        return Written([self._items[item_id]])


def is_ready(item: Item, now_ms: int) -> bool:
    """Return whether claims can take an item."""
    return item.status is ItemStatus.QUEUED and item.run_at_ms <= now_ms


def new_row(item: Item, now_ms: int) -> Row:
    """Return an item's columns for ``insert_items``."""
    return (
        item.item_id,
        item.workspace_id,
        item.workflow_id,
        item.version,
        item.execution_id,
        item.input,
        item.queue,
        item.status.value,
        item.priority,
        item.enqueued_ms,
        item.run_at_ms,
        item.key,
        item.body_digest,
        item.singleton,
        item.debounce,
        item.attempts,
        item.max_attempts,
        item.holder,
        item.fence,
        item.lease_until_ms,
        item.claimed_ms,
        item.dispatched_ms,
        item.finished_ms,
        item.error,
        is_ready(item, now_ms),
    )


def changed_row(item: Item, now_ms: int) -> Row:
    """Return an item's columns for ``update_items``."""
    return (
        item.item_id,
        item.execution_id,
        item.status.value,
        item.run_at_ms,
        item.attempts,
        item.holder,
        item.lease_until_ms,
        item.claimed_ms,
        item.dispatched_ms,
        item.finished_ms,
        item.error,
        is_ready(item, now_ms),
        item.debounce,
    )
