"""Shutdown of a worker: hand back its executions, so that other workers resume them before the leases expire.

``HandBackRetry`` has the one rule for how long a hand-back is retried while the store is unavailable, for executions and for
queue items: with short pauses, until the store takes it, another worker has the lease, or the time is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, Protocol, TypeVar

from stepwell.errors import CommitUnknown, Corrupted, EncryptionKeyMissing, StoreForeign, StoreNewer, StoreUnavailable, StoreUnsafe
from stepwell.runtime.lease_renewal import monotonic

__all__ = [
    "AGAIN_MS",
    "LAST_SECONDS",
    "Companion",
    "HandBackRetry",
    "HandsBack",
    "Shutdown",
    "is_away",
]


log = logging.getLogger(__name__)

T = TypeVar("T")

LAST_SECONDS = 5.0
"""How long a stopping worker still tries to hand back: after its grace, or from the first try without one. A store that is
gone for good must not keep a process from ending."""

AGAIN_MS = 2_000
"""How long an execution rests after it was handed back because its store was unavailable. If the store refuses one commit
again and again, as on a disk that is almost full, its step is repeated no more often than that."""

_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds to wait after a failed try, by the number of failed tries: a store that is back is used soon."""

_FOR_GOOD = (Corrupted, EncryptionKeyMissing, StoreForeign, StoreNewer, StoreUnsafe)


def is_away(error: BaseException) -> bool:
    """Return whether an error means that the store is unavailable now, and may be back in a moment."""
    return isinstance(error, StoreUnavailable | CommitUnknown) and not isinstance(error, _FOR_GOOD)


class HandBackRetry:
    """Retries hand-backs of one worker: while it works, for as long as it surely holds the lease."""

    def __init__(self) -> None:
        self._most, self._until = inf, inf

    def run_short(self) -> None:
        """Note that the worker stops: no single hand-back is retried for long."""
        self._most = LAST_SECONDS

    def end_with(self, grace_until: float) -> None:
        """Note when the worker's grace ends, by its loop's clock; little time is left after it."""
        self._most, self._until = inf, min(self._until, grace_until + LAST_SECONDS)

    @property
    def left_seconds(self) -> float:
        """Return for how many seconds a hand-back may still be retried."""
        return max(self._until - monotonic(), 0)

    async def keep_trying(self, attempt: Callable[[], Awaitable[T]], until: Callable[[], float]) -> T:
        """Run something that can be repeated until the store answers. Raise its last error when the time is over.

        Args:
            attempt: what is run.
            until: returns the time, by the loop's clock, when it is of no use any more; this may change meanwhile.
        """
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
        if monotonic() >= min(until(), self._until):  # the lease was lost meanwhile, or the grace was cut short
            raise error


_LOOK_SECONDS = 0.05


class Companion(Protocol):
    """A task that runs beside a worker, on its loop, until the worker stops."""

    name: str
    """The name of the task in the log."""
    failure: str | None
    """Why its last rounds failed; None while they succeed."""

    async def run(self) -> None:
        """Work until stopped."""
        ...

    def stop(self) -> None:
        """Begin nothing more, and end soon."""
        ...


class HandsBack(Protocol):
    """A session that can be asked to end."""

    def hand_back(self) -> None:
        """Stop soon: at once if nothing is under way, else at the next call."""
        ...

    async def abandon(self) -> None:
        """Stop now, and hand back without waiting for steps that are under way."""
        ...


class Shutdown:
    """Has sessions hand their executions back. A session inside a step finishes it first, within the grace."""

    def __init__(
        self, sessions: Mapping[str, HandsBack], hand_back_retry: HandBackRetry, grace_seconds: Callable[[], float | None]
    ) -> None:
        self._sessions, self._hand_back_retry, self._grace_seconds = sessions, hand_back_retry, grace_seconds
        self._ends = inf

    async def run(
        self,
        tasks: Callable[[], set[asyncio.Task[None]]],
        inside: set[asyncio.Task[Any] | None],
        beside: list[asyncio.Task[None]],
    ) -> None:
        """Wait until nothing is under way, or the grace is over.

        The ``inside`` ones of ``tasks`` run code of executions; the companions ``beside`` end meanwhile.
        """
        self._hand_back_retry.run_short()
        # A task that was cancelled before it began stays in the set, since each removes itself at its end.
        while under_way := {each for each in (*tasks(), *beside) if not each.done()}:
            for session in list(self._sessions.values()):
                session.hand_back()
            if self._is_grace_over():
                await self._abandon_all(under_way - inside)
                break
            await asyncio.wait(under_way, timeout=_LOOK_SECONDS)
        await asyncio.gather(*beside, return_exceptions=True)

    def _is_grace_over(self) -> bool:
        """Return whether the grace is over; a second call to stop may have cut it short."""
        grace = self._grace_seconds()
        if grace is None:
            return False
        self._ends = min(self._ends, monotonic() + grace)
        self._hand_back_retry.end_with(self._ends)
        return monotonic() >= self._ends

    async def _abandon_all(self, errands: set[asyncio.Task[Any]]) -> None:
        """Leave steps where they are, and hand back all executions.

        An unresponsive store is not waited for beyond the time limit: a worker that has ended may hand back nothing.
        """
        leaving = {asyncio.ensure_future(session.abandon()): name for name, session in list(self._sessions.items())}
        waited = {*leaving, *errands}
        if waited:
            await asyncio.wait(waited, timeout=self._hand_back_retry.left_seconds)
        await _end(waited)
        for task, name in leaving.items():
            if task.cancelled() or task.exception() is not None:
                why = "its store did not answer in time" if task.cancelled() else task.exception()
                log.warning("execution %r could not be handed back; it goes on when its lease ends: %s", name, why)


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their clean-up, even while an unresponsive store delays it."""
    while left := {task for task in tasks if not task.done()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_LOOK_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
