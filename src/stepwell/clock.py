"""Clocks: the machine's, and one for tests that is moved by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput

__all__ = ["Clock", "FakeClock", "SystemClock", "from_ms", "to_ms"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class Clock(Protocol):
    """A source of time. A store with a clock of its own (a database server) adds ``ahead_ms`` to that."""

    def now(self) -> datetime:
        """Return the time, aware and in UTC."""
        ...

    def now_ms(self) -> int:
        """Return the time in whole milliseconds since 1970."""
        ...

    def ahead_ms(self) -> int:
        """Return how many milliseconds this clock is ahead of the true time; 0 unless a test moved it."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the time, aware and in UTC."""
        return datetime.now(UTC)

    def now_ms(self) -> int:
        """Return the time in whole milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def ahead_ms(self) -> int:
        """Return how many milliseconds this clock is ahead of the true time; 0 unless a test moved it."""
        return 0


class FakeClock:
    """A clock for tests, which stands still until ``advance`` moves it.

    - ``start``: an aware datetime; 2026-01-01 in UTC by default.
    """

    def __init__(self, start: datetime | None = None) -> None:
        if start is not None and not (isinstance(start, datetime) and start.tzinfo is not None):
            raise InvalidInput(f"start is a datetime with a time zone, such as datetime.now(UTC), not {start!r}")
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._ahead = timedelta(0)

    def now(self) -> datetime:
        """Return the time, aware and in UTC."""
        return self._now + self._ahead

    def now_ms(self) -> int:
        """Return the time in whole milliseconds since 1970."""
        return to_ms(self.now())

    def ahead_ms(self) -> int:
        """Return how many milliseconds this clock is ahead of the true time; 0 unless a test moved it."""
        return self._ahead // _MS

    def advance(self, seconds: Span) -> None:
        """Move the time forward.

        - ``seconds``: seconds, a ``timedelta``, or a text such as ``"2h"``. Raise ``InvalidInput`` for a negative one.
        """
        self._ahead += timedelta(seconds=seconds_of(seconds, "what a clock is moved by"))


def to_ms(moment: datetime) -> int:
    """Return an aware datetime in whole milliseconds since 1970."""
    return (moment - _EPOCH) // _MS


def from_ms(milliseconds: int) -> datetime:
    """Return milliseconds since 1970 as an aware datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
