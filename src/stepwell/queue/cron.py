"""Cron expressions in a time zone. Pure: times come from outside.

An expression names times of the day. A fixed time (neither its minutes nor its hours begin with a star) comes once a day: in an
hour that the clocks skip it is right after that hour, and in an hour that comes twice it is the first one's. Any other expression
goes on through such an hour by what the clocks show: times that are skipped never come, those that are shown twice come twice.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from stepwell.clock import from_ms, to_ms
from stepwell.errors import InvalidInput

__all__ = ["cron_ticks"]

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""What people write instead of some expressions."""

_DAY = timedelta(days=1)


def cron_ticks(expression: str, zone: str, after_ms: int) -> Iterator[int]:
    """The moments after another, in milliseconds since 1970, at which an expression is true."""
    where, expression = _zone_of(zone), _NICKNAMES.get(expression, expression)
    is_fixed = not any(field.startswith("*") for field in expression.split()[-5:-3])
    waiting: list[int] = []
    last = after_ms
    with suppress(OverflowError):  # after the last year that a datetime has there are no ticks
        for shown in _shown_times(expression, _first_shown(after_ms, where)):
            moments = _moments_of(shown, where, is_fixed)
            for moment in moments:
                heapq.heappush(waiting, moment)
            # Of what is shown later, no moment is before the first of this: what is to come twice waits for its second time.
            while waiting and moments and waiting[0] <= moments[0]:
                if (moment := heapq.heappop(waiting)) > last:
                    yield (last := moment)


def _zone_of(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidInput(f"there is no time zone {name!r}; use a name such as 'Europe/Berlin'") from None


def _first_shown(after_ms: int, zone: tzinfo) -> datetime:
    """What the clocks show at a moment, or later, if they are about to be put back to before that."""
    now = from_ms(after_ms).astimezone(zone)
    with suppress(OverflowError):
        later = (now.astimezone(UTC) + _DAY).astimezone(zone).replace(tzinfo=None) - _DAY
        return min(now.replace(tzinfo=None), later)
    return now.replace(tzinfo=None)


def _shown_times(expression: str, after: datetime) -> Iterator[datetime]:
    from cronsim import CronSim, CronSimError  # here, since few programs have schedules

    try:
        yield from CronSim(expression, after)
    except CronSimError as error:
        raise InvalidInput(f"{expression!r} is no cron expression: {error}") from None


def _moments_of(shown: datetime, zone: tzinfo, is_fixed: bool) -> list[int]:
    """When clocks show a time: once, never, or twice; of a fixed time, the one moment that counts."""
    first, second = (to_ms(shown.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    if first <= second:
        return [first] if is_fixed or first == second else [first, second]
    # The clocks skip it: what is called the second would be before that, the first after it.
    return [_skipped_at(second, first, zone)] if is_fixed else []


def _skipped_at(before_ms: int, after_ms: int, zone: tzinfo) -> int:
    """The moment between two at which the clocks are put forward."""
    offset = from_ms(after_ms).astimezone(zone).utcoffset()
    seconds = range(before_ms // 1000, after_ms // 1000)
    place = bisect_left(seconds, True, key=lambda second: from_ms(second * 1000).astimezone(zone).utcoffset() == offset)
    return (before_ms // 1000 + place) * 1000
