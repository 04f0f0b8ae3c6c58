"""Stored schedules, and the scheduler that fires them. Every worker has a scheduler, and yet each tick is fired once.

Schedules are rows of scoped state, in a scope of their own. A tick becomes a queue item with a key of its own, so a second
scheduler that fires it gets the first one's item; then the schedule is moved to its next tick by compare-and-set. After a crash
between the two, another scheduler fires the tick and finds the item. All times are the store's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import TypeVar

import msgspec

from stepwell.clock import from_ms
from stepwell.contract.store import Store
from stepwell.duration import Span
from stepwell.errors import Conflict, Corrupted, InvalidInput, NotFound, StepwellError
from stepwell.model.commit import StateBatch, Written
from stepwell.model.ids import NewId, check_key
from stepwell.model.queue_item import Enqueued, NewItem
from stepwell.model.record import plain_input, split_input
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import ABSENT, Delete, Put
from stepwell.model.value import recode
from stepwell.pipeline.notifications import SCHEDULE, Notifications
from stepwell.pipeline.operations import AsyncDriver, Operation, read, write_or_raise
from stepwell.queue.operations import QueueOperations
from stepwell.queue.requests import QueueRequest, moment_ms
from stepwell.queue.schedule import (
    CATCH_UP,
    Schedule,
    due_ticks,
    item_of,
    no_schedule,
    paused,
    placed,
    ticks_between,
    timing_of,
)
from stepwell.queue.worker_presence import scan_sound
from stepwell.runtime.periodic import PeriodicTask

__all__ = [
    "PATH",
    "ScheduleOperations",
    "Scheduler",
    "decode_schedule",
    "encode_schedule",
    "fire_due",
    "read_schedule",
]


PATH = internal_path("schedule", DEFAULT_WORKSPACE)
"""The scope that holds all schedules of a store, by name."""

encode_schedule = msgspec.json.Encoder(order="deterministic").encode
decode_schedule = msgspec.json.Decoder(Schedule).decode

log = logging.getLogger(__name__)


def read_schedule(name: str, data: bytes) -> Schedule:
    """Return the schedule of a row. Raise ``DecodeError`` if it holds none."""
    schedule = decode_schedule(data)
    if schedule.name != name:
        raise msgspec.ValidationError(f"the row says that it is schedule {schedule.name!r}")
    return schedule


T = TypeVar("T")

_MOST_BACKFILLED = 10_000
_MOST_TRIES = 20
_DAMAGED = "does not match its checksum"
_REPAIR = "put it again, or delete it"


class ScheduleOperations:
    """Operations on schedules."""

    def __init__(self, store: Store, queue: QueueOperations, new_id: NewId, notifications: Notifications) -> None:
        self._store, self._queue, self._new_id, self._notifications = store, queue, new_id, notifications
        self._damaged: set[str] = set()
        """Damaged schedules that the last read has logged."""

    def put(
        self,
        name: str,
        request: QueueRequest,
        cron: str | None,
        zone: str | None,
        every: Span | None,
        at: datetime | None,
        catch_up: str,
    ) -> Operation[Schedule]:
        """Create or replace a schedule. With unchanged times it keeps its position: a tick that is due stays due."""
        name = check_key(name, "a schedule's name", 256, is_fixed=True)
        item = yield from self._queue.new_item(request)
        given = split_input(item.input)
        if catch_up not in CATCH_UP:
            raise InvalidInput(f"catch_up is one of {', '.join(CATCH_UP)}, not {catch_up!r}")
        now, workspaces = yield from read(lambda: (self._store.now_ms(), self._store.workspaces()))
        if item.workspace_id not in {each.workspace_id for each in workspaces}:
            raise NotFound(f"there is no workspace {item.workspace_id!r}; make it with well.workspaces.put")
        wanted = Schedule(
            name=name,
            workflow_id=item.workflow_id,
            version=item.version,
            input=msgspec.Raw(recode(plain_input(given.trigger))),
            governance=given.governance,
            secrets=given.secrets,
            workspace_id=item.workspace_id,
            timing=timing_of(cron, zone, every, at),
            queue=item.queue,
            priority=item.priority,
            max_attempts=item.max_attempts,
            catch_up=catch_up,
        )
        return (yield from self._change(name, self._known, lambda known: placed(wanted, known, now)))

    def _change(
        self, name: str, find: Callable[[str], Operation[tuple[T, int | None]]], change: Callable[[T], Schedule]
    ) -> Operation[Schedule]:
        """Replace a schedule by ``change(schedule)``; call it again if the schedule was moved meanwhile."""
        for _ in range(_MOST_TRIES):
            known, revision = yield from find(name)
            changed = change(known)
            try:
                yield from write_or_raise(_moved(changed, revision))
            except Conflict:
                continue  # the schedule fired in between
            self._notifications.notify(SCHEDULE)
            return changed
        raise Conflict(f"schedule {name!r} changes all the time; try again")

    def _known(self, name: str) -> Operation[tuple[Schedule | None, int | None]]:
        """Return a schedule with its revision: None and 0 if there is none, None and None if it cannot be read."""
        try:
            return (yield from self._find(name))
        except NotFound:
            return None, ABSENT
        except Corrupted:
            return None, None

    def get(self, name: str) -> Operation[Schedule]:
        """Return a schedule. Raise ``NotFound`` or ``Corrupted``."""
        schedule, _ = yield from self._find(name)
        return schedule

    def _find(self, name: str) -> Operation[tuple[Schedule, int | None]]:
        name = check_key(name, "a schedule's name")
        try:
            rows = yield from read(lambda: self._store.entries(PATH, [name]))
        except Corrupted as error:
            raise Corrupted(f"schedule {name!r} {_DAMAGED}; {_REPAIR}", key=error.key) from None
        row = rows.get(name)
        if row is None or row.data is None:
            raise no_schedule(name)
        try:
            return read_schedule(name, row.data), row.revision
        except msgspec.DecodeError as error:
            raise Corrupted(f"schedule {name!r} cannot be read here ({error}); {_REPAIR}") from None

    def all(self) -> Operation[list[Schedule]]:
        """Return all schedules, by name. Those that cannot be read are named in the log."""
        rows, damaged = yield from read(lambda: _scan(self._store))
        for name in damaged:
            log.warning("schedule %r %s, and is not listed; %s", name, _DAMAGED, _REPAIR)
        found: list[Schedule] = []
        for name, data, _ in rows:
            try:
                found.append(read_schedule(name, data))
            except msgspec.DecodeError as error:
                log.warning("schedule %r cannot be read here, and is not listed: %s", name, error)
        return found

    def delete(self, name: str) -> Operation[bool]:
        """Delete a schedule, even one that cannot be read; return whether it existed."""
        name = check_key(name, "a schedule's name")
        outcome = yield from write_or_raise(StateBatch((Delete(PATH, name),)))
        return isinstance(outcome, Written) and bool(outcome.answers[0])

    def pause(self, name: str, is_paused: bool) -> Operation[Schedule]:
        """Pause or resume a schedule. Its ``catch_up`` decides about the ticks that it missed."""
        now = yield from read(self._store.now_ms)
        return (yield from self._change(name, self._find, lambda known: paused(known, is_paused, now)))

    def run_now(self, name: str) -> Operation[Enqueued]:
        """Enqueue one item in addition to the ticks."""
        schedule = yield from self.get(name)
        fresh, now = self._new_id(), (yield from read(self._store.now_ms))
        item = yield from self._queue.for_engine(item_of(schedule, f"now.{fresh}", now, fresh, self._new_id()))
        (answer,) = yield from self._queue.add((item,))
        if isinstance(answer, StepwellError):
            raise answer
        return answer

    def backfill(self, name: str, start: datetime, end: datetime) -> Operation[list[Enqueued]]:
        """Enqueue an item for every tick between two moments. Ticks that were fired before return their items."""
        schedule, ticks = yield from self._ticks(name, start, end)
        items = yield from self._tick_items(schedule, ticks)
        answers = yield from self._queue.add_all(items)
        for answer in answers:
            if isinstance(answer, StepwellError):
                raise answer
        return [answer for answer in answers if isinstance(answer, Enqueued)]

    def ticks(self, name: str, start: datetime, end: datetime) -> Operation[list[datetime]]:
        """Return every tick between two moments: what a backfill would enqueue."""
        _, ticks = yield from self._ticks(name, start, end)
        return [from_ms(each) for each in ticks]

    def _ticks(self, name: str, start: datetime, end: datetime) -> Operation[tuple[Schedule, list[int]]]:
        schedule = yield from self.get(name)
        first, last = moment_ms(start, "start"), moment_ms(end, "end")
        since = schedule.since_ms
        if schedule.timing.every_ms is not None and first <= since:
            # The grid of an interval extends backwards, before its first tick.
            since -= ((since - first) // schedule.timing.every_ms + 1) * schedule.timing.every_ms
        ticks = list(islice(ticks_between(schedule.timing, since, first, last), _MOST_BACKFILLED + 1))
        if len(ticks) > _MOST_BACKFILLED:
            raise InvalidInput(f"there are more than {_MOST_BACKFILLED:,} ticks in that time; backfill it in parts")
        return schedule, ticks

    def _tick_items(self, schedule: Schedule, ticks: list[int]) -> Operation[tuple[NewItem, ...]]:
        items: list[NewItem] = []
        for tick in ticks:
            items.append((yield from self._queue.for_engine(item_of(schedule, str(tick), tick, self._new_id(), self._new_id()))))
        return tuple(items)

    def next(self, name: str, count: int) -> Operation[list[datetime]]:
        """Return the next ticks."""
        if type(count) is not int or not 1 <= count <= 1_000:
            raise InvalidInput(f"count is a whole number from 1 to 1,000, not {count!r}")
        schedule = yield from self.get(name)
        if schedule.next_ms is None:
            return []
        ticks = ticks_between(schedule.timing, schedule.since_ms, schedule.next_ms, 2**53)
        return [from_ms(tick) for tick in islice(ticks, count)]

    # Used by the scheduler.

    def due(self) -> Operation[tuple[list[tuple[str, bytes, int]], int]]:
        """Return all schedules as they are stored, by name, with their revisions; and the store's time.

        A damaged row is left out, and named in the log once.
        """
        (rows, damaged), now = yield from read(lambda: (_scan(self._store), self._store.now_ms()))
        for name in damaged:
            if name not in self._damaged:
                log.warning("schedule %r %s, and is not fired; %s", name, _DAMAGED, _REPAIR)
        self._damaged = set(damaged)
        return rows, now

    def move(self, schedule: Schedule, revision: int) -> Operation[bool]:
        """Store the new position of a schedule; return False if another scheduler has moved it since."""
        try:
            yield from write_or_raise(_moved(schedule, revision))
        except Conflict:
            return False
        return True

    def fire(self, schedule: Schedule, ticks: list[int]) -> Operation[list[Enqueued | StepwellError]]:
        """Enqueue the items of ticks. Another scheduler that fires the same ticks gets the same items."""
        items = yield from self._tick_items(schedule, ticks)
        return (yield from self._queue.add_all(items))


def _moved(schedule: Schedule, revision: int | None) -> StateBatch:
    return StateBatch((Put(PATH, schedule.name, msgspec.Raw(encode_schedule(schedule)), expected=revision),))


def _scan(store: Store) -> tuple[list[tuple[str, bytes, int]], list[str]]:
    """Return all schedules as they are stored, and the names of the damaged ones."""
    rows, damaged = scan_sound(store, PATH)
    return [(name, row.data, row.revision) for name, row in rows if row.data is not None], damaged


_LONGEST_SLEEP_SECONDS = 5.0
"""The longest time until schedules of other processes are noticed, and failed ticks are fired again."""


def fire_due(schedules: ScheduleOperations) -> Operation[float | None]:
    """Fire all due ticks; return in how many seconds the next one is due, or None."""
    found, now = yield from schedules.due()
    soonest: int | None = None
    for name, data, revision in found:
        try:
            upcoming = yield from _fire(schedules, read_schedule(name, data), revision, now)
        except (InvalidInput, msgspec.DecodeError) as error:
            # Perhaps this machine lacks its time zone, or a newer release stored it. The other schedules must not wait for it.
            log.warning("schedule %r cannot be worked out here, and is looked at again: %s", name, error)
            upcoming = _again(now)
        if upcoming is not None:
            soonest = upcoming if soonest is None else min(soonest, upcoming)
    return None if soonest is None else max(soonest - now, 0) / 1000


def _fire(schedules: ScheduleOperations, schedule: Schedule, revision: int, now_ms: int) -> Operation[int | None]:
    if schedule.is_paused:
        return None
    ticks, upcoming = due_ticks(schedule, now_ms)
    if not ticks and upcoming == schedule.next_ms:
        return upcoming
    for answer in (yield from schedules.fire(schedule, ticks)) if ticks else ():
        if isinstance(answer, StepwellError):
            log.warning("schedule %r could not be fired, and is tried again: %s", schedule.name, answer)
            return _again(now_ms)
    last = ticks[-1] if ticks else schedule.last_ms
    yield from schedules.move(msgspec.structs.replace(schedule, next_ms=upcoming, last_ms=last), revision)
    return upcoming


def _again(now_ms: int) -> int:
    return now_ms + round(_LONGEST_SLEEP_SECONDS * 1000)


class Scheduler(PeriodicTask):
    """Fire schedules beside a worker, on its event loop."""

    name = "the scheduler"

    def __init__(self, schedules: ScheduleOperations, driver: AsyncDriver, notifications: Notifications) -> None:
        super().__init__()
        self._schedules, self._driver, self._notifications = schedules, driver, notifications

    async def run(self) -> None:
        """Fire due ticks until stopped. While the store is unavailable, try again."""
        with self._notifications.subscribed(SCHEDULE, self.wake):
            await super().run()

    async def work(self) -> float:
        """Fire what is due now; return the seconds until the next look, since other processes may put schedules, too."""
        left = await self._driver.run(fire_due(self._schedules))
        return _LONGEST_SLEEP_SECONDS if left is None else min(left, _LONGEST_SLEEP_SECONDS)
