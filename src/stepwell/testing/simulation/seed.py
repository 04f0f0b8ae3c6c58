"""One simulation: a world from a seed, some runs in it, trouble, and then a look at what became of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Generator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import msgspec

from stepwell.errors import Conflict, NotFound, StepwellError
from stepwell.model.limits import Limits
from stepwell.runtime import worker
from stepwell.stores.memory import MemoryStore
from stepwell.testing.choices import Choice, Lenient, Replay, Scheduler, Seeded, happens, pick, seeded
from stepwell.testing.clock import VirtualClock
from stepwell.testing.loop import SkippingPace, VirtualLoop
from stepwell.testing.simulation.invariants import check, overdue, unfinished
from stepwell.testing.simulation.plans import Plan, make_plan, register, signals_of, simulated, simulated_plain
from stepwell.testing.simulation.world import Event, World

__all__ = ["Outcome", "simulate"]

_RUNS = 8
_TROUBLE_SECONDS = 40
_CALM_SECONDS = 400


class Outcome(msgspec.Struct, frozen=True):
    """What became of a seed."""

    seed: int
    violations: list[str]
    executions: int
    commits: int
    deaths: int
    seconds: float
    """Virtual ones."""
    journal: list[Event] = []
    choices: list[Choice] = []


def simulate(seed: int, scheduler: Scheduler | None = None) -> Outcome:
    """Simulate the world of a seed, or of the choices of another scheduler, and check that nothing that was promised is broken."""
    register()
    with seeded(seed), _quiet():
        clock = VirtualClock()
        store = MemoryStore(clock, Limits())
        chosen = scheduler or Seeded(seed)
        with (
            asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, SkippingPace())) as runner,
            patch.object(worker, "monotonic", lambda: clock.elapsed),
        ):
            outcome = runner.run(_play(seed, Lenient(chosen), clock, store))
    if isinstance(chosen, Replay) and chosen.parting is not None:
        raise chosen.parting
    return outcome


@contextmanager
def _quiet() -> Generator[None]:
    """What the runtime warns of is expected here."""
    log = logging.getLogger("stepwell")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


class _Case(msgspec.Struct, frozen=True):
    """A run that somebody wants, and what they do to it."""

    execution_id: str
    workspace: str
    is_plain: bool
    plan: Plan
    starts_after: float
    cancels_after: float | None


async def _play(seed: int, scheduler: Scheduler, clock: VirtualClock, store: MemoryStore) -> Outcome:
    world = World(scheduler, clock, store)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: _on_loop_error(world, context))
    try:
        cases = [_make_case(scheduler, number) for number in range(_RUNS)]
        posted = set[tuple[str, str]]()
        clients = [world.outside.run(_look_after(world, case, posted)) for case in cases]
        world.outside.run(_post(world, posted))
        await world.disturb(_TROUBLE_SECONDS)
        violations = await _settle(world, clients)
        violations += await check(world, {case.execution_id: case.plan for case in cases})
        deaths = sum(process.is_dead for process in world.all)
        counts = len(world.landed_commits), sum(world.landed_commits.values())
        return Outcome(seed, violations, *counts, deaths, round(clock.elapsed, 3), world.journal, scheduler.log)
    finally:
        await world.bury()


def _on_loop_error(world: World, context: dict[str, Any]) -> None:
    """A failure that nobody asked for (a process died, a session was dropped) is nothing; a callback that fails is a defect."""
    if "never retrieved" not in str(context.get("message")):
        world.violations.append(f"the loop: {context.get('message')}: {context.get('exception')!r}")


def _make_case(scheduler: Scheduler, number: int) -> _Case:
    is_plain = happens(scheduler, "plain code", 150)
    return _Case(
        f"run-{number}",
        pick(scheduler, "workspace", ("default", "acme")),
        is_plain,
        make_plan(scheduler, is_plain=is_plain),
        pick(scheduler, "start", (0, 0, 0.5, 5, 20)),
        pick(scheduler, "cancel", (1, 6, 30)) if happens(scheduler, "cancelled", 150) else None,
    )


# People.


async def _look_after(world: World, case: _Case, posted: set[tuple[str, str]]) -> None:
    """Start a run, however often it takes; send it a signal that it may not wait for yet; perhaps cancel it."""
    await asyncio.sleep(case.starts_after)
    while not await _start(world, case):  # noqa: ASYNC110 - as people do: try again after a while
        await asyncio.sleep(0.5)
    run = world.outside.well.run(case.execution_id)
    for name in signals_of(case.plan):
        if happens(world.scheduler, "signal comes early", 300):
            posted.add((case.execution_id, name))
            await _unless_ended(run.signal(name, f"value of {name}"))
    if case.cancels_after is not None:
        await asyncio.sleep(case.cancels_after)
        await _unless_ended(run.cancel())


async def _start(world: World, case: _Case) -> bool:
    """Have a process start a run; whether it says that it did."""
    if not world.workers:
        return False
    process = pick(world.scheduler, "starter", world.workers)
    workflow = simulated_plain if case.is_plain else simulated
    starting = process.run(process.well.start(workflow, case.plan, workspace=case.workspace, execution_id=case.execution_id))
    await asyncio.wait({starting, process.death}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    return starting.done() and not isinstance(starting.exception(), StepwellError)


async def _post(world: World, posted: set[tuple[str, str]]) -> None:
    """Send each signal that a run waits for, once: if it were lost, the run would wait for ever."""
    while True:
        await asyncio.sleep(pick(world.scheduler, "until the post", (0.1, 0.2, 0.3, 3)))
        for head in unfinished(world):
            state = await world.outside.well.load(head.execution_id)
            for token in state.tokens.values():
                name = token.value.get("name") if token.node == "signal" else None
                if name is not None and (head.execution_id, name) not in posted:
                    posted.add((head.execution_id, name))
                    await _unless_ended(world.outside.well.run(head.execution_id).signal(name, f"value of {name}"))


async def _unless_ended(doing: Awaitable[None]) -> None:
    with suppress(Conflict, NotFound):
        await doing


async def _settle(world: World, clients: list[asyncio.Task[None]]) -> list[str]:
    """The trouble is over: everything must come to its end, and nothing may be left lying that is due."""
    ends = world.clock.elapsed + _CALM_SECONDS
    while world.clock.elapsed < ends:
        await asyncio.sleep(1)
        late = overdue(world)
        if late:
            return [f"I10: nobody takes {head.execution_id}, {head.status}, due since {head.wake_ms}" for head in late]
        if all(client.done() for client in clients) and not unfinished(world):
            return []
    return [f"I10: {head.execution_id} is {head.status} for ever" for head in unfinished(world)]
