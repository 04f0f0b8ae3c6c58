"""A read cache for one scope: values in memory, dropped at every write that this process is notified of.

How stale can a value be? A write of this process drops it before the write is acknowledged. A write of another process drops it
when the store's notification arrives (PostgreSQL and Redis send one, SQLite is polled every 10 ms). If the notification is lost,
the value is read again once it is older than ``max_age``. So ``max_age`` is the bound that always holds. A key with a TTL is kept
no longer than it lives, by the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from types import TracebackType

from stepwell.duration import Span, held_seconds
from stepwell.model.scoped_operations import Entry
from stepwell.model.value import recode
from stepwell.pipeline.notifications import STATE, Notifications, Subscription

__all__ = ["ReadCache"]

# Absent keys are cached, too, and there is no limit to how many a program asks for.
_MOST_KEYS = 10_000


class ReadCache(Subscription):
    """Values by key, each with the time until which it is fresh. None stands for an absent key.

    - ``ahead_ms``: how far a test has moved the clock that TTLs go by; monotonic time does not follow it.
    """

    def __init__(self, notifications: Notifications, max_age: Span, ahead_ms: Callable[[], int]) -> None:
        super().__init__(notifications, STATE)
        self._max_age = held_seconds(max_age, "max_age")
        self._ahead_ms = ahead_ms
        self._era = object()
        self._values: dict[str, tuple[object, float, bytes | None]] = {}
        notifications.join(STATE, self.wake)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} max_age={self._max_age:g} keys={len(self._values)}>"

    def wake(self) -> None:
        """Forget all values after a write in the store, and do not keep the results of reads that are under way."""
        # A new object, not a counter: two threads that increment at once could produce an old number again.
        self._era = object()
        self._values.clear()

    def close(self) -> None:
        """Stop caching: every later read asks the store."""
        self._notifications.leave(STATE, self.wake)
        self._max_age = 0
        self.wake()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _find(self, key: str) -> tuple[object, float, bytes | None] | None:
        found = self._values.get(key)
        # Compare the era here, too: a value may be stored right after the wake-up that makes it stale.
        is_fresh = found is not None and found[0] is self._era and self._now() < found[1]
        return found if is_fresh else None

    def _ask(self) -> tuple[object, float]:
        """Return what `_keep` needs to know about the moment before a read."""
        return self._era, self._now()

    def _keep(self, key: str, asked: tuple[object, float], entry: Entry | None, lifetime: float) -> None:
        era, asked_at = asked
        if era is self._era:
            if len(self._values) >= _MOST_KEYS:
                self._values.clear()
            # The age counts from before the read: the value may be as old as that.
            until = asked_at + min(self._max_age, lifetime)
            self._values[key] = (era, until, None if entry is None else recode(entry.value))

    def _now(self) -> float:
        return monotonic() + self._ahead_ms() / 1000
