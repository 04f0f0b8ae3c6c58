"""The scheduler: fires schedules whose time has come. Every worker has one, and each tick is fired once all the same.

A tick becomes a queue item under a key of its own, so whoever fires it second gets the first one's item; then the schedule is moved
to its next tick by compare-and-set. A crash between the two leaves the tick to somebody else, who finds the item. All times are the
store's, so how the clocks of the machines differ does not matter.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import msgspec

from stepwell.errors import InvalidInput, StepwellError
from stepwell.pipeline.operations import AsyncDriver, Operation
from stepwell.queue.schedule import Schedule, due_ticks
from stepwell.queue.schedules import ScheduleOperations, read_schedule

__all__ = ["Scheduler", "fire_due"]

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0
_LONGEST_SLEEP_SECONDS = 5.0
"""Schedules that other processes have put are seen this soon, and what could not be fired is tried again."""


def fire_due(schedules: ScheduleOperations) -> Operation[float | None]:
    """Fire what is due; in how many seconds something is due again, or None if nothing is planned."""
    found, now = yield from schedules.due()
    soonest: int | None = None
    for name, data, revision in found:
        try:
            upcoming = yield from _fire(schedules, read_schedule(name, data), revision, now)
        except (InvalidInput, msgspec.DecodeError) as error:
            # Its time zone is not known here, perhaps, or a later release has put it: no reason to hold up the others.
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


class Scheduler:
    """Fires schedules beside a worker, on its loop."""

    def __init__(self, schedules: ScheduleOperations, driver: AsyncDriver) -> None:
        self._schedules, self._driver = schedules, driver
        self._is_stopping = False
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Fire what is due, until stopped. A store that is away for a while is waited for."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody is there to look
                loop.call_soon_threadsafe(self._woken.set)

        self._schedules.watchers.add(look)
        try:
            await self._fire_until_stopped()
        finally:
            self._schedules.watchers.discard(look)

    async def _fire_until_stopped(self) -> None:
        while not self._is_stopping:
            self._woken.clear()
            try:
                left = await self._driver.run(fire_due(self._schedules))
            except StepwellError as error:
                log.warning("the schedules could not be looked at: %s", error)
                left = _AGAIN_SECONDS
            except Exception:
                # A worker that is alive and fires nothing would not be noticed for long.
                log.exception("the scheduler met something that it did not expect, and goes on")
                left = _AGAIN_SECONDS
            pause = _LONGEST_SLEEP_SECONDS if left is None else min(left, _LONGEST_SLEEP_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    def stop(self) -> None:
        """Fire nothing more."""
        self._is_stopping = True
        self._woken.set()
