"""Operations on queue items and named queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import Any, cast

import msgspec

from stepwell.clock import from_ms, to_ms
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import (
    CommitUnknown,
    Conflict,
    ExecutionCancelled,
    ExecutionEnded,
    ExecutionFailed,
    InvalidInput,
    NotFound,
    StepwellError,
)
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.flow.definition.node import Definition
from stepwell.flow.function import Workflow
from stepwell.model.commit import Head, Release, StateBatch, Unit, Written
from stepwell.model.execution_state import State
from stepwell.model.external_engines import TEMPORAL
from stepwell.model.ids import NewId, check_key
from stepwell.model.queue_item import (
    CancelItem,
    Enqueue,
    Enqueued,
    Item,
    ItemQuery,
    ItemStatus,
    Lane,
    NewItem,
    PutQueue,
    QueueSettings,
    RecoverItems,
    Redrive,
    ReturnItem,
    limits_by_workspace,
    workflow_and_engine,
    workflow_for,
)
from stepwell.model.queue_lifecycle import EXPIRED, full, is_same, unknown_workspace, waits_for_slot
from stepwell.model.refusals import asked_otherwise, id_taken
from stepwell.model.status import Status
from stepwell.pipeline.completions import Completion, CompletionWaiter
from stepwell.pipeline.notifications import QUEUE, Notifications, end_of
from stepwell.pipeline.operations import Operation, read, wait, write_many, write_or_raise
from stepwell.queue.diagnosis import ItemContext, WaitingReason, reason_of, surroundings_of
from stepwell.queue.engine_choices import EngineChoices
from stepwell.queue.item import ItemSummary, no_item
from stepwell.queue.requests import QueueRequest, check_queue, new_item
from stepwell.queue.statistics import Demand, LaneStats, demand_of, metrics_of, stats_of
from stepwell.queue.worker_presence import LATE_SECONDS, LeasedRun, Presences, WorkerPresence, absence, drain_request
from stepwell.queue.workspaces import change, kept_or_changed
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.run_operations import RunOperations
from stepwell.state.executions import Executions

__all__ = ["QueueOperations"]

_MOST_IN_UNIT = 1_000
"""The most items in one unit, so that a large batch does not hold up the writes of others."""

_UNDONE = frozenset((ItemStatus.FAILED, ItemStatus.CANCELLED))
_STARTED = _UNDONE | {ItemStatus.DISPATCHED, ItemStatus.COMPLETED}


class QueueOperations:
    """Operations on the items and named queues of one store."""

    def __init__(
        self,
        store: Store,
        executions: Executions,
        notifications: Notifications,
        new_id: NewId,
        definitions: DefinitionOperations,
        engines: EngineChoices,
    ) -> None:
        self._store, self._executions, self._notifications, self._new_id = store, executions, notifications, new_id
        self._definitions, self._engines, self._presences = definitions, engines, Presences(store)

    # Adding.

    def new_item(self, request: QueueRequest) -> Operation[NewItem]:
        """Check a request, and return its item."""
        yield from self._check_declared(request)
        workflow = yield from self._definitions.startable(request.workflow)
        return (yield from self._made(request, workflow))

    def _made(self, request: QueueRequest, workflow: Workflow[..., Any]) -> Operation[NewItem]:
        """Return the item of a request, and list it under its subject, if it has one, before it is stored."""
        limits = self._executions.limits
        if request.subject is None:
            return new_item(request, workflow, self._new_id, limits, secrets=self._executions.redaction.names)
        subjects = self._executions.subjects
        data_key = yield from subjects.key_of(request.workspace, request.subject)
        item = new_item(request, workflow, self._new_id, limits, data_key, self._executions.redaction.names)
        yield from write_or_raise(StateBatch((subjects.listed(item.workspace_id, data_key, f"item/{item.item_id}"),)))
        return item

    def for_engine(self, item: NewItem, engine: str | None = None) -> Operation[NewItem]:
        """Return an item for the engine of its request, or for the one that is chosen for it."""
        name, named = workflow_and_engine(item.workflow_id, TEMPORAL)
        if named is not None:
            return item
        chosen = yield from self._engines.of(engine, name, item.workspace_id, item.queue)
        return item if chosen is None else msgspec.structs.replace(item, workflow_id=workflow_for(name, chosen))

    def enqueue(self, request: QueueRequest) -> Operation[Enqueued]:
        """Store one request. Raise its refusal."""
        item = yield from self.new_item(request)
        item = yield from self.for_engine(item, request.engine)
        yield from self._check_id(request, item)
        (answer,) = yield from self.add((item,))
        if isinstance(answer, StepwellError):
            raise answer
        return answer

    def enqueue_many(self, requests: Sequence[QueueRequest]) -> Operation[list[Enqueued | StepwellError]]:
        """Check all requests, then store them; return an answer or a refusal for each."""
        found: dict[int, Workflow[..., Any]] = {}
        items: list[NewItem] = []
        for request in requests:
            if not isinstance(request, QueueRequest):
                raise InvalidInput(f"each of many requests is a QueueRequest(workflow=..., value=..., ...), not {request!r}")
            self._declared_anew(request)
        for request in requests:
            workflow = found.get(id(request.workflow))
            if workflow is None:
                workflow = found[id(request.workflow)] = yield from self._definitions.startable(request.workflow)
            item = yield from self._made(request, workflow)
            items.append((yield from self.for_engine(item, request.engine)))
            yield from self._check_id(request, items[-1])
        return (yield from self.add_all(items))

    def _check_declared(self, request: QueueRequest) -> Operation[None]:
        """Check a request that brings a definition before the definition is stored, so that nothing is left of a refused
        request.
        """
        item = self._declared_anew(request)
        refusal = None if item is None else (yield from read(lambda: self._foreseen(item)))
        if refusal is not None:
            raise refusal

    def _declared_anew(self, request: QueueRequest) -> NewItem | None:
        """Return the item of a request whose definition is not known to be stored, or None.

        Raise what makes the request invalid.
        """
        given = request.workflow
        if not isinstance(given, Definition) or self._definitions.is_known(given):
            return None
        return new_item(request, DeclaredWorkflow(given), self._new_id, self._executions.limits)

    def _foreseen(self, item: NewItem) -> StepwellError | None:
        """Return the refusal that the store would give an item now, or None. The store itself decides when the item is added."""
        workspace = next((each for each in self._store.workspaces() if each.workspace_id == item.workspace_id), None)
        if workspace is None:
            return unknown_workspace(item.workspace_id)
        known = None if item.key is None else self._store.item(item.item_id)
        if known is not None:
            return None if is_same(known, item) else asked_otherwise(item.item_id)
        limits = limits_by_workspace((workspace,), self._store.tiers(), self._store.now_ms())
        depth = limits[item.workspace_id].queue_depth
        stands_for_itself = item.singleton is None and item.debounce is None
        waiting = sum(lane.ready + lane.delayed for lane in self._store.lanes(item.workspace_id))
        return full(item.workspace_id) if stands_for_itself and depth is not None and waiting >= depth else None

    def _check_id(self, request: QueueRequest, item: NewItem) -> Operation[None]:
        """Raise ``AlreadyExists`` for an execution id that another execution has, unless the same item has it.

        Such an item could only fail, and its handle would show the other execution.
        """
        if request.execution_id is None:
            return
        try:
            head = yield from self._executions.head(item.execution_id)
        except NotFound:
            return
        workflow_id, _ = workflow_and_engine(item.workflow_id, TEMPORAL)
        is_other = (head.workspace_id, head.workflow_id) != (item.workspace_id, workflow_id)
        if is_other or (yield from read(lambda: self._store.item(item.item_id))) is None:
            raise id_taken(item.execution_id)

    def add_all(self, items: Sequence[NewItem]) -> Operation[list[Enqueued | StepwellError]]:
        """Store checked items, in units of limited size; return an answer or a refusal for each."""
        answers: list[Enqueued | StepwellError] = []
        for first in range(0, len(items), _MOST_IN_UNIT):
            answers += yield from self.add(tuple(items[first : first + _MOST_IN_UNIT]))
        return answers

    def add(self, items: tuple[NewItem, ...]) -> Operation[list[Enqueued | StepwellError]]:
        """Store checked items in one unit; return an answer or a refusal for each."""
        try:
            outcome = yield from write_or_raise(Enqueue(items))
        except CommitUnknown:
            # Items have ids, and the store recognises one that landed: a second write gives the answer.
            outcome = yield from write_or_raise(Enqueue(items))
        answers = outcome.answers if isinstance(outcome, Written) else ()
        return [answer for answer in answers if isinstance(answer, Enqueued | StepwellError)]

    # One item.

    def item(self, item_id: str) -> Operation[Item]:
        """Return an item as it is now. Raise ``NotFound`` if there is none."""
        item_id = check_key(item_id, "item_id")
        item = yield from read(lambda: self._store.item(item_id))
        if item is None:
            raise no_item(item_id)
        return item

    def run(self, execution_id: str, workflow: object = None) -> RunOperations:
        """Return the operations on the execution of an item."""
        known = cast("Workflow[..., Any]", workflow) if isinstance(workflow, Workflow) else None
        return RunOperations(self._executions, self._notifications, self._new_id, execution_id, known, self._definitions)

    def result(self, item_id: str, execution_id: str, workflow: object, timeout: float | None) -> Operation[Any]:
        """Wait until an item was dispatched and its execution has ended; return the workflow's result."""
        ends = inf if timeout is None else monotonic() + timeout
        try:
            started, item, ending = yield from self._started(item_id, execution_id, ends)
        except TimeoutError:
            reason = yield from self.why(item_id)
            raise TimeoutError(
                f"queue item {item_id!r} is still {reason.status} after timeout={timeout:g} s; {reason.message}"
            ) from None
        run = self.run(started, workflow)
        if ending is not None:
            return (yield from run.outcome(ending))
        # An execution with the item's id that another caller created has another result.
        if item is not None and item.status in _UNDONE and not (yield from self._is_own(item, _goes_on)):
            raise _unstarted(item)
        left = None if timeout is None else max(ends - monotonic(), 0)
        return (yield from run.result(left, timeout))

    def _started(self, item_id: str, execution_id: str, ends: float) -> Operation[tuple[str, Item | None, Completion | None]]:
        """Wait until an item is dispatched or has ended.

        Return the id of its execution; the item, unless it was dropped or not read; and the execution's completion if this
        process saw it. Raise ``TimeoutError`` if it still waits at ``ends``.
        """
        endings, began = self._executions.endings, monotonic()
        with (
            self._notifications.listen(end_of(execution_id)) as listening,
            endings.watch(execution_id, listening.wake) as watch,
        ):
            while watch.item_id != item_id:
                left = ends - monotonic()
                if watch.ending is not None or left <= 0 or not endings.is_here(execution_id):
                    item = yield from self._found(item_id, watch)
                    if item is None or item.status in _STARTED:
                        return execution_id if item is None else item.execution_id, item, None
                    if left <= 0:
                        raise TimeoutError
                    if item.execution_id != execution_id:  # it was redriven
                        return (yield from self._started(item_id, item.execution_id, ends))
                    left = min(left, endings.look_again_seconds(monotonic() - began))
                yield from wait(listening, left)
        return execution_id, None, watch.ending

    def _found(self, item_id: str, watch: CompletionWaiter) -> Operation[Item | None]:
        try:
            return (yield from self.item(item_id))
        except NotFound:
            if watch.ending is None:
                raise
            return None

    def handle(self, item_id: str) -> Operation[Enqueued]:
        """Return what a handle of an item is made from."""
        item = yield from self.item(item_id)
        return Enqueued(item.item_id, item.execution_id, item.status, is_new=False)

    def cancel(self, item_id: str) -> Operation[Item]:
        """Cancel a waiting item, with its execution if that was retried; send a cancel request to a running execution."""
        item_id = check_key(item_id, "item_id")
        yield from self._end_waiting((yield from self.item(item_id)))
        outcome = yield from write_or_raise(CancelItem(item_id))
        found = outcome.answers[0] if isinstance(outcome, Written) else None
        item = found if isinstance(found, Item) else (yield from self.item(item_id))
        if item.status != ItemStatus.DISPATCHED:
            yield from self._end_waiting(item)  # one that was retried at this very moment
            return item
        try:
            yield from self.run(item.execution_id).cancel()
        except ExecutionEnded:  # it ended at this moment, and an item that has ended stays as it is
            return (yield from self.item(item_id))
        return item

    def _end_waiting(self, item: Item) -> Operation[None]:
        """End the execution of an item that waits for a slot, both in one commit. An item that was never claimed has none."""
        if item.fence and (yield from self._is_own(item, waits_for_slot)):
            yield from self._executions.end_waiting(item.execution_id)

    def _is_own(self, item: Item, is_so: Callable[[State], bool]) -> Operation[bool]:
        """Return whether an item has an execution of its own that meets a condition.

        The execution with its id may be one that another caller created while the item waited.
        """
        try:
            live = yield from self._executions.newest(item.execution_id)
        except NotFound:
            return False
        with live.lock:
            return live.state.identity.item_id == item.item_id and is_so(live.state)

    def redrive(self, item_id: str) -> Operation[Enqueued]:
        """Run a failed or cancelled item again, as a new execution."""
        item_id = check_key(item_id, "item_id")
        item = yield from self.item(item_id)
        if item.status in _UNDONE:
            yield from self._end_waiting(item)  # it would wait for a slot for ever
        execution_id = self._new_id()
        try:
            yield from write_or_raise(Redrive(item_id, execution_id))
        except CommitUnknown:
            # Only this call knows the new execution's id: if the item has it, the call has landed.
            if (yield from self.item(item_id)).execution_id != execution_id:
                yield from write_or_raise(Redrive(item_id, execution_id))
        return Enqueued(item_id, execution_id, ItemStatus.QUEUED, is_new=False)

    def why(self, item_id: str) -> Operation[WaitingReason]:
        """Return why an item waits."""
        item = yield from self.item(item_id)
        return reason_of(item, (yield from read(lambda: self._around(item))))

    def _around(self, item: Item) -> ItemContext:
        return surroundings_of(item, self._store, self._settings(item.queue), self._presences.workers())

    # Many items.

    def items(
        self,
        *,
        workspace: str | None = None,
        queue: str | None = None,
        status: str | None = None,
        workflow: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Operation[list[Item]]:
        """Return the items that match, newest first."""
        if type(limit) is not int or not 1 <= limit <= 10_000:
            raise InvalidInput(f"limit is a whole number from 1 to 10,000, not {limit!r}")
        for name, what in ((workspace, "a workspace id"), (queue, "a queue's name"), (workflow, "a workflow's name")):
            if name is not None:
                check_key(name, what)
        if status is not None and status not in tuple(ItemStatus):
            raise InvalidInput(f"{status!r} is no status of a queue item; use one of {', '.join(ItemStatus)}")
        query = ItemQuery(workspace_id=workspace, queue=queue, status=status, workflow_id=workflow, before=before, limit=limit)
        return (yield from read(lambda: self._store.items(query)))

    def summaries(
        self,
        workspace: str | None,
        queue: str | None,
        status: str | None,
        workflow: str | None,
        before: ItemSummary | None,
        limit: int,
    ) -> Operation[list[ItemSummary]]:
        """Return a page of the items that match, newest first."""
        if not isinstance(before, ItemSummary | None):
            raise InvalidInput(f"before is the last item of the page before, as list gave it, not {before!r}")
        number = None if before is None else before.number
        items = yield from self.items(
            workspace=workspace, queue=queue, status=status, workflow=workflow, before=number, limit=limit
        )
        return [ItemSummary.of(item) for item in items]

    def recover(self, seconds: float = inf) -> Operation[list[str]]:
        """Return items whose claim has expired to the queue, and return their ids.

        The units are of limited size, so that other writes do not wait long behind one. Items that are left after ``seconds`` stay
        for the next call.
        """
        found: list[str] = []
        unit, ends = RecoverItems(), monotonic() + seconds
        while True:
            outcome = yield from write_or_raise(unit)
            answers = outcome.answers if isinstance(outcome, Written) else ()
            found += [each for each in answers if isinstance(each, str)]
            if len(answers) < unit.limit or monotonic() >= ends:
                return found

    # Named queues.

    def _find_queue(self, name: str) -> QueueSettings | None:
        return next((each for each in self._store.queues() if each.name == name), None)

    def _settings(self, name: str) -> QueueSettings:
        return self._find_queue(name) or QueueSettings(name=name)

    def queue(self, name: str) -> Operation[QueueSettings]:
        """Return the settings of a queue; the defaults for one that was never set up."""
        name = check_key(name, "a queue's name")
        return (yield from read(lambda: self._settings(name)))

    def change_queue(self, name: str, **changes: object) -> Operation[QueueSettings]:
        """Set up a queue, or change the settings that are given."""
        name = check_queue(name)

        def changed(known: QueueSettings | None) -> PutQueue:
            return PutQueue(QueueSettings(**kept_or_changed(known, {"name": name, **changes})), known)

        unit = yield from change(lambda: self._find_queue(name), changed)
        return unit.settings

    def lanes(self, workspace: str | None = None) -> Operation[list[Lane]]:
        """Return how many items wait and run, by workspace and queue."""
        return (yield from read(lambda: self._store.lanes(workspace)))

    def stats(self, workspace: str | None) -> Operation[list[LaneStats]]:
        """Return the statistics of each lane."""
        if workspace is not None:
            check_key(workspace, "a workspace id")
        return (yield from read(lambda: self._stats(workspace)))

    def _stats(self, workspace: str | None) -> list[LaneStats]:
        now_ms = self._store.now_ms()
        limits = limits_by_workspace(self._store.workspaces(), self._store.tiers(), now_ms)
        caps = {name: tier.concurrency for name, tier in limits.items()}
        return stats_of(self._store.lanes(workspace), caps, now_ms)

    def demand(self) -> Operation[Demand]:
        """Return how much work there is for workers."""
        return (yield from read(self._demand))

    def _demand(self) -> Demand:
        workspaces = self._store.workspaces()
        limits = limits_by_workspace(workspaces, self._store.tiers(), self._store.now_ms())
        return demand_of(self._stats(None), workspaces, limits, self._store.queues())

    def metrics(self) -> Operation[str]:
        """Return the figures of all lanes and the demand in the text format of Prometheus."""
        stats = yield from self.stats(None)
        demand = yield from self.demand()
        return metrics_of(stats, demand)

    def workers(self) -> Operation[list[WorkerPresence]]:
        """Return the workers that take items from the queue."""
        return (yield from read(self._presences.workers))

    def _worker(self, name: str) -> Operation[WorkerPresence]:
        """Return the worker with this name. Raise ``NotFound`` if there is none that lives."""
        found = yield from self.workers()
        for each in found:
            if each.name == name:
                return each
        raise NotFound(f"there is no worker {name!r}; one that is gone is listed for a minute")

    def drain_worker(self, name: str, *, is_wanted: bool) -> Operation[WorkerPresence]:
        """Ask a worker to drain, or to take work again; it does at its next heartbeat."""
        worker = yield from self._worker(name)
        if worker.engine == TEMPORAL:
            raise InvalidInput(
                f"worker {name!r} serves {worker.engine}, which drains its workers by its own means; stop the process"
            )
        yield from write_or_raise(drain_request(name, is_wanted=is_wanted))
        return worker

    def leases_of(self, name: str) -> Operation[list[LeasedRun]]:
        """Return the executions that a worker has by leases that have not expired; also of one that is not listed any more."""
        return (yield from read(lambda: [_leased(head) for head in self._leased_by(name)]))

    def _leased_by(self, name: str) -> list[Head]:
        # There is no index of holders, and a resting execution has none: those that run are few, and are looked through.
        now, found = self._store.now_ms(), list[Head]()
        for status in (Status.RUNNING, Status.PENDING):
            after: tuple[int, str] | None = None
            for _ in range(_MOST_LEASED // _LEASED_PAGE):
                page = self._store.find(ExecutionQuery(status=status, after=after, limit=_LEASED_PAGE))
                found += [head for head in page if head.holder == name and (head.lease_until_ms or 0) > now]
                if len(page) < _LEASED_PAGE:
                    break
                after = page[-1].created_ms, page[-1].execution_id
        return found

    def mark_worker_dead(self, name: str, *, is_forced: bool) -> Operation[list[str]]:
        """Release what a worker has that is gone, so that others take it now. Return the ids of the executions."""
        found = {each.name: each for each in (yield from self.workers())}
        worker = found.get(name)
        now = yield from read(self._store.now_ms)
        if worker is not None and not is_forced and now - to_ms(worker.seen_at) < LATE_SECONDS * 1000:
            raise Conflict(f"worker {name!r} is alive: its heartbeat came at {worker.seen_at:%H:%M:%S} UTC; drain it, or force it")
        heads = yield from read(lambda: self._leased_by(name))
        claimed = yield from read(lambda: self._store.items(ItemQuery(status=ItemStatus.CLAIMED, limit=_LEASED_PAGE)))
        items = [each for each in claimed if each.holder == name]
        if worker is None and not heads and not items:
            raise NotFound(f"there is no worker {name!r}, and no run that it has")
        # If it lives after all: who claims these next gets a higher fence, so that it can commit to none of them any more.
        units: list[Unit] = [Release(head.execution_id, name, head.fence) for head in heads]
        units += [ReturnItem(item.item_id, item.fence) for item in items]
        yield from write_many([*units, absence(name)])
        return [head.execution_id for head in heads]

    def drain(self, name: str, timeout: float | None) -> Operation[bool]:
        """Pause a queue and wait until none of its items runs; False if some still run after ``timeout`` seconds."""
        yield from self.change_queue(name, is_paused=True)
        return (yield from self.idle(name, timeout))

    def idle(self, name: str, timeout: float | None) -> Operation[bool]:
        """Wait until no item of a queue runs; return False if some still run after ``timeout`` seconds."""
        ends = inf if timeout is None else monotonic() + timeout
        with self._notifications.listen(QUEUE) as listening:
            while True:
                lanes = yield from self.lanes()
                if not any(lane.claimed or lane.dispatched for lane in lanes if lane.queue == name):
                    return True
                left = ends - monotonic()
                if left <= 0:
                    return False
                yield from wait(listening, left)


_LEASED_PAGE, _MOST_LEASED = 1_000, 20_000


def _leased(head: Head) -> LeasedRun:
    return LeasedRun(head.execution_id, head.workspace_id, head.workflow_id, Status(head.status), from_ms(head.lease_until_ms or 0))


def _goes_on(state: State) -> bool:
    """Return whether an execution has ended or will: if its item ended without it, it would wait for a slot for ever."""
    return not waits_for_slot(state)


def _unstarted(item: Item) -> ExecutionCancelled | ExecutionFailed:
    if item.status == ItemStatus.CANCELLED:
        return ExecutionCancelled(f"queue item {item.item_id!r} was cancelled before it started")
    if item.error == EXPIRED:  # its step may have run each time, up to its commit
        attempts = f"{item.attempts} attempts" if item.attempts > 1 else "an attempt"
        return ExecutionFailed(f"queue item {item.item_id!r} failed after {attempts} without a commit: {item.error}")
    return ExecutionFailed(f"queue item {item.item_id!r} failed before it started: {item.error}")
