# Generated from app/awaited/queue.py by `make blocking`. Do not edit: change that module and generate again.
"""The queue: items, named queues, workspaces, tiers and schedules."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any

import msgspec

from stepwell.app.blocking.runs import Run
from stepwell.duration import Span, timeout_seconds
from stepwell.model.queue_item import DEFAULT_QUEUE, Enqueued, ItemStatus, QueueSettings, Tier, Workspace
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.pipeline.operations import Driver
from stepwell.queue.diagnosis import WaitingReason
from stepwell.queue.item import ItemHandle, ItemSummary
from stepwell.queue.operations import QueueOperations
from stepwell.queue.requests import QueueRequest
from stepwell.queue.schedule import ScheduleSummary
from stepwell.queue.scheduler import ScheduleOperations
from stepwell.queue.statistics import Demand, LaneStats
from stepwell.queue.worker_presence import WorkerPresence
from stepwell.queue.workspaces import KEEP, Number, Rate, WorkspaceOperations

__all__ = ["Queue", "QueueItem", "Schedules", "Workspaces"]


class Queue:
    """The queue of a store."""

    def __init__(self, operations: QueueOperations, driver: Driver) -> None:
        self._do, self._driver = operations, driver

    def item(self, item_id: str) -> QueueItem:
        """The handle of an item."""
        return QueueItem(self._driver.run(self._do.handle(item_id)), self._do, self._driver)

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
        return self._driver.run(self._do.summaries(workspace, queue, status, workflow, before, limit))

    def dead(self, *, workspace: str | None = None, limit: int = 100) -> builtins.list[ItemSummary]:
        """Items that failed, with their last error, newest first."""
        return self._driver.run(self._do.summaries(workspace, None, ItemStatus.FAILED, None, None, limit))

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
        return self._driver.run(self._do.drain(name, timeout_seconds(timeout)))

    def stats(self, workspace: str | None = None) -> builtins.list[LaneStats]:
        """Depth, ages, waits and slots by workspace and queue."""
        return self._driver.run(self._do.stats(workspace))

    def demand(self) -> Demand:
        """How much work there is for workers: the signal for autoscaling."""
        return self._driver.run(self._do.demand())

    def metrics(self) -> str:
        """The figures in the text format of Prometheus."""
        return self._driver.run(self._do.metrics())

    def workers(self) -> builtins.list[WorkerPresence]:
        """The processes that take items from the queue."""
        return self._driver.run(self._do.workers())

    def why(self, item_id: str) -> WaitingReason:
        """Why an item waits, for people."""
        return self._driver.run(self._do.why(item_id))

    def recover(self) -> builtins.list[str]:
        """Return items whose dispatcher died, and drop old ended ones, now; the ids of the former. It also happens by itself."""
        return self._driver.run(self._do.recover())


class QueueItem(ItemHandle):
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
        seconds = timeout_seconds(timeout)
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


class Workspaces:
    """The workspaces of a store and their tiers."""

    def __init__(self, operations: WorkspaceOperations, driver: Driver) -> None:
        self._do, self._driver = operations, driver

    def put(self, workspace_id: str, *, tier: str | None = None, is_paused: bool | None = None) -> Workspace:
        """Make a workspace (tier ``free`` unless you say another), or change what you give of it."""
        return self._driver.run(self._do.put(workspace_id, tier, is_paused))

    def get(self, workspace_id: str) -> Workspace:
        """A workspace; ``NotFound`` if there is none."""
        return self._driver.run(self._do.get(workspace_id))

    def list(self) -> list[Workspace]:
        """All workspaces, by id."""
        return self._driver.run(self._do.all())

    def pause(self, workspace_id: str) -> Workspace:
        """Have its items wait, whatever capacity there is; what runs goes on."""
        return self._driver.run(self._do.pause(workspace_id, is_paused=True))

    def resume(self, workspace_id: str) -> Workspace:
        """Have its items start again."""
        return self._driver.run(self._do.pause(workspace_id, is_paused=False))

    def tiers(self) -> list[Tier]:
        """All tiers, by name."""
        return self._driver.run(self._do.tiers())

    def put_tier(
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
        return self._driver.run(self._do.put_tier(name, given))


class Schedules:
    """The schedules of a store."""

    def __init__(self, operations: ScheduleOperations, queue: QueueOperations, driver: Driver) -> None:
        self._do, self._queue, self._driver = operations, queue, driver

    def put(
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
        return ScheduleSummary.of(self._driver.run(self._do.put(name, request, cron, zone, every, at, catch_up)))

    def get(self, name: str) -> ScheduleSummary:
        """A schedule; ``NotFound`` if there is none."""
        return ScheduleSummary.of(self._driver.run(self._do.get(name)))

    def list(self) -> list[ScheduleSummary]:
        """All schedules, by name."""
        return [ScheduleSummary.of(each) for each in self._driver.run(self._do.all())]

    def delete(self, name: str) -> bool:
        """Fire no more; whether it was there. Runs that it asked for are not touched."""
        return self._driver.run(self._do.delete(name))

    def pause(self, name: str) -> ScheduleSummary:
        """Fire nothing until it is resumed."""
        return ScheduleSummary.of(self._driver.run(self._do.pause(name, is_paused=True)))

    def resume(self, name: str) -> ScheduleSummary:
        """Fire again; what it missed is caught up as its policy says."""
        return ScheduleSummary.of(self._driver.run(self._do.pause(name, is_paused=False)))

    def run_now(self, name: str) -> QueueItem:
        """Have it run now, beside its ticks."""
        return QueueItem(self._driver.run(self._do.run_now(name)), self._queue, self._driver)

    def backfill(self, name: str, start: datetime, end: datetime) -> builtins.list[QueueItem]:
        """Have it run for all ticks from one moment to another; those that were fired already are not fired again."""
        answers = self._driver.run(self._do.backfill(name, start, end))
        return [QueueItem(answer, self._queue, self._driver) for answer in answers]

    def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """The next moments at which it fires."""
        return self._driver.run(self._do.next(name, count))
