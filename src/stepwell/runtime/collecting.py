"""Collections: how often Python looks for garbage in rings, while a worker is busy here.

An execution that is under way is a hundred objects that will all be needed, and Python looks through them again and again: with a
few hundred executions at once, every tenth moment of the loop, and all of them at a stretch for tens of milliseconds. What an
execution leaves behind is no ring, so there is little to be found. See docs/design/0019-collections.md.
"""

from __future__ import annotations

import gc
from types import TracebackType

from stepwell.process import Setting

__all__ = ["YOUNG", "GcTuning"]

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
