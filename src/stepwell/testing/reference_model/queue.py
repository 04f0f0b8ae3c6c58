"""The plainest model of a queue: a list of rows that every rule reads from end to end."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PlainItem", "PlainQueue", "PlainWorkspace"]


@dataclass
class PlainWorkspace:
    """A workspace and its limits."""

    concurrency: int | None
    weight: float
    depth: int | None
    interval_ms: int = 0
    """How long after a start the next one may come."""
    is_paused: bool = False
    passed: float = 0.0


@dataclass
class PlainItem:
    """An item."""

    item_id: str
    number: int
    workspace: str
    queue: str
    priority: int
    run_at_ms: int
    key: str | None
    singleton: str | None
    max_attempts: int
    status: str = "QUEUED"
    attempts: int = 0
    fence: int = 0
    until_ms: int = 0

    @property
    def is_active(self) -> bool:
        """Return whether the item uses a slot."""
        return self.status in ("CLAIMED", "DISPATCHED")

    @property
    def has_ended(self) -> bool:
        """Return whether the item has ended."""
        return self.status in ("COMPLETED", "FAILED", "CANCELLED")


@dataclass
class PlainQueue:
    """The items that wait and run."""

    workspaces: dict[str, PlainWorkspace] = field(default_factory=dict[str, PlainWorkspace])
    paused: set[str] = field(default_factory=set[str])
    """The queues that are paused."""
    caps: dict[str, int] = field(default_factory=dict[str, int])
    """How many items of a queue may be active."""
    intervals_ms: dict[str, int] = field(default_factory=dict[str, int])
    """How long after a start in a queue the next one may come."""
    items: list[PlainItem] = field(default_factory=list[PlainItem])
    starts: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """When items were claimed that were not given back unstarted, by their ids and fences."""
    virtual_time: float = 0.0

    def get(self, item_id: str) -> PlainItem:
        """Return the item with this id."""
        return next(item for item in self.items if item.item_id == item_id)

    def used(self, workspace: str) -> int:
        """Return the number of used slots of a workspace."""
        return sum(item.is_active and item.workspace == workspace for item in self.items)

    def used_in(self, queue: str) -> int:
        """Return the number of active items of a queue."""
        return sum(item.is_active and item.queue == queue for item in self.items)

    def is_full(self, workspace: str) -> bool:
        """Return whether the queue of a workspace is full."""
        depth = self.workspaces[workspace].depth
        return depth is not None and depth <= sum(item.status == "QUEUED" and item.workspace == workspace for item in self.items)

    def enqueue(self, new: PlainItem) -> tuple[str, bool] | None:
        """Return the id of the item for a request, and whether it is new; None if it is refused."""
        for item in self.items:
            if item.workspace == new.workspace and new.key is not None and item.key == new.key:
                return item.item_id, False
        for item in self.items:
            is_same = new.singleton is not None and item.singleton == new.singleton
            if item.workspace == new.workspace and is_same and not item.has_ended:
                return item.item_id, False
        if self.is_full(new.workspace):
            return None
        self.items.append(new)
        return new.item_id, True

    def claim(self, limit: int, now_ms: int, until_ms: int) -> list[str]:
        """Take items one by one, looking at everything each time."""
        taken: list[str] = []
        bases = {name: max(workspace.passed, self.virtual_time) for name, workspace in self.workspaces.items()}
        counts = dict.fromkeys(self.workspaces, 0)
        while len(taken) < limit and (found := self._next(bases, counts, now_ms)) is not None:
            tag, item = found
            workspace = self.workspaces[item.workspace]
            counts[item.workspace] += 1
            workspace.passed = bases[item.workspace] + counts[item.workspace] / workspace.weight
            self.virtual_time = max(self.virtual_time, tag)
            item.status, item.until_ms = "CLAIMED", until_ms
            item.attempts += 1
            item.fence += 1
            self.starts[item.item_id, item.fence] = now_ms
            taken.append(item.item_id)
        return taken

    def _next(self, bases: dict[str, float], counts: dict[str, int], now_ms: int) -> tuple[float, PlainItem] | None:
        firsts: list[tuple[float, int, PlainItem]] = []
        for name, workspace in self.workspaces.items():
            ready = [item for item in self.items if item.workspace == name and self._may_start(item, now_ms)]
            if ready:
                first = min(ready, key=lambda item: (-item.priority, item.number))
                firsts.append((bases[name] + counts[name] / workspace.weight, first.number, first))
        if not firsts:
            return None
        tag, _, first = min(firsts)
        return tag, first

    def _may_start(self, item: PlainItem, now_ms: int) -> bool:
        workspace = self.workspaces[item.workspace]
        is_full = workspace.concurrency is not None and self.used(item.workspace) >= workspace.concurrency
        is_queue_full = item.queue in self.caps and self.used_in(item.queue) >= self.caps[item.queue]
        is_waiting = item.status == "QUEUED" and item.run_at_ms <= now_ms
        is_shut = workspace.is_paused or item.queue in self.paused
        return is_waiting and not (is_shut or is_full or is_queue_full or self._is_too_soon(item, now_ms))

    def _is_too_soon(self, item: PlainItem, now_ms: int) -> bool:
        """Return whether the rate of its workspace or queue allows no start yet."""
        others = [(self.get(item_id), at) for (item_id, _), at in self.starts.items()]
        workspace_ms = max((at for other, at in others if other.workspace == item.workspace), default=0)
        queue_ms = max((at for other, at in others if other.queue == item.queue), default=0)
        interval_ms, queue_interval_ms = self.workspaces[item.workspace].interval_ms, self.intervals_ms.get(item.queue, 0)
        return now_ms < workspace_ms + interval_ms or now_ms < queue_ms + queue_interval_ms

    def give_back(self, item: PlainItem, now_ms: int) -> None:
        """Return an item that was not started, as if it had not been claimed."""
        item.status, item.run_at_ms, item.attempts = "QUEUED", now_ms, item.attempts - 1
        del self.starts[item.item_id, item.fence]

    def give_up(self, item: PlainItem, now_ms: int) -> None:
        """Count a failed attempt."""
        if item.attempts >= item.max_attempts:
            item.status = "FAILED"
        else:
            item.status, item.run_at_ms = "QUEUED", now_ms
