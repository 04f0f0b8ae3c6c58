"""Spans of time as people write them: ``90``, ``"1h30m"``, a ``timedelta``. The one way to read them, wherever one is given."""

from __future__ import annotations

import re
from datetime import timedelta

from stepwell.errors import InvalidInput

__all__ = ["LONGEST_SECONDS", "Span", "seconds_of", "written_seconds"]

Span = int | float | str | timedelta
"""A span of time: seconds as a number, a text such as ``"2h"`` or ``"1h30m"``, or a timedelta."""

_YEAR_SECONDS = 365.25 * 86_400
LONGEST_SECONDS = 100 * _YEAR_SECONDS
"""A hundred years: what is longer is a mistake, and would overflow timestamps."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_TEXT = re.compile(r"\s*(?:\d+(?:\.\d+)?\s*(?:ms|[smhdw])\s*)+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", re.ASCII)


def seconds_of(span: object, what: str = "the span", *, least: float = 0, most: float = LONGEST_SECONDS) -> float:
    """A span in seconds; ``InvalidInput`` for what is none, is shorter than ``least``, or is longer than ``most`` seconds."""
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
    """A span where there is only text, as in a URL: a bare number is seconds there."""
    try:
        span: Span = float(text)
    except ValueError:
        span = text
    return seconds_of(span, what, least=least, most=most)
