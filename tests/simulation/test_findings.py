"""Findings of the simulator, each as a test of its own: a seed means something else as soon as the simulator changes."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

import pytest

from stepwell import ExecutionFailed, Status, step, workflow
from stepwell.model.commit import Commit, Unit
from stepwell.model.limits import Limits
from stepwell.runtime.steps.context import StepContext
from stepwell.stores.memory import MemoryStore
from stepwell.testing.clock import VirtualClock, as_monotonic
from stepwell.testing.event_loop import SkippingPace, VirtualLoop
from stepwell.testing.simulated_process import Fate, SharedStore, SimulatedProcess


@step
async def work(name: str) -> str:
    await asyncio.sleep(1)
    return name


@workflow
async def child(name: str) -> str:
    return await work(name)


@workflow
async def parent(name: str) -> str:
    try:
        return await child(name)
    except ExecutionFailed:
        return "the child failed"


@step
async def long_work(name: str) -> str:
    await asyncio.sleep(100)
    return name


@workflow
def patient(name: str) -> str:
    return long_work(name)  # plain code learns only at its next call that its lease is lost


class Fault:
    """A fate for the first write of a child's creation, and death for whoever makes a step."""

    def __init__(self, fate: Fate = Fate.LANDS, deadly: str = "") -> None:
        self._fate, self._deadly = fate, deadly

    async def before(self, process: SimulatedProcess, unit: Unit) -> Fate:
        if isinstance(unit, Commit) and unit.creation is not None and unit.creation.parent_id is not None:
            fate, self._fate = self._fate, Fate.LANDS
            return fate
        return Fate.LANDS

    def landed(self, *_: object) -> None:
        pass

    def attempted(self, process: SimulatedProcess, step: StepContext) -> None:
        if step.step == self._deadly:
            # After a while: who else is run there is at rest by then, and not taken for the cause.
            asyncio.get_running_loop().call_later(0.5, process.kill, context=Context())


async def outcome(fault: Fault, clock: VirtualClock, started: Any, watched: str) -> tuple[Any, dict[str, Any]]:
    """Run a workflow with as many processes as it takes; what it gave, and the state of one execution."""
    shared = SharedStore(MemoryStore(clock, Limits()))
    processes = [SimulatedProcess("outside", shared, fault, clock, has_worker=False)]
    try:
        return await watch(processes, shared, fault, clock, started, watched)
    finally:
        for process in processes:
            await process.bury()


async def watch(
    processes: list[SimulatedProcess], shared: SharedStore, fault: Fault, clock: VirtualClock, started: Any, watched: str
) -> tuple[Any, dict[str, Any]]:
    outside = processes[0].well
    processes.append(SimulatedProcess("worker", shared, fault, clock))
    await processes[-1].run(processes[-1].well.start(started, "it", execution_id="p"))
    while await outside.run("p").status() != Status.COMPLETED:
        assert clock.elapsed < 1_000, f"it is {await outside.run('p').status()} for ever"
        if processes[-1].is_dead:
            processes.append(SimulatedProcess("worker", shared, fault, clock))
        await asyncio.sleep(1)
    state = await outside.load(watched)
    return await outside.run("p").result(), {"status": state.status, "tokens": state.tokens}


def play(fault: Fault, started: Any = parent, watched: str = "p:1") -> tuple[Any, dict[str, Any]]:
    clock = VirtualClock()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, SkippingPace())) as runner, as_monotonic(clock):
        return runner.run(outcome(fault, clock, started, watched))


def test_child_that_brings_its_workers_down_tells_its_parent_that_it_failed():
    """T38"""
    assert play(Fault(deadly="work")) == ("the child failed", {"status": Status.FAILED, "tokens": {}})


class Absence(Fault):
    """Stops the worker in the middle of a step, for longer than its lease."""

    def __init__(self) -> None:
        super().__init__()
        self._is_over = False

    def attempted(self, process: SimulatedProcess, step: StepContext) -> None:
        if not self._is_over:
            self._is_over = True
            loop = asyncio.get_running_loop()
            loop.call_later(0.5, process.pause, context=Context())
            loop.call_later(60, process.go_on, context=Context())


def test_worker_that_takes_an_execution_back_after_an_absence_keeps_its_lease():
    """T32: the end of the session that lost its lease was taken for that of the new one, which was never renewed, for ever."""
    assert play(Absence(), patient, "p") == ("it", {"status": Status.COMPLETED, "tokens": {}})


@pytest.mark.parametrize("fate", [Fate.LOSES_REPLY, Fate.FAILS])
def test_trouble_with_the_start_of_a_child_does_not_fail_its_parent(fate: Fate):
    """T03, T41"""
    assert play(Fault(fate)) == ("it", {"status": Status.COMPLETED, "tokens": {}})
