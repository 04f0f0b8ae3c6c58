"""Waiting for what somebody else does by itself, where nothing tells when it is done."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["until"]

_LOOKS, _PAUSE_SECONDS = 1_200, 0.05


def until(condition: Callable[[], object]) -> None:
    """Wait for something that a worker does by itself."""
    pause = threading.Event()
    for _ in range(_LOOKS):
        if condition():
            return
        pause.wait(_PAUSE_SECONDS)
    raise AssertionError("it did not happen")
