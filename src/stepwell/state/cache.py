"""A read cache for one scope: values from memory, dropped as soon as anybody is known to have written.

How stale can a value be? A write of this process drops it before the write is acknowledged. A write of another process drops it when
the store's word of it arrives (PostgreSQL and Redis send one, SQLite is looked at every 10 ms); should that word be lost, the value
is read again once it is older than ``max_age``. So ``max_age`` is the bound that always holds.
"""

from __future__ import annotations

from collections.abc import Awaitable
from time import monotonic
from typing import Protocol

from stepwell.errors import InvalidInput
from stepwell.model.entry import Entry
from stepwell.model.value import Value, canonical, decode
from stepwell.state.pulse import STATE, Listening, Pulse

__all__ = ["AsyncCachedState", "CachedState"]


class _Cache(Listening):
    """Values by key, each with the time it was asked for; None for a key that is not there."""

    def __init__(self, pulse: Pulse, max_age: float) -> None:
        if not 0 < max_age <= 86_400:
            raise InvalidInput(f"max_age is a number of seconds up to one day, not {max_age!r}")
        super().__init__(pulse, STATE)
        self._max_age = max_age
        self._generation = 0
        self._values: dict[str, tuple[float, bytes | None]] = {}
        pulse.join(self)

    def wake(self) -> None:
        """Somebody wrote: nothing is known to be fresh any more, and what is being read right now is not kept."""
        self._generation += 1
        self._values.clear()

    def close(self) -> None:
        """Listen no more; from now on nothing is kept."""
        self._pulse.leave(self)
        self._max_age = 0

    def _find(self, key: str) -> tuple[float, bytes | None] | None:
        found = self._values.get(key)
        return found if found is not None and monotonic() - found[0] < self._max_age else None

    def _keep(self, key: str, asked: tuple[int, float], entry: Entry | None) -> None:
        generation, asked_at = asked
        # The age counts from the question, since the answer may be as old as that.
        self._values[key] = (asked_at, None if entry is None else canonical(entry.value))
        if generation != self._generation:
            self._values.pop(key, None)


class _Readable(Protocol):
    def entry(self, key: str) -> Entry | None: ...


class _AsyncReadable(Protocol):
    def entry(self, key: str) -> Awaitable[Entry | None]: ...


class CachedState(_Cache):
    """One scope, read from memory where that is fresh."""

    def __init__(self, state: _Readable, pulse: Pulse, max_age: float) -> None:
        super().__init__(pulse, max_age)
        self._state = state

    def get(self, key: str, default: Value = None) -> Value:
        """The value of a key, or ``default`` if it is not there; at most ``max_age`` seconds old."""
        found = self._find(key)
        if found is not None:
            return default if found[1] is None else decode(found[1])
        asked = self._generation, monotonic()
        entry = self._state.entry(key)
        self._keep(key, asked, entry)
        return default if entry is None else entry.value


class AsyncCachedState(_Cache):
    """One scope, read from memory where that is fresh."""

    def __init__(self, state: _AsyncReadable, pulse: Pulse, max_age: float) -> None:
        super().__init__(pulse, max_age)
        self._state = state

    async def get(self, key: str, default: Value = None) -> Value:
        """The value of a key, or ``default`` if it is not there; at most ``max_age`` seconds old."""
        found = self._find(key)
        if found is not None:
            return default if found[1] is None else decode(found[1])
        asked = self._generation, monotonic()
        entry = await self._state.entry(key)
        self._keep(key, asked, entry)
        return default if entry is None else entry.value
