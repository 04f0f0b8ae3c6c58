"""Durations as people write them (``90``, ``"1h30m"``, a ``timedelta``) and timestamps. This is the only parser of both.

Leases, timeouts and caches have bounds, which are checked here, before a value reaches a store.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Annotated

from msgspec import Meta

from stepwell.errors import InvalidInput

__all__ = [
    "DEFAULT_LOCK_SECONDS",
    "LONGEST_SECONDS",
    "Seconds",
    "Span",
    "held_seconds",
    "moment_of",
    "seconds_of",
    "time_of",
    "timeout_seconds",
    "waited_seconds",
    "written_seconds",
]


Span = int | float | str | timedelta
"""A duration: seconds as a number, a text such as ``"2h"`` or ``"1h30m"``, or a timedelta."""

_YEAR_SECONDS = 365.25 * 86_400
LONGEST_SECONDS = 100 * _YEAR_SECONDS
"""A hundred years: a longer duration is a mistake, and would overflow timestamps."""

DEFAULT_LOCK_SECONDS = 30.0
"""How long after the death of its holder a lock expires, unless its user asks for another time."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_TEXT = re.compile(r"\s*(?:\d+(?:\.\d+)?\s*(?:ms|[smhdw])\s*)+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", re.ASCII)


def seconds_of(span: object, what: str = "the span", *, least: float = 0, most: float = LONGEST_SECONDS) -> float:
    """Return a duration in seconds.

    Raise ``InvalidInput`` for anything else, and outside the range from ``least`` to ``most`` seconds.
    """
    if isinstance(span, timedelta):
        seconds = span.total_seconds()
    elif isinstance(span, int | float) and not isinstance(span, bool):
        seconds = span
    elif isinstance(span, str) and len(span) < 100 and _TEXT.fullmatch(span):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(span))
    else:
        raise InvalidInput(f"{what} must be seconds or a text such as '90s', '1h30m' or '3d', not {span!r}")
    if not least <= seconds <= most:
        longest = f"{round(most / _YEAR_SECONDS)} year{'s' * (most >= 2 * _YEAR_SECONDS)}" if most >= _YEAR_SECONDS else f"{most:g}"
        raise InvalidInput(f"{what} must be from {least:g} seconds to {longest}, not {span!r}")
    return float(seconds)


def written_seconds(text: str, what: str = "the span", *, least: float = 0, most: float = LONGEST_SECONDS) -> float:
    """Return a duration that is given as text, as in a URL; a bare number means seconds."""
    try:
        span: Span = float(text)
    except ValueError:
        span = text
    return seconds_of(span, what, least=least, most=most)


_LEAP_YEAR_SECONDS = 366 * 24 * 3600


def held_seconds(span: Span, what: str) -> float:
    """Return how long something is held or kept. Zero is refused: such a lock would be free when its holder gets it."""
    return seconds_of(span, what, least=0.001, most=_LEAP_YEAR_SECONDS)


def waited_seconds(span: Span | None, what: str) -> float:
    """Return how long to wait: 0 is not at all, None without limit."""
    return inf if span is None else seconds_of(span, what, most=_LEAP_YEAR_SECONDS)


def timeout_seconds(timeout: Span | None) -> float | None:
    """Return a timeout in seconds; None: wait for as long as it takes."""
    return None if timeout is None else seconds_of(timeout, "timeout")


Seconds = Annotated[float, Meta(ge=0, extra={"written": "seconds"})]
"""A field of a definition in seconds; a document may contain a duration such as ``2h``."""

_DATE = re.compile(r"\d{4}-", re.ASCII)


def time_of(time: object, what: str = "the wait") -> float | datetime:
    """Return what a wait node waits for: a duration in seconds, or the time of a timestamp."""
    if isinstance(time, str) and _DATE.match(time):
        return moment_of(time, what)
    return seconds_of(time, what)


def moment_of(text: object, what: str = "the moment") -> datetime:
    """Return an ISO 8601 timestamp with a zone as an aware UTC time. Raise ``InvalidInput`` for anything else."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidInput(f"{what} must be a timestamp with a zone, such as '2027-01-01T09:00:00Z', not {text!r}")
