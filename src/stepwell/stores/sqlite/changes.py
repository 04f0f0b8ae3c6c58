"""Tells whether another process has written to a SQLite file, for the price of reading four bytes.

In WAL mode the first bytes of the ``-shm`` file are the WAL-index header, and its change counter grows by one with every commit of
any connection (sqlite.org/walformat.html). A process that knows what the counter was after its own last commit knows whether
anybody has committed since, without asking SQLite.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["Tips", "change_counter"]

_CHANGE_AT = 8
_COUNTER = struct.Struct("=I")
_MOST = 100_000


# When a process closes any descriptor of a file, POSIX drops all locks that the process has on it; and SQLite's lock on this one is
# what keeps the next process from truncating it under our feet. So a descriptor, once opened, stays open until the file is gone.
_held: dict[tuple[int, int], tuple[int, mmap.mmap]] = {}
_holding = threading.Lock()


def change_counter(path: str) -> Callable[[], int] | None:
    """A function that reads the file's change counter; None where there is none to read (no WAL, or a VFS of one's own)."""
    try:
        with _holding:
            memory = _memory_of(f"{path}-shm")
    except (OSError, ValueError):
        return None
    return lambda: _COUNTER.unpack_from(memory, _CHANGE_AT)[0]


def _memory_of(path: str) -> mmap.mmap:
    for place, (descriptor, _) in list(_held.items()):
        if os.fstat(descriptor).st_nlink == 0:
            del _held[place]
            os.close(descriptor)
    found = Path(path).stat()
    held = _held.get((found.st_dev, found.st_ino))
    if held is None:
        descriptor = os.open(path, os.O_RDONLY)
        held = _held[found.st_dev, found.st_ino] = descriptor, mmap.mmap(descriptor, mmap.PAGESIZE, access=mmap.ACCESS_READ)
    return held[1]


class Tips:
    """The newest receipts of the executions that this process wrote last, valid while nobody else has written.

    The counter after our last commit is known. A transaction in which a commit of ours landed moves it by exactly one; so if it
    moved by one, nobody else has written in between, and if by more, somebody has. Of any other transaction it is not known
    whether it changed a page, so only a counter that stands still proves that nobody wrote. In doubt everything remembered is
    dropped.
    """

    def __init__(self, counter: Callable[[], int] | None) -> None:
        self._counter = counter
        self._known: int | None = None
        self._tips: dict[str, str] = {}

    def get(self, execution_id: str) -> str | None:
        """The digest of the execution's newest receipt, or None if it is not known for sure."""
        tip = self._tips.get(execution_id)
        return tip if tip is not None and self._counter is not None and self._counter() == self._known else None

    def note(self, written: dict[str, str | None]) -> None:
        """A transaction was committed; these executions have new receipts (None: something else about them changed)."""
        if self._counter is None:
            return
        before, self._known = self._known, self._counter()
        has_landed = any(tip is not None for tip in written.values())
        if before is None or self._known != (before + has_landed) % 2**32 or len(self._tips) > _MOST:
            self._tips.clear()
            return
        for execution_id, tip in written.items():
            if tip is None:
                self._tips.pop(execution_id, None)
            else:
                self._tips[execution_id] = tip

    def forget(self) -> None:
        """A transaction failed: nothing is known for sure."""
        self._tips.clear()
        self._known = None
