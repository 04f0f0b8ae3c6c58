"""Queue items as their users see them, and the handles that ``enqueue`` gives back. Blocking and awaited."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from stepwell.clock import from_ms
from stepwell.duration import Span, seconds_of
from stepwell.model.queue_item import Enqueued, Item, ItemStatus
from stepwell.model.value import Value, decode
from stepwell.pipeline.operations import AsyncDriver, Driver
from stepwell.queue.diagnosis import WaitingReason
from stepwell.queue.operations import QUEUED, QueueOperations
from stepwell.runtime.run_operations import AsyncRun, Run

__all__ = ["AsyncQueueItem", "ItemSummary", "QueueItem"]


class ItemSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A queue item as it was when it was read."""

    item_id: str
    workspace_id: str
    workflow_id: str
    version: int
    execution_id: str
    queue: str
    status: ItemStatus
    priority: int
    input: Value
    attempts: int
    max_attempts: int
    enqueued_at: datetime
    run_at: datetime
    claimed_at: datetime | None = None
    dispatched_at: datetime | None = None
    finished_at: datetime | None = None
    holder: str | None = None
    error: str | None = None
    number: int = 0
    """Grows with every item; the next page of a list comes before the last one's."""

    @classmethod
    def of(cls, item: Item) -> ItemSummary:
        """The summary of an item's row."""
        return cls(
            item_id=item.item_id,
            workspace_id=item.workspace_id,
            workflow_id=item.workflow_id,
            version=item.version,
            execution_id=item.execution_id,
            queue=item.queue,
            status=ItemStatus(item.status),
            priority=item.priority,
            input=decode(item.input),
            attempts=item.attempts,
            max_attempts=item.max_attempts,
            enqueued_at=from_ms(item.enqueued_ms),
            run_at=from_ms(item.run_at_ms),
            claimed_at=_moment(item.claimed_ms),
            dispatched_at=_moment(item.dispatched_ms),
            finished_at=_moment(item.finished_ms),
            holder=item.holder,
            error=item.error,
            number=item.number,
        )


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else from_ms(milliseconds)


class _Answer:
    """What both colours of handles say without asking the store."""

    def __init__(self, answer: Enqueued) -> None:
        self.item_id, self.execution_id, self.is_new = answer.item_id, answer.execution_id, answer.is_new
        self.status = QUEUED if answer.status == ItemStatus.PENDING else str(answer.status)

    @property
    def message(self) -> str:
        """What became of the request, for people."""
        if not self.is_new:
            return f"queue item {self.item_id} was there already and is {self.status}; no second one was made"
        return f"queue item {self.item_id} is {self.status}; it starts as execution {self.execution_id} when there is capacity"

    def _update(self, item: Item) -> None:
        self.execution_id = item.execution_id
        self.status = QUEUED if item.status == ItemStatus.PENDING else str(item.status)


class QueueItem(_Answer):
    """A request that was taken into the queue."""

    def __init__(self, answer: Enqueued, operations: QueueOperations, driver: Driver, workflow: object = None) -> None:
        super().__init__(answer)
        self._do, self._driver, self._workflow = operations, driver, workflow

    def run(self) -> Run:
        """The handle of the item's execution, which exists once the item was dispatched."""
        return Run(self._do.run(self.execution_id, self._workflow), self._driver)

    def state(self) -> ItemSummary:
        """The item as it is now."""
        item = self._driver.run(self._do.item(self.item_id))
        self._update(item)
        return ItemSummary.of(item)

    def refresh(self) -> QueueItem:
        """Bring ``status`` and ``execution_id`` up to date; the same handle."""
        self.state()
        return self

    def result(self, timeout: Span | None = None) -> Any:
        """Wait for the item's turn and for the end of its run; what that gave. ``ExecutionFailed`` or ``ExecutionCancelled`` say
        how else it ended."""
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        return self._driver.run(self._do.result(self.item_id, self.execution_id, self._workflow, seconds))

    def cancel(self) -> ItemSummary:
        """Cancel the item: one that waits ends at once, one that runs is asked to. The item afterwards."""
        item = self._driver.run(self._do.cancel(self.item_id))
        self._update(item)
        return ItemSummary.of(item)

    def why(self) -> WaitingReason:
        """Why the item waits, for people."""
        return self._driver.run(self._do.why(self.item_id))

    def __repr__(self) -> str:
        return f"<QueueItem {self.item_id!r} {self.status}>"


class AsyncQueueItem(_Answer):
    """A request that was taken into the queue."""

    def __init__(self, answer: Enqueued, operations: QueueOperations, driver: AsyncDriver, workflow: object = None) -> None:
        super().__init__(answer)
        self._do, self._driver, self._workflow = operations, driver, workflow

    def run(self) -> AsyncRun:
        """The handle of the item's execution, which exists once the item was dispatched."""
        return AsyncRun(self._do.run(self.execution_id, self._workflow), self._driver)

    async def state(self) -> ItemSummary:
        """The item as it is now."""
        item = await self._driver.run(self._do.item(self.item_id))
        self._update(item)
        return ItemSummary.of(item)

    async def refresh(self) -> AsyncQueueItem:
        """Bring ``status`` and ``execution_id`` up to date; the same handle."""
        await self.state()
        return self

    async def result(self, timeout: Span | None = None) -> Any:
        """Wait for the item's turn and for the end of its run; what that gave. ``ExecutionFailed`` or ``ExecutionCancelled`` say
        how else it ended."""
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        return await self._driver.run(self._do.result(self.item_id, self.execution_id, self._workflow, seconds))

    async def cancel(self) -> ItemSummary:
        """Cancel the item: one that waits ends at once, one that runs is asked to. The item afterwards."""
        item = await self._driver.run(self._do.cancel(self.item_id))
        self._update(item)
        return ItemSummary.of(item)

    async def why(self) -> WaitingReason:
        """Why the item waits, for people."""
        return await self._driver.run(self._do.why(self.item_id))

    def __repr__(self) -> str:
        return f"<AsyncQueueItem {self.item_id!r} {self.status}>"
