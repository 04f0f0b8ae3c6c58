"""A read cache for one scope: values from memory, dropped as soon as anybody is known to have written.

How stale can a value be? A write of this process drops it before the write is acknowledged. A write of another process drops it
when the store's word of it arrives (PostgreSQL and Redis send one, SQLite is looked at every 10 ms); should that word be lost, the
value is read again once it is older than ``max_age``. So ``max_age`` is the bound that always holds.
"""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from stepwell.duration import Span, held_seconds
from stepwell.model.scoped_operations import Entry
from stepwell.model.value import recode
from stepwell.pipeline.notifications import STATE, Notifications, Subscription

__all__ = ["ReadCache"]

# Keys that are not there are remembered, too, and of those there is no end.
_MOST_KEYS = 10_000


class ReadCache(Subscription):
    """Values by key, each with the time it was asked for; None for a key that is not there."""

    def __init__(self, pulse: Notifications, max_age: Span) -> None:
        super().__init__(pulse, STATE)
        self._max_age = held_seconds(max_age, "max_age")
        self._era = object()
        self._values: dict[str, tuple[object, float, bytes | None]] = {}
        pulse.join(STATE, self.wake)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} max_age={self._max_age:g} keys={len(self._values)}>"

    def wake(self) -> None:
        """Forget all values after a write in the store. What is being read at this moment is not kept either."""
        # A new object and not a count: two threads that count at once could bring an old number back.
        self._era = object()
        self._values.clear()

    def close(self) -> None:
        """Stop caching: every later read asks the store."""
        self._pulse.leave(STATE, self.wake)
        self._max_age = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _find(self, key: str) -> tuple[object, float, bytes | None] | None:
        found = self._values.get(key)
        # The era is compared here, too: a value may be put down right after the news that it is old.
        is_fresh = found is not None and found[0] is self._era and monotonic() - found[1] < self._max_age
        return found if is_fresh else None

    def _ask(self) -> tuple[object, float]:
        """Return what `_keep` needs to know about the moment before a read."""
        return self._era, monotonic()

    def _keep(self, key: str, asked: tuple[object, float], entry: Entry | None) -> None:
        era, asked_at = asked
        if era is self._era:
            if len(self._values) >= _MOST_KEYS:
                self._values.clear()
            # The age counts from the question, since the answer may be as old as that.
            self._values[key] = (era, asked_at, None if entry is None else recode(entry.value))
