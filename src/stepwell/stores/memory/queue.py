"""The queue in memory: items with their indexes, workspaces, tiers and named queues."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from stepwell.clock import Clock
from stepwell.errors import Conflict, NotFound, StepwellError
from stepwell.fault_points import fault
from stepwell.model.commit import Outcome, Written
from stepwell.model.queue_fairness import (
    Candidate,
    ClaimSelection,
    Contender,
    LaneKey,
    Queued,
    changed_rate_ms,
    earlier_rate_ms,
    free_slots,
    later_rate_ms,
    rate_allowance,
)
from stepwell.model.queue_item import (
    ACTIVE,
    TIERS,
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
    tier_at,
)
from stepwell.model.queue_lifecycle import (
    admit,
    cancelled,
    claimed,
    claimed_answer,
    entered,
    has_ended,
    is_droppable,
    marked,
    no_slot,
    orphaned,
    ready_since,
    recovered,
    redriven,
    returned,
    unknown_workspace,
)
from stepwell.model.refusals import conflict_if_changed, no_item
from stepwell.stores.memory.undo import UndoLog

__all__ = [
    "MemoryItems",
    "MemoryQueue",
    "QueueUnit",
    "lanes_of",
]


_MOST_WAITS = 1_000


def lanes_of(items: Iterable[Item], now_ms: int) -> list[Lane]:
    """Return how many items wait and run, by workspace and queue."""
    grouped: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        grouped.setdefault((item.workspace_id, item.queue), []).append(item)
    return [_lane(*key, grouped[key], now_ms) for key in sorted(grouped)]


def _lane(workspace_id: str, queue: str, items: list[Item], now_ms: int) -> Lane:
    pending = [item for item in items if item.status is ItemStatus.QUEUED]
    ready = [ready_since(item) for item in pending if item.run_at_ms <= now_ms]
    started = sorted((item.claimed_ms, ready_since(item)) for item in items if item.claimed_ms is not None)
    return Lane(
        workspace_id=workspace_id,
        queue=queue,
        ready=len(ready),
        delayed=len(pending) - len(ready),
        claimed=sum(item.status is ItemStatus.CLAIMED for item in items),
        dispatched=sum(item.status is ItemStatus.DISPATCHED for item in items),
        oldest_ready_ms=min(ready, default=None),
        waits_ms=tuple(sorted(claimed - since for claimed, since in started[-_MOST_WAITS:])),
    )


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
        """Return when the next delayed item becomes ready."""
        return self._delayed[0][0] if self._delayed else None

    def has_ready(self) -> bool:
        """Return whether there are items that a claim can read."""
        return bool(self._ready)

    def promote(self, now_ms: int) -> None:
        """Move items whose time has come to the ready ones. Time does not go back, so this is never undone."""
        end = bisect_left(self._delayed, (now_ms + 1, 0))
        for _, number in self._delayed[:end]:
            self._add_ready(self._by_number[number])
        del self._delayed[:end]

    def take(self, other: MemoryItems) -> None:
        """Take the items of another store as they are now."""
        for item in other:
            self._note(item)

    def __iter__(self) -> Iterator[Item]:
        return iter(list(self._by_id.values()))

    def get(self, item_id: str) -> Item | None:
        """Return the item with this id."""
        return self._by_id.get(item_id)

    def at(self, number: int) -> Item:
        """Return the item with this number."""
        return self._by_number[number]

    def ready(self) -> dict[LaneKey, list[Candidate]]:
        """Return the lanes with ready items, in order."""
        return self._ready

    def pending_in(self, workspace_id: str) -> int:
        """Return how many items of a workspace wait."""
        return len(self._pending.get(workspace_id, ()))

    def used_by(self, workspace_id: str) -> int:
        """Return how many slots of a workspace are used."""
        return len(self._active.get(workspace_id, ()))

    def used_in(self, queue: str) -> int:
        """Return how many items of a queue are active."""
        return len(self._active_in.get(queue, ()))

    def keyed(self, workspace_id: str, key: str) -> Item | None:
        """Return the item with an idempotency key."""
        return self._found(self._keys.get((workspace_id, key)))

    def single(self, workspace_id: str, singleton: str) -> Item | None:
        """Return the item with a singleton name that has not ended."""
        return self._found(self._singles.get((workspace_id, singleton)))

    def bouncing(self, workspace_id: str, debounce: str) -> Item | None:
        """Return the newest QUEUED item with a debounce name."""
        return self._found(max(self._bouncing.get((workspace_id, debounce), ()), default=None))

    def of_execution(self, execution_id: str) -> Item | None:
        """Return the item that an execution comes from, once it is DISPATCHED: until then other items may want the same id."""
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
        if item.status is ItemStatus.QUEUED:
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
        if item.status is ItemStatus.QUEUED:
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


QueueUnit = (
    Enqueue
    | ClaimItems
    | ItemMark
    | ReturnItem
    | CancelItem
    | Redrive
    | RecoverItems
    | DropItems
    | PutTier
    | PutWorkspace
    | PutQueue
)

replace = msgspec.structs.replace


class _Tenant(msgspec.Struct, frozen=True):
    workspace: Workspace
    passed: float = 0.0
    rate_ms: float = 0.0


class _Named(msgspec.Struct, frozen=True):
    settings: QueueSettings
    rate_ms: float = 0.0


class _MemoryDesk:
    """The reads and writes that the admission of a request needs."""

    def __init__(self, queue: MemoryQueue, undo: UndoLog) -> None:
        self._queue, self._undo = queue, undo
        self.keyed, self.single, self.bouncing = queue.rows.keyed, queue.rows.single, queue.rows.bouncing

    def room(self, workspace_id: str) -> int | StepwellError:
        return self._queue.room(workspace_id)

    def slots(self, workspace_id: str) -> int | StepwellError:
        return self._queue.slots(workspace_id)

    def named(self, new: NewItem) -> Item | None:
        return self._queue.rows.get(new.item_id)

    def enter(self, new: NewItem) -> Item:
        return self._queue.enter(new, self._undo)

    def change(self, before: Item, after: Item) -> None:
        self._queue.rows.put(before, after, self._undo)


class MemoryQueue:
    """Queue of a store: items, workspaces, tiers and named queues. Callers hold the store's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tiers = {tier.name: tier for tier in TIERS}
        self._tenants = {"default": _Tenant(Workspace(workspace_id="default", tier="unlimited"))}
        self._queues: dict[str, _Named] = {}
        self.rows = MemoryItems()
        self.virtual_time = 0.0
        self.last_number = 0
        self._writers: dict[type, Callable[..., Outcome]] = {
            Enqueue: self._enqueue,
            ClaimItems: self._claim,
            ItemMark: self._mark,
            ReturnItem: self._return,
            CancelItem: self._cancel,
            Redrive: self._redrive,
            RecoverItems: self._recover,
            DropItems: self._drop,
            PutTier: self._put_tier,
            PutWorkspace: self._put_workspace,
            PutQueue: self._put_queue,
        }

    def write(self, unit: QueueUnit, undo: UndoLog) -> Outcome:
        """Write one unit, or say why not."""
        return self._writers[type(unit)](unit, undo)

    # Changes that land with a commit.

    def add(self, items: Sequence[NewItem], undo: UndoLog) -> list[Enqueued | StepwellError]:
        """Add items; return an answer or a refusal for each."""
        desk, now = _MemoryDesk(self, undo), self._clock.now_ms()
        answers = [admit(new, desk, now) for new in items]
        fault("queue.items_written")
        return answers

    def mark(self, mark: ItemMark, undo: UndoLog, execution_id: str | None = None) -> StepwellError | None:
        """Apply a mark to an item, or return its refusal."""
        item = self.rows.get(mark.item_id)
        after = marked(item, mark, self._clock.now_ms(), execution_id, self.rows.single)
        if isinstance(after, StepwellError):
            return after
        if after is not None:
            self._change(item, after, undo)
        return None

    def end_of(self, execution_id: str, undo: UndoLog) -> None:
        """End the item of an execution that was deleted."""
        item = self.rows.of_execution(execution_id)
        after = None if item is None else orphaned(item, self._clock.now_ms())
        if after is not None:
            self._change(item, after, undo)

    # For the admission of requests.

    def room(self, workspace_id: str) -> int | StepwellError:
        """Return how many more items a workspace may have waiting."""
        if workspace_id not in self._tenants:
            return unknown_workspace(workspace_id)
        return free_slots(self._tier_of(workspace_id).queue_depth, self.rows.pending_in(workspace_id))

    def slots(self, workspace_id: str) -> int | StepwellError:
        """Return how many executions a workspace may start now."""
        tenant = self._tenants.get(workspace_id)
        if tenant is None:
            return unknown_workspace(workspace_id)
        if tenant.workspace.is_paused:
            return no_slot(workspace_id, is_paused=True)
        return free_slots(self._tier_of(workspace_id).concurrency, self.rows.used_by(workspace_id))

    def enter(self, new: NewItem, undo: UndoLog) -> Item:
        """Add an item."""
        undo.set(self, "last_number", self.last_number + 1)
        item = entered(new, self.last_number, self._clock.now_ms())
        self.rows.put(None, item, undo)
        return item

    # Units.

    def _change(self, before: Item | None, after: Item | None, undo: UndoLog) -> None:
        self.rows.put(before, after, undo)
        fault("queue.item_moved")

    def _enqueue(self, unit: Enqueue, undo: UndoLog) -> Outcome:
        return Written(self.add(unit.items, undo))

    def _mark(self, unit: ItemMark, undo: UndoLog) -> Outcome:
        return self.mark(unit, undo) or Written()

    def _return(self, unit: ReturnItem, undo: UndoLog) -> Outcome:
        item, now = self.rows.get(unit.item_id), self._clock.now_ms()
        after = returned(item, unit, now)
        if item is None or isinstance(after, StepwellError):
            return after if isinstance(after, StepwellError) else NotFound()
        if unit.error is None:
            self._give_back_start(item, now, undo)
        self._change(item, after, undo)
        return Written([after])

    def _give_back_start(self, item: Item, now_ms: int, undo: UndoLog) -> None:
        """Give a start back to the rates: a claim has counted it, and it did not happen."""
        claimed_ms, tenant, named = item.claimed_ms or 0, self._tenants[item.workspace_id], self._queues.get(item.queue)
        rate_ms = earlier_rate_ms(self._tier_of(item.workspace_id).rate_per_second, tenant.rate_ms, claimed_ms, now_ms)
        undo.put(self._tenants, item.workspace_id, replace(tenant, rate_ms=rate_ms))
        if named is not None:
            rate_ms = earlier_rate_ms(named.settings.rate_per_second, named.rate_ms, claimed_ms, now_ms)
            undo.put(self._queues, item.queue, replace(named, rate_ms=rate_ms))

    def _cancel(self, unit: CancelItem, undo: UndoLog) -> Outcome:
        item = self.rows.get(unit.item_id)
        if item is None:
            return no_item(unit.item_id)
        after = cancelled(item, self._clock.now_ms())
        if after is not None:
            self._change(item, after, undo)
        return Written([after or item])

    def _redrive(self, unit: Redrive, undo: UndoLog) -> Outcome:
        item = self.rows.get(unit.item_id)
        if item is None:
            return no_item(unit.item_id)
        after = redriven(item, unit, self._clock.now_ms(), self.rows.single)
        if isinstance(after, Conflict):
            return after
        self._change(item, after, undo)
        return Written([after])

    def _recover(self, unit: RecoverItems, undo: UndoLog) -> Outcome:
        now = self._clock.now_ms()
        items = list(self.rows)
        expired = [item for item in items if item.status is ItemStatus.CLAIMED and (item.lease_until_ms or 0) <= now]
        expired.sort(key=lambda item: (item.lease_until_ms or 0, item.number))
        for item in expired[: unit.limit]:
            self._change(item, recovered(item, now), undo)
        return Written([item.item_id for item in expired[: unit.limit]])

    def _drop(self, unit: DropItems, undo: UndoLog) -> Outcome:
        now = self._clock.now_ms()
        old = [item for item in self.rows if is_droppable(item, unit, now)][: unit.limit]
        for item in old:
            self._change(item, None, undo)
        return Written([len(old)])

    def _put_tier(self, unit: PutTier, undo: UndoLog) -> Outcome:
        refusal = conflict_if_changed(unit, self._tiers.get(unit.tier.name))
        if refusal is not None:
            return refusal
        undo.put(self._tiers, unit.tier.name, unit.tier)
        for name, tenant in list(self._tenants.items()):
            if tenant.workspace.tier == unit.tier.name:
                undo.put(self._tenants, name, self._with_changed_rate(tenant))
        return Written()

    def _with_changed_rate(self, tenant: _Tenant) -> _Tenant:
        rate = self._limits_of(tenant).rate_per_second
        return replace(tenant, rate_ms=changed_rate_ms(rate, tenant.rate_ms, self._clock.now_ms()))

    def _put_workspace(self, unit: PutWorkspace, undo: UndoLog) -> Outcome:
        wanted = unit.workspace
        if wanted.tier not in self._tiers:
            return NotFound(f"there is no tier {wanted.tier!r}; there are {', '.join(sorted(self._tiers))}")
        before = self._tenants.get(wanted.workspace_id)
        refusal = conflict_if_changed(unit, before and before.workspace)
        if refusal is not None:
            return refusal
        created_ms = self._clock.now_ms() if before is None else before.workspace.created_ms
        after = _Tenant(replace(wanted, created_ms=created_ms)) if before is None else before
        after = self._with_changed_rate(replace(after, workspace=replace(wanted, created_ms=created_ms)))
        undo.put(self._tenants, wanted.workspace_id, after)
        return Written()

    def _put_queue(self, unit: PutQueue, undo: UndoLog) -> Outcome:
        before = self._queues.get(unit.settings.name)
        refusal = conflict_if_changed(unit, before and before.settings)
        if refusal is not None:
            return refusal
        rate_ms = changed_rate_ms(unit.settings.rate_per_second, before.rate_ms, self._clock.now_ms()) if before else 0.0
        undo.put(self._queues, unit.settings.name, _Named(unit.settings, rate_ms))
        return Written()

    # Claiming.

    def _claim(self, unit: ClaimItems, undo: UndoLog) -> Outcome:
        now = self._clock.now_ms()
        self.rows.promote(now)
        lanes = {key: line for key, line in self.rows.ready().items() if _is_wanted(key, unit)}
        names = {key.workspace_id for key in lanes}
        choosing = ClaimSelection(
            self.virtual_time,
            [contender for name in names if (contender := self._contender(name, now)) is not None],
            [Queued(key, line[: unit.limit], len(line) <= unit.limit) for key, line in lanes.items()],
            {name: self._queue_allowance(named, now) for name, named in self._queues.items()},
            lambda key, after: _behind(key, lanes[key], after, unit.limit),
        )
        choosing.take(unit.limit)
        taken = [self.rows.at(number) for number in choosing.numbers]
        after = [claimed(item, unit, now) for item in taken]
        for before, item in zip(taken, after, strict=True):
            self.rows.put(before, item, undo)
        fault("queue.items_claimed")
        self._count(choosing, taken, now, undo)
        fault("queue.claim_counted")
        return Written([claimed_answer(item) for item in after])

    def _contender(self, workspace_id: str, now_ms: int) -> Contender | None:
        tenant, tier = self._tenants[workspace_id], self._tier_of(workspace_id)
        free = free_slots(tier.concurrency, self.rows.used_by(workspace_id))
        allowance = min(free, rate_allowance(tier.rate_per_second, tenant.rate_ms, now_ms))
        if tenant.workspace.is_paused or not allowance:
            return None
        return Contender(workspace_id, tier.weight, tenant.passed, allowance)

    def _queue_allowance(self, named: _Named, now_ms: int) -> int:
        settings = named.settings
        if settings.is_paused:
            return 0
        free = free_slots(settings.concurrency, self.rows.used_in(settings.name))
        return min(free, rate_allowance(settings.rate_per_second, named.rate_ms, now_ms))

    def _count(self, choosing: ClaimSelection, taken: Sequence[Item], now_ms: int, undo: UndoLog) -> None:
        """Count the taken items for the next claim's fairness and rates."""
        undo.set(self, "virtual_time", choosing.virtual_time)
        for name, (passed, started) in choosing.passes().items():
            tenant = self._tenants[name]
            rate_ms = later_rate_ms(self._tier_of(name).rate_per_second, tenant.rate_ms, now_ms, started)
            undo.put(self._tenants, name, replace(tenant, passed=passed, rate_ms=rate_ms))
        for name in {item.queue for item in taken} & self._queues.keys():
            named, started = self._queues[name], sum(item.queue == name for item in taken)
            rate_ms = later_rate_ms(named.settings.rate_per_second, named.rate_ms, now_ms, started)
            undo.put(self._queues, name, replace(named, rate_ms=rate_ms))

    # Reading.

    def limits_of(self, workspace_id: str) -> Tier | None:
        """Return the limits of a workspace now; None if there is no such workspace."""
        return self._tier_of(workspace_id) if workspace_id in self._tenants else None

    def _tier_of(self, workspace_id: str) -> Tier:
        return self._limits_of(self._tenants[workspace_id])

    def _limits_of(self, tenant: _Tenant) -> Tier:
        return tier_at(self._tiers[tenant.workspace.tier], tenant.workspace, self._clock.now_ms())

    def items(self, query: ItemQuery) -> list[Item]:
        """Return items that match, newest first."""
        wanted = [
            item
            for item in self.rows
            if query.workspace_id in (None, item.workspace_id)
            and query.queue in (None, item.queue)
            and query.status in (None, item.status)
            and query.workflow_id in (None, item.workflow_id)
            and (query.before is None or item.number < query.before)
        ]
        return sorted(wanted, key=lambda item: -item.number)[: query.limit]

    def lanes(self, workspace_id: str | None) -> list[Lane]:
        """Return how many items wait and run, by workspace and queue."""
        return lanes_of([item for item in self.rows if workspace_id in (None, item.workspace_id)], self._clock.now_ms())

    def take(self, other: MemoryQueue) -> None:
        """Take what another store has now."""
        self._tiers, self._tenants, self._queues = dict(other._tiers), dict(other._tenants), dict(other._queues)
        self.rows.take(other.rows)

    def workspaces(self) -> list[Workspace]:
        """Return all workspaces by id."""
        return [self._tenants[name].workspace for name in sorted(self._tenants)]

    def tiers(self) -> list[Tier]:
        """Return all tiers by name."""
        return [self._tiers[name] for name in sorted(self._tiers)]

    def queues(self) -> list[QueueSettings]:
        """Return the queues that were set up, by name."""
        return [self._queues[name].settings for name in sorted(self._queues)]


def _is_wanted(key: LaneKey, claim: ClaimItems) -> bool:
    return (not claim.queues or key.queue in claim.queues) and (not claim.workflows or key.workflow_id in claim.workflows)


def _behind(key: LaneKey, line: list[Candidate], after: Candidate, limit: int) -> Queued:
    start = line.index(after) + 1
    return Queued(key, line[start : start + limit], len(line) <= start + limit)
