"""The local engine: runs the executions of queue items on this process's worker.

An item that was claimed for the first time gets an execution, which its session's first commit creates. An execution that is there
already, since the item was claimed before or the execution is retried, resumes from its record: one commit on the execution marks
the item, so that a crash before it leaves a claim that expires, and a crash after it leaves an execution that is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from stepwell.clock import Clock
from stepwell.contract.engine import NotNow
from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, CommitUnknown, Conflict, LeaseLost, NotFound, StepwellError, StoreUnavailable
from stepwell.flow.function import Workflow
from stepwell.model.commit import Creation, Head, Lease
from stepwell.model.draft import opening_of
from stepwell.model.execution_state import ONLY
from stepwell.model.ids import NewId
from stepwell.model.queue_item import STARTED_QUEUE, Claimed, ItemMark, ItemStatus, ReturnItem
from stepwell.model.queue_lifecycle import waits_for_slot
from stepwell.model.record import decode_status, encode_record, split_input
from stepwell.model.status import FINAL, Status
from stepwell.pipeline.operations import AsyncDriver, Operation, write, write_or_raise
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.inbox import CANCEL, delivery, fresh_key
from stepwell.runtime.run_retry import RunRetry
from stepwell.runtime.sessions.execution_writer import ExecutionWriter, FirstCommit
from stepwell.runtime.start import Starting
from stepwell.runtime.worker import Worker
from stepwell.state.executions import Executions
from stepwell.telemetry import live_span, live_tracer

__all__ = [
    "LocalEngine",
    "Resuming",
    "mark_of_run",
]


_MOST_CONFLICTS = 20

_ENDS = {
    Status.COMPLETED: ItemStatus.COMPLETED,
    Status.PARTIALLY_COMPLETED: ItemStatus.COMPLETED,
    Status.FAILED: ItemStatus.FAILED,
    Status.CANCELLED: ItemStatus.CANCELLED,
}


def mark_of_run(claimed: Claimed, status: str) -> ItemMark:
    """Return the mark of an item whose execution exists and has this status."""
    return ItemMark(claimed.item_id, _ENDS.get(Status(status), ItemStatus.DISPATCHED), claimed.fence)


class Resuming:
    """Resumes executions that exist already when their item is claimed."""

    def __init__(self, executions: Executions, new_id: NewId, definitions: DefinitionOperations) -> None:
        self._executions, self._again = executions, RunRetry(executions, new_id, definitions)

    def resume(self, claimed: Claimed) -> Operation[bool]:
        """Resume the execution of an item; False if it has none yet. If the claim was lost meanwhile, nothing changes."""
        for _ in range(_MOST_CONFLICTS):
            try:
                return (yield from self._resume(claimed))
            except LeaseLost:
                return True
            except Conflict:  # a commit came first, by which it ended or was put back: its new state says what to do
                continue
        raise NotNow(f"execution {claimed.execution_id!r} of queue item {claimed.item_id!r} is changed by others all the time")

    def _resume(self, claimed: Claimed) -> Operation[bool]:
        try:
            live = yield from self._executions.newest(claimed.execution_id)
        except NotFound:
            return False
        if live.state.identity.item_id != claimed.item_id:
            return False
        if waits_for_slot(live.state):
            yield from self._again.go_on(live, ItemMark(claimed.item_id, ItemStatus.DISPATCHED, claimed.fence))
        else:
            yield from write_or_raise(mark_of_run(claimed, decode_status(live.state.sections["status"][ONLY])))
        return True


log = logging.getLogger(__name__)

_CREATE_AFTER_SECONDS = 0.5
"""How long a session may run before its execution is created without a commit of its own.

Then others can see the execution, and the claim of its item need not be renewed. Short workflows have ended by then, with a
single commit.
"""

_AGAIN_MS = 1_000


class _Started:
    """A queue item whose session runs."""

    __slots__ = ("began", "claimed", "writer")

    def __init__(self, claimed: Claimed, writer: ExecutionWriter, began: float) -> None:
        self.claimed, self.writer, self.began = claimed, writer, began

    @property
    def is_id_taken(self) -> bool:
        """True if an execution with this id existed before."""
        return isinstance(self.writer.creation_error, AlreadyExists)

    @property
    def is_store_away(self) -> bool:
        """True if the first commit failed because the store was unavailable."""
        return isinstance(self.writer.creation_error, StoreUnavailable | CommitUnknown)


class LocalEngine:
    """Starts items as sessions of a worker, on the worker's loop."""

    name = "local"
    concurrent_starts = 1

    def __init__(
        self, worker: Worker, store: Store, executions: Executions, driver: AsyncDriver, clock: Clock, new_id: NewId
    ) -> None:
        self._worker, self._store, self._executions, self._driver = worker, store, executions, driver
        self._clock, self._new_id = clock, new_id
        self._starting = Starting(executions, clock, new_id)
        self._resuming = Resuming(executions, new_id, worker.services.workflows.definitions)
        self._creations: dict[tuple[str, int], Creation] = {}
        """The creation for each workflow and version; the same for all items that are claimed for the first time."""
        self._uncreated: set[_Started] = set()
        """Items whose sessions may not have committed yet."""
        self._create_after = min(_CREATE_AFTER_SECONDS, worker.lease_seconds / 4)
        self._suspected: _Started | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._freed: list[Callable[[], None]] = []

    @property
    def room(self) -> int:
        """The number of items that can be started now."""
        return self._worker.room

    def on_room(self, call: Callable[[], None]) -> None:
        """Register a function to call whenever there is room for more items."""
        self._freed.append(call)

    def _free(self) -> None:
        for call in self._freed:
            call()

    async def workflows(self) -> tuple[str, ...]:
        """Return the names of the workflows of this process and of the stored definitions."""
        return await self._worker.workflows.names()

    async def start(self, claimed: Claimed) -> None:
        """Run the item's workflow in a session, whose first commit creates the execution.

        An execution that exists already, because it waits to be retried, becomes due for any worker.
        """
        workflow = await self._worker.workflows.find(claimed.workflow_id, claimed.version)
        _check_version(claimed, workflow)
        if not _may_have_run(claimed) or not await self._driver.run(self._resuming.resume(claimed)):
            self._start(claimed, workflow)

    def _start(self, claimed: Claimed, workflow: Workflow[..., Any]) -> None:
        given = split_input(claimed.given())
        if claimed.attempts > 1:
            self._suspect(claimed)
        worker = self._worker
        identity = self._starting.identity_of_item(workflow, claimed.execution_id, claimed.workspace_id, claimed.item_id, given)
        if (tracer := live_tracer()) is not None:
            about = {"item_id": claimed.item_id, "queue_attempt": claimed.attempts, "workspace": claimed.workspace_id}
            with live_span(tracer, f"dispatch {workflow.name}", claimed.execution_id, identity.trace_id, **about):
                pass  # the claim has chosen it, and its session begins now
        opening = opening_of(encode_record(identity), given.trigger)
        mark = ItemMark(claimed.item_id, ItemStatus.DISPATCHED, claimed.fence)
        creation = self._creation_of(workflow)
        if claimed.fence != creation.fence:
            creation = msgspec.structs.replace(creation, fence=claimed.fence)
        first = FirstCommit(identity, creation, opening, mark)
        loop = asyncio.get_running_loop()
        started = _Started(claimed, ExecutionWriter.of_new(self._executions, self._driver, first, self._new_id), loop.time())
        lease = Lease(claimed.execution_id, worker.holder, claimed.fence, self._clock.now_ms() + round(worker.lease_seconds * 1000))
        worker.run_new(started.writer, lease, workflow, lambda: self._ended(started))
        self._executions.endings.begin(claimed.execution_id, claimed.item_id)
        self._uncreated.add(started)
        if claimed.attempts > 1:
            self._suspected = started
        if self._timer is None:
            self._timer = loop.call_later(self._create_after, self._create_overdue)

    def _creation_of(self, workflow: Workflow[..., Any]) -> Creation:
        creation = self._creations.get((workflow.name, workflow.version))
        if creation is None:
            worker = self._worker
            creation = Creation(
                workflow.name, workflow.version, holder=worker.holder, lease_seconds=worker.lease_seconds, is_runnable=True
            )
            self._creations[workflow.name, workflow.version] = creation
        return creation

    def _suspect(self, claimed: Claimed) -> None:
        """Raise ``NotNow`` while another item whose attempt was cut short runs alone.

        Such an item may have crashed its process, or may only have run beside one that did. They run one at a time, so that the
        item that crashes processes uses up its own attempts and not those of the others.
        """
        before = self._suspected
        if before is not None and not before.writer.is_created and before in self._uncreated:
            raise NotNow(f"item {claimed.item_id!r} waits for another that was cut short before")

    async def cancel(self, execution_id: str) -> None:
        """Send a request to cancel to the execution's inbox."""
        head = await self._driver.run(self._executions.head(execution_id))
        if head.status in FINAL:
            raise Conflict(f"execution {execution_id!r} has ended as {head.status}")
        message = delivery(execution_id, head.workspace_id, CANCEL, "", None, fresh_key(self._new_id()))
        await self._driver.run(write_or_raise(message))

    # From the claim to the first commit.

    def _ended(self, started: _Started) -> None:
        """Free the place of a session; return its item to the queue if nothing was committed."""
        if started in self._uncreated:
            self._uncreated.discard(started)
            if not started.writer.is_created:
                self._worker.run_beside(self._settle(started))
        self._free()

    def _create_overdue(self) -> None:
        """Create the executions of sessions that have not committed for too long.

        Sessions that began just now are skipped: in busy times most of them are about to end, and another commit for each would
        cost throughput.
        """
        loop, self._timer = asyncio.get_running_loop(), None
        latest = loop.time() - self._create_after
        for started in list(self._uncreated):
            if started.writer.is_created:
                self._uncreated.discard(started)
            elif started.began <= latest:
                self._worker.run_beside(self._create(started))
        if self._uncreated:
            self._timer = loop.call_later(self._create_after / 2, self._create_overdue)

    async def _create(self, started: _Started) -> None:
        before = started.writer.creation_error
        try:
            await started.writer.create()
        except LeaseLost as error:
            # The item was cancelled or claimed by another worker: nothing more of this session is recorded.
            self._worker.abandon(started.claimed.execution_id, error)
        except StepwellError as error:
            if type(error) is not type(before):  # the creation is tried again soon, so repeat no message
                log.warning("the execution of queue item %r could not be created yet: %s", started.claimed.item_id, error)

    async def _settle(self, started: _Started) -> None:
        """Mark or return the item of a session that ended without creating its execution, so that it does not keep its slot."""
        until = started.began + self._worker.lease_seconds
        try:
            await self._worker.services.hand_back_retry.keep_trying(lambda: self._move_on(started), lambda: until)
        except StepwellError as error:
            log.warning("queue item %r could not be given back, and is when its claim ends: %s", started.claimed.item_id, error)

    async def _move_on(self, started: _Started) -> None:
        """Mark or return an item. A second try after a lost reply is refused, because the item is not claimed any more."""
        claimed = started.claimed
        try:
            head = await self._driver.run(self._executions.head(claimed.execution_id)) if started.is_id_taken else None
        except NotFound:
            head = None
        unit = _returned(started) if head is None else await self._mark_of(claimed, head)
        await self._driver.run(write(unit))

    async def _mark_of(self, claimed: Claimed, head: Head) -> ItemMark | ReturnItem:
        """Return the mark of an item whose execution existed before."""
        live = await self._driver.run(self._executions.newest(claimed.execution_id))
        if live.state.identity.item_id == claimed.item_id:
            return mark_of_run(claimed, head.status)
        return _taken(claimed, "is taken by a run that did not come from this item")


def _may_have_run(claimed: Claimed) -> bool:
    """Return whether its execution can exist: the item was claimed before, or came with an execution that waits for a slot."""
    return claimed.fence > 1 or claimed.queue == STARTED_QUEUE


def _check_version(claimed: Claimed, workflow: Workflow[..., Any]) -> None:
    if claimed.version > workflow.version:
        raise NotFound(
            f"workflow {claimed.workflow_id!r} has version {workflow.version} here, and the item asks for {claimed.version}"
        )


def _taken(claimed: Claimed, why: str) -> ReturnItem:
    """Return the unit that fails an item for good: its execution id is taken, and ids are never reused."""
    error = f"AlreadyExists: the execution id {claimed.execution_id!r} {why}"
    return ReturnItem(claimed.item_id, claimed.fence, error, is_final=True)


def _returned(started: _Started) -> ReturnItem:
    """Return the unit that returns an item.

    It uses up no attempt if the store was unavailable. Otherwise the session broke off by itself, and would again.
    """
    claimed = started.claimed
    if started.is_id_taken:
        return _taken(claimed, "is that of a run that was deleted")
    error = None if started.is_store_away else "its session ended without a commit; the log of its worker says why"
    return ReturnItem(claimed.item_id, claimed.fence, error, delay_ms=_AGAIN_MS * claimed.attempts)
