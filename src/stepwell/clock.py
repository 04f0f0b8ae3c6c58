"""Where time comes from: the machine, or a test that moves it by hand."""

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
    """Gives the time; stores that own a clock (a database server) add ``ahead_ms`` to theirs instead."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        ...

    def now_ms(self) -> int:
        """The same in whole milliseconds since 1970."""
        ...

    def ahead_ms(self) -> int:
        """How far this clock runs ahead of true time; 0 unless a test moved it."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return datetime.now(UTC)

    def now_ms(self) -> int:
        """The same in whole milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def ahead_ms(self) -> int:
        """0: this is the true time."""
        return 0


class FakeClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start: datetime | None = None) -> None:
        if start is not None and not (isinstance(start, datetime) and start.tzinfo is not None):
            raise InvalidInput(f"start is a datetime with a time zone, such as datetime.now(UTC), not {start!r}")
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._ahead = timedelta(0)

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return self._now + self._ahead

    def now_ms(self) -> int:
        """The same in whole milliseconds since 1970."""
        return to_ms(self.now())

    def ahead_ms(self) -> int:
        """How far a test has moved it."""
        return self._ahead // _MS

    def advance(self, seconds: Span) -> None:
        """Move the time on, by any span; the past is out of reach, as with a real clock."""
        self._ahead += timedelta(seconds=seconds_of(seconds, "what a clock is moved by"))


def to_ms(moment: datetime) -> int:
    """Whole milliseconds since 1970, exact for every aware datetime."""
    return (moment - _EPOCH) // _MS


def from_ms(milliseconds: int) -> datetime:
    """The aware UTC time of a number of milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
