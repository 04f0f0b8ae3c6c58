"""Schedules: cron expressions in a time zone, intervals and single times. Pure: the present time is an argument.

A cron expression names times of the day. A fixed time (neither minutes nor hours begin with a star) comes once a day: if the
clocks skip its hour, right after that hour; if the hour comes twice, in the first one. Any other expression follows the clocks:
skipped times never come, and repeated times come twice.

A *tick* is a moment at which a schedule starts a run, in milliseconds since 1970.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec

from stepwell.clock import from_ms, to_ms
from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput, NotFound
from stepwell.flow.governance import Governance
from stepwell.model.ids import MAX_KEY_BYTES, check_key
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import DEFAULT_QUEUE, NewItem
from stepwell.model.record import ScheduleTrigger, encode_trigger, governed_input
from stepwell.model.value import Value, decode
from stepwell.queue.requests import LATEST_MS, MOST_ATTEMPTS, MOST_PRIORITY, moment_ms

__all__ = [
    "CATCH_UP",
    "Schedule",
    "ScheduleSummary",
    "Timing",
    "cron_ticks",
    "due_ticks",
    "item_of",
    "next_tick",
    "no_schedule",
    "paused",
    "placed",
    "ticks_between",
    "timing_of",
]


_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Short names for common expressions."""

_DAY = timedelta(days=1)


def cron_ticks(expression: str, zone: str, after_ms: int) -> Iterator[int]:
    """Return the moments after another one at which an expression is true, in milliseconds since 1970."""
    where, expression = _zone_of(zone), _NICKNAMES.get(expression, expression)
    is_fixed = not any(field.startswith("*") for field in expression.split()[-5:-3])
    waiting: list[int] = []
    last = after_ms
    with suppress(OverflowError):  # there are no ticks after the last year of a datetime
        for shown in _shown_times(expression, _first_shown(after_ms, where)):
            moments = _moments_of(shown, where, is_fixed)
            for moment in moments:
                heapq.heappush(waiting, moment)
            # Times that the clocks show later are not before the first of these, so a repeated time waits for its second
            # occurrence.
            while waiting and moments and waiting[0] <= moments[0]:
                if (moment := heapq.heappop(waiting)) > last:
                    yield (last := moment)


def _zone_of(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidInput(f"there is no time zone {name!r}; use a name such as 'Europe/Berlin'") from None


def _first_shown(after_ms: int, zone: tzinfo) -> datetime:
    """Return the local time at a moment; a later one if the clocks are about to be put back to before it."""
    now = from_ms(after_ms).astimezone(zone)
    with suppress(OverflowError):
        later = (now.astimezone(UTC) + _DAY).astimezone(zone).replace(tzinfo=None) - _DAY
        return min(now.replace(tzinfo=None), later)
    return now.replace(tzinfo=None)


def _shown_times(expression: str, after: datetime) -> Iterator[datetime]:
    from cronsim import CronSim, CronSimError  # imported here, since few programs have schedules

    try:
        yield from CronSim(expression, after)
    except CronSimError as error:
        raise InvalidInput(f"{expression!r} is no cron expression: {error}") from None


def _moments_of(shown: datetime, zone: tzinfo, is_fixed: bool) -> list[int]:
    """Return the moments at which clocks show a time: none, one or two; for a fixed time, the one moment that counts."""
    first, second = (to_ms(shown.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    if first <= second:
        return [first] if is_fixed or first == second else [first, second]
    # The clocks skip it: the second reading would be before that hour, and the first one after it.
    return [_skipped_at(second, first, zone)] if is_fixed else []


def _skipped_at(before_ms: int, after_ms: int, zone: tzinfo) -> int:
    """Return the moment between two at which the clocks are put forward."""
    offset = from_ms(after_ms).astimezone(zone).utcoffset()
    seconds = range(before_ms // 1000, after_ms // 1000)
    place = bisect_left(seconds, True, key=lambda second: from_ms(second * 1000).astimezone(zone).utcoffset() == offset)
    return (before_ms // 1000 + place) * 1000


CatchUp = Literal["none", "last", "all"]
CATCH_UP = ("none", "last", "all")

_GRACE_MS = 60_000
"""A tick is missed if no scheduler fired it for so long."""

_SHORTEST_MS = 100
_MOST_AT_ONCE = 1_000
_DIGEST = "schedule"
"""The first scheduler that fires a tick decides its item; the same tick again is the same request."""


# Check rows when reading, too: one row that another program has damaged would stop all schedules.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_BYTES, pattern=r"\A[^\0]+\Z")]
Moment = Annotated[int, msgspec.Meta(ge=0, le=LATEST_MS)]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a schedule: a cron expression, an interval or a single time; one of the three fields is given."""

    cron: Name | None = None
    zone: Name = "UTC"
    every_ms: Annotated[int, msgspec.Meta(ge=_SHORTEST_MS, le=LATEST_MS)] | None = None
    at_ms: Moment | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is stored."""

    name: Name
    workflow_id: Name
    version: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    input: msgspec.Raw
    workspace_id: Name
    timing: Timing
    queue: Name = DEFAULT_QUEUE
    priority: Annotated[int, msgspec.Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=MOST_ATTEMPTS)] = 3
    catch_up: CatchUp = "none"
    governance: dict[str, Any] | None = None
    """Budgets and permissions of the executions; None for those of the workflow."""
    is_paused: bool = False
    since_ms: Moment = 0
    """When it was first stored with this timing; intervals are counted from there."""
    next_ms: Moment | None = None
    """The next tick; None if there is none any more."""
    last_ms: Moment | None = None
    """The last tick that was fired."""
    secrets: tuple[str, ...] = ()
    """The names of keys and fields of the input whose values are shown nowhere."""


class ScheduleSummary(PlainRecord, frozen=True, kw_only=True):
    """A schedule as it was when it was read."""

    name: str
    workflow_id: str
    workspace_id: str
    value: Value
    cron: str | None
    zone: str
    every_seconds: float | None
    at: datetime | None
    catch_up: str
    is_paused: bool
    next_at: datetime | None
    last_at: datetime | None
    queue: str
    priority: int
    governance: Governance | None = None
    secrets: tuple[str, ...] = ()
    """The names of keys and fields of its value that are shown nowhere."""

    @classmethod
    def of(cls, schedule: Schedule) -> ScheduleSummary:
        """Return the summary of a stored schedule."""
        timing = schedule.timing
        return cls(
            name=schedule.name,
            workflow_id=schedule.workflow_id,
            workspace_id=schedule.workspace_id,
            value=decode(bytes(schedule.input)),
            cron=timing.cron,
            zone=timing.zone,
            every_seconds=None if timing.every_ms is None else timing.every_ms / 1000,
            at=_moment(timing.at_ms),
            catch_up=schedule.catch_up,
            is_paused=schedule.is_paused,
            next_at=_moment(schedule.next_ms),
            last_at=_moment(schedule.last_ms),
            queue=schedule.queue,
            priority=schedule.priority,
            governance=None if schedule.governance is None else msgspec.convert(schedule.governance, Governance),
            secrets=schedule.secrets,
        )


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else from_ms(milliseconds)


def no_schedule(name: str) -> NotFound:
    """Return the error for a schedule that does not exist."""
    return NotFound(f"there is no schedule {name!r}")


def timing_of(cron: str | None, zone: str | None, every: Span | None, at: datetime | None) -> Timing:
    """Return the timing from the user's arguments."""
    if sum(given is not None for given in (cron, every, at)) != 1:
        raise InvalidInput("give one of cron, every and at")
    if zone is not None and cron is None:
        raise InvalidInput("a zone is for a cron expression; every and at need none")
    return Timing(
        cron=None if cron is None else check_key(cron, "a cron expression"),
        zone="UTC" if zone is None else check_key(zone, "a time zone"),
        every_ms=None if every is None else _interval_ms(every),
        at_ms=None if at is None else moment_ms(at, "at"),
    )


def placed(wanted: Schedule, known: Schedule | None, now_ms: int) -> Schedule:
    """Return the schedule to store.

    If one with this name and timing exists, its position is kept, so ticks that are due stay due, and a pause lasts until it is
    resumed. Refuse a schedule that would never tick.
    """
    upcoming = next_tick(wanted.timing, now_ms, now_ms)
    is_paused = known is not None and known.is_paused
    if known is not None and known.timing == wanted.timing:
        since, upcoming, last = known.since_ms, known.next_ms, known.last_ms
    elif upcoming is not None:
        since, last = now_ms, None
    else:
        raise InvalidInput(f"{_words(wanted.timing)} never comes; the schedule would never fire")
    return msgspec.structs.replace(wanted, is_paused=is_paused, since_ms=since, next_ms=upcoming, last_ms=last)


def paused(schedule: Schedule, is_paused: bool, now_ms: int) -> Schedule:
    """Return a schedule that is paused, or resumed from now on."""
    upcoming = schedule.next_ms
    if schedule.is_paused and not is_paused and schedule.catch_up == "none":
        upcoming = next_tick(schedule.timing, schedule.since_ms, now_ms)
    return msgspec.structs.replace(schedule, is_paused=is_paused, next_ms=upcoming)


def _words(timing: Timing) -> str:
    return f"cron {timing.cron!r}" if timing.cron is not None else f"at {_moment(timing.at_ms)}"


def _interval_ms(every: Span) -> int:
    milliseconds = round(seconds_of(every, "every") * 1000)
    if milliseconds < _SHORTEST_MS:
        raise InvalidInput(f"every is at least {_SHORTEST_MS / 1000:g} s, not {every!r}")
    return milliseconds


def next_tick(timing: Timing, since_ms: int, after_ms: int) -> int | None:
    """Return the first tick after a moment; None if there is none."""
    return next(_ticks(timing, since_ms, after_ms), None)


def ticks_between(timing: Timing, since_ms: int, first_ms: int, last_ms: int) -> Iterator[int]:
    """Return the ticks from one moment to another, both included."""
    for tick in _ticks(timing, since_ms, first_ms - 1):
        if tick > last_ms:
            return
        yield tick


def _ticks(timing: Timing, since_ms: int, after_ms: int) -> Iterator[int]:
    if timing.cron is not None:
        yield from cron_ticks(timing.cron, timing.zone, after_ms)
    elif timing.every_ms is not None:
        count = max((after_ms - since_ms) // timing.every_ms + 1, 1)
        while (tick := since_ms + count * timing.every_ms) <= LATEST_MS:
            yield tick
            count += 1
    elif timing.at_ms is not None and timing.at_ms > after_ms:
        yield timing.at_ms


def due_ticks(schedule: Schedule, now_ms: int) -> tuple[list[int], int | None]:
    """Return the ticks to fire now, and the next one.

    The catch-up policy decides about those that were missed.
    """
    first = schedule.next_ms
    if first is None or first > now_ms or schedule.is_paused:
        return [], first
    if schedule.catch_up == "all":
        ticks = list(islice(ticks_between(schedule.timing, schedule.since_ms, first, now_ms), _MOST_AT_ONCE))
    else:
        ticks = [_newest(schedule, first, now_ms)]
        if schedule.catch_up == "none" and now_ms - ticks[0] > _GRACE_MS:
            return [], next_tick(schedule.timing, schedule.since_ms, now_ms)
    return ticks, next_tick(schedule.timing, schedule.since_ms, ticks[-1])


def _newest(schedule: Schedule, first: int, now_ms: int) -> int:
    """Return the last tick that is not after now.

    The first due tick may be millions of ticks ago, so search backwards from now: in a span that holds none, then in one eight
    times as long, which holds a few at most.
    """
    span = 1_000
    while True:
        start = max(first, now_ms - span)
        ticks = list(ticks_between(schedule.timing, schedule.since_ms, start, now_ms))
        if ticks or start == first:
            return ticks[-1] if ticks else first
        span *= 8


def item_of(schedule: Schedule, key: str, tick_ms: int, item_id: str, execution_id: str) -> NewItem:
    """Return the queue item of a tick. Its run knows the tick, however late it begins."""
    timing, given = schedule.timing, bytes(schedule.input)
    every = None if timing.every_ms is None else timing.every_ms / 1000
    trigger = ScheduleTrigger(from_ms(tick_ms), timing.cron, every)
    return NewItem(
        item_id=item_id,
        workspace_id=schedule.workspace_id,
        workflow_id=schedule.workflow_id,
        version=schedule.version,
        execution_id=execution_id,
        input=governed_input(
            encode_trigger(trigger, input=None if given == b"null" else given), schedule.governance, secrets=schedule.secrets
        ),
        queue=schedule.queue,
        priority=schedule.priority,
        key=f"schedule:{schedule.name}:{key}",
        body_digest=_DIGEST,
        max_attempts=schedule.max_attempts,
    )
