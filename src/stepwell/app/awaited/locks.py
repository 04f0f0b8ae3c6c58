"""Named locks: acquire, renew and release."""

from __future__ import annotations

import asyncio
from types import TracebackType

from stepwell.duration import DEFAULT_LOCK_SECONDS, Span
from stepwell.model.ids import Id, id_text
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.locks import HeldLock, LockHandle, LockOperations, LockRequest
from stepwell.state.remote_locks import RemoteHold, RemoteLocks

__all__ = ["AsyncLock", "AsyncLocks"]


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


class AsyncLocks:
    """Locks on behalf of holders outside this process: ``well.locks``. Nothing renews them here.

    A lock of the workspace ``default`` is that of ``well.lock``; other workspaces have names of their own.
    """

    def __init__(self, operations: RemoteLocks, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def acquire(
        self, name: Id, *, workspace: Id = DEFAULT_WORKSPACE, seconds: Span = DEFAULT_LOCK_SECONDS, holder: Id | None = None
    ) -> RemoteHold:
        """Acquire a lock for a holder elsewhere, and return what the holder needs to renew and release it.

        - ``name``, ``workspace``: the lock.
        - ``seconds``: how long it is held unless it is renewed.
        - ``holder``: a name that is unique to this acquisition, which makes a retry safe; None: Stepwell chooses one.

        Raise ``LockHeld`` at once if another holder has it.
        """
        return await self._driver.run(self._do.acquire(id_text(name), id_text(workspace), seconds, id_text(holder)))

    async def renew(
        self, name: Id, *, holder: Id, fence: int, workspace: Id = DEFAULT_WORKSPACE, seconds: Span = DEFAULT_LOCK_SECONDS
    ) -> RemoteHold:
        """Hold a lock for longer, counted from now.

        Raise ``LeaseLost`` if it is not held any more.

        - ``name``, ``workspace``: the lock.
        - ``seconds``: how long it is held from now on.
        - ``holder``, ``fence``: as ``acquire`` returned them.
        """
        return await self._driver.run(self._do.renew(id_text(name), id_text(workspace), seconds, id_text(holder), fence))

    async def release(self, name: Id, *, holder: Id, fence: int, workspace: Id = DEFAULT_WORKSPACE) -> None:
        """Release a lock.

        Raise ``LeaseLost`` if it is not held any more.

        - ``name``, ``workspace``: the lock.
        - ``holder``, ``fence``: as ``acquire`` returned them.
        """
        await self._driver.run(self._do.release(id_text(name), id_text(workspace), id_text(holder), fence))
