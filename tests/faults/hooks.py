"""Hooks for the fault points: they note what is reached, or fail at one chosen hit."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable

from stepwell.fault_points import armed

__all__ = ["Boom", "Trace", "at", "kill_this_process", "points_of"]


class Boom(Exception):
    """The default error of an armed fault point."""


class Trace:
    """Notes every point in the order in which it is reached."""

    def __init__(self) -> None:
        self.points: list[str] = []

    def __call__(self, point: str) -> None:
        self.points.append(point)

    def hits(self) -> Counter[str]:
        """How often each point was reached."""
        return Counter(self.points)


def points_of(act: Callable[[], object]) -> list[str]:
    """The points that a call reaches, in order. A store that writes in one statement has none between its begin and its commit."""
    trace = Trace()
    with armed(trace):
        act()
    return trace.points


def at(point: str, hit: int, act: Callable[[], object]) -> Callable[[str], None]:
    """A hook that acts once, at one hit (1 is the first) of one point, whichever thread comes by."""
    lock, count = threading.Lock(), 0

    def hook(name: str) -> None:
        nonlocal count
        if name != point:
            return
        with lock:
            count += 1
            is_due = count == hit
        if is_due:
            act()

    return hook


def kill_this_process() -> None:
    """End this process as the kernel would: no clean-up, no flushing, no goodbye."""
    os.kill(os.getpid(), signal.SIGKILL)
