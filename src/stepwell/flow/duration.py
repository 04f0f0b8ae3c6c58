"""Spans of time as people write them: ``90``, ``"1h30m"``, a ``timedelta``; and moments: ``"2027-01-01T09:00:00Z"``."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta

from stepwell.errors import InvalidInput

__all__ = ["LONGEST_SECONDS", "Seconds", "Span", "moment_of", "seconds_of", "time_of"]

Seconds = Annotated[float, Meta(ge=0, extra={"written": "seconds"})]
"""A field of a definition in seconds; in a document a span such as ``2h`` may stand there."""

Span = int | float | str | timedelta
"""A span of time: seconds as a number, a text such as ``"2h"`` or ``"1h30m"``, or a timedelta."""

LONGEST_SECONDS = 100 * 365.25 * 86_400
"""A hundred years: what is longer is a mistake, and would overflow timestamps."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_TEXT = re.compile(r"\s*(?:\d+(?:\.\d+)?\s*(?:ms|[smhdw])\s*)+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", re.ASCII)
_DATE = re.compile(r"\d{4}-", re.ASCII)


def seconds_of(span: object, what: str = "the span") -> float:
    """A span in seconds; ``InvalidInput`` for what is none, is negative, or is longer than a hundred years."""
    if isinstance(span, timedelta):
        seconds = span.total_seconds()
    elif isinstance(span, int | float) and not isinstance(span, bool):
        seconds = float(span)
    elif isinstance(span, str) and len(span) < 100 and _TEXT.fullmatch(span):
        seconds = float(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(span)))
    else:
        raise InvalidInput(f"{what} must be seconds or a text such as '90s', '1h30m' or '3d', not {span!r}")
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise InvalidInput(f"{what} must be from 0 seconds to 100 years, not {span!r}")
    return seconds


def time_of(time: object, what: str = "the wait") -> float | datetime:
    """What a wait waits for: a span in seconds, or a moment if it is written as a timestamp."""
    if isinstance(time, str) and _DATE.match(time):
        return moment_of(time, what)
    return seconds_of(time, what)


def moment_of(text: object, what: str = "the moment") -> datetime:
    """A timestamp of ISO 8601 with its zone as an aware UTC time; ``InvalidInput`` for anything else."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidInput(f"{what} must be a timestamp with a zone, such as '2027-01-01T09:00:00Z', not {text!r}")
