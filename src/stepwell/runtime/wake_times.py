"""Wake-up times of executions that rest in the store, so that timers are on time without a poll."""

from __future__ import annotations

import heapq

__all__ = ["WakeTimes"]

_MOST_TIMES = 1_000
"""How many times are kept. The others are in the store, where the poll finds them, at most a second late."""


class WakeTimes:
    """The soonest times at which something comes due."""

    def __init__(self) -> None:
        self._times: list[int] = []

    def __len__(self) -> int:
        return len(self._times)

    def add(self, wake_ms: int) -> None:
        """Remember a time."""
        heapq.heappush(self._times, wake_ms)
        if len(self._times) > 2 * _MOST_TIMES:
            self._times = heapq.nsmallest(_MOST_TIMES, self._times)

    def next_after(self, now_ms: int) -> int | None:
        """Return the next time to look, which is now if one has passed; times that have passed are forgotten."""
        has_passed = False
        while self._times and self._times[0] <= now_ms:
            heapq.heappop(self._times)
            has_passed = True
        if has_passed:
            return now_ms
        return self._times[0] if self._times else None
