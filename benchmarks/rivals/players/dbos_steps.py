"""DBOS workflows of steps, async and blocking, with default settings and logging of errors only.

A workflow is called directly, so that its caller gets the result at once and nothing polls. For concurrent runs, async workflows
are gathered on one event loop, and blocking ones run in DBOS's own threads, whose number it decides.
"""

from __future__ import annotations

import asyncio
import sqlite3

from dbos import DBOS

from benchmarks.rivals.contest import STEPS_EACH
from benchmarks.rivals.player import Place
from benchmarks.rivals.players.pace import step_rate

__all__ = ["AsyncSteps", "BlockingSteps", "launch"]


@DBOS.step()
async def add(number: int) -> int:
    """Return the sum; a trivial step."""
    return number + 1


@DBOS.step()
def add_plainly(number: int) -> int:
    """Return the sum; a trivial blocking step."""
    return number + 1


@DBOS.workflow()
async def counting(number: int) -> int:
    """Run ten steps, one after another."""
    for _ in range(STEPS_EACH):
        number = await add(number)
    return number


@DBOS.workflow()
def counting_plainly(number: int) -> int:
    """Run ten blocking steps in blocking code."""
    for _ in range(STEPS_EACH):
        number = add_plainly(number)
    return number


def launch(place: Place) -> None:
    """Start DBOS with its system database at a place."""
    url = place.url if place.store == "postgres" else f"sqlite:///{place.file}"
    if place.options.get("is_wal"):
        # Not its default, but a setting that the file keeps.
        with sqlite3.connect(place.file) as connection:
            connection.execute("PRAGMA journal_mode = wal")
        connection.close()
    DBOS(config={"name": "rivals", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()


class AsyncSteps:
    """Async workflows on one event loop."""

    def __init__(self, place: Place) -> None:
        self._runner = asyncio.Runner()
        launch(place)
        self.works = {"alone": self.alone, "together": self.together}

    def alone(self, size: int) -> list[float]:
        """Run workflows one after another."""

        async def each() -> list[int]:
            return [await counting(0) for _ in range(size)]

        return step_rate(size, lambda: self._runner.run(each()))

    def together(self, size: int) -> list[float]:
        """Run workflows concurrently."""

        async def all_of_them() -> list[int]:
            return await asyncio.gather(*(counting(0) for _ in range(size)))

        return step_rate(size, lambda: self._runner.run(all_of_them()))

    def close(self) -> None:
        """Stop DBOS."""
        DBOS.destroy()
        self._runner.close()


class BlockingSteps:
    """Blocking workflows."""

    def __init__(self, place: Place) -> None:
        launch(place)
        self.works = {"alone": self.alone, "together": self.together}

    def alone(self, size: int) -> list[float]:
        """Run workflows one after another."""
        return step_rate(size, lambda: [counting_plainly(0) for _ in range(size)])

    def together(self, size: int) -> list[float]:
        """Run workflows concurrently."""

        def all_of_them() -> list[int]:
            handles = [DBOS.start_workflow(counting_plainly, 0) for _ in range(size)]
            return [handle.get_result() for handle in handles]

        return step_rate(size, all_of_them)

    def close(self) -> None:
        """Stop DBOS."""
        DBOS.destroy()
