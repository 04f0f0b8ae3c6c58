"""One simulation: a world from a seed, runs in it, faults, and the check of the invariants at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from stepwell.model.limits import Limits
from stepwell.stores.memory import MemoryStore
from stepwell.testing.clock import VirtualClock, as_monotonic
from stepwell.testing.event_loop import SkippingPace, VirtualLoop
from stepwell.testing.schedulers import Lenient, Replay, SchedulingChoice, Seeded, TaskScheduler, seeded
from stepwell.testing.simulation.actors import look_after, post
from stepwell.testing.simulation.cases import QUEUED_IN, TIER, make_case
from stepwell.testing.simulation.generated_workflows import register
from stepwell.testing.simulation.invariants import check, overdue, unfinished, waiting_items
from stepwell.testing.simulation.world import World, WorldEvent

__all__ = ["Outcome", "simulate"]

_RUNS = 8
_TROUBLE_SECONDS = 40
_CALM_SECONDS = 400


class Outcome(msgspec.Struct, frozen=True):
    """The result of a seed."""

    seed: int
    violations: list[str]
    executions: int
    commits: int
    deaths: int
    seconds: float
    """Virtual ones."""
    journal: list[WorldEvent] = []
    choices: list[SchedulingChoice] = []


def simulate(seed: int, scheduler: TaskScheduler | None = None) -> Outcome:
    """Simulate the world of a seed, or of another scheduler's choices, and check every promise."""
    register()
    with seeded(seed), _quiet():
        clock = VirtualClock()
        store = MemoryStore(clock, Limits())
        chosen = scheduler or Seeded(seed)
        with (
            asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, SkippingPace())) as runner,
            as_monotonic(clock),
        ):
            outcome = runner.run(_play(seed, Lenient(chosen), clock, store))
    if isinstance(chosen, Replay) and chosen.divergence is not None:
        raise chosen.divergence
    return outcome


@contextmanager
def _quiet() -> Generator[None]:
    """Silence the warnings of the runtime, which are expected here."""
    log = logging.getLogger("stepwell")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


async def _play(seed: int, scheduler: TaskScheduler, clock: VirtualClock, store: MemoryStore) -> Outcome:
    world = World(scheduler, clock, store)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: _on_loop_error(world, context))
    try:
        cases = [make_case(scheduler, number) for number in range(_RUNS)]
        posted = set[tuple[str, str]]()
        await world.outside.run(world.outside.well.workspaces.put(QUEUED_IN, tier=TIER))
        clients = [world.outside.run(look_after(world, case, posted)) for case in cases]
        world.outside.run(post(world, posted))
        await world.disturb(_TROUBLE_SECONDS)
        violations = await _settle(world, clients)
        violations += await check(world, {case.execution_id: case.plan for case in cases})
        deaths = sum(process.is_dead for process in world.all)
        counts = len(world.landed_commits), sum(world.landed_commits.values())
        return Outcome(seed, violations, *counts, deaths, round(clock.elapsed, 3), world.journal, scheduler.log)
    finally:
        await world.bury()


def _on_loop_error(world: World, context: dict[str, Any]) -> None:
    """Ignore exceptions that were never retrieved, as of a killed process; record those of callbacks as violations."""
    if "never retrieved" not in str(context.get("message")):
        world.violations.append(f"the loop: {context.get('message')}: {context.get('exception')!r}")


async def _settle(world: World, clients: list[asyncio.Task[None]]) -> list[str]:
    """Wait until everything has ended after the faults, and check that nothing due is left."""
    ends, calm_ms = world.clock.elapsed + _CALM_SECONDS, world.clock.now_ms()
    while world.clock.elapsed < ends:
        await asyncio.sleep(1)
        late = overdue(world, calm_ms)
        if late:
            return [f"I10: no worker claims {head.execution_id}, {head.status}, due since {head.wake_ms}" for head in late]
        if all(client.done() for client in clients) and not unfinished(world) and not waiting_items(world):
            return [f"a client was refused: {client.exception()!r}" for client in clients if client.exception()]
    waiting = sum(not client.done() for client in clients)
    return [
        *(f"I10: {head.execution_id} is {head.status} for ever" for head in unfinished(world)),
        *(f"I10: the item of {item.execution_id} is {item.status} for ever" for item in waiting_items(world)),
        *([f"I10: {waiting} people wait for an answer for ever"] if waiting else []),
    ]
