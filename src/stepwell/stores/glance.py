"""Glances: look for a reply for a moment before falling asleep.

A server on the same machine answers within 20 to 50 microseconds. To fall asleep and be woken takes longer than that, so whoever
looks for a moment first has the reply in half the time. Where replies take longer (a network, a disk), looking is a waste, and it
takes the processor from others; so a glance that came to nothing is followed by many waits without one, ever more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

__all__ = ["Glance"]

_LONGEST_SECONDS = 0.0001
_FEWEST_SKIPPED, _MOST_SKIPPED = 8, 1_024


class Glance:
    """Looks for the replies of one connection, for whoever has it at the time."""

    __slots__ = ("_left", "_skipped")

    def __init__(self) -> None:
        self._skipped, self._left = _FEWEST_SKIPPED, 0

    def take(self, look: Callable[[], object]) -> bool:
        """Whether something came while we looked; if not, the caller waits for it."""
        if self._left:
            self._left -= 1
            return False
        ends = perf_counter() + _LONGEST_SECONDS
        while not (has_come := look()) and perf_counter() < ends:
            pass
        if perf_counter() < ends:
            self._skipped = _FEWEST_SKIPPED
        else:
            # Too late, or in time but only after another thread had the interpreter: then looking is what gave it away.
            self._left, self._skipped = self._skipped, min(self._skipped * 2, _MOST_SKIPPED)
        return bool(has_come)
