"""The queue: items, named queues, workspaces, tiers and schedules."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any

import msgspec

from stepwell.app.awaited.runs import AsyncRun
from stepwell.duration import Span, timeout_seconds
from stepwell.model.queue_item import DEFAULT_QUEUE, Enqueued, ItemStatus, QueueSettings, Tier, Workspace
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.pipeline.operations import AsyncDriver
from stepwell.queue.diagnosis import WaitingReason
from stepwell.queue.item import ItemHandle, ItemSummary
from stepwell.queue.operations import QueueOperations
from stepwell.queue.requests import QueueRequest
from stepwell.queue.schedule import ScheduleSummary
from stepwell.queue.scheduler import ScheduleOperations
from stepwell.queue.statistics import Demand, LaneStats
from stepwell.queue.worker_presence import WorkerPresence
from stepwell.queue.workspaces import KEEP, Number, Rate, WorkspaceOperations

__all__ = ["AsyncQueue", "AsyncQueueItem", "AsyncSchedules", "AsyncWorkspaces"]


class AsyncQueue:
    """The queue of a store."""

    def __init__(self, operations: QueueOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def item(self, item_id: str) -> AsyncQueueItem:
        """The handle of an item."""
        return AsyncQueueItem(await self._driver.run(self._do.handle(item_id)), self._do, self._driver)

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
        return await self._driver.run(self._do.summaries(workspace, queue, status, workflow, before, limit))

    async def dead(self, *, workspace: str | None = None, limit: int = 100) -> builtins.list[ItemSummary]:
        """Items that failed, with their last error, newest first."""
        return await self._driver.run(self._do.summaries(workspace, None, ItemStatus.FAILED, None, None, limit))

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
        return await self._driver.run(self._do.drain(name, timeout_seconds(timeout)))

    async def stats(self, workspace: str | None = None) -> builtins.list[LaneStats]:
        """Depth, ages, waits and slots by workspace and queue."""
        return await self._driver.run(self._do.stats(workspace))

    async def demand(self) -> Demand:
        """How much work there is for workers: the signal for autoscaling."""
        return await self._driver.run(self._do.demand())

    async def metrics(self) -> str:
        """The figures in the text format of Prometheus."""
        return await self._driver.run(self._do.metrics())

    async def workers(self) -> builtins.list[WorkerPresence]:
        """The processes that take items from the queue."""
        return await self._driver.run(self._do.workers())

    async def why(self, item_id: str) -> WaitingReason:
        """Why an item waits, for people."""
        return await self._driver.run(self._do.why(item_id))

    async def recover(self) -> builtins.list[str]:
        """Return items whose dispatcher died, and drop old ended ones, now; the ids of the former. It also happens by itself."""
        return await self._driver.run(self._do.recover())


class AsyncQueueItem(ItemHandle):
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
        seconds = timeout_seconds(timeout)
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


class AsyncWorkspaces:
    """The workspaces of a store and their tiers."""

    def __init__(self, operations: WorkspaceOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def put(self, workspace_id: str, *, tier: str | None = None, is_paused: bool | None = None) -> Workspace:
        """Make a workspace (tier ``free`` unless you say another), or change what you give of it."""
        return await self._driver.run(self._do.put(workspace_id, tier, is_paused))

    async def get(self, workspace_id: str) -> Workspace:
        """A workspace; ``NotFound`` if there is none."""
        return await self._driver.run(self._do.get(workspace_id))

    async def list(self) -> list[Workspace]:
        """All workspaces, by id."""
        return await self._driver.run(self._do.all())

    async def pause(self, workspace_id: str) -> Workspace:
        """Have its items wait, whatever capacity there is; what runs goes on."""
        return await self._driver.run(self._do.pause(workspace_id, is_paused=True))

    async def resume(self, workspace_id: str) -> Workspace:
        """Have its items start again."""
        return await self._driver.run(self._do.pause(workspace_id, is_paused=False))

    async def tiers(self) -> list[Tier]:
        """All tiers, by name."""
        return await self._driver.run(self._do.tiers())

    async def put_tier(
        self,
        name: str,
        *,
        concurrency: Number = KEEP,
        weight: float | msgspec.UnsetType = KEEP,
        rate_per_second: Rate = KEEP,
        queue_depth: Number = KEEP,
        state_bytes: Number = KEEP,
        retention_seconds: Rate = KEEP,
    ) -> Tier:
        """Make a tier, or change what you give of it (None: no limit), at once for all its workspaces."""
        given = {
            "concurrency": concurrency,
            "weight": weight,
            "rate_per_second": rate_per_second,
            "queue_depth": queue_depth,
            "state_bytes": state_bytes,
            "retention_seconds": retention_seconds,
        }
        return await self._driver.run(self._do.put_tier(name, given))


class AsyncSchedules:
    """The schedules of a store."""

    def __init__(self, operations: ScheduleOperations, queue: QueueOperations, driver: AsyncDriver) -> None:
        self._do, self._queue, self._driver = operations, queue, driver

    async def put(
        self,
        name: str,
        workflow: Any,
        value: Any = msgspec.UNSET,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: Span | None = None,
        at: datetime | None = None,
        catch_up: str = "none",
        workspace: str = DEFAULT_WORKSPACE,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        max_attempts: int = 3,
    ) -> ScheduleSummary:
        """Have a workflow run by a cron expression in a time zone, every so often, or once; one of the same name is replaced.

        ``catch_up`` says what becomes of ticks that were missed while nobody was there: ``none`` of them, the ``last``, or ``all``.
        """
        request = QueueRequest(
            workflow=workflow, value=value, workspace=workspace, queue=queue, priority=priority, max_attempts=max_attempts
        )
        return ScheduleSummary.of(await self._driver.run(self._do.put(name, request, cron, zone, every, at, catch_up)))

    async def get(self, name: str) -> ScheduleSummary:
        """A schedule; ``NotFound`` if there is none."""
        return ScheduleSummary.of(await self._driver.run(self._do.get(name)))

    async def list(self) -> list[ScheduleSummary]:
        """All schedules, by name."""
        return [ScheduleSummary.of(each) for each in await self._driver.run(self._do.all())]

    async def delete(self, name: str) -> bool:
        """Fire no more; whether it was there. Runs that it asked for are not touched."""
        return await self._driver.run(self._do.delete(name))

    async def pause(self, name: str) -> ScheduleSummary:
        """Fire nothing until it is resumed."""
        return ScheduleSummary.of(await self._driver.run(self._do.pause(name, is_paused=True)))

    async def resume(self, name: str) -> ScheduleSummary:
        """Fire again; what it missed is caught up as its policy says."""
        return ScheduleSummary.of(await self._driver.run(self._do.pause(name, is_paused=False)))

    async def run_now(self, name: str) -> AsyncQueueItem:
        """Have it run now, beside its ticks."""
        return AsyncQueueItem(await self._driver.run(self._do.run_now(name)), self._queue, self._driver)

    async def backfill(self, name: str, start: datetime, end: datetime) -> builtins.list[AsyncQueueItem]:
        """Have it run for all ticks from one moment to another; those that were fired already are not fired again."""
        answers = await self._driver.run(self._do.backfill(name, start, end))
        return [AsyncQueueItem(answer, self._queue, self._driver) for answer in answers]

    async def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """The next moments at which it fires."""
        return await self._driver.run(self._do.next(name, count))
