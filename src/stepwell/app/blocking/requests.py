# Generated from app/awaited/requests.py by `make blocking`. Do not edit: change that module and generate again.
"""Records of HTTP requests: replies under idempotency keys, and the audit."""

from __future__ import annotations

from stepwell.model.ids import Id, id_text
from stepwell.pipeline.operations import Driver
from stepwell.state.request_log import AuditEntry, KeptReply, RequestKey, RequestLog

__all__ = ["Requests"]


class Requests:
    """The requests that the HTTP server has answered: ``well.requests``."""

    def __init__(self, operations: RequestLog, driver: Driver) -> None:
        self._do, self._driver = operations, driver

    def reply(self, key: RequestKey) -> KeptReply | None:
        """Return the reply that is kept under an idempotency key, or None.

        - ``key``: the key, with the caller and the request that it belongs to.
        """
        return self._driver.run(self._do.reply(key))

    def reserve(self, key: RequestKey) -> None:
        """Note that a request is running.

        - ``key``: the key, with the caller and the request that it belongs to.

        Raise ``Conflict`` if its key is in use.
        """
        self._driver.run(self._do.reserve(key))

    def keep(self, key: RequestKey, reply: KeptReply) -> None:
        """Keep the reply of a request for a day.

        - ``key``: the key of the request.
        - ``reply``: its reply.
        """
        self._driver.run(self._do.keep(key, reply))

    def release(self, key: RequestKey) -> None:
        """Free the key of a request that failed.

        - ``key``: the key of the request.
        """
        self._driver.run(self._do.release(key))

    def note(self, workspace: Id, entry: AuditEntry) -> None:
        """Add an entry to the audit of a workspace; its id and time are set by the store.

        - ``workspace``: the workspace.
        - ``entry``: what was done, by whom.
        """
        self._driver.run(self._do.note(id_text(workspace), entry))

    def audit(self, workspace: Id, *, before: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return the newest entries of a workspace's audit.

        - ``workspace``: the workspace.
        - ``before``: the id of the last entry of the page before; None for the first page.
        - ``limit``: the size of a page.
        """
        return self._driver.run(self._do.entries(id_text(workspace), before, limit))
