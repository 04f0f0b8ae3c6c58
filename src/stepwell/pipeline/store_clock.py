"""The clock that durable times are made from: this machine's, corrected by its measured difference from the store's.

The store compares wake-ups, leases and TTLs with its own clock, and machines disagree by anything up to hours. So a time that one
process writes and another acts on must be the store's. Asking the store for each would cost a round trip; the difference is
measured when the store is opened, and again after a minute or after this machine's clock was set.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from time import monotonic

from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.errors import StepwellError

__all__ = ["StoreClock"]

_FRESH_SECONDS = 60.0
"""Clocks drift by some milliseconds in this time."""
_MOST_EARLY_MS = 50
"""A reply that took longer was slow for once: what waits for its time is not held up as long as that."""
_STEP_SECONDS = 1.0
"""A machine's clock that went this much further, or less far, than ``time.monotonic`` was set."""


class StoreClock:
    """The time of a store, read without asking it. It can be used where a ``Clock`` can."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._is_remote = store.capabilities().has_blocking_writes
        self._skew = timedelta(0)
        self.skew_ms = 0
        """How many milliseconds the store's clock is ahead of this machine's, as last measured."""
        self.early_ms = 0
        """By how many milliseconds the store's clock may be behind ``now_ms``, as far as the last measurement could tell."""
        self._measured: tuple[float, float] | None = None
        """``time.monotonic`` and this machine's time in seconds at the last measurement; None if there was none."""

    def now(self) -> datetime:
        """Return the store's time, aware and in UTC."""
        return self._clock.now() + self._skew

    def now_ms(self) -> int:
        """Return the store's time in whole milliseconds since 1970."""
        return self._clock.now_ms() + self.skew_ms

    def ahead_ms(self) -> int:
        """Return how many milliseconds a test has moved the time; 0 otherwise."""
        return self._clock.ahead_ms()

    def measure(self) -> None:
        """Ask the store for its time. If it does not answer, the next ``refresh`` asks again."""
        asked = self._clock.now_ms()
        try:
            told = self._store.now_ms()
        except StepwellError:
            self._measured = None
            return
        heard = self._clock.now_ms()
        # The store read its clock somewhere between question and reply. A difference that fits is kept, so that a slow reply does
        # not move the time, and a store that reads this very clock is never apart from it.
        least, most = told - heard, told - asked
        if not least <= self.skew_ms <= most:
            self.skew_ms = (least + most) // 2
            self._skew = timedelta(milliseconds=self.skew_ms)
        # One more, since both clocks are cut off at the millisecond. A store of this machine reads this very clock.
        self.early_ms = min(self.skew_ms - least + 1, _MOST_EARLY_MS) if self._is_remote else 0
        self._measured = monotonic(), heard / 1000

    def refresh(self, at: float) -> None:
        """Begin to measure again if that is due: after a minute, or when this machine's clock was set.

        Args:
            at: the present ``time.monotonic``, which the writer has at hand.
        """
        time = self._clock.now_ms() / 1000
        if self._measured is not None:
            passed, gone = at - self._measured[0], time - self._measured[1]
            if passed < _FRESH_SECONDS and abs(gone - passed) < _STEP_SECONDS:
                return
        self._measured = at, time  # so that the writes until the reply do not begin another
        if self._is_remote:
            # Writers come by here: a connection that does not answer must not hold them up.
            threading.Thread(target=self.measure, name="stepwell-store-clock", daemon=True).start()
        else:
            self.measure()
