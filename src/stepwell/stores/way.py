"""Giving way: work that can wait stands aside for a request that is under way.

Claims, and commits that move an item on, are for what waits in the queue or is over; a request whose run could start at once waits
for nothing but its own statement. Where both are under way, on a server without a core to spare, the request pays for it. So such
work is begun a moment later: when the request is done, or somebody comes who cannot wait, or soon in any case.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stepwell.gate import open_gate, shut_gate
from stepwell.model.commit import Commit, Unit
from stepwell.model.queue import ClaimItems

__all__ = ["Way", "can_wait"]

# A request is done sooner than this where its server is near; if it is far, its cores are not what the two have in common.
_LONGEST_SECONDS = 0.002


def can_wait(unit: Unit) -> bool:
    """Whether a unit is work for what waits in the queue."""
    return isinstance(unit, ClaimItems) or (isinstance(unit, Commit) and unit.mark is not None)


class Way:
    """Where the writer of one group waits for another group."""

    def __init__(self) -> None:
        self._gate: threading.Lock | None = None

    def give(self, is_taken: Callable[[], bool]) -> None:
        """Wait until the way is cleared, if it is taken. One at a time may."""
        gate = self._gate = shut_gate()
        if is_taken():  # asked when the gate is there, so that who changes this sees it
            gate.acquire(timeout=_LONGEST_SECONDS)
        self._gate = None

    def clear(self) -> None:
        """A request is done, or somebody cannot wait: nobody stands aside any longer. From any thread."""
        gate = self._gate
        if gate is not None:
            open_gate(gate)
