"""Giving way: work that can wait stands aside for a request that is under way, or about to come.

Claims, and commits that move an item on, are for what waits in the queue or is over; a request whose run could start at once waits
for nothing but its own statement. Where both are under way, on a server without a core to spare, the request pays for it. So such
work is begun a moment later: when the request is done, or somebody comes who cannot wait, or soon in any case. And since who asks
for one run after another asks for the next when the last one has ended, it is begun a moment later after a request, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from time import perf_counter

from stepwell.model.commit import Commit, Unit
from stepwell.model.queue_item import ClaimItems
from stepwell.pipeline.notifications import open_gate, shut_gate

__all__ = ["Way", "can_wait"]

# A request is done sooner than this where its server is near; if it is far, its cores are not what the two have in common.
_LONGEST_SECONDS = 0.002

# How long the next request is waited for, and how long after the last one: a run that does little has ended by then.
_MOMENT_SECONDS = 0.0004
_RECENT_SECONDS = 0.005


def can_wait(unit: Unit) -> bool:
    """Whether a unit is work for what waits in the queue."""
    return isinstance(unit, ClaimItems) or (isinstance(unit, Commit) and unit.mark is not None)


class Way:
    """Where the writer of one group waits for another group."""

    def __init__(self) -> None:
        self._gate: threading.Lock | None = None
        self._passed = -inf

    def give(self, is_willing: Callable[[], bool], is_taken: Callable[[], bool]) -> None:
        """Wait until the way is clear, if it is taken or may be in a moment, and those who wait are willing. One may at a time."""
        gate = self._gate = shut_gate()
        # Both are asked when the gate is there, so that who changes them sees it.
        has_waited = perf_counter() < self._passed + _RECENT_SECONDS and is_willing() and gate.acquire(timeout=_MOMENT_SECONDS)
        if not has_waited and is_willing() and is_taken():
            gate.acquire(timeout=_LONGEST_SECONDS)
        self._gate = None

    def passed(self) -> None:
        """A request is done. From any thread."""
        self._passed = perf_counter()
        self.clear()

    def clear(self) -> None:
        """Nobody stands aside any longer: somebody cannot wait. From any thread."""
        gate = self._gate
        if gate is not None:
            open_gate(gate)
