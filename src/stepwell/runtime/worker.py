"""The repertoire of a worker: the workflows that it can run, as functions of its process or as stored definitions.

When executions that rested here want to be woken: the soonest of them, so that timers are on time without a poll.

Taking an execution up: what its session needs to know before it runs, or why it is left to others.

The worker: runs many executions at once in this process, keeps their leases, and takes over those that others left.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, CommitUnknown, LeaseLost, NotFound, StepwellError, StoreUnavailable
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.flow.function import Workflow, registered, registered_names, registered_versions
from stepwell.flow.language.template import StateKey
from stepwell.kernel.token import ROOT
from stepwell.model.commit import ANY_VERSION, ClaimDue, Lease, Release, Written
from stepwell.model.execution_state import ONLY, State
from stepwell.model.ids import NewId
from stepwell.model.limits import Limits
from stepwell.model.queue_lifecycle import waits_for_turn
from stepwell.model.record import Metadata, decode_status
from stepwell.model.status import FINAL
from stepwell.model.value import Value
from stepwell.pipeline.notifications import DUE, Notifications, is_running
from stepwell.pipeline.operations import AsyncDriver, read, write
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.inbox import Letter, letters, path_of
from stepwell.runtime.lease_renewal import LeaseRenewal, monotonic
from stepwell.runtime.run_retry import RunRetry
from stepwell.runtime.sessions.call_positions import follow_tasks
from stepwell.runtime.sessions.declared_session import DeclaredSession
from stepwell.runtime.sessions.execution_writer import Recorder
from stepwell.runtime.sessions.function_session import FunctionSession
from stepwell.runtime.sessions.session import Session
from stepwell.runtime.shutdown import Companion, HandBackRetry, Shutdown
from stepwell.runtime.start import Seed, Starting
from stepwell.runtime.steps.process_pool import ProcessPool
from stepwell.runtime.steps.scoped_state import StateReading, read_state
from stepwell.state.executions import CachedExecution, Executions

__all__ = [
    "KnownWorkflows",
    "LoadedSession",
    "SessionLoader",
    "WakeTimes",
    "Worker",
]


_LOOK_AGAIN_SECONDS = 1.0


class KnownWorkflows:
    """Finds workflows by their names."""

    def __init__(self, driver: AsyncDriver, definitions: DefinitionOperations) -> None:
        self._driver, self._definitions = driver, definitions
        self._looked = -inf
        self._stored: tuple[str, ...] = ()

    async def of_state(self, state: State) -> Workflow[..., Any]:
        """What an execution runs, as its state says; ``NotFound`` if that is not known here."""
        identity = state.identity
        if ROOT in state.sections["tokens"]:  # it was begun by a definition, even if there is a function of that name here
            return await self._driver.run(self._definitions.load(identity.workflow_id, identity.version))
        return await self.find(identity.workflow_id, identity.version)

    async def find(self, name: str, version: int) -> Workflow[..., Any]:
        """A function of this process, or the stored version of a definition."""
        try:
            return registered(name)
        except NotFound:
            return await self._driver.run(self._definitions.load(name, version))

    async def names(self) -> tuple[str, ...]:
        """The names of all."""
        return (*registered_names(), *await self._stored_names())

    async def versions(self) -> dict[str, int]:
        """The names of all, each with the newest version that can be run."""
        return dict.fromkeys(await self._stored_names(), ANY_VERSION) | registered_versions()

    async def _stored_names(self) -> tuple[str, ...]:
        """Looked up again after a while, since other processes may store more."""
        if monotonic() - self._looked >= _LOOK_AGAIN_SECONDS:
            self._stored = await self._driver.run(self._definitions.names())
            self._looked = monotonic()
        return (*self._stored, *self._definitions.known_names())


_MOST = 1_000
"""Times that are kept. The others are in the store, where the poll finds them, at most a second late."""


class WakeTimes:
    """The soonest times at which something comes due."""

    def __init__(self) -> None:
        self._times: list[int] = []

    def __len__(self) -> int:
        return len(self._times)

    def add(self, wake_ms: int) -> None:
        """Remember a time."""
        heapq.heappush(self._times, wake_ms)
        if len(self._times) > 2 * _MOST:
            self._times = heapq.nsmallest(_MOST, self._times)

    def next_after(self, now_ms: int) -> int | None:
        """The next time to look, which is now if one has passed; what has passed is forgotten."""
        has_passed = False
        while self._times and self._times[0] <= now_ms:
            heapq.heappop(self._times)
            has_passed = True
        if has_passed:
            return now_ms
        return self._times[0] if self._times else None


class LoadedSession(NamedTuple):
    """An execution that is to be run."""

    workflow: Workflow[..., Any]
    recorder: Recorder
    claims: int
    """How often it was claimed since its last commit."""


class SessionLoader:
    """Takes executions up that were leased to this worker."""

    def __init__(self, executions: Executions, driver: AsyncDriver, repertoire: KnownWorkflows, new_id: NewId) -> None:
        self._executions, self._driver, self._repertoire, self._new_id = executions, driver, repertoire, new_id

    async def take_up(self, lease: Lease, is_new: bool) -> LoadedSession | None:
        """What a session needs to know before it runs; None if the execution is left to others."""
        # A new one was made here a moment ago; if anybody was quicker than that, the first commit finds it out.
        live = self._executions.at_hand(lease.name) if is_new else None
        live = live or await self._driver.run(self._executions.newest(lease.name))
        if not await self._is_to_run(live, lease):
            return None
        recorder = Recorder(self._executions, self._driver, live, lease.fence, self._new_id)
        try:
            workflow = await self._repertoire.of_state(recorder.state)
        except NotFound:
            await self._driver.run(write(Release(lease.name, lease.holder, lease.fence)))
            return None
        return LoadedSession(workflow, recorder, 0 if is_new else await self._claims_of(lease))

    async def _claims_of(self, lease: Lease) -> int:
        """How often an execution was claimed since its last commit. Who gives it the turn of its queue item takes it away from a
        worker that had claimed it too early; if that comes to look afterwards, it finds a run that is the next one's."""
        head = await self._driver.run(self._executions.head(lease.name))
        if (head.holder, head.fence) != (lease.holder, lease.fence):
            raise LeaseLost(f"execution {lease.name!r} was given back before it was looked at", fence=lease.fence)
        return head.claims

    async def _is_to_run(self, live: CachedExecution, lease: Lease) -> bool:
        """Whether an execution that came due is run: not before the turn of its queue item, nor if it ended at this very moment."""
        if waits_for_turn(live.state):
            await self._driver.run(RunRetry(self._executions, self._new_id).wait_on(live, lease.fence))
            return False
        return decode_status(live.state.sections["status"][ONLY]) not in FINAL


log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_MOST_CRASHES = 3


class Worker:
    """Runs the executions of the workflows that this process has registered."""

    def __init__(
        self,
        *,
        store: Store,
        executions: Executions,
        driver: AsyncDriver,
        pulse: Notifications,
        clock: Clock,
        limits: Limits,
        new_id: NewId,
        concurrency: int,
        lease_seconds: float,
        definitions: DefinitionOperations | None = None,
    ) -> None:
        self._definitions = definitions or DefinitionOperations(store)
        self.repertoire = KnownWorkflows(driver, self._definitions)
        """The workflows that it can run."""
        self._uptake = SessionLoader(executions, driver, self.repertoire, new_id)
        self._store, self._executions, self._driver, self._pulse = store, executions, driver, pulse
        self.clock, self.limits, self.new_id = clock, limits, new_id
        self._concurrency, self.lease_seconds = concurrency, lease_seconds
        # Unique to this start of this process: one that restarts on the same host is somebody else.
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{new_id()}"
        # Apart, since the code of plain workflows holds its thread while it waits for steps that need one.
        self.code_threads: Executor = ThreadPoolExecutor(concurrency, thread_name_prefix="stepwell-code")
        self.threads: Executor = ThreadPoolExecutor(min(concurrency, 64), thread_name_prefix="stepwell-step")
        self.reading = StateReading(store, driver)
        self._sessions: dict[str, Session | DeclaredSession] = {}
        self.patience = HandBackRetry()
        self._tasks: set[asyncio.Task[None]] = set()
        self._inside: set[asyncio.Task[Any] | None] = set()
        """Those of them that run the code of an execution."""
        self._kept: dict[str, tuple[int, float]] = {}
        """The fences of what is being run, and until when the leases are held for sure, by ``time.monotonic``."""
        self._wakes = WakeTimes()
        self._processes: ProcessPool | None = None
        self.companions: list[Companion] = []
        self._has_more = False
        """Whether more executions may be due than there was room for when it last claimed."""
        self._is_stopping, self._told_to_stop = False, asyncio.Event()
        self._grace_seconds: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Work until stopped. A store that is away for a while is waited for."""
        self._loop = asyncio.get_running_loop()
        follow_tasks(self._loop)
        keeping = self._loop.create_task(LeaseRenewal(self._driver, self.lease_seconds, self._sessions).run())
        # Claims are made beside, too: a store that says nothing must not keep the worker from ending.
        claiming, told = self._loop.create_task(self._claim_all()), self._loop.create_task(self._told_to_stop.wait())
        beside = [claiming, *(self._loop.create_task(each.run()) for each in self.companions)]
        try:
            await asyncio.wait((claiming, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_stopping = True
            self._woken()
            for each in self.companions:
                each.stop()
            await self._drain(beside)
            keeping.cancel()
            told.cancel()
        if not claiming.cancelled():
            claiming.result()

    def stop(self, grace_seconds: float | None = None) -> None:
        """Claim no more; sessions hand their executions back at their next wait or step. From any thread. After a grace, steps that
        are still under way are left, to be made again elsewhere; without one, they are waited for."""
        self._is_stopping, self._grace_seconds = True, grace_seconds
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._told_to_stop.set)

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._is_stopping

    @property
    def has_room(self) -> bool:
        """Whether another execution can be run now."""
        return not self._is_stopping and self._loop is not None and len(self._sessions) < self._concurrency

    def is_alone_with_one(self) -> bool:
        """Whether a single execution is being run, and it is making no step: then nothing but its next commit is to be done. Who is
        told to stop has a time to watch."""
        if self._is_stopping or len(self._tasks) != 1:
            return False
        return not any(session.is_making for session in self._sessions.values())

    @property
    def room(self) -> int:
        """How many more executions can be run now."""
        return 0 if self._is_stopping else max(self._concurrency - len(self._tasks), 0)

    def take_new(self, recorder: Recorder, lease: Lease, workflow: Workflow[..., Any]) -> None:
        """Run an execution that its recorder makes with the first commit. On the worker's loop."""
        self._start(lease, self._run(lease, True, recorder, workflow))

    def see_through(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the sessions that the worker does not end before. On the worker's loop."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abandon(self, execution_id: str, error: LeaseLost) -> None:
        """Stop a session whose execution is not this worker's to run."""
        session = self._sessions.get(execution_id)
        if session is not None:
            session.lose(error)

    def take_on(self, lease: Lease, *, is_new: bool = True) -> None:
        """Run an execution that was created with a lease for this worker. From any thread. A new one has no messages yet."""
        if self._loop is not None:
            self._executions.endings.begin(lease.name)
            if is_running(self._loop):
                self._take_on(lease, is_new)
            else:
                self._loop.call_soon_threadsafe(self._take_on, lease, is_new)

    def _take_on(self, lease: Lease, is_new: bool) -> None:
        if lease.name not in self._kept:  # asked for twice, when the reply to the first start was lost
            self._start(lease, self._run(lease, is_new))

    @property
    def processes(self) -> ProcessPool:
        """Processes for steps that ask for one, made when the first does."""
        if self._processes is None:
            self._processes = ProcessPool()
        return self._processes

    # Claiming and running.

    async def _claim_all(self) -> None:
        with self._pulse.listen(DUE) as listening:
            self._woken = listening.wake
            while not self._is_stopping:
                try:
                    await self._claim()
                except StepwellError as error:  # a lost reply, too: what was claimed unheard comes due again
                    log.warning("the worker could not claim from its store: %s", error)
                await listening.wait_async(self._until_next_wake())
                await self._look_all()

    async def _claim(self) -> None:
        # A little more than the rest may have: what was begun goes on, however many new ones the queue holds.
        most = self._concurrency + max(1, self._concurrency // 10)
        free = most - len(self._tasks)
        versions = await self.repertoire.versions()
        self._has_more = free <= 0
        if free <= 0 or not versions or self._is_stopping:  # a claim now would take again what is handed back
            return
        asked = monotonic()
        claim = ClaimDue(tuple(versions), self.holder, self.lease_seconds, free, tuple(versions.values()))
        outcome = await self._driver.run(write(claim))
        if isinstance(outcome, StepwellError):
            raise outcome
        leases = [lease for lease in (outcome.answers if isinstance(outcome, Written) else ()) if isinstance(lease, Lease)]
        self._has_more = len(leases) >= free
        for lease in leases:
            self._start(lease, self._run(lease), asked)

    def _start(self, lease: Lease, work: Coroutine[Any, Any, None], asked: float | None = None) -> None:
        older = self._sessions.pop(lease.name, None)
        if older is not None:
            # Its lease has ended, or there would be no other; were both left, the end of one would be taken for the other's.
            older.lose(LeaseLost(f"the lease of {lease.name!r} has ended, and was given anew", fence=older.lease.fence))
        self._kept[lease.name] = lease.fence, (asked or monotonic()) + self.lease_seconds
        self._executions.endings.begin(lease.name)
        # It takes itself out again: to be called when it is done would be one more callback of the loop for every run.
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def _run(
        self,
        lease: Lease,
        is_new: bool = False,
        recorder: Recorder | None = None,
        workflow: Workflow[..., Any] | None = None,
    ) -> None:
        wake, task = None, asyncio.current_task()
        assert task is not None  # noqa: S101 - it is one
        try:
            if recorder is None or workflow is None:
                session = await self._prepare(lease, is_new)
            else:
                session = self._session(workflow, recorder, lease, is_new)
            if session is not None:
                self._sessions[lease.name] = session
                if self._is_stopping:
                    session.hand_back()
                self._inside.add(task)
                wake = await session.run()
                if wake is not None:
                    self._wakes.add(wake)
        except Exception as error:  # noqa: BLE001 - the others go on
            _log_end(lease.name, error)
        finally:
            self._inside.discard(task)
            self._tasks.discard(task)
            self._let_go(lease.name, lease.fence)
            if recorder is not None:
                recorder.end()
            if self._has_more or wake is not None:
                self._woken()

    def _let_go(self, execution_id: str, fence: int) -> None:
        if execution_id in self._kept and self._kept[execution_id][0] == fence:
            self._sessions.pop(execution_id, None)
            self._kept.pop(execution_id, None)
            self._executions.endings.stop(execution_id)

    async def _prepare(self, lease: Lease, is_new: bool) -> FunctionSession | DeclaredSession | None:
        """A session that is to be run; None if it is left to others, or was given up."""
        kept = self._kept[lease.name][1]
        try:
            found = await self._open(lease, is_new)
        except (StoreUnavailable, CommitUnknown):
            found = await self.patience.keep_trying(lambda: self._open(lease, is_new), lambda: kept)
        if found is None:
            return None
        session, claims = found
        if claims > _MOST_CRASHES:
            message = f"the execution brought down its worker again and again, without a step in between: {claims} claims"
            await session.give_up("WorkerCrashed", message)
            return None
        return session

    async def _open(self, lease: Lease, is_new: bool) -> tuple[FunctionSession | DeclaredSession, int] | None:
        """The session of an execution, and how often that was claimed in vain; None if it is left to others."""
        found = await self._uptake.take_up(lease, is_new)
        return None if found is None else (self._session(found.workflow, found.recorder, lease, is_new), found.claims)

    def _session(
        self, workflow: Workflow[..., Any], recorder: Recorder, lease: Lease, is_new: bool
    ) -> FunctionSession | DeclaredSession:
        if isinstance(workflow, DeclaredWorkflow):
            session = DeclaredSession(self, workflow, self._definitions.plan(workflow), recorder, lease, is_new=is_new)
        else:
            session = FunctionSession(self, workflow, recorder, lease, is_new=is_new)
        session.kept_until = self._kept[lease.name][1]
        return session

    # Waking and ending.

    def _until_next_wake(self) -> float:
        now = self.clock.now_ms()
        soonest = self._wakes.next_after(now)
        return _POLL_SECONDS if soonest is None else min((soonest - now) / 1000, _POLL_SECONDS)

    async def _look_all(self) -> None:
        """Look into the inboxes of executions that were nudged while they are run here."""
        if not self._sessions:
            return
        names = list(self._sessions)
        try:
            nudged = await self._driver.run(read(lambda: self._store.nudged(names)))
            sessions = (self._sessions.get(name) for name in nudged)
            await asyncio.gather(*(session.look() for session in sessions if session is not None))
        except StepwellError as error:
            log.warning("the inboxes of executions could not be read: %s", error)

    async def _drain(self, beside: list[asyncio.Task[None]]) -> None:
        draining = Shutdown(self._sessions, self.patience, lambda: self._grace_seconds)
        await draining.run(lambda: self._tasks, self._inside, beside)
        self.threads.shutdown(wait=False)
        self.code_threads.shutdown(wait=False)
        if self._processes is not None:
            self._processes.close()

    # What sessions ask for.

    async def letters(self, execution_id: str, workspace_id: str) -> list[Letter]:
        """The messages in an execution's inbox."""
        path = path_of(execution_id, workspace_id)
        rows = await self._driver.run(read(lambda: self._store.scan(path)))
        return letters(rows)

    async def find_workflow(self, name: str, version: int | None) -> Workflow[..., Any]:
        """The workflow that a subworkflow names: a function of this process, or a stored definition that is active."""
        return await self._driver.run(self._definitions.startable(name, version))

    async def read_state(self, keys: Sequence[StateKey], identity: Metadata) -> Value:
        """Scoped state as templates see it: by scope, for some scopes by name, and by key."""
        return await self._driver.run(read_state(self._store, keys, identity))

    async def start_child(
        self, workflow: Workflow[..., Any], value: Value, child_id: str, parent: Metadata, seed: Seed | None = None
    ) -> Value:
        """Start an execution for another one, unless it was started before: then what it told, if it has ended, else None.
        ``AlreadyExists`` if the id is that of an execution which is no child of this parent."""
        starting = Starting(self._executions, self.clock)
        try:
            await self._driver.run(
                starting.start(workflow, value, child_id, parent.workspace_id, parent=parent, seed=seed, worker=self)
            )
        except AlreadyExists:
            found = await self._driver.run(self._executions.load(child_id))
            if not found.identity.is_child or found.identity.parent_id != parent.execution_id:
                raise
            return {"status": str(found.status), "result": found.result} if found.status in FINAL else None
        return None


def _log_end(execution_id: str, error: Exception) -> None:
    """Say why a session came to no end of its own."""
    match error:
        case LeaseLost() | NotFound():
            log.warning("execution %r is no longer this worker's: %s", execution_id, error)
        case StoreUnavailable():
            log.warning("execution %r stopped, and goes on when its lease ends: %s", execution_id, error)
        case _:
            log.error("execution %r could not be run; it is tried again when its lease ends", execution_id, exc_info=error)
