"""Named locks: acquire, renew and release."""

from __future__ import annotations

import asyncio
from types import TracebackType

from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.locks import HeldLock, LockHandle, LockOperations, LockRequest

__all__ = ["AsyncLock"]


class AsyncLock(LockHandle):
    """A lock to be taken with ``async with``, or with ``acquire`` and ``release``."""

    def __init__(self, operations: LockOperations, request: LockRequest, driver: AsyncDriver) -> None:
        super().__init__(operations, request)
        self._driver = driver

    async def acquire(self) -> HeldLock:
        """Take it; ``LockHeld`` if somebody else has it."""
        return await self._driver.run(self._acquire(asyncio.current_task()))

    async def release(self) -> bool:
        """Give it back; whether it was still held. If it had expired, a warning is logged and nobody else's hold is touched."""
        return await self._driver.run(self._release(asyncio.current_task()))

    async def __aenter__(self) -> HeldLock:
        return await self.acquire()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._driver.run(self._leave(asyncio.current_task()))
