"""Serving: a process that runs workflows until a signal says stop. The first one drains, the second hands back at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Protocol

__all__ = ["HAND_BACK_SECONDS", "Drains", "serve"]

HAND_BACK_SECONDS = 1.0
"""How long handing back may take after the second signal; whatever is not handed back then goes on when its lease ends."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Drains(Protocol):
    """A well with a worker."""

    def drain(self, grace_seconds: float | None = None) -> None:
        """Claim no more, and hand back; steps under way have so long to end."""
        ...

    def close(self) -> None:
        """Wait for that, and give everything back."""
        ...


def serve(well: Drains, grace_seconds: float = 30, *, on_stop: Callable[[], None] = lambda: None) -> int:
    """Let a well work until SIGTERM or SIGINT, then close it; the number of the signal. In the main thread.

    After the first signal nothing more is claimed, waiting executions are handed back at once, and steps under way have
    ``grace_seconds`` to end; then they are left, and their executions handed back, too, to go on elsewhere. A second signal ends
    the grace. If threads are left inside a step, the process ends here, since nothing can stop them.
    """
    told: list[int] = []
    stopping = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        well.drain(grace_seconds if len(told) == 1 else 0)
        if len(told) > 1:
            _end_after(HAND_BACK_SECONDS, 128 + number)
        stopping.set()

    before = {each: signal.signal(each, stop) for each in _SIGNALS}
    try:
        stopping.wait()
        on_stop()
        well.close()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if any(thread.name.startswith(("stepwell-step", "stepwell-code")) and _is_inside(thread) for thread in threading.enumerate()):
        _end(0)
    return told[0]


def _end_after(seconds: float, code: int) -> None:
    timer = threading.Timer(seconds, _end, [code])
    timer.daemon = True
    timer.start()


def _is_inside(thread: threading.Thread) -> bool:
    """Whether a thread of ours is inside of a user's function. One that is idle ends as soon as its pool is shut down."""
    thread.join(0.1)
    return thread.is_alive()


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
