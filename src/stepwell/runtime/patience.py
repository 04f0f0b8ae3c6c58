"""Patience: how long a worker goes on trying to hand back what it runs, while its store does not answer.

The rule is in one place, for executions and for queue items: what gives something back is tried again, with short pauses, until it
is taken, or somebody else has it, or the time is over; and never after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf
from typing import TypeVar

from stepwell.errors import CommitUnknown, Corrupted, StoreForeign, StoreNewer, StoreUnavailable, StoreUnsafe
from stepwell.runtime.keeping import monotonic

__all__ = ["AGAIN_MS", "LAST_SECONDS", "HandBackRetry", "is_away"]

log = logging.getLogger(__name__)

T = TypeVar("T")

LAST_SECONDS = 5.0
"""How long a worker that stops still tries to hand back: after its grace, or from the first try if it was given none. A store that
is gone for good must not keep a process from ending."""

AGAIN_MS = 2_000
"""How long an execution rests that was handed back because its store did not answer. If one commit is refused again and again while
others are taken, as on a disk that is almost full, its step is made no more often than that."""

_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)
"""How long to wait after a failed try, by how many have failed: a store that is back is used soon."""

_FOR_GOOD = (Corrupted, StoreForeign, StoreNewer, StoreUnsafe)


def is_away(error: BaseException) -> bool:
    """Whether an error says that the store does not answer now, and may in a moment."""
    return isinstance(error, StoreUnavailable | CommitUnknown) and not isinstance(error, _FOR_GOOD)


class HandBackRetry:
    """How long one worker tries. While it works that is as long as what is handed back is surely its own."""

    def __init__(self) -> None:
        self._most, self._until = inf, inf

    def run_short(self) -> None:
        """The worker stops: no single thing is tried for long."""
        self._most = LAST_SECONDS

    def end_with(self, grace_until: float) -> None:
        """The worker's grace ends at this time of its loop's clock; little more is left then."""
        self._most, self._until = inf, min(self._until, grace_until + LAST_SECONDS)

    @property
    def left_seconds(self) -> float:
        """How long anything may still be tried."""
        return max(self._until - monotonic(), 0)

    async def keep_trying(self, attempt: Callable[[], Awaitable[T]], until: Callable[[], float]) -> T:
        """Do something that can be done twice, until the store has answered; what it answered last is raised when there is no time
        left. ``until`` says until when it is of use, by the loop's clock: it may change meanwhile."""
        began, tries = monotonic(), 0
        while True:
            try:
                return await attempt()
            except (StoreUnavailable, CommitUnknown) as error:
                pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
                if not is_away(error) or monotonic() + pause >= min(until(), began + self._most, self._until):
                    raise
                log.info("the store does not answer, and is asked again: %s", error)
                await self._pause(pause, error, until)
            tries += 1

    async def _pause(self, seconds: float, error: Exception, until: Callable[[], float]) -> None:
        await asyncio.sleep(seconds)
        if monotonic() >= min(until(), self._until):  # it was lost meanwhile, or the grace was cut short
            raise error
