"""The tasks beside a worker go on after errors, log them, and back off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from stepwell.clock import FakeClock
from stepwell.errors import StoreUnavailable
from stepwell.model.limits import Limits
from stepwell.pipeline.notifications import Notifications
from stepwell.queue.recovery import QueueRecovery
from stepwell.queue.scheduler import Scheduler
from stepwell.queue.worker_presence import Heartbeat
from stepwell.runtime.periodic import PeriodicTask
from stepwell.stores.memory.store import MemoryStore

WAIT = 60  # for what must happen; reached only by a failing test


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


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.runtime.periodic.BACKOFF_SECONDS", (0.001,))


COMPANIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "the scheduler": Scheduler,
    "the recovery of the queue": lambda any_, driver, notifications: QueueRecovery(any_, any_, driver, 60),
    "the heartbeat of the worker": lambda any_, driver, notifications: Heartbeat("w", any_, any_, driver, (), 1),
}


@pytest.mark.parametrize("name", COMPANIONS)
def test_companion_goes_on_after_an_unexpected_error(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        driver, store = Driver(), MemoryStore(FakeClock(), Limits())
        await goes_on(COMPANIONS[name](AsyncMock(), driver, Notifications(store)), driver)

    asyncio.run(work())
    assert f"{name} met an unexpected error" in caplog.text
    assert "nobody expected this" in caplog.text


class Failing(PeriodicTask):
    """Fails in each round, in another way from time to time, and is woken by that."""

    def __init__(self, *errors: Exception | None) -> None:
        super().__init__()
        self._errors, self.rounds = [*errors], 0

    async def work(self) -> float | None:
        self.rounds += 1
        self.wake()
        if not self._errors:
            self.stop()
        elif (error := self._errors.pop(0)) is not None:
            raise error
        return None


def test_unexpected_error_is_logged_once_until_a_round_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(Failing(ValueError("a"), ValueError("b"), None, ValueError("c")).run())
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a", "c"]


def test_wake_ups_do_not_cut_the_backoff_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write wakes everybody: a task whose own write failed would retry without end."""
    monkeypatch.setattr("stepwell.runtime.periodic.BACKOFF_SECONDS", (3_600,))

    async def work() -> None:
        task = Failing(StoreUnavailable("away"), StoreUnavailable("away"))
        running = asyncio.create_task(task.run())
        for _ in range(50):
            await asyncio.sleep(0)
            task.wake()
        assert task.rounds == 1
        task.stop()
        await asyncio.wait_for(running, WAIT)

    asyncio.run(work())
