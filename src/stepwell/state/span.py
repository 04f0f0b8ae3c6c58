"""How long a hold, a wait and a cache may last: spans as people write them, checked before they come near a store."""

from __future__ import annotations

from math import inf

from stepwell.span import Span, seconds_of

__all__ = ["held_seconds", "waited_seconds"]

_YEAR_SECONDS = 366 * 24 * 3600


def held_seconds(span: Span, what: str) -> float:
    """For how long something is held or kept: a span of nothing would free a lock and call that success, so it is refused."""
    return seconds_of(span, what, least=0.001, most=_YEAR_SECONDS)


def waited_seconds(span: Span | None, what: str) -> float:
    """For how long something is waited for: 0 is not at all, None as long as it takes."""
    return inf if span is None else seconds_of(span, what, most=_YEAR_SECONDS)
