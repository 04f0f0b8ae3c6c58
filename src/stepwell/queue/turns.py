"""Turns: how soon a thread of this process gets the interpreter from another one, while a dispatcher is busy here.

The loop of a worker that works off a queue is busy, and its store's writer is another thread, which needs the interpreter for
a moment after every reply of the store. Python lets it wait for 5 ms each time, and the store stands idle meanwhile: with 1 ms a
worker gets through a third more. Elsewhere longer turns are better: more commits gather for the next group. See
docs/design/0018-turns.md.
"""

from __future__ import annotations

import sys
from types import TracebackType

from stepwell.process import Setting

__all__ = ["TURN_SECONDS", "SwitchIntervalTuning"]

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
