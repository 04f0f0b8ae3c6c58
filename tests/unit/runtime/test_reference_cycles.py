"""Runs leave no reference cycles behind, so that rare collections cost no memory."""

from __future__ import annotations

import asyncio
import gc

from stepwell import AsyncStepwell, step, workflow

WAIT = 60


@step
async def tell() -> int:
    return 1


@step
def tell_plainly() -> int:
    return 1


@workflow(name="cycles.tell_twice")
async def tell_twice() -> int:
    return await tell() + await tell_plainly()  # type: ignore[misc]


def test_ended_runs_leave_no_reference_cycles() -> None:
    async def main() -> int:
        async with AsyncStepwell("memory://") as well:

            async def some_runs() -> None:
                runs = [await well.start(tell_twice) for _ in range(20)]
                items = [await well.enqueue(tell_twice) for _ in range(20)]
                await asyncio.gather(*(each.result(WAIT) for each in [*runs, *items]))

            await some_runs()
            gc.collect()
            gc.disable()
            try:
                await some_runs()
                return gc.collect()
            finally:
                gc.enable()

    assert asyncio.run(main()) < 40  # less than an object for each
