"""Base of the tasks that repeat one piece of work beside a worker's sessions until they are stopped."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import suppress

from stepwell.errors import StepwellError

__all__ = ["BACKOFF_SECONDS", "PeriodicTask"]

log = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds to wait after a failed round, by the number of failed rounds in a row: a store that is back is used soon."""

_SHORTEST_SLEEP_SECONDS = 0.001
"""An event loop's timer may fire slightly early; sleeping for the rest of that time would spin."""


class PeriodicTask(ABC):
    """Repeats ``work`` on an event loop, and sleeps in between.

    A failed round never ends the task: a worker that is alive but claims, fires or renews nothing would not be noticed for long.
    """

    name = "the task"
    """The name of the task in the log."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._is_signalled = False
        """Whether a wake-up is pending; further ones before the next round change nothing."""
        self._failures = 0
        self._kind: type[Exception] | None = None
        self.failure: str | None = None
        """Why the last rounds failed; None while they succeed."""

    @abstractmethod
    async def work(self) -> float | None:
        """Do one round; return the seconds until the next one, or None to begin it at once."""

    async def run(self) -> None:
        """Repeat ``work`` until stopped; while it fails, wait longer and longer."""
        self._loop = asyncio.get_running_loop()
        while not self.is_stopping:
            self._is_signalled = False
            self._woken.clear()
            pause = await self._attempt()
            # Sleep at least once per round: on a store that answers at once, nothing else lets the loop go on.
            await (asyncio.sleep(0) if pause is None else self.sleep(pause))

    def stop(self) -> None:
        """Begin no more rounds. On the task's loop."""
        self.is_stopping = True
        self._woken.set()

    def wake(self) -> None:
        """Begin the next round now, or as soon as the present one is over. From any thread."""
        if self._is_signalled:
            return
        self._is_signalled = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed, and the task ended with it
                self._loop.call_soon_threadsafe(self._woken.set)

    async def sleep(self, seconds: float) -> bool:
        """Sleep until woken, at most for ``seconds``; return whether it was woken."""
        if not self._woken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, _SHORTEST_SLEEP_SECONDS)):
                    await self._woken.wait()
        return self._woken.is_set()

    async def _attempt(self) -> float | None:
        try:
            pause = await self.work()
        except Exception as error:  # noqa: BLE001 - the task goes on
            self._note_failure(error)
        else:
            if self._failures:
                log.warning("%s works again, after %d failures in a row", self.name, self._failures)
            self._failures, self._kind, self.failure = 0, None, None
            return pause
        await self._back_off(BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS)) - 1])
        return None

    def _note_failure(self, error: Exception) -> None:
        """Count a failed round, and log only the first of those in a row that fail with the same kind of error."""
        before, self._kind = self._kind, type(error)
        self.failure = str(error) or type(error).__name__
        self._failures += 1
        if self._kind is before:
            return
        if isinstance(error, StepwellError):
            log.warning("%s failed, and tries again: %s", self.name, error)
        else:
            log.error("%s met an unexpected error, and goes on", self.name, exc_info=error)

    async def _back_off(self, seconds: float) -> None:
        """Sleep for the whole time unless stopped: wake-ups must not make a task spin while its store fails fast."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while not self.is_stopping and (left := ends - loop.time()) > 0:
            self._woken.clear()
            await self.sleep(left)
