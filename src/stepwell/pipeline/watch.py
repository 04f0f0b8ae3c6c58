"""Watches: a loop is told when something may have come by a connection, which others may close at any time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

__all__ = ["Watch"]

# By then an answer is late, and whoever knows what to do about that had better wait for it.
_LONGEST_SECONDS = 0.02


class Watch:
    """Has a loop call somebody when there is something to read, and somebody else if there is nothing for too long.

    It has a descriptor of its own for that. Whoever has the connection may close it, in any thread; were its number given to
    another file while the loop still knew it, the loop would take one for the other, and never tell of what comes by the second.
    """

    __slots__ = ("_descriptor", "_late", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._descriptor = loop, -1
        self._late: asyncio.TimerHandle | None = None

    def begin(self, descriptor: int, come: Callable[[], None], late: Callable[[], None]) -> bool:
        """Watch a connection, if that is not done already. On the loop. False if this loop cannot."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.dup(descriptor)
                self._loop.add_reader(self._descriptor, come)
                self._late = self._loop.call_later(_LONGEST_SECONDS, late)
            except (OSError, NotImplementedError):
                self._close()
        return self._descriptor >= 0

    def end(self) -> None:
        """Watch no longer. On the loop."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            self._close()

    def end_soon(self) -> None:
        """The same, from any thread."""
        if self._descriptor >= 0:
            try:
                self._loop.call_soon_threadsafe(self.end)
            except RuntimeError:  # it is closed, and watches nothing
                self._close()

    def _close(self) -> None:
        if self._late is not None:
            self._late.cancel()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
