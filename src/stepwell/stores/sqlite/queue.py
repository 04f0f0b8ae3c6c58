"""The queue on SQLite: its reads, and its writes inside the store's transaction.

A transaction is the only writer, so its counts stay true until it ends: concurrency limits hold at every instant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from stepwell.errors import Conflict, NotFound, StepwellError
from stepwell.fault_points import fault
from stepwell.model.commit import Outcome, Written
from stepwell.model.queue_fairness import earlier_rate_ms, free_slots
from stepwell.model.queue_item import (
    CancelItem,
    ClaimItems,
    DropItems,
    Enqueue,
    Enqueued,
    Item,
    ItemMark,
    ItemQuery,
    ItemStatus,
    Lane,
    NewItem,
    PutQueue,
    PutTier,
    PutWorkspace,
    QueueSettings,
    RecoverItems,
    Redrive,
    ReturnItem,
    Tier,
    Workspace,
)
from stepwell.model.queue_lifecycle import (
    admit,
    answer,
    cancelled,
    entered,
    is_plain,
    is_same,
    marked,
    no_slot,
    orphaned,
    recovered,
    redriven,
    returned,
    run_at,
    unknown_workspace,
)
from stepwell.model.refusals import asked_otherwise, conflict_if_changed, no_item
from stepwell.stores.queue_rows import encode_overrides, encode_quotas, item_of, items_question, queue_of, tier_of, workspace_of
from stepwell.stores.sql_files import read_queries
from stepwell.stores.sqlite.connection import Database
from stepwell.stores.sqlite.queue_claim import claim_items

__all__ = [
    "END_OF_VIEW",
    "ONE_VIEW",
    "QUEUE_UNITS",
    "QueueWriting",
    "SqliteQueueReads",
]


T = TypeVar("T")
_MOST_WAITS = 1_000
ONE_VIEW, END_OF_VIEW = "SAVEPOINT one_view", "RELEASE one_view"
"""Around several reads of one moment; also inside of a transaction of reads."""


class SqliteQueueReads:
    """Reads of the queue; the store supplies the connection and the time."""

    def _read(self, query: Callable[[Database], T]) -> T:
        raise NotImplementedError

    def now_ms(self) -> int:
        """Return the store's clock."""
        raise NotImplementedError

    def _queue_rows(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        return self._read(lambda db: db.rows(SQL[name], *arguments))

    def item(self, item_id: str) -> Item | None:
        """Return a queue item as it is now."""
        rows = self._queue_rows("item", item_id)
        return item_of(rows[0]) if rows else None

    def items(self, query: ItemQuery) -> list[Item]:
        """Return queue items, newest first."""
        return [item_of(row) for row in self._queue_rows(*items_question(query))]

    def lanes(self, workspace_id: str | None = None) -> list[Lane]:
        """Return how many items wait and run, by workspace and queue, in one view."""
        now = self.now_ms()

        def query(db: Database) -> list[Lane]:
            db.rows(ONE_VIEW)
            try:
                return _lanes(db, workspace_id, now)
            finally:
                db.rows(END_OF_VIEW)

        return self._read(query)

    def next_ready_ms(self) -> int | None:
        """Return when the next delayed item becomes ready."""
        rows = self._queue_rows("next_ready")
        return rows[0][0] if rows else None

    def has_ready(self) -> bool:
        """Return whether there are items that a claim can read."""
        return bool(self._queue_rows("has_ready"))

    def workspaces(self) -> list[Workspace]:
        """Return all workspaces by id."""
        return [workspace_of(row) for row in self._queue_rows("workspaces")]

    def tiers(self) -> list[Tier]:
        """Return all tiers by name."""
        return [tier_of(row) for row in self._queue_rows("tiers")]

    def queues(self) -> list[QueueSettings]:
        """Return the queues that were set up, by name."""
        return [queue_of(row) for row in self._queue_rows("queues")]


def _lanes(db: Database, workspace_id: str | None, now_ms: int) -> list[Lane]:
    waiting = {row[:2]: row[2:] for row in db.rows(SQL["waiting_lanes"], workspace_id, now_ms)}
    active = {row[:2]: row[2:] for row in db.rows(SQL["active_lanes"], workspace_id)}
    ended = set(db.rows(SQL["ended_lanes"], workspace_id))
    return [
        _lane(db, key, waiting.get(key, (0, 0, None)), active.get(key, (0, 0)))
        for key in sorted(waiting.keys() | active.keys() | ended)
    ]


def _lane(db: Database, key: tuple[Any, ...], waiting: tuple[Any, ...], active: tuple[Any, ...]) -> Lane:
    ready, delayed, oldest = waiting
    waits = tuple(sorted(row[0] for row in db.rows(SQL["waits"], *key, _MOST_WAITS)))
    claimed, dispatched = active
    return Lane(
        workspace_id=key[0],
        queue=key[1],
        ready=ready,
        delayed=delayed,
        claimed=claimed,
        dispatched=dispatched,
        oldest_ready_ms=oldest,
        waits_ms=waits,
    )


SQL = read_queries("stepwell.stores.sqlite", "queue.sql")


class QueueWriting:
    """Writes to the queue in one transaction."""

    def __init__(self, db: Database, now_ms: int) -> None:
        self._db, self._now_ms = db, now_ms
        self._rooms: dict[str, int | StepwellError] = {}
        """How many more items may wait in each workspace; forgotten whenever anything but an enqueue happens."""

    def write(self, unit: Any) -> Outcome:
        """Write one unit, or return its refusal."""
        # Enqueues keep the counts themselves; any other unit may end or move items.
        if type(unit) is not Enqueue:
            self.forget()
        return _WRITERS[type(unit)](self, unit)

    def forget(self) -> None:
        """Forget counts that may have changed."""
        self._rooms.clear()

    def _rows(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        return self._db.rows(SQL[name], *arguments)

    # Changes that land with a commit.

    def add(self, items: Sequence[NewItem]) -> list[Enqueued | StepwellError]:
        """Add items; return an answer or a refusal for each."""
        answers = self._add_plain(items) if self._are_plain(items) else [admit(new, self, self._now_ms) for new in items]
        fault("queue.items_written")
        return answers

    def plan_mark(self, mark: ItemMark, execution_id: str | None = None) -> Item | StepwellError | None:
        """Return the item as a mark leaves it, not written yet; None if it stays as it is."""
        return marked(self.item(mark.item_id), mark, self._now_ms, execution_id, self.single)

    def write_mark(self, item: Item) -> None:
        """Write an item that a mark has changed."""
        self.forget()
        if item.status is ItemStatus.QUEUED:
            return self._move(item, item)
        self._db.run(SQL["mark_item"], item.number, item.status.value, item.dispatched_ms, item.finished_ms, item.error)
        fault("queue.item_moved")
        return None

    def end_of(self, execution_id: str) -> None:
        """End the item of an execution that was deleted."""
        item = self._found("item_of_execution", execution_id)
        after = None if item is None else orphaned(item, self._now_ms)
        if after is not None:
            self.write_mark(after)

    # For the admission of requests.

    def room(self, workspace_id: str) -> int | StepwellError:
        """Return how many more items a workspace may have waiting."""
        room = self._rooms.get(workspace_id)
        if room is None:
            room = self._rooms[workspace_id] = self._counted_room(workspace_id)
        return room

    def _counted_room(self, workspace_id: str) -> int | StepwellError:
        rows = self._rows("tenant", workspace_id, self._now_ms)
        if not rows:
            return unknown_workspace(workspace_id)
        depth = rows[0][0]
        return free_slots(depth, 0 if depth is None else self._rows("count_pending", workspace_id, depth)[0][0])

    def slots(self, workspace_id: str) -> int | StepwellError:
        """Return how many executions a workspace may start now."""
        rows = self._rows("slots", workspace_id, self._now_ms)
        if not rows:
            return unknown_workspace(workspace_id)
        concurrency, is_paused, used = rows[0]
        return no_slot(workspace_id, is_paused=True) if is_paused else free_slots(concurrency, used)

    def item(self, item_id: str) -> Item | None:
        """Return the item with this id."""
        rows = self._rows("item", item_id)
        return item_of(rows[0]) if rows else None

    def _found(self, query: str, *arguments: object) -> Item | None:
        rows = self._rows(query, *arguments)
        return self.item(rows[0][0]) if rows else None

    def named(self, new: NewItem) -> Item | None:
        """Return the item with a request's id."""
        return self.item(new.item_id)

    def keyed(self, workspace_id: str, key: str) -> Item | None:
        """Return the item with an idempotency key."""
        return self._found("item_with_key", workspace_id, key)

    def single(self, workspace_id: str, singleton: str) -> Item | None:
        """Return the item with a singleton name that has not ended."""
        return self._found("single_item", workspace_id, singleton)

    def bouncing(self, workspace_id: str, debounce: str) -> Item | None:
        """Return the newest QUEUED item with a debounce name."""
        return self._found("bouncing_item", workspace_id, debounce)

    def enter(self, new: NewItem) -> Item:
        """Add an item with a new id."""
        item = entered(new, 0, self._now_ms)
        if new.is_started:
            self._db.run(SQL["add_started_item"], *_started_row(item))
        else:
            self._db.run(SQL["add_item"], *_row(new, self._now_ms))
            self._use_room(new.workspace_id, 1)
        return item

    def change(self, before: Item, after: Item) -> None:
        """Replace an item."""
        self._db.run(
            SQL["change_item"],
            before.number,
            after.workflow_id,
            after.version,
            after.execution_id,
            after.input,
            after.status.value,
            after.run_at_ms,
            after.attempts,
            after.holder,
            after.lease_until_ms,
            after.claimed_ms,
            after.dispatched_ms,
            after.finished_ms,
            after.error,
            self._now_ms,
            after.debounce,
        )

    # Many items at once.

    def _are_plain(self, items: Sequence[NewItem]) -> bool:
        """Return whether there is room for all of them, and only an existing id can refuse any."""
        if not all(map(is_plain, items)):
            return False
        for workspace_id, count in Counter(new.workspace_id for new in items).items():
            room = self.room(workspace_id)
            if isinstance(room, StepwellError) or room < count:
                return False
        return True

    def _add_plain(self, items: Sequence[NewItem]) -> list[Enqueued | StepwellError]:
        # Rows that exist are skipped by the statement; the number of the newest row before tells which ones are new.
        newest = self._rows("newest_item")[0][0] if len(items) > 1 else 0
        added = self._db.run_many(SQL["add_item"], [_row(new, self._now_ms) for new in items])
        for workspace_id, count in Counter(new.workspace_id for new in items).items():
            self._use_room(workspace_id, count)
        if added == len(items):
            return [Enqueued(new.item_id, new.execution_id, "QUEUED", True) for new in items]
        self.forget()
        return list(self._sorted_out(items, newest if len(items) > 1 else None))

    def _sorted_out(self, items: Sequence[NewItem], newest: int | None) -> Iterable[Enqueued | StepwellError]:
        """Separate existing items from added ones; ``newest`` was the last one before."""
        seen: set[str] = set()
        for new in items:
            item = self.item(new.item_id)
            if item is None or not is_same(item, new):
                yield asked_otherwise(new.item_id)
            else:
                is_new = newest is not None and item.number > newest and new.item_id not in seen
                yield answer(item, is_new=is_new)
            seen.add(new.item_id)

    def _use_room(self, workspace_id: str, count: int) -> None:
        room = self._rooms.get(workspace_id)
        if isinstance(room, int):
            self._rooms[workspace_id] = room - count

    # Units.

    def _move(self, before: Item, after: Item) -> None:
        self.change(before, after)
        fault("queue.item_moved")

    def enqueue(self, unit: Enqueue) -> Outcome:
        return Written(self.add(unit.items))

    def claim(self, unit: ClaimItems) -> Outcome:
        return Written(claim_items(self._db, SQL, unit, self._now_ms))

    def mark(self, unit: ItemMark) -> Outcome:
        after = self.plan_mark(unit)
        if isinstance(after, StepwellError):
            return after
        if after is not None:
            self.write_mark(after)
        return Written()

    def give_back(self, unit: ReturnItem) -> Outcome:
        item = self.item(unit.item_id)
        after = returned(item, unit, self._now_ms)
        if item is None or isinstance(after, StepwellError):
            return after if isinstance(after, StepwellError) else NotFound()
        if unit.error is None:
            workspace, queue = item.workspace_id, item.queue
            self._give_back_start("workspace", workspace, self._rows("rate_of_workspace", workspace, self._now_ms), item)
            self._give_back_start("queue", queue, self._rows("rate_of_queue", queue), item)
        self._move(item, after)
        return Written([after])

    def _give_back_start(self, kind: str, name: str, rates: Sequence[tuple[Any, ...]], item: Item) -> None:
        """Give a start back to the rate, if there is one: a claim has counted it, and it did not happen."""
        for rate, rate_ms in rates:
            earlier_ms = earlier_rate_ms(rate, rate_ms, item.claimed_ms or 0, self._now_ms)
            self._db.run(SQL[f"set_rate_of_{kind}"], name, earlier_ms)

    def cancel(self, unit: CancelItem) -> Outcome:
        item = self.item(unit.item_id)
        if item is None:
            return no_item(unit.item_id)
        after = cancelled(item, self._now_ms)
        if after is not None:
            self.write_mark(after)
        return Written([after or item])

    def redrive(self, unit: Redrive) -> Outcome:
        item = self.item(unit.item_id)
        if item is None:
            return no_item(unit.item_id)
        after = redriven(item, unit, self._now_ms, self.single)
        if isinstance(after, Conflict):
            return after
        self._move(item, after)
        return Written([after])

    def recover(self, unit: RecoverItems) -> Outcome:
        expired = [item_id for (item_id,) in self._rows("expired_claims", self._now_ms, unit.limit)]
        for item_id in expired:
            item = self.item(item_id)
            if item is not None:
                self._move(item, recovered(item, self._now_ms))
        return Written(expired)

    def drop(self, unit: DropItems) -> Outcome:
        names = (msgspec.json.encode(each).decode() for each in (unit.workspaces, unit.statuses))
        old = self._rows("old_items", *names, self._now_ms - round(unit.seconds * 1000), unit.limit)
        for (number,) in old:
            self._db.run(SQL["drop_item"], number)
            fault("queue.item_moved")
        return Written([len(old)])

    def _present(self, query: str, name: str, read: Callable[[Sequence[Any]], T]) -> T | None:
        rows = self._rows(query, name)
        return read(rows[0]) if rows else None

    def put_tier(self, unit: PutTier) -> Outcome:
        tier = unit.tier
        refusal = conflict_if_changed(unit, self._present("tier", tier.name, tier_of))
        if refusal is not None:
            return refusal
        limits = (tier.rate_per_second, tier.queue_depth, tier.state_bytes, tier.retention_seconds, tier.child_concurrency)
        self._db.run(SQL["put_tier"], tier.name, tier.concurrency, tier.weight, *limits, encode_quotas(tier))
        self._db.run(SQL["change_rates"], tier.name, self._now_ms)
        return Written()

    def put_workspace(self, unit: PutWorkspace) -> Outcome:
        wanted = unit.workspace
        if not self._rows("tier", wanted.tier):
            names = ", ".join(row[0] for row in self._rows("tiers"))
            return NotFound(f"there is no tier {wanted.tier!r}; there are {names}")
        refusal = conflict_if_changed(unit, self._present("workspace", wanted.workspace_id, workspace_of))
        if refusal is not None:
            return refusal
        settings = wanted.tier, wanted.is_paused, self._now_ms, encode_overrides(wanted)
        self._db.run(SQL["put_workspace"], wanted.workspace_id, *settings)
        return Written()

    def put_queue(self, unit: PutQueue) -> Outcome:
        queue = unit.settings
        refusal = conflict_if_changed(unit, self._present("queue", queue.name, queue_of))
        if refusal is not None:
            return refusal
        self._db.run(SQL["put_queue"], queue.name, queue.is_paused, queue.concurrency, queue.rate_per_second, self._now_ms)
        return Written()


def _row(new: NewItem, now_ms: int) -> tuple[object, ...]:
    return (
        new.item_id,
        new.workspace_id,
        new.workflow_id,
        new.version,
        new.execution_id,
        new.input,
        new.queue,
        new.priority,
        now_ms,
        run_at(new, now_ms),
        new.key,
        new.body_digest,
        new.singleton,
        new.debounce,
        new.max_attempts,
    )


def _started_row(item: Item) -> tuple[object, ...]:
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
        item.body_digest,
        item.max_attempts,
        item.attempts,
        item.fence,
    )


_WRITERS: dict[type, Callable[[QueueWriting, Any], Outcome]] = {
    Enqueue: QueueWriting.enqueue,
    ClaimItems: QueueWriting.claim,
    ItemMark: QueueWriting.mark,
    ReturnItem: QueueWriting.give_back,
    CancelItem: QueueWriting.cancel,
    Redrive: QueueWriting.redrive,
    RecoverItems: QueueWriting.recover,
    DropItems: QueueWriting.drop,
    PutTier: QueueWriting.put_tier,
    PutWorkspace: QueueWriting.put_workspace,
    PutQueue: QueueWriting.put_queue,
}

QUEUE_UNITS = tuple(_WRITERS)
