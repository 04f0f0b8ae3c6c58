"""Glances: look for a reply for a moment before falling asleep, where that is faster.

A server on the same machine answers within 20 to 50 microseconds, or a few hundred if it waits for its disk. Where processors are
idle, to fall asleep and be woken takes as long as that, and what runs then finds its caches cold: whoever looks for a moment first
has the reply sooner, and the next request out sooner. Where the server needs the processor that the one who looks keeps busy, it is
the other way round; and over a network looking is a waste. So both ways are timed, the faster is used, and the other is tried again
from time to time: ever more seldom while nothing changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter

__all__ = ["Glance", "is_worth_a_look", "let_others_run"]

_LONGEST_SECONDS = 0.0004  # a commit on a disk of our days

# Looking keeps a processor busy; it has to save at least so much.
_WORTH_SECONDS = 0.00001

# A pause of the whole process says nothing about either way.
_MOST_SECONDS = 0.001

# Between two looks: the server may have been put on this very processor, and would have to wait until the looking is over.
let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)

_TRIAL, _SHORTEST_TERM, _LONGEST_TERM = 4, 16, 1_024


class Glance:
    """How one connection's replies are waited for, by whoever has it at the time."""

    __slots__ = ("_is_better", "_is_looking", "_left", "_looking", "_term", "_waiting")

    def __init__(self) -> None:
        self._looking = self._waiting = 0.0
        """What a reply takes either way, of late; 0 before the first."""
        self._is_better = self._is_looking = False
        """Whether looking is the better way, and whether it is the one in use: they differ while the other one is tried."""
        self._left, self._term = _TRIAL, _SHORTEST_TERM

    @property
    def is_looking(self) -> bool:
        """Whether to look for the next reply."""
        return self._is_looking

    def until_ready(self, look: Callable[[], object], wait: Callable[[], object]) -> None:
        """Return when something has come: found by ``look``, which says so at once, or waited for."""
        began, is_looking = perf_counter(), self._is_looking
        if is_looking:
            while not (has_come := look()) and is_worth_a_look(began):
                let_others_run()
            if not has_come:
                wait()
        else:
            wait()
        self.took(began, is_looking=is_looking)

    def took(self, began: float, *, is_looking: bool) -> None:
        """Note that a reply is here now, looked for or not, to what was sent when it ``began``."""
        seconds = perf_counter() - began
        if is_looking:
            self._looking = _average(self._looking, seconds)
        else:
            self._waiting = _average(self._waiting, seconds)
        self._left -= 1
        if self._left <= 0:
            self._turn()

    def _turn(self) -> None:
        if self._is_looking is self._is_better:
            self._is_looking, self._left = not self._is_better, _TRIAL
            return
        is_better = self._looking + _WORTH_SECONDS < self._waiting
        self._term = min(2 * self._term, _LONGEST_TERM) if is_better is self._is_better else _SHORTEST_TERM
        self._is_better = self._is_looking = is_better
        self._left = self._term


def is_worth_a_look(began: float) -> bool:
    """Whether the reply to what was sent when it ``began`` may still be looked for."""
    return perf_counter() < began + _LONGEST_SECONDS


def _average(before: float, seconds: float) -> float:
    seconds = min(seconds, _MOST_SECONDS)
    return before + (seconds - before) / 4 if before else seconds
