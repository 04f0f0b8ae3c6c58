"""The bell of a dispatcher: what it sleeps by, and whether there is news that it has not looked into."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stepwell.pipeline.notifications import QUEUE, Notifications, Subscription

__all__ = ["DispatcherWakeup"]


class DispatcherWakeup(Subscription):
    """Rings for news of the queue, from any thread; many rings before it is heard are one."""

    def __init__(self, pulse: Notifications) -> None:
        super().__init__(pulse, QUEUE)
        self._here = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._is_ringing = self._is_rung = False
        self._timer: asyncio.TimerHandle | None = None
        self.has_news = False
        """Whether it rang for news that no claim has set out for since."""

    def wake(self) -> None:
        """Ring for news. From any thread."""
        self.has_news = True
        if not self._is_ringing:
            self._is_ringing = True
            with suppress(RuntimeError):  # the loop was closed: nobody is there to hear it
                self._here.call_soon_threadsafe(self._rung.set)

    def wake_later(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        """Ring so long after the latest call of this, if it is wanted then. From any thread."""
        with suppress(RuntimeError):
            self._here.call_soon_threadsafe(self._set_timer, seconds, is_wanted)

    def _set_timer(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._here.call_later(seconds, lambda: is_wanted() and self.wake())

    def cover(self) -> None:
        """A claim sets out, which finds whatever there was news of until now. From any thread."""
        self.has_news = False

    def ring(self) -> None:
        """Ring for something else than news. On its own loop."""
        self._is_rung = True
        self._rung.set()

    def hush(self) -> None:
        """From now on, new rings count."""
        self._is_rung = False
        self._silence()

    def _silence(self) -> None:
        self._rung.clear()
        self._is_ringing = False

    async def heard(self, seconds: float) -> bool:
        """Wait for a ring, but no longer than this; whether there was one. One for news that was covered since is none."""
        if self._rung.is_set() and not (self._is_rung or self.has_news):
            self._silence()
            if self.has_news:  # it came before it was silent, and did not ring
                self._rung.set()
        if not self._rung.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._rung.wait()
        return self._rung.is_set()
