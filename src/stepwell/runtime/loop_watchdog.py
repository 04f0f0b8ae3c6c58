"""Watchdog of a worker's event loop: a thread that logs what blocks the loop, and renews leases meanwhile.

Code that blocks the loop, such as an async step that computes or sleeps without ``await``, stops everything on it, also the renewal
of leases. Without this thread other workers would take over all executions of the worker, of which one at most is at fault.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType

from stepwell.runtime.steps.attempt import running_step
from stepwell.runtime.steps.user_traceback import user_stack

__all__ = ["LoopWatchdog"]

log = logging.getLogger(__name__)

_LOG_AFTER_SECONDS = 1.0
_LOOK_SECONDS = 0.25
_LOOKS_PER_LEASE = 10


class LoopWatchdog:
    """Sends the loop a probe now and then, while executions are run, and acts if it is not answered.

    Args:
        sessions: what is run; while it is empty, the loop is left alone.
        renew: renews the leases that are due; called in the watchdog's thread.
    """

    def __init__(self, lease_seconds: float, sessions: Mapping[str, object], renew: Callable[[], None]) -> None:
        self._look_seconds = min(_LOOK_SECONDS, lease_seconds / _LOOKS_PER_LEASE)
        self._sessions, self._renew = sessions, renew
        self._stopping = threading.Event()
        self._is_answered = True

    def start(self) -> None:
        """Watch the running loop, from the loop's thread. A loop on virtual time is not watched: no real time passes on it."""
        loop = asyncio.get_running_loop()
        if abs(loop.time() - time.monotonic()) < 1:
            arguments = loop, threading.get_ident()
            threading.Thread(target=self._run, args=arguments, name="stepwell-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()

    def _run(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        sent = looked = time.monotonic()
        is_logged = False
        while not self._stopping.wait(self._look_seconds):
            now, before = time.monotonic(), looked
            looked = now
            if now - before > 4 * self._look_seconds:
                sent = now  # this thread did not run either, since the process or the machine was paused
            if self._is_answered:
                is_logged = False
                if self._sessions:
                    sent, self._is_answered = now, False
                    with suppress(RuntimeError):  # the loop was closed
                        loop.call_soon_threadsafe(self._answer)
                continue
            if now - sent >= _LOG_AFTER_SECONDS and not is_logged:
                is_logged = True
                _log_blocked(sys._current_frames().get(thread), now - sent)  # pyright: ignore[reportPrivateUsage] - the only way
            if now - sent >= self._look_seconds:
                self._renew()

    def _answer(self) -> None:
        self._is_answered = True


def _log_blocked(frame: FrameType | None, seconds: float) -> None:
    """Log which step blocks the loop, and where. A wait for the store is no fault of user code, and not logged."""
    stack = None if frame is None else user_stack(frame)
    if stack is None:
        return
    found = running_step(frame)
    what = "the code of a workflow, or other code on its loop," if found is None else "step {!r} of execution {!r}".format(*found)
    advice = "await what it waits for, or make the step a plain def, which runs in a thread"
    told = "%s has blocked the event loop for %.1f s, and with it all runs of this worker; %s. It is at:\n%s"
    log.warning(told, what, seconds, advice, stack)
