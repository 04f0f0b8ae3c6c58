"""The face ``well.queue``: items, named queues, and insight. Blocking and awaited."""

from __future__ import annotations

import builtins

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput
from stepwell.model.queue_item import DEFAULT_QUEUE, Enqueued, ItemStatus, QueueSettings
from stepwell.pipeline.operations import AsyncDriver, Driver, Operation
from stepwell.queue.diagnosis import WaitingReason
from stepwell.queue.item import AsyncQueueItem, ItemSummary, QueueItem
from stepwell.queue.operations import QueueOperations
from stepwell.queue.statistics import Demand, LaneStats, metrics_of
from stepwell.queue.worker_presence import WorkerPresence
from stepwell.queue.workspaces import KEEP, Number, Rate

__all__ = ["AsyncQueue", "Queue"]


class _Settings:
    """Changes of a queue's settings, as operations."""

    def __init__(self, operations: QueueOperations) -> None:
        self._do = operations

    def drain(self, name: str, timeout: Span | None) -> Operation[bool]:
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        yield from self._do.change_queue(name, is_paused=True)
        return (yield from self._do.idle(name, seconds))

    def dead(self, workspace: str | None, limit: int) -> Operation[list[ItemSummary]]:
        items = yield from self._do.items(workspace=workspace, status=ItemStatus.FAILED, limit=limit)
        return [ItemSummary.of(item) for item in items]

    def list(
        self,
        workspace: str | None,
        queue: str | None,
        status: str | None,
        workflow: str | None,
        before: ItemSummary | None,
        limit: int,
    ) -> Operation[builtins.list[ItemSummary]]:
        if not isinstance(before, ItemSummary | None):
            raise InvalidInput(f"before is the last item of the page before, as list gave it, not {before!r}")
        number = None if before is None else before.number
        items = yield from self._do.items(
            workspace=workspace, queue=queue, status=status, workflow=workflow, before=number, limit=limit
        )
        return [ItemSummary.of(item) for item in items]

    def handle(self, item_id: str) -> Operation[Enqueued]:
        item = yield from self._do.item(item_id)
        return Enqueued(item.item_id, item.execution_id, item.status, is_new=False)

    def metrics(self) -> Operation[str]:
        stats = yield from self._do.stats(None)
        demand = yield from self._do.demand()
        return metrics_of(stats, demand)


class Queue:
    """The queue of a store."""

    def __init__(self, operations: QueueOperations, driver: Driver) -> None:
        self._do, self._settings, self._driver = operations, _Settings(operations), driver

    def item(self, item_id: str) -> QueueItem:
        """The handle of an item."""
        return QueueItem(self._driver.run(self._settings.handle(item_id)), self._do, self._driver)

    def list(
        self,
        *,
        workspace: str | None = None,
        queue: str | None = None,
        status: str | None = None,
        workflow: str | None = None,
        before: ItemSummary | None = None,
        limit: int = 100,
    ) -> list[ItemSummary]:
        """Items that match, newest first; the next page comes ``before`` the last one of this."""
        return self._driver.run(self._settings.list(workspace, queue, status, workflow, before, limit))

    def dead(self, *, workspace: str | None = None, limit: int = 100) -> builtins.list[ItemSummary]:
        """Items that failed, with their last error, newest first."""
        return self._driver.run(self._settings.dead(workspace, limit))

    def redrive(self, item_id: str) -> QueueItem:
        """Have a failed or cancelled item run again, with all its attempts, as a new execution."""
        return QueueItem(self._driver.run(self._do.redrive(item_id)), self._do, self._driver)

    def put(self, name: str, *, concurrency: Number = KEEP, rate_per_second: Rate = KEEP) -> QueueSettings:
        """Set up a named queue, or change what you give of it (None: no limit): how many of its items run at once, and how many
        start in a second, over all workspaces."""
        return self._driver.run(self._do.change_queue(name, concurrency=concurrency, rate_per_second=rate_per_second))

    def get(self, name: str = DEFAULT_QUEUE) -> QueueSettings:
        """The settings of a queue; one that was never set up has no limits."""
        return self._driver.run(self._do.queue(name))

    def pause(self, name: str = DEFAULT_QUEUE) -> QueueSettings:
        """Start nothing more from a queue; what runs goes on."""
        return self._driver.run(self._do.change_queue(name, is_paused=True))

    def resume(self, name: str = DEFAULT_QUEUE) -> QueueSettings:
        """Start items from a queue again."""
        return self._driver.run(self._do.change_queue(name, is_paused=False))

    def drain(self, name: str = DEFAULT_QUEUE, timeout: Span | None = None) -> bool:
        """Pause a queue and wait until nothing of it runs any more; whether that came about in time."""
        return self._driver.run(self._settings.drain(name, timeout))

    def stats(self, workspace: str | None = None) -> builtins.list[LaneStats]:
        """Depth, ages, waits and slots by workspace and queue."""
        return self._driver.run(self._do.stats(workspace))

    def demand(self) -> Demand:
        """How much work there is for workers: the signal for autoscaling."""
        return self._driver.run(self._do.demand())

    def metrics(self) -> str:
        """The figures in the text format of Prometheus."""
        return self._driver.run(self._settings.metrics())

    def workers(self) -> builtins.list[WorkerPresence]:
        """The processes that take items from the queue."""
        return self._driver.run(self._do.workers())

    def why(self, item_id: str) -> WaitingReason:
        """Why an item waits, for people."""
        return self._driver.run(self._do.why(item_id))

    def recover(self) -> builtins.list[str]:
        """Return items whose dispatcher died, and drop old ended ones, now; the ids of the former. It also happens by itself."""
        return self._driver.run(self._do.recover())


class AsyncQueue:
    """The queue of a store."""

    def __init__(self, operations: QueueOperations, driver: AsyncDriver) -> None:
        self._do, self._settings, self._driver = operations, _Settings(operations), driver

    async def item(self, item_id: str) -> AsyncQueueItem:
        """The handle of an item."""
        return AsyncQueueItem(await self._driver.run(self._settings.handle(item_id)), self._do, self._driver)

    async def list(
        self,
        *,
        workspace: str | None = None,
        queue: str | None = None,
        status: str | None = None,
        workflow: str | None = None,
        before: ItemSummary | None = None,
        limit: int = 100,
    ) -> list[ItemSummary]:
        """Items that match, newest first; the next page comes ``before`` the last one of this."""
        return await self._driver.run(self._settings.list(workspace, queue, status, workflow, before, limit))

    async def dead(self, *, workspace: str | None = None, limit: int = 100) -> builtins.list[ItemSummary]:
        """Items that failed, with their last error, newest first."""
        return await self._driver.run(self._settings.dead(workspace, limit))

    async def redrive(self, item_id: str) -> AsyncQueueItem:
        """Have a failed or cancelled item run again, with all its attempts, as a new execution."""
        return AsyncQueueItem(await self._driver.run(self._do.redrive(item_id)), self._do, self._driver)

    async def put(self, name: str, *, concurrency: Number = KEEP, rate_per_second: Rate = KEEP) -> QueueSettings:
        """Set up a named queue, or change what you give of it (None: no limit): how many of its items run at once, and how many
        start in a second, over all workspaces."""
        return await self._driver.run(self._do.change_queue(name, concurrency=concurrency, rate_per_second=rate_per_second))

    async def get(self, name: str = DEFAULT_QUEUE) -> QueueSettings:
        """The settings of a queue; one that was never set up has no limits."""
        return await self._driver.run(self._do.queue(name))

    async def pause(self, name: str = DEFAULT_QUEUE) -> QueueSettings:
        """Start nothing more from a queue; what runs goes on."""
        return await self._driver.run(self._do.change_queue(name, is_paused=True))

    async def resume(self, name: str = DEFAULT_QUEUE) -> QueueSettings:
        """Start items from a queue again."""
        return await self._driver.run(self._do.change_queue(name, is_paused=False))

    async def drain(self, name: str = DEFAULT_QUEUE, timeout: Span | None = None) -> bool:
        """Pause a queue and wait until nothing of it runs any more; whether that came about in time."""
        return await self._driver.run(self._settings.drain(name, timeout))

    async def stats(self, workspace: str | None = None) -> builtins.list[LaneStats]:
        """Depth, ages, waits and slots by workspace and queue."""
        return await self._driver.run(self._do.stats(workspace))

    async def demand(self) -> Demand:
        """How much work there is for workers: the signal for autoscaling."""
        return await self._driver.run(self._do.demand())

    async def metrics(self) -> str:
        """The figures in the text format of Prometheus."""
        return await self._driver.run(self._settings.metrics())

    async def workers(self) -> builtins.list[WorkerPresence]:
        """The processes that take items from the queue."""
        return await self._driver.run(self._do.workers())

    async def why(self, item_id: str) -> WaitingReason:
        """Why an item waits, for people."""
        return await self._driver.run(self._do.why(item_id))

    async def recover(self) -> builtins.list[str]:
        """Return items whose dispatcher died, and drop old ended ones, now; the ids of the former. It also happens by itself."""
        return await self._driver.run(self._do.recover())
