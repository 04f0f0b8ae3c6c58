"""Times of definitions: fields in seconds, and what a wait waits for: a span, or a moment such as ``"2027-01-01T09:00:00Z"``."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from stepwell.errors import InvalidInput
from stepwell.span import LONGEST_SECONDS, Span, seconds_of

__all__ = ["LONGEST_SECONDS", "Seconds", "Span", "moment_of", "seconds_of", "time_of"]

Seconds = Annotated[float, Meta(ge=0, extra={"written": "seconds"})]
"""A field of a definition in seconds; in a document a span such as ``2h`` may stand there."""

_DATE = re.compile(r"\d{4}-", re.ASCII)


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
