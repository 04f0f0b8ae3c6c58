"""Services of the process for sessions and steps: time, ids, limits, threads, state, messages, workflows and children."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, Conflict, StepwellError
from stepwell.flow.function import Workflow
from stepwell.flow.language.template import StateKey
from stepwell.model.execution_state import ExecutionState
from stepwell.model.ids import NewId
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Tier, limits_by_workspace
from stepwell.model.record import Metadata
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.status import FINAL, Status
from stepwell.model.value import Value
from stepwell.pipeline.notifications import Notifications
from stepwell.pipeline.operations import AsyncDriver, read, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.runtime.child_places import PlaceRecords
from stepwell.runtime.inbox import Message, fresh_key, messages, path_of
from stepwell.runtime.known_workflows import KnownWorkflows
from stepwell.runtime.run_end import run_end
from stepwell.runtime.run_retry import RunRetry
from stepwell.runtime.shutdown import HandBackRetry
from stepwell.runtime.start import LocalWorker, Seed, Starting, news_of_ended
from stepwell.runtime.steps.context import StepContext
from stepwell.runtime.steps.late_results import note
from stepwell.runtime.steps.process_pool import ProcessPool
from stepwell.runtime.steps.scoped_state import StateReading, read_state
from stepwell.runtime.steps.scripts import ScriptEngines
from stepwell.runtime.steps.step_process import StepProcess
from stepwell.state.executions import Executions
from stepwell.state.hooks import Hooks

__all__ = ["Services"]

log = logging.getLogger(__name__)

_MOST_STEP_THREADS = 64
_TIERS_KEPT_SECONDS = 1.0
"""How long the limits of workspaces are kept; a changed limit takes effect so much later."""


class Services:
    """The services of one worker to the sessions that it runs and to their steps.

    Args:
        worker: takes on children that are started here, if it has room.
        concurrency: how many executions run at once, each of which may need a thread for its code.
    """

    def __init__(
        self,
        *,
        store: Store,
        executions: Executions,
        driver: AsyncDriver,
        notifications: Notifications,
        workflows: KnownWorkflows,
        clock: Clock,
        limits: Limits,
        new_id: NewId,
        worker: LocalWorker,
        concurrency: int,
    ) -> None:
        self._store, self._executions, self._driver, self._worker, self._notifications = (
            store,
            executions,
            driver,
            worker,
            notifications,
        )
        self.workflows, self.clock, self.limits, self.new_id = workflows, clock, limits, new_id
        # Two pools, since the code of plain workflows holds its thread while it waits for steps that need one.
        self.code_threads: Executor = ThreadPoolExecutor(concurrency, thread_name_prefix="stepwell-code")
        self.step_threads: Executor = ThreadPoolExecutor(min(concurrency, _MOST_STEP_THREADS), thread_name_prefix="stepwell-step")
        self._processes: ProcessPool[StepProcess] | None = None
        self.hooks: Hooks = executions.hooks
        """The hooks of this process."""
        self.scripts = ScriptEngines(limits)
        """The engines that run scripts."""
        self.state_reading = StateReading(store, driver)
        self.child_places = PlaceRecords(store, driver)
        self.hand_back_retry = HandBackRetry()
        self._notes: set[asyncio.Task[None]] = set()
        self._tiers: dict[str, Tier] = {}
        self._tiers_until, self._tiers_lock = 0.0, asyncio.Lock()
        self.suspected_steps = asyncio.Lock()
        """Held by a step that may bring down the worker: others that may, too, wait until it has ended."""

    @property
    def processes(self) -> ProcessPool[StepProcess]:
        """Processes for steps that ask for one, made when the first does."""
        if self._processes is None:
            self._processes = ProcessPool(StepProcess)
        return self._processes

    async def messages(self, execution_id: str, workspace_id: str) -> list[Message]:
        """Return the messages in an execution's inbox."""
        path = path_of(execution_id, workspace_id)
        return messages(await self._driver.run(read(lambda: list(all_entries(self._store, path)))))

    async def read_state(self, keys: Sequence[StateKey], identity: Metadata) -> Value:
        """Return scoped state as templates see it: by scope, for some scopes by name, and by key."""
        return await self._driver.run(read_state(self._store, keys, identity))

    def note_late_result(self, context: StepContext) -> None:
        """Note that a step ended after its call had been given up. Its result is discarded."""
        log.info("the late result of step %r of execution %r is discarded", context.recorded_as, context.execution_id)
        task = asyncio.get_running_loop().create_task(self._note_late_result(context))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _note_late_result(self, context: StepContext) -> None:
        who, at_ms, key = context.identity, self.clock.now_ms(), fresh_key(self.new_id())
        try:
            await self._driver.run(
                write_or_raise(note(who.execution_id, who.workspace_id, context.recorded_as, context.attempt, at_ms, key))
            )
        except StepwellError as error:
            log.warning("a late result of execution %r is in the log only: %s", who.execution_id, error)

    async def child_concurrency(self, workspace_id: str) -> int | None:
        """Return how many children may run at once below one root now; None for no limit, as in the default workspace."""
        if workspace_id == DEFAULT_WORKSPACE:
            return None
        async with self._tiers_lock:  # which keeps the calls of children in order, too
            # A workspace that is missing may be newer than what was read, and must not be unlimited until the next reading.
            if time.monotonic() >= self._tiers_until or workspace_id not in self._tiers:
                store = self._store
                self._tiers = await self._driver.run(
                    read(lambda: limits_by_workspace(store.workspaces(), store.tiers(), store.now_ms()))
                )
                self._tiers_until = time.monotonic() + _TIERS_KEPT_SECONDS
        tier = self._tiers.get(workspace_id)
        return None if tier is None else tier.child_concurrency

    async def existing(self, execution_ids: Sequence[str]) -> set[str]:
        """Return those of some executions that exist."""
        digests = await self._driver.run(read(lambda: self._store.head_digests(execution_ids)))
        return {execution_id for execution_id, digest in zip(execution_ids, digests, strict=True) if digest is not None}

    async def start_child(
        self,
        workflow: Workflow[..., Any],
        value: Value,
        child_id: str,
        parent: Metadata,
        seed: Seed | None = None,
        *,
        is_detached: bool = False,
        is_again: bool = False,
    ) -> Value:
        """Start a child execution, unless it was started before; return its result if it has ended, else None.

        With ``is_again``, a child that has failed is retried in place.

        Raises:
            AlreadyExists: the id is that of an execution which is no child of this parent.
            LimitExceeded: the parent is nested too deeply.
        """
        starting = Starting(self._executions, self.clock, self.new_id)
        try:
            await self._driver.run(
                starting.start(
                    workflow,
                    value,
                    child_id,
                    parent.workspace_id,
                    parent=parent,
                    is_detached=is_detached,
                    seed=seed,
                    worker=self._worker,
                )
            )
        except AlreadyExists:
            found = await self._driver.run(self._executions.load(child_id))
            if not found.identity.is_child or found.identity.parent_id != parent.execution_id:
                raise
            if is_again and found.status is Status.FAILED:
                found = await self._retried_child(child_id)
            return news_of_ended(found) if found.status in FINAL else None
        return None

    async def _retried_child(self, child_id: str) -> ExecutionState:
        """Retry a failed child and return its state. One that cannot be retried (it was compensated meanwhile) stays failed."""
        with suppress(Conflict):
            await self._driver.run(RunRetry(self._executions, self.new_id, self.workflows.definitions).retry(child_id))
        return await self._driver.run(self._executions.load(child_id))

    def room_lent(self) -> AbstractContextManager[None]:
        """Let the worker run one more execution while a step waits for one; else all its room could be taken by such steps."""
        return self._worker.room_lent()

    async def ended(self, execution_id: str) -> ExecutionState:
        """Wait for the end of an execution and return its state."""
        await self._driver.run(run_end(self._executions, self._notifications, execution_id, None))
        return await self._driver.run(self._executions.load(execution_id))

    def close(self) -> None:
        """End the threads and processes, without waiting for steps that are inside one."""
        self.step_threads.shutdown(wait=False)
        self.code_threads.shutdown(wait=False)
        if self._processes is not None:
            self._processes.close()
        self.scripts.close()
