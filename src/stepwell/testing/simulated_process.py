"""A process that exists only in a test: a well with its worker, on a store that it shares, which can be paused, killed and cut off.

Killed means what it means for a real one: what it was about to do, it does not; nothing is unwound, no ``finally`` is run. Its
tasks are kept as they stood until ``bury``, when the test has seen all it wanted to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from enum import Enum
from typing import Any, Protocol, TypeVar, cast

from stepwell.app.awaited import AsyncStepwell
from stepwell.app.host import AsyncHost
from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.errors import CommitUnknown, StepwellError, StoreUnavailable
from stepwell.model.commit import Commit, Outcome, StateBatch, Unit, Written
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.notifications import DUE, end_of
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.steps.context import StepContext, watcher
from stepwell.testing.event_loop import Admission, owner

__all__ = ["Fate", "ProcessFault", "SharedStore", "SimulatedProcess"]

T = TypeVar("T")


LATE_SECONDS = 10.0


class Fate(Enum):
    """The fate of a write."""

    LANDS = "lands"
    DIES_BEFORE = "dies before it lands"
    DIES_AFTER = "dies after it landed"
    LOSES_REPLY = "lands, and the reply is lost"
    REPLIES_LATE = "lands, and the reply takes 10 seconds"
    FAILS = "does not reach the store"


class ProcessFault(Protocol):
    """Decides about the writes of processes, and gets their outcomes."""

    async def before(self, process: SimulatedProcess, unit: Unit) -> Fate:
        """Return the fate of a write; may take its time."""
        ...

    def landed(self, process: SimulatedProcess, unit: Unit, outcome: Outcome) -> None:
        """Take note of the outcome of a write."""
        ...

    def attempted(self, process: SimulatedProcess, step: StepContext) -> None:
        """Take note of an attempt at a step that begins."""
        ...


class SharedStore:
    """A store in memory that several processes are connected to; it passes on what one of them wrote to the others."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.listeners: dict[SimulatedProcess, Callable[[str], None]] = {}

    def tell(self, writer: SimulatedProcess, unit: Unit) -> None:
        """Notify the other processes of a write, as far as it can wake them."""
        topics = _topics_of(unit)
        for process, wake in list(self.listeners.items()):
            if process is not writer and topics and process.hears:
                for topic in topics:
                    process.context.copy().run(wake, topic)


def _topics_of(unit: Unit) -> list[str]:
    if isinstance(unit, StateBatch):
        return [DUE] if unit.nudges else []
    if not isinstance(unit, Commit):
        return []
    is_over = unit.rest is not None and unit.rest.is_final
    is_due = unit.nudges or unit.rest is not None or (unit.creation is not None and unit.creation.holder is None)
    return ([end_of(unit.execution_id)] if is_over else []) + ([DUE] if is_due else [])


class _Link:
    """A process's connection to the shared store."""

    def __init__(self, shared: SharedStore, process: SimulatedProcess) -> None:
        self._shared, self._process = shared, process

    def __getattr__(self, verb: str) -> Any:
        if not self._process.is_connected and verb not in {"capabilities", "durability", "close"}:
            raise StoreUnavailable(f"process {self._process.name} has no connection to the store")
        return getattr(self._shared.store, verb)

    def close(self) -> None:
        """Do nothing: the store stays open for the other processes."""

    def listen(self, wake: Callable[[str], None]) -> Callable[[], None]:
        self._shared.listeners[self._process] = wake
        return lambda: self._shared.listeners.pop(self._process, None) and None


class _Group(GroupCommit):
    """Writes of a process, each with the fate that the test has for it."""

    def __init__(self, within: GroupCommit, process: SimulatedProcess, fault: ProcessFault) -> None:
        super().__init__(lambda units: [within.write(unit) for unit in units], is_instant=True)
        self._whose, self._fault = process, fault

    async def write_async(self, unit: Unit) -> Outcome:
        process = self._whose
        fate = await self._fault.before(process, unit)
        if fate is Fate.DIES_BEFORE:
            await process.die()
        if fate is Fate.FAILS or not process.is_connected:
            raise StoreUnavailable(f"process {process.name} has no connection to the store")
        outcome = self.write(unit)
        self._fault.landed(process, unit, outcome)
        if isinstance(outcome, Written):
            process.shared.tell(process, unit)
        if fate is Fate.DIES_AFTER:
            await process.die()
        if fate is Fate.LOSES_REPLY:
            raise _unknown(unit)
        if fate is Fate.REPLIES_LATE:
            await asyncio.sleep(LATE_SECONDS)
        return outcome


def _unknown(unit: Unit) -> StepwellError:
    if isinstance(unit, Commit):
        return CommitUnknown(commit_id=unit.commit_id, execution_id=unit.execution_id)
    return CommitUnknown()


class _Well(AsyncStepwell):
    def __init__(self, process: SimulatedProcess, fault: ProcessFault, clock: Clock, lease_seconds: float, *, worker: bool) -> None:
        self._process, self._fault = process, fault
        super().__init__(cast("Store", _Link(process.shared, process)), clock=clock, lease_seconds=lease_seconds, worker=worker)

    def _make_host(self) -> AsyncHost:
        host = super()._make_host()
        group = _Group(self._parts.group, self._process, self._fault)
        host.driver = AsyncDriver(group, self._parts.store, is_open=True)
        return host

    def work(self) -> None:
        """Start the worker."""
        self._host.start_worker()


class SimulatedProcess:
    """A process: its well, what it runs, and whether it runs at all."""

    def __init__(
        self,
        name: str,
        shared: SharedStore,
        fault: ProcessFault,
        clock: Clock,
        *,
        lease_seconds: float = 30,
        has_worker: bool = True,
        hears: Callable[[], bool] = lambda: True,
        order: Callable[[int], int] | None = None,
    ) -> None:
        """
        Args:
            hears: whether the notification of another process's write arrives now.
            order: which of so many ready tasks continues first; None: the one that was ready first.
        """
        self.name, self.shared = name, shared
        self.is_connected = True
        self.is_dead = False
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hears, self._order = hears, order
        self._ready: list[Admission] = []
        self._held: list[Admission] | None = None
        self._tasks: dict[asyncio.Future[Any], None] = {}
        self.context = copy_context()
        self.context.run(owner.set, self)
        self.context.run(watcher.set, lambda step: self._on_attempt(fault, step))
        self.well = self.context.run(lambda: _Well(self, fault, clock, lease_seconds, worker=has_worker))
        if has_worker:
            self.context.run(self.well.work)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def _on_attempt(self, fault: ProcessFault, step: StepContext) -> None:
        if self.is_dead:
            raise asyncio.CancelledError  # it is being buried: what cleans up there must not have effects
        fault.attempted(self, step)

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have the process do something; it dies with it."""
        return asyncio.get_running_loop().create_task(work, context=self.context.copy())

    @property
    def hears(self) -> bool:
        """Return whether the notification of another process's write arrives now."""
        return not self.is_dead and self._hears()

    # Called by the event loop.

    def admit(self, call: Admission) -> None:
        """Call it now; or keep it, if the process is paused or dead."""
        if self._held is not None:
            self._held.append(call)
        elif self._order is None or not isinstance(getattr(call.callback, "__self__", None), asyncio.Task):
            call.call()
        else:
            self._ready.append(call)
            if len(self._ready) == 1:
                asyncio.get_running_loop().call_soon(self._go_through, context=Context())

    def _go_through(self) -> None:
        """Let tasks go on that are ready at the same time, in an order that is chosen: none has a right to be first."""
        while self._ready:
            chosen = self._order(len(self._ready)) if self._order is not None and len(self._ready) > 1 else 0
            call = self._ready[chosen]
            call.context.run(self._admit_now, call)
            self._ready.remove(call)

    def _admit_now(self, call: Admission) -> None:
        if self._held is None:
            call.call()
        else:
            self._held.append(call)

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """Keep a reference to a task, so that the garbage collector does not unwind it."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None), context=Context())

    # Called by tests.

    def pause(self) -> None:
        """Stop it where it stands; its timers and whatever it waits for come when it goes on."""
        if self._held is None:
            self._held = []

    def go_on(self) -> None:
        """Let a paused process go on; a dead one does not."""
        if not self.is_dead:
            self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held or [], None
        loop = asyncio.get_running_loop()
        for call in held:
            loop.call_soon(call.call, context=call.context)

    def kill(self) -> None:
        """End it between two of its callbacks."""
        self.pause()
        self.is_dead, self.is_connected = True, False
        self.shared.listeners.pop(self, None)
        if not self.death.done():
            self.death.set_result(None)

    async def die(self) -> None:
        """End it in the middle of what it does; the caller never comes back from this."""
        self.kill()
        await asyncio.get_running_loop().create_future()

    async def bury(self) -> None:
        """Unwind the tasks of the process without a store to write to. Only at the end of its test."""
        # Unwound tasks report their cancellation and errors that were never retrieved.
        asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
        self.kill()
        self._order = None
        for task in list(self._tasks):
            task.cancel()
        self._let_go()
        for _ in range(20):
            if not self._tasks:
                return
            await asyncio.wait(list(self._tasks), timeout=1)
            for task in list(self._tasks):
                task.cancel()
        raise RuntimeError(f"{self} could not be unwound: {list(self._tasks)}")
