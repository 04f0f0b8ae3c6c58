"""What works beside a dispatcher goes on after something that nobody expected, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from stepwell.queue.recovery import QueueRecovery
from stepwell.queue.scheduler import Scheduler

WAIT = 60  # for what must happen; reached only by a failing test


class Watched:
    watchers: set[object]

    def __init__(self) -> None:
        self.watchers = set()


class Driver:
    """Meets something that nobody expected at first."""

    def __init__(self) -> None:
        self.tries, self.again = 0, asyncio.Event()

    async def run(self, operation: Generator[Any, Any, Any]) -> None:
        operation.close()
        self.tries += 1
        if self.tries == 1:
            raise RuntimeError("nobody expected this")
        self.again.set()


async def goes_on(companion: Any, driver: Driver) -> None:
    task = asyncio.create_task(companion.run())
    await asyncio.wait_for(driver.again.wait(), WAIT)
    companion.stop()
    await asyncio.wait_for(task, WAIT)


def test_scheduler_goes_on_after_what_it_did_not_expect(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("stepwell.queue.scheduler._AGAIN_SECONDS", 0)

    async def work() -> None:
        driver = Driver()
        await goes_on(Scheduler(Watched(), driver), driver)  # pyright: ignore[reportArgumentType]

    asyncio.run(work())
    assert "did not expect" in caplog.text
    assert "nobody expected this" in caplog.text


def test_upkeep_goes_on_after_what_it_did_not_expect(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("stepwell.queue.recovery.BEAT_SECONDS", 0)

    async def work() -> None:
        driver = Driver()
        upkeep = QueueRecovery(
            **dict.fromkeys(("queue", "locks", "store", "engine")),  # pyright: ignore[reportArgumentType]
            driver=driver,  # pyright: ignore[reportArgumentType]
            name="w",
            queues=(),
            concurrency=1,
            claim_seconds=60,
        )

        async def appear() -> None:
            await driver.run(_ for _ in ())

        monkeypatch.setattr(upkeep, "_appear", appear)
        await goes_on(upkeep, driver)

    asyncio.run(work())
    assert "not expected" in caplog.text
