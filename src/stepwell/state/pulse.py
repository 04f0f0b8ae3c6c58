"""The pulse of a store: lets watchers sleep until something may have changed, here or in another process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from stepwell.contract.store import Store

__all__ = ["Pulse"]

# How often a store that other processes share is asked whether they wrote; writes of this process are known at once.
_POLL_SECONDS = 0.25


class Pulse:
    """Counts writes of this process, and asks the store about those of others."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_shared = store.capabilities().is_shared
        self._beats = 0
        self._beaten = threading.Condition()
        self._listeners: set[Callable[[], None]] = set()

    def beat(self) -> None:
        """Say that something was written. Costs nothing to speak of while nobody watches."""
        self._beats += 1
        if self._listeners:
            with self._beaten:
                listeners = list(self._listeners)
            for listener in listeners:
                listener()

    def mark(self) -> tuple[int, object]:
        """A value to compare with later."""
        return self._beats, self._store.change_mark() if self._is_shared else None

    def wait(self, mark: tuple[int, object], idle_seconds: float | None) -> bool:
        """Wait until something may have changed since the mark; False if ``idle_seconds`` pass first."""
        woken = threading.Event()
        self._listen(woken.set)
        try:
            deadline = _deadline(idle_seconds)
            while self.mark() == mark:
                left = _left(deadline)
                if left <= 0:
                    return False
                woken.wait(min(left, _POLL_SECONDS) if self._is_shared else left)
            return True
        finally:
            self._leave(woken.set)

    async def wait_async(self, mark: tuple[int, object], idle_seconds: float | None) -> bool:
        """The same for a caller that awaits."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        self._listen(wake)
        try:
            deadline = _deadline(idle_seconds)
            while await loop.run_in_executor(None, self.mark) == mark:
                left = _left(deadline)
                if left <= 0:
                    return False
                try:
                    async with asyncio.timeout(min(left, _POLL_SECONDS) if self._is_shared else left):
                        await woken.wait()
                except TimeoutError:
                    continue
            return True
        finally:
            self._leave(wake)

    def _listen(self, listener: Callable[[], None]) -> None:
        with self._beaten:
            self._listeners.add(listener)

    def _leave(self, listener: Callable[[], None]) -> None:
        with self._beaten:
            self._listeners.discard(listener)


def _deadline(idle_seconds: float | None) -> float | None:
    return None if idle_seconds is None else time.monotonic() + idle_seconds


def _left(deadline: float | None) -> float:
    return 3600.0 if deadline is None else deadline - time.monotonic()
