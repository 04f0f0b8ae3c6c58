"""Items that were claimed before, and whose execution is there already: it goes on from its record, and is not made twice.

An execution that was retried waits for its item's turn. To give it that is one commit on the execution, which marks the item: a
crash before leaves a claim that ends by itself, a crash after leaves an execution that is due.

The local engine: runs the executions of queue items on this process's worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from stepwell.clock import Clock
from stepwell.contract.engine import NotNow
from stepwell.contract.store import Store
from stepwell.errors import Conflict, LeaseLost, NotFound, StepwellError
from stepwell.flow.function import Workflow
from stepwell.model.commit import Creation, Head, Lease
from stepwell.model.execution_state import ONLY
from stepwell.model.ids import NewId
from stepwell.model.queue_item import Claimed, ItemMark, ItemStatus, ReturnItem
from stepwell.model.queue_lifecycle import waits_for_turn
from stepwell.model.record import decode_status
from stepwell.model.status import FINAL, Status
from stepwell.pipeline.operations import AsyncDriver, Operation, write, write_or_raise
from stepwell.queue.first_commit import FENCE, FirstCommit
from stepwell.runtime.inbox import CANCEL, delivery, fresh_key
from stepwell.runtime.run_retry import RunRetry
from stepwell.runtime.start import Starting
from stepwell.runtime.worker import Worker
from stepwell.state.executions import Executions

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
    """What becomes of an item whose execution is there, and has this status."""
    return ItemMark(claimed.item_id, _ENDS.get(Status(status), ItemStatus.DISPATCHED), claimed.fence)


class Resuming:
    """Has executions go on that wait for their item's turn."""

    def __init__(self, executions: Executions, new_id: NewId) -> None:
        self._executions, self._again = executions, RunRetry(executions, new_id)

    def resume(self, claimed: Claimed) -> Operation[bool]:
        """Have the execution of an item go on; False if it has none yet. Who has lost the claim meanwhile leaves it as it is."""
        for _ in range(_MOST_CONFLICTS):
            try:
                return (yield from self._resume(claimed))
            except LeaseLost:
                return True
            except Conflict:  # somebody was first, to end it or to put it back: what it is now says what to do
                continue
        raise NotNow(f"execution {claimed.execution_id!r} of queue item {claimed.item_id!r} is changed by others all the time")

    def _resume(self, claimed: Claimed) -> Operation[bool]:
        try:
            live = yield from self._executions.newest(claimed.execution_id)
        except NotFound:
            return False
        if live.state.identity.item_id != claimed.item_id:
            return False
        if waits_for_turn(live.state):
            yield from self._again.go_on(live, ItemMark(claimed.item_id, ItemStatus.DISPATCHED, claimed.fence))
        else:
            yield from write_or_raise(mark_of_run(claimed, decode_status(live.state.sections["status"][ONLY])))
        return True


log = logging.getLogger(__name__)

# A session that has committed nothing for so long makes its execution, so that others can see it, and its item's claim need not be
# renewed. Short workflows are over by then, and are a single commit.
_MAKE_AFTER_SECONDS = 0.5

_AGAIN_MS = 1_000


class LocalEngine:
    """Starts items as sessions of a worker, on the worker's loop."""

    name = "local"

    def __init__(
        self, worker: Worker, store: Store, executions: Executions, driver: AsyncDriver, clock: Clock, new_id: NewId
    ) -> None:
        self._worker, self._store, self._executions, self._driver = worker, store, executions, driver
        self._clock, self._new_id = clock, new_id
        self._starting = Starting(executions, clock)
        self._resuming = Resuming(executions, new_id)
        self._creations: dict[tuple[str, int], Creation] = {}
        """How executions are made that are run here; alike for all of one workflow."""
        self._unmade: dict[FirstCommit, float] = {}
        """The recorders of sessions that may have committed nothing yet, and when these began, by the loop's clock."""
        self._make_after = min(_MAKE_AFTER_SECONDS, worker.lease_seconds / 4)
        self._suspected: FirstCommit | None = None
        self._finishing = 0
        self._timer: asyncio.TimerHandle | None = None
        self._freed: list[Callable[[], None]] = []

    @property
    def room(self) -> int:
        """How many more items can be started now. Sessions that only wait for their last commit need no place any more, so that the
        next claim goes to the store together with those commits, and finds the slots that they free."""
        return self._worker.room + self._finishing

    def on_room(self, call: Callable[[], None]) -> None:
        """Call this whenever there is room again."""
        self._freed.append(call)

    def _free(self) -> None:
        for call in self._freed:
            call()

    async def workflows(self) -> tuple[str, ...]:
        """The names of the functions of this process and of the stored definitions."""
        return await self._worker.repertoire.names()

    async def start(self, claimed: Claimed) -> None:
        """Have a session run the item's workflow. The execution is made by what that commits first; one that is there already, and
        waited for the item's turn, is due for any worker then."""
        workflow = await self._worker.repertoire.find(claimed.workflow_id, claimed.version)
        _check_version(claimed, workflow)
        if not _may_have_run(claimed) or not await self._driver.run(self._resuming.resume(claimed)):
            self._start(claimed, workflow)

    def _start(self, claimed: Claimed, workflow: Workflow[..., Any]) -> None:
        if claimed.attempts > 1:
            self._suspect(claimed)
        worker = self._worker
        identity = self._starting.identity_of_item(workflow, claimed.execution_id, claimed.workspace_id, claimed.item_id)
        creation = self._creation_of(workflow)
        recorder = FirstCommit(self._executions, self._driver, self._new_id, self, claimed, identity, creation)
        lease = Lease(claimed.execution_id, worker.holder, FENCE, self._clock.now_ms() + round(worker.lease_seconds * 1000))
        worker.take_new(recorder, lease, workflow)
        self._executions.endings.begin(claimed.execution_id, claimed.item_id)
        loop = asyncio.get_running_loop()
        self._unmade[recorder] = loop.time()
        if claimed.attempts > 1:
            self._suspected = recorder
        if self._timer is None:
            self._timer = loop.call_later(self._make_after, self._make_overdue)

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
        """An item whose attempt was cut short may have brought down its process, or may only have been beside one that did. Such
        items are started one at a time, so that the guilty one uses up its own attempts and not those of the others."""
        before = self._suspected
        if before is not None and not before.is_made and before in self._unmade:
            raise NotNow(f"item {claimed.item_id!r} waits for another that was cut short before")

    async def cancel(self, execution_id: str) -> None:
        """Leave a request to end in the execution's inbox."""
        head = await self._driver.run(self._executions.head(execution_id))
        if head.status in FINAL:
            raise Conflict(f"execution {execution_id!r} has ended as {head.status}")
        letter = delivery(execution_id, head.workspace_id, CANCEL, "", None, fresh_key(self._new_id()))
        await self._driver.run(write_or_raise(letter))

    # From the claim to the first commit.

    def finishing(self) -> None:
        """A session only waits for its last commit."""
        self._finishing += 1
        self._free()

    def ended(self, recorder: FirstCommit) -> None:
        """Free what a session held; give its item back if nothing was committed."""
        if recorder.is_finishing:
            self._finishing -= 1
        began = self._unmade.pop(recorder, None)
        if began is not None and not recorder.is_made:
            self._worker.see_through(self._settle(recorder, began + self._worker.lease_seconds))
        self._free()

    def _make_overdue(self) -> None:
        """Make the executions of sessions that have committed nothing for too long. Those that began just now are left alone: in
        busy times most of them are about to end, and a commit more for each would be felt."""
        loop, self._timer = asyncio.get_running_loop(), None
        latest = loop.time() - self._make_after
        for recorder, began in list(self._unmade.items()):
            if recorder.is_made:
                del self._unmade[recorder]
            elif began <= latest:
                self._worker.see_through(self._make(recorder))
        if self._unmade:
            self._timer = loop.call_later(self._make_after / 2, self._make_overdue)

    async def _make(self, recorder: FirstCommit) -> None:
        try:
            await recorder.make()
        except LeaseLost as error:
            # Cancelled, or given to another: whatever the session is doing is not asked for any more.
            self._worker.abandon(recorder.claimed.execution_id, error)
        except StepwellError as error:
            log.warning("the execution of queue item %r could not be made yet: %s", recorder.claimed.item_id, error)

    async def _settle(self, recorder: FirstCommit, until: float) -> None:
        """A session ended without an execution of its own: the item must not keep its slot because of that."""
        try:
            await self._worker.patience.keep_trying(lambda: self._move_on(recorder), lambda: until)
        except StepwellError as error:
            log.warning("queue item %r could not be given back, and is when its claim ends: %s", recorder.claimed.item_id, error)

    async def _move_on(self, recorder: FirstCommit) -> None:
        """Done twice, since a reply was lost, it is refused the second time: the item is not claimed any more."""
        claimed = recorder.claimed
        try:
            head = await self._driver.run(self._executions.head(claimed.execution_id)) if recorder.is_taken else None
        except NotFound:
            head = None
        unit = _returned(recorder) if head is None else await self._mark_of(claimed, head)
        await self._driver.run(write(unit))

    async def _mark_of(self, claimed: Claimed, head: Head) -> ItemMark | ReturnItem:
        """What becomes of an item whose execution was there already."""
        live = await self._driver.run(self._executions.newest(claimed.execution_id))
        if live.state.identity.item_id == claimed.item_id:
            return mark_of_run(claimed, head.status)
        return _taken(claimed, "is taken by a run that did not come from this item")


def _may_have_run(claimed: Claimed) -> bool:
    """Whether the item was claimed before, so that its execution may be there: only then is it worth a look."""
    return claimed.fence > 1


def _check_version(claimed: Claimed, workflow: Workflow[..., Any]) -> None:
    if claimed.version > workflow.version:
        raise NotFound(
            f"workflow {claimed.workflow_id!r} has version {workflow.version} here, and the item asks for {claimed.version}"
        )


def _taken(claimed: Claimed, why: str) -> ReturnItem:
    """Nobody can start it, however often it is tried: ids are never used twice."""
    error = f"AlreadyExists: the execution id {claimed.execution_id!r} {why}"
    return ReturnItem(claimed.item_id, claimed.fence, error, is_final=True)


def _returned(recorder: FirstCommit) -> ReturnItem:
    """Without an attempt if the store was away; else the session broke off by itself, and would again."""
    claimed = recorder.claimed
    if recorder.is_taken:
        return _taken(claimed, "is that of a run that was deleted")
    error = None if recorder.is_hindered else "its session ended without a commit; the log of its worker says why"
    return ReturnItem(claimed.item_id, claimed.fence, error, delay_ms=_AGAIN_MS * claimed.attempts)
