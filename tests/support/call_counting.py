"""Work that is counted and not timed: the same number on every machine, however slow or busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

__all__ = ["calls_of"]


def calls_of(action: Callable[[], object]) -> int:
    """How many functions, of Python and of C, this thread called to do something."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls
