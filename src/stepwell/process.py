"""The process: which one this is, and settings of it that somebody wants another way for a while."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Setting", "process_id"]

T = TypeVar("T")

# Asking the system costs more than all else that a write checks, so a fork is noted instead.
_id = os.getpid()


def process_id() -> int:
    """The id of this process, also after a fork."""
    return _id


def _note() -> None:
    global _id  # noqa: PLW0603 - there is one process
    _id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)


class Setting(Generic[T]):
    """A setting of the process, and what becomes of it while anybody here wants it another way. When nobody does any more, what was
    there before is put back, unless somebody else has set it meanwhile: that stays."""

    def __init__(self, get: Callable[[], T], put: Callable[[T], None], wanted: Callable[[T], T]) -> None:
        self._get, self._put, self._wanted = get, put, wanted
        self._lock = threading.Lock()
        self._count = 0
        self._before: T | None = None
        self._ours: T | None = None

    def want(self) -> None:
        """Want it another way."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._before = before = self._get()
                self._put(self._wanted(before))
                self._ours = self._get()

    def let_go(self) -> None:
        """Want it no more."""
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._before is not None and self._get() == self._ours:
                self._put(self._before)
