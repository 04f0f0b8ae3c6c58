"""People in a simulation: they start or enqueue runs until a call confirms it, send signals, and cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from stepwell.errors import CommitUnknown, Conflict, LimitExceeded, NotFound, StoreUnavailable
from stepwell.testing.schedulers import happens, pick
from stepwell.testing.simulated_process import SimulatedProcess
from stepwell.testing.simulation.cases import SimulationCase
from stepwell.testing.simulation.generated_workflows import signals_of
from stepwell.testing.simulation.invariants import unfinished
from stepwell.testing.simulation.world import World

__all__ = ["look_after", "post"]

Posted = set[tuple[str, str]]
"""Signals that were sent, by execution and name: each is sent once."""


async def look_after(world: World, case: SimulationCase, posted: Posted) -> None:
    """Start a run, however often it takes; send it a signal that it may not wait for yet; perhaps cancel it."""
    await asyncio.sleep(case.starts_after)
    while not await _begin(world, case):  # noqa: ASYNC110 - as people do: try again after a while
        await asyncio.sleep(0.5)
    run = world.outside.well.run(case.execution_id)
    for name in signals_of(case.plan):
        # Only the code of a function says by itself what it waits for.
        if case.kind == "declared" or happens(world.scheduler, "signal comes early", 300):
            posted.add((case.execution_id, name))
            await asyncio.sleep(pick(world.scheduler, "until the signal", (0, 0.2, 1, 9)))
            await _once_it_exists(lambda name=name: run.signal(name, f"value of {name}"))
    if case.cancels_after is not None:
        await asyncio.sleep(case.cancels_after)
        await _once_it_exists(run.cancel)


async def _begin(world: World, case: SimulationCase) -> bool:
    """Have a process start or queue a run; whether it says that it did."""
    if not world.workers:
        return False
    process = pick(world.scheduler, "starter", world.workers)
    starting = process.run(_enqueue(process, case) if case.is_queued else _start(process, case))
    await asyncio.wait({starting, process.death}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    if starting.done() and not isinstance(starting.exception(), CommitUnknown | StoreUnavailable | LimitExceeded):
        starting.result()  # refused for good, perhaps: then it is raised
        return True
    return False


async def _start(process: SimulatedProcess, case: SimulationCase) -> None:
    await process.well.start(case.workflow, case.input, workspace=case.workspace, execution_id=case.execution_id)


async def _enqueue(process: SimulatedProcess, case: SimulationCase) -> None:
    name = case.execution_id
    await process.well.enqueue(case.workflow, case.input, workspace=case.workspace, execution_id=name, max_attempts=1000)


async def _once_it_exists(do: Callable[[], Awaitable[None]]) -> None:
    """Repeat a call until the queued run exists; ignore a run that has ended."""
    while True:
        try:
            return await do()
        except NotFound:
            await asyncio.sleep(0.3)
        except Conflict:
            return None


async def post(world: World, posted: Posted) -> None:
    """Send each signal that a run waits for, once: if it were lost, the run would wait for ever."""
    while True:
        await asyncio.sleep(pick(world.scheduler, "until the post", (0.1, 0.2, 0.3, 3)))
        for head in unfinished(world):
            state = await world.outside.well.load(head.execution_id)
            for token in state.tokens.values():
                name = token.value.get("name") if token.node == "signal" else None
                if name is not None and (head.execution_id, name) not in posted:
                    posted.add((head.execution_id, name))
                    with suppress(Conflict, NotFound):
                        await world.outside.well.run(head.execution_id).signal(name, f"value of {name}")
