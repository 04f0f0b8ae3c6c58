"""Collections: how often Python looks for garbage in rings, while a worker is busy here.

An execution that is under way is a hundred objects that will all be needed, and Python looks through them again and again: with a
few hundred executions at once, every tenth moment of the loop, and all of them at a stretch for tens of milliseconds. What an
execution leaves behind is no ring, so there is little to be found. See docs/design/0019-collections.md.

Turns: how soon a thread of this process gets the interpreter from another one, while a dispatcher is busy here.

The loop of a worker that works off a queue is busy, and its store's writer is another thread, which needs the interpreter for
a moment after every reply of the store. Python lets it wait for 5 ms each time, and the store stands idle meanwhile: with 1 ms a
worker gets through a third more. Elsewhere longer turns are better: more commits gather for the next group. See
docs/design/0018-turns.md.
"""

from __future__ import annotations

import gc
import sys
from types import TracebackType

from stepwell.process import Setting

__all__ = [
    "TURN_SECONDS",
    "YOUNG",
    "GcTuning",
    "SwitchIntervalTuning",
]


YOUNG = 50_000
"""So many objects are made, and not dropped again, until Python looks through the young ones; it has 700. Two hundred executions
that are under way at once are fewer, so they come and go without being looked through."""

Threshold = tuple[int, int, int]


def _rare(before: Threshold) -> Threshold:
    young, *older = before
    return (max(young, YOUNG) if young else 0, older[0], older[1])  # none at all: its user wants no collections


_threshold: Setting[Threshold] = Setting(gc.get_threshold, lambda threshold: gc.set_threshold(*threshold), _rare)


class GcTuning:
    """While it is entered, collections are rare. A larger threshold stays, and so does one that somebody sets meanwhile."""

    def __enter__(self) -> None:
        _threshold.want()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _threshold.let_go()


TURN_SECONDS = 0.001

_interval = Setting(sys.getswitchinterval, sys.setswitchinterval, lambda before: min(before, TURN_SECONDS))


class SwitchIntervalTuning:
    """One who wants threads to give way sooner, from time to time. A shorter interval stays, and so does one that somebody sets
    meanwhile."""

    def __init__(self) -> None:
        self._wants = False

    def __enter__(self) -> SwitchIntervalTuning:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.want(False)

    def want(self, wants: bool) -> None:
        """Say whether turns should be quick from now on."""
        if wants is self._wants:
            return
        self._wants = wants
        if wants:
            _interval.want()
        else:
            _interval.let_go()
