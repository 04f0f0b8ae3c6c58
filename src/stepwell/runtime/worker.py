"""The worker: runs many executions at once in this process, keeps their leases, and takes over those that others left."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec

from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, LeaseLost, NotFound, StepwellError, StoreUnavailable
from stepwell.flow.program import Workflow, registered, registered_names
from stepwell.model.commit import ClaimDue, Extension, Head, Lease, Release, Rest, Written
from stepwell.model.ids import NewId
from stepwell.model.limits import Limits
from stepwell.model.mutation import SetResult, SetStatus
from stepwell.model.record import Metadata
from stepwell.model.status import Status
from stepwell.model.value import Value, canonical
from stepwell.runtime.branch import follow_tasks
from stepwell.runtime.inbox import Letter, letters, path_of
from stepwell.runtime.recorder import Recorder
from stepwell.runtime.session import ExecutionSession
from stepwell.runtime.start import Starting
from stepwell.state.executions import Executions
from stepwell.state.operation import AsyncDriver, read, write
from stepwell.state.pulse import DUE, Pulse

__all__ = ["Worker"]

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_RENEWALS_PER_LEASE = 3
_MOST_CRASHES = 3


class Worker:
    """Runs the executions of the workflows that this process has registered."""

    def __init__(
        self,
        *,
        store: Store,
        executions: Executions,
        driver: AsyncDriver,
        pulse: Pulse,
        clock: Clock,
        limits: Limits,
        new_id: NewId,
        concurrency: int,
        lease_seconds: float,
    ) -> None:
        self._store, self._executions, self._driver, self._pulse = store, executions, driver, pulse
        self.clock, self.limits, self.new_id = clock, limits, new_id
        self._concurrency, self.lease_seconds = concurrency, lease_seconds
        # Unique to this start of this process: one that restarts on the same host is somebody else.
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{new_id()}"
        # Apart, since the code of plain workflows holds its thread while it waits for steps that need one.
        self.code_threads: Executor = ThreadPoolExecutor(concurrency, thread_name_prefix="stepwell-code")
        self.threads: Executor = ThreadPoolExecutor(min(concurrency, 64), thread_name_prefix="stepwell-step")
        self._sessions: dict[str, ExecutionSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wakes: dict[str, int] = {}
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Work until stopped. A store that is away for a while is waited for."""
        self._loop = asyncio.get_running_loop()
        follow_tasks(self._loop)
        renewing = self._loop.create_task(self._renew_all())
        try:
            with self._pulse.listen(DUE) as listening:
                self._woken = listening.wake
                while not self._is_stopping:
                    try:
                        await self._claim()
                    except StepwellError as error:  # a lost reply, too: what was claimed unheard comes due again
                        log.warning("the worker could not claim from its store: %s", error)
                    await listening.wait_async(self._until_next_wake())
                    await self._look_all()
        finally:
            renewing.cancel()
            await self._drain()

    def stop(self) -> None:
        """Claim no more; sessions hand their executions back at their next wait or step. From any thread."""
        self._is_stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._woken)

    @property
    def has_room(self) -> bool:
        """Whether another execution can be run now."""
        return not self._is_stopping and self._loop is not None and len(self._sessions) < self._concurrency

    def take_on(self, lease: Lease) -> None:
        """Run an execution that was created with a lease for this worker. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._start, lease, True)

    # Claiming and running.

    async def _claim(self) -> None:
        free, names = self._concurrency - len(self._sessions), registered_names()
        if free <= 0 or not names:
            return
        outcome = await self._driver.run(write(ClaimDue(names, self.holder, self.lease_seconds, free)))
        if isinstance(outcome, StepwellError):
            raise outcome
        for lease in outcome.answers if isinstance(outcome, Written) else ():
            if isinstance(lease, Lease):
                self._start(lease)

    def _start(self, lease: Lease, is_new: bool = False) -> None:
        self._wakes.pop(lease.name, None)
        task = asyncio.ensure_future(self._run(lease, is_new))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, lease: Lease, is_new: bool) -> None:
        try:
            wake = await self._run_session(lease, is_new)
            if wake is not None:
                self._wakes[lease.name] = wake
        except (LeaseLost, NotFound) as error:
            log.warning("execution %r is no longer this worker's: %s", lease.name, error)
        except StoreUnavailable as error:
            log.warning("execution %r stopped, and goes on when its lease ends: %s", lease.name, error)
        except Exception:
            log.exception("execution %r could not be run; it is tried again when its lease ends", lease.name)
        finally:
            self._sessions.pop(lease.name, None)
            self._woken()

    async def _run_session(self, lease: Lease, is_new: bool) -> int | None:
        live = await self._driver.run(self._executions.newest(lease.name))
        recorder = Recorder(self._executions, self._driver, live, lease.fence, self.new_id)
        try:
            workflow = registered(live.state.identity.workflow_id)
        except NotFound:
            await self._driver.run(write(Release(lease.name, lease.holder, lease.fence)))
            return None
        if not is_new:
            head = await self._driver.run(self._executions.head(lease.name))
            if head.claims > _MOST_CRASHES:
                return await self._bury(recorder, head)
        session = ExecutionSession(self, workflow, recorder, lease, is_new=is_new)
        self._sessions[lease.name] = session
        return await session.run()

    async def _bury(self, recorder: Recorder, head: Head) -> None:
        message = f"the execution brought down its worker again and again, without a step in between: {head.claims} claims"
        result = SetResult(msgspec.Raw(canonical({"error": {"kind": "WorkerCrashed", "message": message, "code": None}})))
        await recorder.commit([result, SetStatus(Status.FAILED)], rest=Rest(None, is_final=True))

    # Keeping leases.

    async def _renew_all(self) -> None:
        while True:
            await asyncio.sleep(self.lease_seconds / _RENEWALS_PER_LEASE)
            await asyncio.gather(*(self._renew(session) for session in list(self._sessions.values())))

    async def _renew(self, session: ExecutionSession) -> None:
        lease = session.lease
        try:
            outcome = await self._driver.run(write(Extension(lease.name, lease.holder, lease.fence, self.lease_seconds)))
        except StepwellError as error:
            log.warning("the lease of execution %r could not be renewed: %s", lease.name, error)
            if self.clock.now_ms() > lease.until_ms - self.lease_seconds * 1000 / _RENEWALS_PER_LEASE:
                # Another worker may take over soon: stop before that, not after.
                session.lose(LeaseLost(f"the lease of execution {lease.name!r} could not be renewed in time", fence=lease.fence))
            return
        if isinstance(outcome, LeaseLost):
            session.lose(outcome)
        elif isinstance(outcome, Written) and isinstance(outcome.answers[0], Lease):
            session.lease = outcome.answers[0]

    # Waking and ending.

    def _until_next_wake(self) -> float:
        soonest = min(self._wakes.values(), default=None)
        if soonest is None:
            return _POLL_SECONDS
        left = (soonest - self.clock.now_ms()) / 1000
        if left <= 0:
            self._wakes = {name: wake for name, wake in self._wakes.items() if wake > self.clock.now_ms()}
        return min(max(left, 0.0), _POLL_SECONDS)

    async def _look_all(self) -> None:
        for session in list(self._sessions.values()):
            try:
                await session.look()
            except StoreUnavailable as error:
                log.warning("the inbox of execution %r could not be read: %s", session.execution_id, error)

    async def _drain(self) -> None:
        """Let sessions hand their executions back; those that are inside a step finish it first."""
        while self._tasks:
            for session in list(self._sessions.values()):
                session.hand_back()
            await asyncio.wait(self._tasks, timeout=0.05)
        self.threads.shutdown(wait=False)
        self.code_threads.shutdown(wait=False)

    # What sessions ask for.

    async def letters(self, execution_id: str, workspace_id: str) -> list[Letter]:
        """The messages in an execution's inbox."""
        path = path_of(execution_id, workspace_id)
        rows = await self._driver.run(read(lambda: self._store.scan(path)))
        return letters(rows)

    async def start_child(self, workflow: Workflow[..., Any], value: Value, child_id: str, parent: Metadata) -> None:
        """Start an execution for another one; nothing happens if it was started before."""
        starting = Starting(self._executions, self.clock)
        with suppress(AlreadyExists):
            await self._driver.run(
                starting.start(workflow, value, child_id, parent.workspace_id, parent_id=parent.execution_id, worker=self)
            )
