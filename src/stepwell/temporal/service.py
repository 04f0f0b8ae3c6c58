"""A process that serves Temporal: workers of its task queues, the dispatcher, and the tasks beside them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Worker,
    WorkerDeploymentConfig,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from stepwell.errors import EngineUnavailable
from stepwell.model.external_engines import WORKFLOWS_QUEUE
from stepwell.pipeline.notifications import Notifications
from stepwell.queue.requests import workspace_queue
from stepwell.runtime.sessions.call_positions import follow_tasks
from stepwell.runtime.shutdown import Companion
from stepwell.state.locks import LockOperations
from stepwell.temporal.activities import Activities
from stepwell.temporal.connection import TemporalConnection
from stepwell.temporal.host import TemporalHost
from stepwell.temporal.naming import EXTERNAL_API_QUEUE
from stepwell.temporal.run_watch import SWEEP_SECONDS, RunStarter, RunSweep
from stepwell.temporal.workflow import StepwellWorkflow, WorkflowHost, workflow_host

__all__ = ["HostInterceptor", "TemporalService"]

log = logging.getLogger(__name__)

_TASKS_PER_CORE = 2
"""Workflow tasks at once: after a restart many are replayed, and each that takes two seconds is given up and run again."""


class HostInterceptor(Interceptor):
    """Gives the workflows of one worker their host."""

    def __init__(self, host: WorkflowHost) -> None:
        self._host = host

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: ARG002
        """Return the interceptor of each workflow."""
        host = self._host

        class GivesHost(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                workflow_host.set(host)
                return await super().execute_workflow(input)

        return GivesHost


class TemporalService:
    """Runs workers on the task queues, and beside them the tasks that move executions to Temporal.

    Args:
        workspaces: those whose own task queues are served, beside the queue of all.
        concurrency: how many steps run at once on each task queue.
        grace_seconds: how long steps under way may take when this process stops.
        cached: how many workflows are kept in memory between their tasks.
        deployment: the name and the build id of a worker deployment; None without versioning.
    """

    def __init__(
        self,
        host: TemporalHost,
        connection: TemporalConnection,
        *,
        notifications: Notifications,
        locks: LockOperations,
        workspaces: Sequence[str] = (),
        concurrency: int = 100,
        cached: int = 1_000,
        deployment: tuple[str, str] | None = None,
        grace_seconds: float = 30.0,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self._host, self._connection = host, connection
        self._concurrency, self._cached, self._deployment = concurrency, cached, deployment
        self._grace_seconds = grace_seconds
        self._stop_requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.is_stopping = False
        starter = RunStarter(host, connection, notifications)
        self.wake_starter = starter.wake
        """Wakes the task that starts what is recorded for Temporal."""
        activities = Activities(host, starter.wake)
        queues = [WORKFLOWS_QUEUE, *map(workspace_queue, workspaces)]
        self._workers = [self._worker(queue, activities) for queue in queues]
        self._workers.append(self._worker(EXTERNAL_API_QUEUE, activities, has_workflows=False))
        self.companions: list[Companion] = [starter, RunSweep(host, connection, locks, sweep_seconds)]

    def stop(self, grace_seconds: float | None = None) -> None:  # noqa: ARG002 - Temporal's workers get it at their start
        """Take no more tasks; steps under way have their grace to end, then other workers run them again. From any thread."""
        self.is_stopping = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop_requested.set)

    async def run(self) -> None:
        """Serve until stopped."""
        follow_tasks(self._loop)
        workers = self._workers
        running = [asyncio.ensure_future(worker.run()) for worker in workers]
        beside = [asyncio.ensure_future(each.run()) for each in self.companions]
        stopping = asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait([*running, stopping], return_when=asyncio.FIRST_COMPLETED)
            for worker in running:
                if worker.done() and worker.exception() is not None:
                    raise EngineUnavailable(f"the worker on {self._connection.address} stopped: {worker.exception()}")
        finally:
            self.is_stopping = True
            stopping.cancel()
            for each in self.companions:
                each.stop()
            await self._shut_down(workers, running)
            await asyncio.gather(*beside, return_exceptions=True)
            self._host.services.close()

    async def _shut_down(self, workers: list[Worker], running: Sequence[asyncio.Future[None]]) -> None:
        live = [worker for worker, task in zip(workers, running, strict=True) if not task.done()]
        await asyncio.gather(*(worker.shutdown() for worker in live), return_exceptions=True)
        await asyncio.gather(*running, return_exceptions=True)

    def _worker(self, queue: str, activities: Activities, *, has_workflows: bool = True) -> Worker:
        versioning = None
        if self._deployment is not None:
            name, build_id = self._deployment
            versioning = WorkerDeploymentConfig(
                version=WorkerDeploymentVersion(deployment_name=name, build_id=build_id),
                use_worker_versioning=True,
                default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
            )
        lease = self._host.lease_seconds
        return Worker(
            self._connection.client,
            task_queue=queue,
            workflows=[StepwellWorkflow] if has_workflows else [],
            activities=activities.all(),
            interceptors=[HostInterceptor(self._host)],
            max_cached_workflows=self._cached,
            # After this worker's death, its workflows' tasks wait so long for it before another one gets them.
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=min(lease, 10)),
            max_concurrent_workflow_tasks=max(_TASKS_PER_CORE * (os.cpu_count() or 1), 2) if self._cached else None,
            max_concurrent_activities=self._concurrency,
            # The SDK sends fewer heartbeats than it is given; it must not send fewer than the server waits for.
            max_heartbeat_throttle_interval=timedelta(seconds=lease / 2),
            default_heartbeat_throttle_interval=timedelta(seconds=lease / 2),
            graceful_shutdown_timeout=timedelta(seconds=self._grace_seconds),
            deployment_config=versioning,
        )
