"""A rehearsal: one run of a workflow on virtual time, where a scheduler chooses the order of concurrent tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from stepwell.contract.store import Store
from stepwell.errors import ExecutionCancelled, ExecutionFailed
from stepwell.model.commit import Commit, Outcome, Unit
from stepwell.model.trace import Trace, TraceLevel, trace_of
from stepwell.model.value import Value
from stepwell.runtime.steps.context import StepContext
from stepwell.testing.clock import VirtualClock
from stepwell.testing.crash_testing import Signals, changes_in, on_virtual_loop, sent_signals
from stepwell.testing.schedulers import Diverged, InOrder, Replay, SchedulingChoice, TaskScheduler, seeded
from stepwell.testing.simulated_process import Fate, SharedStore, SimulatedProcess

__all__ = ["Rehearsal", "rehearse"]

_EXECUTION = "rehearsal"

# Commits of different lengths let one execution overtake another.
_LATENCIES = 4
_LATENCY_SECONDS = 0.001


class Rehearsal(msgspec.Struct, frozen=True):
    """The report on a run: its status, the scheduling choices, and its trace."""

    status: str
    result: Value
    """The result of the run; the error of one that failed."""
    choices: list[SchedulingChoice]
    trace: Trace


class _Order:
    """Lets tasks go on in the order that the scheduler chooses, and each commit take as long as it chooses."""

    def __init__(self, scheduler: TaskScheduler) -> None:
        self._scheduler = scheduler
        self.divergence: asyncio.Future[Diverged] = asyncio.get_running_loop().create_future()

    async def before(self, process: SimulatedProcess, unit: Unit) -> Fate:
        """Let every commit land, some later than others."""
        if isinstance(unit, Commit):
            await asyncio.sleep(self._latency(unit) * _LATENCY_SECONDS)
        return Fate.LANDS

    def _latency(self, commit: Commit) -> int:
        return self._choose(f"{commit.execution_id} {commit.revision}: {changes_in(commit)}", _LATENCIES)

    def first_of(self, tasks: int) -> int:
        """Return which of the ready tasks continues first."""
        return self._choose("the next task", tasks)

    def _choose(self, what: str, ways: int) -> int:
        try:
            return self._scheduler.choose(what, ways)
        except Diverged as error:
            if not self.divergence.done():
                self.divergence.set_result(error)
            return 0

    def landed(self, process: SimulatedProcess, unit: Unit, outcome: Outcome) -> None:
        """Do nothing: a rehearsal keeps no writes."""

    def attempted(self, process: SimulatedProcess, step: StepContext) -> None:
        """Do nothing: a rehearsal keeps no writes."""


def rehearse(
    workflow: Any,
    value: Any = msgspec.UNSET,
    *,
    scheduler: TaskScheduler | None = None,
    signals: Signals = (),
    level: TraceLevel = "full",
) -> Rehearsal:
    """Run a workflow once, on virtual time. The scheduler (``InOrder``, unless another is given) decides which of the tasks that
    are ready goes on first, and how long each commit takes. The same choices give the same run; with ``Replay``, a run that parts
    from its log raises ``Diverged``."""
    order, sent = scheduler or InOrder(), sent_signals(signals)
    with seeded(0):
        rehearsal = on_virtual_loop(
            _EXECUTION, lambda clock, store, stuck: _run(order, workflow, value, sent, level, clock, store, stuck)
        )
    if isinstance(order, Replay):
        order.finish()
    return rehearsal


async def _run(
    scheduler: TaskScheduler,
    workflow: Any,
    value: Any,
    signals: list[tuple[str, Value]],
    level: TraceLevel,
    clock: VirtualClock,
    store: Store,
    stuck: asyncio.Future[None],
) -> Rehearsal:
    order = _Order(scheduler)
    process = SimulatedProcess("rehearsal", SharedStore(store), order, clock, order=order.first_of)
    try:
        ending = process.run(_result(process, workflow, value, signals))
        await asyncio.wait({ending, stuck, order.divergence}, return_when=asyncio.FIRST_COMPLETED)
        if order.divergence.done():
            raise order.divergence.result()
        if not ending.done():
            raise AssertionError("the run waits for ever; is a signal missing?")
        result = ending.result()
        state = await process.well.load(_EXECUTION)
        trace = trace_of(await process.well.receipts(_EXECUTION), level)
        return Rehearsal(str(state.status), result, scheduler.log, trace)
    finally:
        await process.bury()


async def _result(process: SimulatedProcess, workflow: Any, value: Any, signals: list[tuple[str, Value]]) -> Value:
    run = await process.well.start(workflow, value, execution_id=_EXECUTION)
    for name, each in signals:
        await run.signal(name, each)
    try:
        return await process.well.run(_EXECUTION).result()
    except (ExecutionFailed, ExecutionCancelled) as error:
        return str(error)
