"""Stepwell's function workflows: the async and the blocking API, with async and with blocking steps."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from benchmarks.rivals.contest import STEPS_EACH
from benchmarks.rivals.player import Place
from benchmarks.rivals.players.pace import step_rate
from stepwell import AsyncStepwell, Stepwell, step, workflow
from stepwell.runtime.host_tuning import host_tuning

__all__ = ["AsyncSteps", "BlockingSteps", "url_of"]

_CONCURRENCY = 200


@step
async def add(number: int) -> int:
    """Return the sum; a trivial step."""
    return number + 1


@step
def add_plainly(number: int) -> int:
    """Return the sum; a trivial blocking step."""
    return number + 1


@workflow
async def counting(number: int) -> int:
    """Run ten steps, one after another."""
    for _ in range(STEPS_EACH):
        number = await add(number)
    return number


@workflow
async def counting_by_plain_steps(number: int) -> int:
    """Run ten blocking steps in async code."""
    for _ in range(STEPS_EACH):
        number = await add_plainly(number)  # pyright: ignore[reportGeneralTypeIssues] - awaited inside of async workflows
    return number


@workflow
def counting_plainly(number: int) -> int:
    """Run ten blocking steps in blocking code."""
    for _ in range(STEPS_EACH):
        number = add_plainly(number)
    return number


def url_of(place: Place) -> str:
    """Return the URL of a well at this place."""
    return {"memory": "memory://", "sqlite": f"sqlite:///{place.file}"}.get(place.store, place.url)


class AsyncSteps:
    """The async API, with its worker on the same event loop."""

    def __init__(self, place: Place) -> None:
        self._tuning = ExitStack()
        self._tuning.enter_context(host_tuning())
        self._runner = asyncio.Runner()
        self._workflow = counting_by_plain_steps if place.options.get("is_plain") else counting
        self._well = AsyncStepwell(url_of(place), concurrency=_CONCURRENCY)
        self._runner.run(self._well.__aenter__())
        self.works = {"alone": self.alone, "together": self.together}

    async def _one(self) -> int:
        run = await self._well.start(self._workflow, 0)
        return await run.result()

    def alone(self, size: int) -> list[float]:
        """Run workflows one after another."""

        async def each() -> list[int]:
            return [await self._one() for _ in range(size)]

        return step_rate(size, lambda: self._runner.run(each()))

    def together(self, size: int) -> list[float]:
        """Run workflows concurrently."""

        async def all_of_them() -> list[int]:
            return await asyncio.gather(*(self._one() for _ in range(size)))

        return step_rate(size, lambda: self._runner.run(all_of_them()))

    def close(self) -> None:
        """Close the well."""
        self._runner.run(self._well.close())
        self._runner.close()
        self._tuning.close()


class BlockingSteps:
    """The blocking API, with its worker in a thread."""

    def __init__(self, place: Place) -> None:
        self._tuning = ExitStack()
        self._tuning.enter_context(host_tuning())
        self._workflow = counting_plainly if place.options.get("is_plain") else counting
        self._well = Stepwell(url_of(place), concurrency=_CONCURRENCY)
        self.works = {"alone": self.alone, "together": self.together}

    def alone(self, size: int) -> list[float]:
        """Run workflows one after another."""
        return step_rate(size, lambda: [self._well.start(self._workflow, 0).result() for _ in range(size)])

    def together(self, size: int) -> list[float]:
        """Run workflows concurrently."""

        def all_of_them() -> list[int]:
            runs = [self._well.start(self._workflow, 0) for _ in range(size)]
            return [run.result() for run in runs]

        return step_rate(size, all_of_them)

    def close(self) -> None:
        """Close the well."""
        self._well.close()
        self._tuning.close()
