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

__all__ = ["HeadCache", "change_counter"]

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


class HeadCache:
    """The newest receipts of the executions that this process wrote last, valid while nobody else has written.

    The counter after our last transaction is known, and one of ours that changed anything moves it by exactly one. So if it moved
    by that, nobody else has written in between, and if by more, somebody has. In doubt everything remembered is dropped.
    """

    def __init__(self, counter: Callable[[], int] | None) -> None:
        self._counter = counter
        self._known: int | None = None if counter is None else counter()
        self._tips: dict[str, str] = {}
        self._outrun = 0
        """How often others have, or may have, written between two transactions of ours."""
        self.is_writing = False
        """Whether a transaction of ours is under way. When the counter moves by one meanwhile, it was ours, or another process was
        quick; which of them is known when ours is done."""

    def get(self, execution_id: str, is_guarded: bool = False) -> str | None:
        """The digest of the execution's newest receipt, or None if it is not known for sure (see ``Store.known_tip``)."""
        tip = self._tips.get(execution_id)
        if tip is None or self._counter is None or self._known is None:
            return None
        moved = self._counter() - self._known
        return tip if moved == 0 or (moved == 1 and is_guarded and self.is_writing) else None

    def landed(self, execution_id: str, tip: str) -> None:
        """A transaction with one commit, and nothing else, was committed."""
        if self._counter is not None and self._follow(1):
            self._tips[execution_id] = tip

    def note(self, written: dict[str, str | None], *, has_changed: bool | None = None) -> None:
        """A transaction was committed; these executions have new receipts (None: something else about them changed).

        Whether it changed the file at all is known if one of them has a new receipt, or if the caller knows.
        """
        if self._counter is None:
            return
        if any(tip is not None for tip in written.values()):
            has_changed = True
        if has_changed is None:
            self._outrun += 1
            self.forget()
        elif self._follow(int(has_changed)):
            for execution_id, tip in written.items():
                if tip is None:
                    self._tips.pop(execution_id, None)
                else:
                    self._tips[execution_id] = tip

    def _follow(self, step: int) -> bool:
        """Take the counter's new value; whether it is as far from the last one as our own transaction moved it."""
        assert self._counter is not None  # noqa: S101 - the callers looked
        before, self._known, self.is_writing = self._known, self._counter(), False
        if before is not None and self._known == (before + step) % 2**32 and len(self._tips) <= _MOST:
            return True
        self._tips.clear()
        self._outrun += 1
        return False

    def forget(self) -> None:
        """A transaction failed: nothing is known for sure."""
        self._tips.clear()
        self._known, self.is_writing = None, False

    def news(self) -> Callable[[], bool] | None:
        """A function that tells whether others may have written since it was last asked; None if the counter cannot be read.

        What this process writes itself is no news to it.
        """
        counter = self._counter
        if counter is None:
            return None
        told, outrun = counter(), self._outrun

        def has_news() -> bool:
            nonlocal told, outrun
            now, mine = counter(), self._known
            was, told = (told, outrun), now
            outrun = self._outrun
            if mine is not None and (now == mine or (self.is_writing and now == (mine + 1) % 2**32)):
                told = mine
                return was[1] != outrun
            return was != (now, outrun)

        return has_news
