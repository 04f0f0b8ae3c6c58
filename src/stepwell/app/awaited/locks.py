"""Named locks: acquire, renew and release."""

from __future__ import annotations

import asyncio
from types import TracebackType

from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.locks import HeldLock, LockHandle, LockOperations, LockRequest

__all__ = ["AsyncLock"]


class AsyncLock(LockHandle):
    """A lock to be held with ``async with``, or with ``acquire`` and ``release``. Entering the block returns a ``HeldLock``."""

    def __init__(self, operations: LockOperations, request: LockRequest, driver: AsyncDriver) -> None:
        super().__init__(operations, request)
        self._driver = driver

    async def acquire(self) -> HeldLock:
        """Acquire the lock, and return what proves the hold: a ``HeldLock`` with its fence.

        Raise ``LockHeld`` if another holder had the lock during the whole timeout.
        """
        return await self._driver.run(self._acquire(asyncio.current_task()))

    async def release(self) -> bool:
        """Release the lock; return whether it was still held.

        A lock that had expired returns False and logs a warning; another holder's lock is not touched.
        """
        return await self._driver.run(self._release(asyncio.current_task()))

    async def __aenter__(self) -> HeldLock:
        return await self.acquire()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._driver.run(self._leave(asyncio.current_task()))
