"""Queue items in memory, found by everything that the queue's rules ask for."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from stepwell.model.queue_fairness import Candidate, LaneKey
from stepwell.model.queue_item import ACTIVE, Item, ItemStatus
from stepwell.model.queue_lifecycle import has_ended
from stepwell.stores.memory.undo import UndoLog

__all__ = ["MemoryItems"]

Name = tuple[str, str]


class MemoryItems:
    """All items of a store. ``put`` is the only write; the indexes follow from it."""

    def __init__(self) -> None:
        self._by_id: dict[str, Item] = {}
        self._by_number: dict[int, Item] = {}
        self._ready: dict[LaneKey, list[Candidate]] = {}
        self._delayed: list[tuple[int, int]] = []
        self._pending: dict[str, set[int]] = {}
        self._active: dict[str, set[int]] = {}
        self._active_in: dict[str, set[int]] = {}
        self._keys: dict[Name, int] = {}
        self._singles: dict[Name, int] = {}
        self._bouncing: dict[Name, set[int]] = {}
        self._executions: dict[str, int] = {}

    def put(self, before: Item | None, after: Item | None, undo: UndoLog) -> None:
        """Write, change or drop an item."""
        self._swap(before, after)
        undo.call(lambda: self._swap(after, before))

    def next_ready_ms(self) -> int | None:
        """When the next delayed item becomes ready."""
        return self._delayed[0][0] if self._delayed else None

    def has_ready(self) -> bool:
        """Whether there is anything for claims to find."""
        return bool(self._ready)

    def promote(self, now_ms: int) -> None:
        """Move items whose time has come to where claims find them. Time does not go back, so this is never taken back."""
        end = bisect_left(self._delayed, (now_ms + 1, 0))
        for _, number in self._delayed[:end]:
            self._add_ready(self._by_number[number])
        del self._delayed[:end]

    def __iter__(self) -> Iterator[Item]:
        return iter(list(self._by_id.values()))

    def get(self, item_id: str) -> Item | None:
        """The item with this id."""
        return self._by_id.get(item_id)

    def at(self, number: int) -> Item:
        """The item with this number."""
        return self._by_number[number]

    def ready(self) -> dict[LaneKey, list[Candidate]]:
        """The lanes that have something ready, in order."""
        return self._ready

    def pending_in(self, workspace_id: str) -> int:
        """How many items of a workspace wait."""
        return len(self._pending.get(workspace_id, ()))

    def used_by(self, workspace_id: str) -> int:
        """How many slots of a workspace are used."""
        return len(self._active.get(workspace_id, ()))

    def used_in(self, queue: str) -> int:
        """How many items of a queue are active."""
        return len(self._active_in.get(queue, ()))

    def keyed(self, workspace_id: str, key: str) -> Item | None:
        """The item with an idempotency key."""
        return self._found(self._keys.get((workspace_id, key)))

    def single(self, workspace_id: str, singleton: str) -> Item | None:
        """The item with a singleton name that has not ended."""
        return self._found(self._singles.get((workspace_id, singleton)))

    def bouncing(self, workspace_id: str, debounce: str) -> Item | None:
        """The newest PENDING item with a debounce name."""
        return self._found(max(self._bouncing.get((workspace_id, debounce), ()), default=None))

    def of_execution(self, execution_id: str) -> Item | None:
        """The item that an execution comes from, while that is DISPATCHED: before, others may want the same id."""
        return self._found(self._executions.get(execution_id))

    def _found(self, number: int | None) -> Item | None:
        return None if number is None else self._by_number[number]

    def _swap(self, before: Item | None, after: Item | None) -> None:
        if before is not None:
            self._forget(before)
        if after is not None:
            self._note(after)

    def _note(self, item: Item) -> None:
        number, workspace = item.number, item.workspace_id
        self._by_id[item.item_id] = self._by_number[number] = item
        if item.key is not None:
            self._keys[workspace, item.key] = number
        if item.status is ItemStatus.PENDING:
            insort(self._delayed, (item.run_at_ms, number))
            self._pending.setdefault(workspace, set()).add(number)
            if item.debounce is not None:
                self._bouncing.setdefault((workspace, item.debounce), set()).add(number)
        if item.status in ACTIVE:
            self._active.setdefault(workspace, set()).add(number)
            self._active_in.setdefault(item.queue, set()).add(number)
        if item.status is ItemStatus.DISPATCHED:
            self._executions[item.execution_id] = number
        if item.singleton is not None and not has_ended(item):
            self._singles[workspace, item.singleton] = number

    def _forget(self, item: Item) -> None:
        number, workspace = item.number, item.workspace_id
        del self._by_id[item.item_id], self._by_number[number]
        if item.key is not None:
            del self._keys[workspace, item.key]
        if item.status is ItemStatus.PENDING:
            self._forget_waiting(item)
            self._pending[workspace].discard(number)
            if item.debounce is not None:
                self._bouncing[workspace, item.debounce].discard(number)
        if item.status in ACTIVE:
            self._active[workspace].discard(number)
            self._active_in[item.queue].discard(number)
        if item.status is ItemStatus.DISPATCHED:
            self._executions.pop(item.execution_id, None)
        if item.singleton is not None and not has_ended(item):
            self._singles.pop((workspace, item.singleton), None)

    def _forget_waiting(self, item: Item) -> None:
        entry = (item.run_at_ms, item.number)
        index = bisect_left(self._delayed, entry)
        if self._delayed[index : index + 1] == [entry]:
            del self._delayed[index]
            return
        lane, candidate = _lane_of(item), _candidate_of(item)
        line = self._ready[lane]
        del line[bisect_left(line, candidate)]
        if not line:
            del self._ready[lane]

    def _add_ready(self, item: Item) -> None:
        insort(self._ready.setdefault(_lane_of(item), []), _candidate_of(item))


def _lane_of(item: Item) -> LaneKey:
    return LaneKey(item.workspace_id, item.queue, item.workflow_id)


def _candidate_of(item: Item) -> Candidate:
    return Candidate(-item.priority, item.number)
