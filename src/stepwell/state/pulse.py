"""The pulse of a store: lets those who wait sleep until something may have changed, here or in another process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from stepwell.contract.store import Store
from stepwell.model.commit import Commit, Outcome, StateBatch, Sweep, Unit, Unlock, Written

__all__ = ["LOCK", "STATE", "Listening", "Pulse"]

LOCK, STATE = "lock", "state"
_TOPICS: dict[type, str] = {Unlock: LOCK, StateBatch: STATE, Sweep: STATE}

# Word of another process can get lost with a connection; nobody sleeps for longer than this without looking again.
_LONGEST_SLEEP_SECONDS = 1.0


class Listening:
    """Somebody who waits for a topic. What happens after it began is never missed."""

    def __init__(self, pulse: Pulse, topic: str) -> None:
        self._pulse, self.topic = pulse, topic
        self._heard = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard_async: asyncio.Event | None = None

    def wake(self) -> None:
        """Say that something happened. From any thread."""
        self._heard.set()
        if self._loop is not None and self._heard_async is not None:
            with suppress(RuntimeError):  # the loop was closed: nobody is there to be told
                self._loop.call_soon_threadsafe(self._heard_async.set)

    def wait(self, seconds: float) -> None:
        """Sleep until something happens, or a while, but no longer than ``seconds``. Then look again."""
        self._heard.wait(min(max(seconds, 0), _LONGEST_SLEEP_SECONDS))
        self._heard.clear()

    async def wait_async(self, seconds: float) -> None:
        """The same for a caller that awaits."""
        if self._heard_async is None:
            self._loop, self._heard_async = asyncio.get_running_loop(), asyncio.Event()
        if not self._heard.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(seconds, 0), _LONGEST_SLEEP_SECONDS)):
                    await self._heard_async.wait()
        self._heard.clear()
        self._heard_async.clear()

    def __enter__(self) -> Listening:
        self._pulse.join(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pulse.leave(self)


class Pulse:
    """Passes on what happened to those who wait for it. The store is listened to only while somebody does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: set[Listening] = set()
        self._stop: Callable[[], None] | None = None

    def listen(self, topic: str) -> Listening:
        """Somebody who waits for a topic; use it as a context manager, and look only inside."""
        return Listening(self, topic)

    def written(self, units: Sequence[Unit], outcomes: Sequence[Outcome]) -> None:
        """Pass on what this process wrote. Costs nothing to speak of while nobody waits."""
        if not self._waiting:
            return
        topics = {
            STATE if isinstance(unit, Commit) and unit.ops else _TOPICS.get(type(unit))
            for unit, outcome in zip(units, outcomes, strict=True)
            if isinstance(outcome, Written)
        }
        for topic in topics - {None}:
            self.beat(topic or "")

    def beat(self, topic: str) -> None:
        """Say that something happened on a topic; an empty one means anything."""
        with self._lock:
            waiting = [each for each in self._waiting if topic in ("", each.topic)]
        for each in waiting:
            each.wake()

    def join(self, listening: Listening) -> None:
        """Begin to wait."""
        with self._lock:
            self._waiting.add(listening)
            if self._stop is None:
                self._stop = self._store.listen(self.beat)

    def leave(self, listening: Listening) -> None:
        """Wait no more."""
        with self._lock:
            self._waiting.discard(listening)
            stop, self._stop = (None, self._stop) if self._waiting else (self._stop, None)
        if stop is not None:
            stop()
