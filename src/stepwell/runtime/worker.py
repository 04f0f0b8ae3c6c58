"""The worker: runs many executions at once in this process, extends their leases, and takes over those of workers that died."""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from stepwell.contract.store import Store
from stepwell.errors import CommitUnknown, LeaseLost, NotFound, StepwellError, StoreUnavailable
from stepwell.flow.function import Workflow
from stepwell.model.commit import ClaimDue, Lease, Written
from stepwell.model.ids import NewId
from stepwell.model.limits import Limits
from stepwell.pipeline.notifications import DUE, Notifications, is_running
from stepwell.pipeline.operations import AsyncDriver, read, write
from stepwell.pipeline.store_clock import StoreClock
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.known_workflows import KnownWorkflows
from stepwell.runtime.lease_renewal import LeaseRenewal, monotonic
from stepwell.runtime.periodic import PeriodicTask
from stepwell.runtime.services import Services
from stepwell.runtime.session_loader import SessionLoader, session_of
from stepwell.runtime.sessions.call_positions import follow_tasks
from stepwell.runtime.sessions.execution_writer import ExecutionWriter
from stepwell.runtime.sessions.session import Session
from stepwell.runtime.shutdown import Companion, Shutdown
from stepwell.runtime.steps.attempt import Escaped
from stepwell.runtime.unwinding import Abandoned
from stepwell.state.executions import Executions

__all__ = ["WakeTimes", "Worker"]


log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_MOST_SURVIVED = 10_000

_MOST_TIMES = 1_000
"""How many times are kept. The others are in the store, where the poll finds them, at most a second late."""

Load = Callable[[], Awaitable[Session | None]]
"""Makes the session of an execution; returns None if the execution is not to be run."""


class _Claiming(PeriodicTask):
    """Claims due executions whenever some may have come due."""

    name = "the claiming of executions"

    def __init__(self, notifications: Notifications, work: Callable[[], Awaitable[float]]) -> None:
        super().__init__()
        self._notifications, self._claim = notifications, work

    async def run(self) -> None:
        with self._notifications.subscribed(DUE, self.wake):
            await super().run()

    async def work(self) -> float:
        return await self._claim()


class WakeTimes:
    """The soonest times at which something comes due."""

    def __init__(self) -> None:
        self._times: list[int] = []

    def __len__(self) -> int:
        return len(self._times)

    def add(self, wake_ms: int) -> None:
        """Remember a time."""
        heapq.heappush(self._times, wake_ms)
        if len(self._times) > 2 * _MOST_TIMES:
            self._times = heapq.nsmallest(_MOST_TIMES, self._times)

    def next_after(self, now_ms: int) -> int | None:
        """Return the next time to look, which is now if one has passed; times that have passed are forgotten."""
        has_passed = False
        while self._times and self._times[0] <= now_ms:
            heapq.heappop(self._times)
            has_passed = True
        if has_passed:
            return now_ms
        return self._times[0] if self._times else None


class Worker:
    """Runs the executions of the workflows that this process has registered."""

    def __init__(
        self,
        *,
        store: Store,
        executions: Executions,
        driver: AsyncDriver,
        notifications: Notifications,
        clock: StoreClock,
        limits: Limits,
        new_id: NewId,
        concurrency: int,
        lease_seconds: float,
        definitions: DefinitionOperations | None = None,
    ) -> None:
        self.workflows = KnownWorkflows(driver, definitions or DefinitionOperations(store))
        """The workflows that this worker can run."""
        self.services = Services(
            store=store,
            executions=executions,
            driver=driver,
            notifications=notifications,
            workflows=self.workflows,
            clock=clock,
            limits=limits,
            new_id=new_id,
            worker=self,
            concurrency=concurrency,
        )
        """The services that sessions and steps use."""
        self._loader = SessionLoader(executions, driver, self.services, new_id)
        self._store, self._executions, self._driver, self._notifications = store, executions, driver, notifications
        self._clock, self._concurrency, self.lease_seconds = clock, concurrency, lease_seconds
        # Unique to this start of this process: after a restart on the same host it is another holder.
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{new_id()}"
        self._sessions: dict[str, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._inside: set[asyncio.Task[Any] | None] = set()
        """The tasks that run code of executions."""
        self._kept: dict[str, tuple[int, float]] = {}
        """For each running execution the fence of its lease, and the time until which this is surely held, by
        ``time.monotonic``."""
        self._survived: set[str] = set()
        """Executions whose last session here did not give them back, since the store was away or the lease was lost. None of them
        has crashed this worker, which is alive."""
        self._wakes = WakeTimes()
        self.companions: list[Companion] = []
        self._has_more = False
        """Whether more executions may be due than the last claim had room for."""
        self._is_stopping, self._stop_requested = False, asyncio.Event()
        self.is_draining = False
        """Whether it takes nothing more for now."""
        self._grace_seconds: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._claiming = _Claiming(notifications, self._claim_and_look)

    async def run(self) -> None:
        """Work until stopped. Wait while the store is unavailable."""
        self._loop = asyncio.get_running_loop()
        follow_tasks(self._loop)
        keeping = self._loop.create_task(LeaseRenewal(self._driver, self.lease_seconds, self._sessions).run())
        # Claims have a task of their own: an unavailable store must not keep the worker from stopping.
        companions = [self._claiming, *self.companions]
        beside = [self._loop.create_task(each.run()) for each in companions]
        if self._is_stopping:  # stop() was called before this began, and found no loop to tell
            self._stop_requested.set()
        try:
            await self._stop_requested.wait()
        finally:
            self._is_stopping = True
            for each in companions:
                each.stop()
            await self._drain(beside)
            keeping.cancel()

    def stop(self, grace_seconds: float | None = None) -> None:
        """Claim no more, and have sessions hand their executions back at their next wait or step. From any thread.

        Args:
            grace_seconds: after so long, steps that are under way are abandoned, to run again elsewhere; None waits for them.
        """
        self._is_stopping, self._grace_seconds = True, grace_seconds
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop_requested.set)

    def set_draining(self, is_draining: bool) -> None:
        """Take nothing more, and have sessions hand their executions back at their next wait or step; or take work again.

        On the worker's loop.
        """
        if is_draining and not self.is_draining:
            log.info("this worker drains: it takes nothing more, and hands back what it runs")
            for session in list(self._sessions.values()):
                session.hand_back()
        self.is_draining = is_draining
        if not is_draining:
            self._claiming.wake()

    @contextmanager
    def room_lent(self) -> Generator[None]:
        """Run one execution more while a step of a running one waits for another execution. On the worker's loop."""
        self._concurrency += 1
        self._claiming.wake()
        try:
            yield
        finally:
            self._concurrency -= 1

    @property
    def is_stopping(self) -> bool:
        """True once ``stop`` was called."""
        return self._is_stopping

    @property
    def has_room(self) -> bool:
        """True if another execution can be run now."""
        is_closed = self._is_stopping or self.is_draining
        return not is_closed and self._loop is not None and len(self._sessions) < self._concurrency

    @property
    def held(self) -> int:
        """Return how many executions this worker has leased now."""
        return len(self._sessions)

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions that run now, by the ids of their executions."""
        return self._sessions

    def is_alone_with_one(self) -> bool:
        """Return whether a single execution is being run, outside of a step, so that its next commit is all there is to do.

        False while the worker stops, since then a grace has to be watched.
        """
        if self._is_stopping or len(self._tasks) != 1:
            return False
        return not any(session.is_running_steps for session in self._sessions.values())

    @property
    def room(self) -> int:
        """The number of executions that can be started now."""
        return 0 if self._is_stopping or self.is_draining else max(self._concurrency - len(self._tasks), 0)

    def run_new(self, writer: ExecutionWriter, lease: Lease, workflow: Workflow[..., Any], ended: Callable[[], None]) -> None:
        """Run an execution that its writer creates with the first commit, and call ``ended`` after that. On the worker's loop."""

        async def load() -> Session:
            return session_of(self.services, workflow, writer, lease, is_new=True)

        self._start(lease, self._run(lease, load, ended))

    def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the sessions; the worker awaits it before it ends. On the worker's loop."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abandon(self, execution_id: str, error: LeaseLost) -> None:
        """Stop a session whose execution is not this worker's to run."""
        session = self._sessions.get(execution_id)
        if session is not None:
            session.lose(error)

    def run_leased(self, lease: Lease, *, is_new: bool = True) -> None:
        """Run an execution that was created with a lease for this worker. From any thread.

        Args:
            is_new: whether its inbox is surely empty.
        """
        if self._loop is not None:
            self._executions.endings.begin(lease.name)
            if is_running(self._loop):
                self._run_leased(lease, is_new)
            else:
                self._loop.call_soon_threadsafe(self._run_leased, lease, is_new)

    def _run_leased(self, lease: Lease, is_new: bool) -> None:
        if lease.name not in self._kept:  # else it was started twice, because the reply to the first start was lost
            self._start(lease, self._run(lease, partial(self._load, lease, is_new=is_new)))

    # Claiming and running.

    async def _claim_and_look(self) -> float:
        """Claim due executions, and read the inboxes of running ones; return the seconds until the next time."""
        try:
            await self._claim()  # after a lost reply, the executions that were claimed come due again
        finally:
            await self._look_all()  # also while nothing can be claimed
        return self._until_next_wake()

    async def _claim(self) -> None:
        # A tenth more than the concurrency, so that executions resume even while the queue has many new ones.
        most = self._concurrency + max(1, self._concurrency // 10)
        free = most - len(self._tasks)
        versions = await self.workflows.versions()
        self._has_more = free <= 0
        if (
            free <= 0 or not versions or self._is_stopping or self.is_draining
        ):  # a stopping worker would claim again what it hands back
            return
        asked = monotonic()
        claim = ClaimDue(tuple(versions), self.holder, self.lease_seconds, free, tuple(versions.values()))
        outcome = await self._driver.run(write(claim))
        if isinstance(outcome, StepwellError):
            raise outcome
        leases = [lease for lease in (outcome.answers if isinstance(outcome, Written) else ()) if isinstance(lease, Lease)]
        self._has_more = len(leases) >= free
        for lease in leases:
            self._start(lease, self._run(lease, partial(self._load, lease)), asked)

    def _start(self, lease: Lease, work: Coroutine[Any, Any, None], asked: float | None = None) -> None:
        older = self._sessions.pop(lease.name, None)
        if older is not None:
            # Its lease has expired, or the store had granted no other. With both sessions left, the end of one would count as the
            # other's.
            self._survived.add(lease.name)
            older.lose(LeaseLost(f"the lease of {lease.name!r} has ended, and was given anew", fence=older.lease.fence))
        self._kept[lease.name] = lease.fence, (asked or monotonic()) + self.lease_seconds
        self._executions.endings.begin(lease.name)
        # The task removes itself: a done callback would cost one more callback of the loop for every run.
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def _run(self, lease: Lease, load: Load, ended: Callable[[], None] | None = None) -> None:
        """Run an execution until it ends or rests. Load it here, so that a failure to load is logged like one of the session."""
        wake, session, task = None, None, asyncio.current_task()
        assert task is not None  # noqa: S101 - it is one
        try:
            session = await load()
            if session is not None:
                session.kept_until = self._kept[lease.name][1]
                self._sessions[lease.name] = session
                if self._is_stopping or self.is_draining:
                    session.hand_back()
                self._inside.add(task)
                wake = await session.run()
                if wake is not None:
                    self._wakes.add(wake)
        except (Exception, GeneratorExit) as error:
            if asyncio.current_task() is not task:
                raise  # the loop is gone, and this coroutine is closed
            if session is None or not await _was_closed_from_inside(session, error):
                _log_end(lease.name, error)
                if len(self._survived) < _MOST_SURVIVED:
                    self._survived.add(lease.name)
        finally:
            self._inside.discard(task)
            self._tasks.discard(task)
            self._let_go(lease.name, lease.fence)
            if ended is not None:
                ended()
            if self._has_more or wake is not None:
                self._claiming.wake()

    def _let_go(self, execution_id: str, fence: int) -> None:
        if execution_id in self._kept and self._kept[execution_id][0] == fence:
            self._sessions.pop(execution_id, None)
            self._kept.pop(execution_id, None)
            self._executions.endings.stop(execution_id)

    async def _load(self, lease: Lease, *, is_new: bool = False) -> Session | None:
        """Load the session of an execution; None if the execution is left to others, or was given up."""
        kept_until = self._kept[lease.name][1]
        try:
            found = await self._loader.load(lease, is_new=is_new)
        except (StoreUnavailable, CommitUnknown):
            retry = self.services.hand_back_retry
            found = await retry.keep_trying(lambda: self._loader.load(lease, is_new=is_new), lambda: kept_until)
        if found is None:
            return None
        session, claims = found
        is_forgiven = lease.name in self._survived
        self._survived.discard(lease.name)
        message = None if is_new else session.suspect(claims, is_forgiven=is_forgiven)
        if message is not None:
            session.kept_until = kept_until
            await session.give_up("WorkerCrashed", message)
            return None
        return session

    @property
    def failures(self) -> list[str]:
        """Messages about its tasks that fail now."""
        tasks = [self._claiming, *self.companions]
        return [f"{each.name} failed, and tries again: {each.failure}" for each in tasks if each.failure is not None]

    # Waking and ending.

    def _until_next_wake(self) -> float:
        # A claim that comes a moment too early finds nothing, and the next one is that of the poll.
        now = self._clock.now_ms() - self._clock.early_ms
        soonest = self._wakes.next_after(now)
        return _POLL_SECONDS if soonest is None else min((soonest - now) / 1000, _POLL_SECONDS)

    async def _look_all(self) -> None:
        """Read the inboxes of running executions that were nudged."""
        if not self._sessions:
            return
        names = list(self._sessions)
        nudged = await self._driver.run(read(lambda: self._store.nudged(names)))
        sessions = (self._sessions.get(name) for name in nudged)
        await asyncio.gather(*(session.look() for session in sessions if session is not None))

    async def _drain(self, beside: list[asyncio.Task[None]]) -> None:
        draining = Shutdown(self._sessions, self.services.hand_back_retry, lambda: self._grace_seconds)
        await draining.run(lambda: self._tasks, self._inside, beside)
        self.services.close()


async def _was_closed_from_inside(session: Session, error: BaseException) -> bool:
    """Return whether a task of the execution's code raised ``GeneratorExit``; then the execution ends as FAILED.

    Python closes all coroutines above the one that awaited such a task, up to the worker's, so the session cannot handle it.
    Without an end, the execution would come back with every lease, and make its steps again.
    """
    if not (isinstance(error, GeneratorExit) or (type(error) is RuntimeError and str(error).endswith("ignored GeneratorExit"))):
        return False
    try:
        await session.break_down(Escaped(GeneratorExit()))
    except (StepwellError, Abandoned) as refused:
        log.warning("execution %r could not be ended, and is tried again when its lease ends: %s", session.execution_id, refused)
    return True


def _log_end(execution_id: str, error: BaseException) -> None:
    """Log why a session ended early."""
    match error:
        case LeaseLost() | NotFound():
            log.warning("execution %r is no longer this worker's: %s", execution_id, error)
        case StoreUnavailable():
            log.warning("execution %r stopped, and goes on when its lease ends: %s", execution_id, error)
        case _:
            log.error("execution %r could not be run; it is tried again when its lease ends", execution_id, exc_info=error)
