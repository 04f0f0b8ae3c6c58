"""The queue: items, named queues, workspaces, tiers and schedules."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from stepwell.app.awaited.runs import AsyncRun
from stepwell.duration import Span, timeout_seconds
from stepwell.flow.function import Result_co
from stepwell.flow.governance import Governance
from stepwell.model.ids import Id, id_text
from stepwell.model.plain_data import Records
from stepwell.model.queue_item import DEFAULT_QUEUE, Enqueued, ItemStatus, QueueSettings, Tier, Workspace
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.name_hints import ATTRIBUTES, missing_attribute
from stepwell.pipeline.operations import AsyncDriver
from stepwell.queue.diagnosis import WaitingReason
from stepwell.queue.item import ItemHandle, ItemSummary
from stepwell.queue.operations import QueueOperations
from stepwell.queue.requests import QueueRequest
from stepwell.queue.schedule import ScheduleSummary
from stepwell.queue.scheduler import ScheduleOperations
from stepwell.queue.statistics import Demand, LaneStats
from stepwell.queue.worker_presence import LeasedRun, WorkerPresence
from stepwell.queue.workspaces import KEEP, Number, Rate, WorkspaceOperations

__all__ = ["AsyncQueue", "AsyncQueueItem", "AsyncSchedules", "AsyncWorkspaces"]


class AsyncQueue:
    """The queue of a store: ``well.queue``."""

    def __init__(self, operations: QueueOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def item(self, item_id: Id) -> AsyncQueueItem[Any]:
        """Return the handle of an item.

        - ``item_id``: the id of the item.

        Raise ``NotFound`` if there is none, or it was dropped after its retention.
        """
        item_id = id_text(item_id)
        return AsyncQueueItem(await self._driver.run(self._do.handle(item_id)), self._do, self._driver)

    async def list(
        self,
        *,
        workspace: Id | None = None,
        queue: str | None = None,
        status: str | None = None,
        workflow: str | None = None,
        before: ItemSummary | None = None,
        limit: int = 100,
    ) -> list[ItemSummary]:
        """Return a page of the items that match, newest first.

        - ``workspace``, ``queue``, ``status``, ``workflow``: list only items with these.
        - ``before``: the last summary of the page before; None for the first page.
        - ``limit``: the size of a page, 1 to 10,000.

        Raise ``InvalidInput`` for an unknown status and a limit outside its range.
        """
        workspace = id_text(workspace)
        return Records(await self._driver.run(self._do.summaries(workspace, queue, status, workflow, before, limit)))

    async def dead(self, *, workspace: Id | None = None, limit: int = 100) -> builtins.list[ItemSummary]:
        """Return the items that failed, newest first, each with its last error.

        - ``workspace``: only items of this workspace.
        - ``limit``: at most this many, 1 to 10,000.
        """
        workspace = id_text(workspace)
        return await self._driver.run(self._do.summaries(workspace, None, ItemStatus.FAILED, None, None, limit))

    async def redrive(self, item_id: Id) -> AsyncQueueItem[Any]:
        """Run a failed or cancelled item again, with all its attempts and as a new execution, and return its handle.

        - ``item_id``: the item.

        Raise ``Conflict`` for an item in another status, and while another item of its singleton has not ended.

        Raise ``NotFound`` if there is no such item.
        """
        item_id = id_text(item_id)
        return AsyncQueueItem(await self._driver.run(self._do.redrive(item_id)), self._do, self._driver)

    async def put(self, name: str, *, concurrency: Number = KEEP, rate_per_second: Rate = KEEP) -> QueueSettings:
        """Set limits of a named queue over all workspaces, and return its settings. A limit that is not given stays.

        - ``name``: the queue's name.
        - ``concurrency``: how many of its items run at once; None: no limit.
        - ``rate_per_second``: how many of its items start in a second; None: no limit.

        Raise ``InvalidInput`` for a limit out of range, and ``Conflict`` if a hundred concurrent changes were first.
        """
        return await self._driver.run(self._do.change_queue(name, concurrency=concurrency, rate_per_second=rate_per_second))

    async def get(self, name: str = DEFAULT_QUEUE) -> QueueSettings:
        """Return the settings of a queue. A queue that was never set up has no limits.

        - ``name``: the queue's name.
        """
        return await self._driver.run(self._do.queue(name))

    async def pause(self, name: str = DEFAULT_QUEUE) -> QueueSettings:
        """Start no more items of a queue, and return its settings. Running executions continue.

        - ``name``: the queue's name.
        """
        return await self._driver.run(self._do.change_queue(name, is_paused=True))

    async def resume(self, name: str = DEFAULT_QUEUE) -> QueueSettings:
        """Start items of a paused queue again, and return its settings.

        - ``name``: the queue's name.
        """
        return await self._driver.run(self._do.change_queue(name, is_paused=False))

    async def drain(self, name: str = DEFAULT_QUEUE, timeout: Span | None = None) -> bool:
        """Pause a queue and wait until none of its items runs; return False if some still run after ``timeout``.

        The queue stays paused, either way: ``resume`` lets it start items again.

        - ``name``: the queue's name.
        - ``timeout``: how long to wait; None without a limit.
        """
        return await self._driver.run(self._do.drain(name, timeout_seconds(timeout)))

    async def stats(self, workspace: Id | None = None) -> builtins.list[LaneStats]:
        """Return depth, running items, capacity and waiting times of each pair of workspace and queue.

        - ``workspace``: only lanes of this workspace.
        """
        workspace = id_text(workspace)
        return await self._driver.run(self._do.stats(workspace))

    async def demand(self) -> Demand:
        """Return how much work there is for workers: the signal for autoscaling."""
        return await self._driver.run(self._do.demand())

    async def metrics(self) -> str:
        """Return the statistics of the queue in the text format of Prometheus."""
        return await self._driver.run(self._do.metrics())

    async def workers(self) -> builtins.list[WorkerPresence]:
        """Return the workers that take items from the queue. One whose stored row is damaged is left out, and named in the log."""
        return await self._driver.run(self._do.workers())

    async def drain_worker(self, name: str) -> WorkerPresence:
        """Ask a worker to take nothing more and to hand back what it runs, and return it. It sees that at its next heartbeat.

        Steps under way end first, and are recorded. The process stays, and can be stopped when nothing ``running`` is left.

        - ``name``: the worker, as ``workers`` lists it.

        Raise ``NotFound`` if there is none, and ``InvalidInput`` for one that serves Temporal.
        """
        return await self._driver.run(self._do.drain_worker(name, is_wanted=True))

    async def resume_worker(self, name: str) -> WorkerPresence:
        """Ask a draining worker to take work again, and return it. It sees that at its next heartbeat.

        - ``name``: the worker, as ``workers`` lists it.

        Raise ``NotFound`` if there is none, and ``InvalidInput`` for one that serves Temporal.
        """
        return await self._driver.run(self._do.drain_worker(name, is_wanted=False))

    async def worker_leases(self, name: str) -> builtins.list[LeasedRun]:
        """Return the executions that a worker has, among the newest 20,000 that run. Also of a worker that is not listed any more.

        - ``name``: the worker.
        """
        return await self._driver.run(self._do.leases_of(name))

    async def mark_worker_dead(self, name: str, *, force: bool = False) -> builtins.list[str]:
        """Release the executions of a worker that is gone, so that others take them before its leases expire; return their ids.

        A worker that lives after all loses them: it can commit to none of them once another has taken it.

        - ``name``: the worker, also one that is not listed any more.
        - ``force``: True for one whose heartbeat still comes.

        Raise ``Conflict`` if its heartbeat still comes, and ``NotFound`` if there is no such worker and it has nothing.
        """
        return await self._driver.run(self._do.mark_worker_dead(name, is_forced=force))

    async def why(self, item_id: Id) -> WaitingReason:
        """Return why an item waits: codes, the strongest first, and a message.

        - ``item_id``: the item.

        Raise ``NotFound`` if there is no such item.
        """
        item_id = id_text(item_id)
        return await self._driver.run(self._do.why(item_id))

    async def recover(self) -> builtins.list[str]:
        """Return items whose dispatcher died to the queue now, and return the ids of these items.

        Workers do it regularly.
        """
        return await self._driver.run(self._do.recover())


class AsyncQueueItem(ItemHandle, Generic[Result_co]):
    """The handle of a queue item, as ``enqueue`` returns it.

    ``item_id``, ``execution_id`` and ``status`` are as of the last call; ``is_new`` is False if the item existed before the
    request. Calls raise ``NotFound`` after the item was dropped at the end of its retention.
    """

    def __init__(self, answer: Enqueued, operations: QueueOperations, driver: AsyncDriver, workflow: object = None) -> None:
        super().__init__(answer)
        self._do, self._driver, self._workflow = operations, driver, workflow

    def run(self) -> AsyncRun[Result_co]:
        """Return the handle of the item's execution, which exists once the item was dispatched."""
        return AsyncRun(self._do.run(self.execution_id, self._workflow), self._driver)

    async def state(self) -> ItemSummary:
        """Return the item as it is now, and update ``status`` and ``execution_id``."""
        item = await self._driver.run(self._do.item(self.item_id))
        self._update(item)
        return ItemSummary.of(item)

    async def refresh(self) -> AsyncQueueItem[Result_co]:
        """Update ``status`` and ``execution_id``, and return this handle."""
        await self.state()
        return self

    async def result(self, timeout: Span | None = None) -> Result_co:
        """Wait until the item was dispatched and its execution has ended, and return the workflow's result.

        - ``timeout``: how long to wait; None without a limit.

        Raise ``ExecutionFailed`` or ``ExecutionCancelled`` if it ended so, and ``TimeoutError`` if it did not end in time: it
        continues.
        """
        seconds = timeout_seconds(timeout)
        return await self._driver.run(self._do.result(self.item_id, self.execution_id, self._workflow, seconds))

    async def cancel(self) -> ItemSummary:
        """Cancel the item, and return it as it is afterwards.

        A waiting item ends at once. A running execution is sent a cancel request.
        """
        item = await self._driver.run(self._do.cancel(self.item_id))
        self._update(item)
        return ItemSummary.of(item)

    async def why(self) -> WaitingReason:
        """Return why the item waits: codes, the strongest first, and a message."""
        return await self._driver.run(self._do.why(self.item_id))

    def __repr__(self) -> str:
        return f"<AsyncQueueItem {self.item_id!r} {self.status}>"

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, ATTRIBUTES)


class AsyncWorkspaces:
    """The workspaces of a store and their tiers: ``well.workspaces``.

    Concurrent changes of different settings all land. A change that loses a hundred races in a row raises ``Conflict``.
    """

    def __init__(self, operations: WorkspaceOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def put(self, workspace_id: Id, *, tier: str | None = None, is_paused: bool | None = None) -> Workspace:
        """Create a workspace, or change what is given of it; return it.

        - ``workspace_id``: the workspace.
        - ``tier``: the tier that sets its limits; a new workspace has ``free``.
        - ``is_paused``: True to start none of its items.

        Raise ``NotFound`` for an unknown tier.
        """
        workspace_id = id_text(workspace_id)
        return await self._driver.run(self._do.put(workspace_id, tier, is_paused))

    async def get(self, workspace_id: Id) -> Workspace:
        """Return a workspace.

        - ``workspace_id``: the workspace.

        Raise ``NotFound`` if there is none.
        """
        workspace_id = id_text(workspace_id)
        return await self._driver.run(self._do.get(workspace_id))

    async def list(self) -> list[Workspace]:
        """Return all workspaces, sorted by id."""
        return await self._driver.run(self._do.all())

    async def pause(self, workspace_id: Id) -> Workspace:
        """Start no more items of a workspace, and return it. Running executions continue.

        - ``workspace_id``: the workspace.

        Raise ``NotFound`` if there is none.
        """
        workspace_id = id_text(workspace_id)
        return await self._driver.run(self._do.pause(workspace_id, is_paused=True))

    async def resume(self, workspace_id: Id) -> Workspace:
        """Start items of a paused workspace again, and return it.

        - ``workspace_id``: the workspace.

        Raise ``NotFound`` if there is none.
        """
        workspace_id = id_text(workspace_id)
        return await self._driver.run(self._do.pause(workspace_id, is_paused=False))

    async def override(self, workspace_id: Id, limit: str, value: float | str | None, *, span: Span, reason: str = "") -> Workspace:
        """Give a workspace another limit than its tier's for a while, and return the workspace. It ends by itself.

        - ``workspace_id``: the workspace.
        - ``limit``: ``concurrency``, ``weight``, ``rate_per_second``, ``queue_depth``, ``state_bytes``, ``state_keys``,
          ``workflow_state_bytes``, ``workflow_state_keys``, ``retention_seconds`` or ``child_concurrency``.
        - ``value``: the limit; None means no limit. One in bytes may be a text such as ``"2GiB"``, ``retention_seconds`` one
          such as ``"30d"``.
        - ``span``: how long it holds from now, by the store's clock. A second override of a limit replaces the first.
        - ``reason``: why, for others who look at the workspace.

        Raise ``NotFound`` if there is no such workspace, and ``InvalidInput`` for an unknown limit or a value out of range.

        Example:

            await well.workspaces.override("acme", "state_bytes", "2GiB", span="7d", reason="import of May")
        """
        workspace_id = id_text(workspace_id)
        return await self._driver.run(self._do.override(workspace_id, limit, value, span, reason))

    async def end_override(self, workspace_id: Id, limit: str) -> Workspace:
        """End the override of a limit now, if there is one, and return the workspace.

        - ``workspace_id``: the workspace.
        - ``limit``: the name of the limit, as for ``override``.

        Raise ``NotFound`` if there is no such workspace, and ``InvalidInput`` for an unknown limit.
        """
        workspace_id = id_text(workspace_id)
        return await self._driver.run(self._do.end_override(workspace_id, limit))

    async def tiers(self) -> list[Tier]:
        """Return all tiers, sorted by name."""
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
        child_concurrency: Number = KEEP,
        state_keys: Number = KEEP,
        workflow_state_bytes: Number = KEEP,
        workflow_state_keys: Number = KEEP,
    ) -> Tier:
        """Create a tier, or change what is given of it, at once for all its workspaces; return it. None means no limit.

        - ``name``: the tier's name, in small letters.
        - ``concurrency``: how many executions of a workspace run at once.
        - ``weight``: the workspace's share when workers are scarce, 0.001 to 1,000,000.
        - ``rate_per_second``: how many items of a workspace start in a second.
        - ``queue_depth``: how many items of a workspace may wait.
        - ``state_bytes``: how large a workspace's scoped state may be.
        - ``retention_seconds``: how long ended items are kept.
        - ``child_concurrency``: how many children run at once below one root; 100 for a new tier.
        - ``state_keys``: how many keys a workspace's scoped state may have.
        - ``workflow_state_bytes``, ``workflow_state_keys``: the same of each workflow in it: its scope and its steps'.

        Raise ``InvalidInput`` for a setting out of range.
        """
        given = {
            "concurrency": concurrency,
            "weight": weight,
            "rate_per_second": rate_per_second,
            "queue_depth": queue_depth,
            "state_bytes": state_bytes,
            "retention_seconds": retention_seconds,
            "child_concurrency": child_concurrency,
            "state_keys": state_keys,
            "workflow_state_bytes": workflow_state_bytes,
            "workflow_state_keys": workflow_state_keys,
        }
        return await self._driver.run(self._do.put_tier(name, given))


class AsyncSchedules:
    """The schedules of a store: ``well.schedules``. Each tick enqueues one item.

    Calls raise ``NotFound`` for a schedule that does not exist and ``Corrupted`` for one that cannot be read.
    """

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
        workspace: Id = DEFAULT_WORKSPACE,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        max_attempts: int = 3,
        engine: str | None = None,
        governance: Governance | None = None,
    ) -> ScheduleSummary:
        """Create or replace a schedule, and return it.

        With unchanged times it keeps its position. Give one of ``cron``, ``every`` and ``at``.

        - ``name``: the schedule's name.
        - ``workflow``, ``value``, ``workspace``, ``queue``, ``priority``, ``max_attempts``, ``governance``: as for
          ``enqueue``.
        - ``engine``: ``"temporal"`` for runs on Temporal; by default as ``choose_engine`` says at each tick.
        - ``cron``: five or six fields, or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``.
        - ``zone``: the time zone of ``cron``, such as ``Europe/Berlin``; UTC by default.
        - ``every``: an interval of at least 100 ms.
        - ``at``: one moment, an aware datetime.
        - ``catch_up``: which ticks to fire that were missed while no worker ran: ``none``, the ``last``, or ``all``.

        Raise ``InvalidInput`` for times that never come, and ``NotFound`` for an unknown workspace or workflow.

        Example:

            await well.schedules.put("nightly", report, cron="0 3 * * *", zone="Europe/Berlin", catch_up="last")
        """
        workspace = id_text(workspace)
        request = QueueRequest(
            workflow=workflow,
            value=value,
            workspace=workspace,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            engine=engine,
            governance=governance,
        )
        return ScheduleSummary.of(await self._driver.run(self._do.put(name, request, cron, zone, every, at, catch_up)))

    async def get(self, name: str) -> ScheduleSummary:
        """Return a schedule.

        - ``name``: the schedule's name.
        """
        return ScheduleSummary.of(await self._driver.run(self._do.get(name)))

    async def list(self) -> list[ScheduleSummary]:
        """Return all schedules, sorted by name. Those that cannot be read are left out, and named in the log."""
        return [ScheduleSummary.of(each) for each in await self._driver.run(self._do.all())]

    async def delete(self, name: str) -> bool:
        """Delete a schedule; return whether it existed. Items that it enqueued stay.

        - ``name``: the schedule's name.
        """
        return await self._driver.run(self._do.delete(name))

    async def pause(self, name: str) -> ScheduleSummary:
        """Fire no more ticks of a schedule until it is resumed, and return it.

        - ``name``: the schedule's name.
        """
        return ScheduleSummary.of(await self._driver.run(self._do.pause(name, is_paused=True)))

    async def resume(self, name: str) -> ScheduleSummary:
        """Fire the ticks of a paused schedule again, and return it. ``catch_up`` decides about the missed ones.

        - ``name``: the schedule's name.
        """
        return ScheduleSummary.of(await self._driver.run(self._do.pause(name, is_paused=False)))

    async def run_now(self, name: str) -> AsyncQueueItem[Any]:
        """Enqueue one item in addition to the ticks, and return its handle.

        - ``name``: the schedule's name.

        Raise the errors of ``enqueue``.
        """
        return AsyncQueueItem(await self._driver.run(self._do.run_now(name)), self._queue, self._driver)

    async def backfill(self, name: str, start: datetime, end: datetime) -> builtins.list[AsyncQueueItem[Any]]:
        """Enqueue an item for every tick from ``start`` to ``end``, both included, and return their handles.

        A tick that was fired before returns its item. Raise ``InvalidInput`` for more than 10,000 ticks, and the errors of
        ``enqueue``.

        - ``name``: the schedule's name.
        - ``start``, ``end``: aware datetimes.
        """
        answers = await self._driver.run(self._do.backfill(name, start, end))
        return [AsyncQueueItem(answer, self._queue, self._driver) for answer in answers]

    async def ticks(self, name: str, start: datetime, end: datetime) -> builtins.list[datetime]:
        """Return every tick between two moments, both included: what a backfill would enqueue. Nothing is enqueued.

        - ``name``: the schedule's name.
        - ``start``, ``end``: aware datetimes.

        Raise ``InvalidInput`` for more than 10,000 ticks.
        """
        return await self._driver.run(self._do.ticks(name, start, end))

    async def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """Return the next moments at which a schedule fires.

        - ``name``: the schedule's name.
        - ``count``: how many, 1 to 1,000.
        """
        return await self._driver.run(self._do.next(name, count))
