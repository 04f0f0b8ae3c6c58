"""Records of HTTP requests: replies under idempotency keys, and the audit."""

from __future__ import annotations

from stepwell.model.ids import Id, id_text
from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.request_log import AuditEntry, KeptReply, RequestKey, RequestLog

__all__ = ["AsyncRequests"]


class AsyncRequests:
    """The requests that the HTTP server has answered: ``well.requests``."""

    def __init__(self, operations: RequestLog, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def reply(self, key: RequestKey) -> KeptReply | None:
        """Return the reply that is kept under an idempotency key, or None.

        - ``key``: the key, with the caller and the request that it belongs to.
        """
        return await self._driver.run(self._do.reply(key))

    async def reserve(self, key: RequestKey) -> None:
        """Note that a request is running.

        - ``key``: the key, with the caller and the request that it belongs to.

        Raise ``Conflict`` if its key is in use.
        """
        await self._driver.run(self._do.reserve(key))

    async def keep(self, key: RequestKey, reply: KeptReply) -> None:
        """Keep the reply of a request for a day.

        - ``key``: the key of the request.
        - ``reply``: its reply.
        """
        await self._driver.run(self._do.keep(key, reply))

    async def release(self, key: RequestKey) -> None:
        """Free the key of a request that failed.

        - ``key``: the key of the request.
        """
        await self._driver.run(self._do.release(key))

    async def note(self, workspace: Id, entry: AuditEntry) -> None:
        """Add an entry to the audit of a workspace; its id and time are set by the store.

        - ``workspace``: the workspace.
        - ``entry``: what was done, by whom.
        """
        await self._driver.run(self._do.note(id_text(workspace), entry))

    async def audit(self, workspace: Id, *, before: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return the newest entries of a workspace's audit.

        - ``workspace``: the workspace.
        - ``before``: the id of the last entry of the page before; None for the first page.
        - ``limit``: the size of a page.
        """
        return await self._driver.run(self._do.entries(id_text(workspace), before, limit))
