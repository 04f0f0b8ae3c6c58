"""Virtual time: a clock that only the test, or the event loop on it, moves."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

from stepwell.clock import to_ms
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.model.status import FINAL
from stepwell.queue.scheduler import PATH as SCHEDULES
from stepwell.queue.scheduler import read_schedule

__all__ = [
    "VirtualClock",
    "as_monotonic",
    "horizon",
]


_START = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock:
    """Counts whole microseconds since its start, so that the milliseconds of the store and the floats of a loop agree."""

    def __init__(self, start: datetime = _START) -> None:
        self._start, self._elapsed_us = start, 0

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        return self._start + timedelta(microseconds=self._elapsed_us)

    def now_ms(self) -> int:
        """Return the time in whole milliseconds since 1970."""
        return to_ms(self._start) + self._elapsed_us // 1_000

    def ahead_ms(self) -> int:
        """Return how many milliseconds the clock is ahead of its start."""
        return self._elapsed_us // 1_000

    @property
    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self._elapsed_us / 1_000_000

    def move_to(self, elapsed: float) -> None:
        """Move on to a number of seconds since the start; never back. Rounded up, so that what is due then is due."""
        self._elapsed_us = max(self._elapsed_us, math.ceil(elapsed * 1_000_000))

    def has_reached(self, elapsed: float) -> bool:
        """Return whether the clock has reached a number of seconds since the start, rounded to the nearest microsecond."""
        return self._elapsed_us >= math.ceil(elapsed * 1_000_000)

    def until_ms(self, moment_ms: int) -> float:
        """Return the seconds from now to a time in milliseconds since 1970; not below 0."""
        return max((moment_ms - to_ms(self._start)) / 1_000 - self.elapsed, 0.0)


@contextmanager
def as_monotonic(clock: VirtualClock) -> Generator[None]:
    """Have all of Stepwell take this clock for ``time.monotonic``, which leases and pauses are counted by. In the whole process, so
    only for what has it to itself."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("stepwell.") and vars(module).get("monotonic") is time.monotonic:
                stack.enter_context(patch.object(module, "monotonic", lambda: clock.elapsed))
        yield


def horizon(store: Store, clock: VirtualClock) -> float | None:
    """Return the seconds until an execution, a queue item or a tick of a schedule comes due.

    None while an execution is held, or anything is due; infinite if nothing ever will be without word from outside.
    """
    now = clock.now_ms()
    heads = [head for head in store.find(ExecutionQuery(limit=10_000)) if head.status not in FINAL]
    if any(head.holder is not None for head in heads):
        return None
    times = [head.wake_ms for head in heads] + [store.next_ready_ms()] + _ticks(store)
    known = [moment for moment in times if moment is not None]
    return None if any(moment <= now for moment in known) else min(map(clock.until_ms, known), default=math.inf)


def _ticks(store: Store) -> list[int | None]:
    rows = [(name, entry.data) for name, entry in store.scan(SCHEDULES)]
    schedules = [read_schedule(name, data) for name, data in rows if data is not None]
    return [schedule.next_ms for schedule in schedules if not schedule.is_paused]
