"""Usage of limits."""

from __future__ import annotations

from stepwell.maintenance.usage import Usage, UsageOperations
from stepwell.model.ids import Id, id_text
from stepwell.model.scope import DEFAULT_WORKSPACE, Scope
from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.transaction_buffer import HasScope, scope_of

__all__ = ["AsyncUsageMeter"]


class AsyncUsageMeter:
    """The usage of limits, and how much is left: ``well.usage``.

    Example:

        usage = await well.usage.workspace("acme")
        print(usage.amounts["state_bytes"].left)
    """

    def __init__(self, operations: UsageOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def scope(self, scope: Scope | HasScope) -> Usage:
        """Return the keys and bytes of one scope of state: ``scope_keys`` and ``scope_bytes`` of ``Limits``.

        - ``scope``: a ``Scope``, or a scope of ``well.state``.
        """
        return await self._driver.run(self._do.scope(scope_of(scope)))

    async def execution(self, execution_id: Id) -> Usage:
        """Return the bytes, entries, steps and receipts of one execution.

        - ``execution_id``: the execution.

        Raise ``NotFound`` if there is none.
        """
        return await self._driver.run(self._do.execution(id_text(execution_id)))

    async def workflow(self, workflow: str, *, workspace: Id = DEFAULT_WORKSPACE, executions: int = 1_000) -> Usage:
        """Return what a workflow uses in a workspace: its scoped state with that of its steps, and its executions.

        - ``workflow``: the workflow's name.
        - ``workspace``: the workspace.
        - ``executions``: how many of the newest executions to read for their bytes and steps, 0 to 10,000.
        """
        return await self._driver.run(self._do.workflow(workflow, id_text(workspace), executions))

    async def workspace(self, workspace_id: Id, *, executions: int = 1_000) -> Usage:
        """Return what a workspace uses of the limits of its tier, with the overrides that hold now, and its executions.

        - ``workspace_id``: the workspace.
        - ``executions``: how many of the newest executions to read for their bytes and steps, 0 to 10,000.

        Raise ``NotFound`` if there is no such workspace.
        """
        return await self._driver.run(self._do.workspace(id_text(workspace_id), executions))
