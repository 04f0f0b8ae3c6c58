"""Steps of a test module keep notes and events in its globals; each test begins with new ones."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

__all__ = ["cleared"]

Clearable = Counter[Any] | dict[Any, Any] | list[Any] | set[Any] | threading.Event | threading.Semaphore


def cleared(
    *state: Clearable, set_before: Sequence[threading.Event] = (), set_after: Sequence[threading.Event] = ()
) -> Callable[[], Iterator[None]]:
    """Return an autouse fixture that clears a module's globals before each of its tests.

    Events in ``set_before`` are set before each test, those in ``set_after`` after it, so that no step waits for ever.
    """

    @pytest.fixture(autouse=True)
    def fixture() -> Iterator[None]:
        for each in state:
            _clear(each)
        for event in set_before:
            event.set()
        yield
        for event in set_after:
            event.set()

    return fixture


def _clear(state: Clearable) -> None:
    if not isinstance(state, threading.Semaphore):
        state.clear()
        return
    while state.acquire(blocking=False):
        pass
