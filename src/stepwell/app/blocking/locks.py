# Generated from app/awaited/locks.py by `make blocking`. Do not edit: change that module and generate again.
"""Named locks: acquire, renew and release."""

from __future__ import annotations

import threading
from types import TracebackType

from stepwell.pipeline.operations import Driver
from stepwell.state.locks import HeldLock, LockHandle, LockOperations, LockRequest

__all__ = ["Lock"]


class Lock(LockHandle):
    """A lock to be held with ``with``, or with ``acquire`` and ``release``. Entering the block returns a ``HeldLock``."""

    def __init__(self, operations: LockOperations, request: LockRequest, driver: Driver) -> None:
        super().__init__(operations, request)
        self._driver = driver

    def acquire(self) -> HeldLock:
        """Acquire the lock, and return what proves the hold: a ``HeldLock`` with its fence.

        Raise ``LockHeld`` if another holder had the lock during the whole timeout.
        """
        return self._driver.run(self._acquire(threading.get_ident()))

    def release(self) -> bool:
        """Release the lock; return whether it was still held.

        A lock that had expired returns False and logs a warning; another holder's lock is not touched.
        """
        return self._driver.run(self._release(threading.get_ident()))

    def __enter__(self) -> HeldLock:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._driver.run(self._leave(threading.get_ident()))
