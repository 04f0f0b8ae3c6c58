"""The workflows that a worker can run: functions of its process, and definitions in the store."""

from __future__ import annotations

from math import inf
from typing import Any

from stepwell.errors import NotFound
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.flow.function import Workflow, registered, registered_names, registered_versions
from stepwell.kernel.plan import Plan
from stepwell.kernel.token import ROOT
from stepwell.model.commit import ANY_VERSION
from stepwell.model.execution_state import State
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.definitions import DefinitionOperations, Startable
from stepwell.runtime.lease_renewal import monotonic

__all__ = ["KnownWorkflows"]

_REFRESH_SECONDS = 1.0
"""How often the names of stored definitions are read again, since other processes may store more."""


class KnownWorkflows:
    """Finds workflows by name."""

    def __init__(self, driver: AsyncDriver, definitions: DefinitionOperations) -> None:
        self._driver, self.definitions = driver, definitions
        self._read_at = -inf
        self._stored: tuple[str, ...] = ()

    async def of_state(self, state: State) -> Workflow[..., Any]:
        """Return what an execution runs; ``NotFound`` if this worker does not know it."""
        identity = state.identity
        if ROOT in state.sections["tokens"]:  # a definition began it, even if this process has a function of that name
            return await self._driver.run(self.definitions.load(identity.workflow_id, identity.version))
        return await self.find(identity.workflow_id, identity.version)

    async def find(self, name: str, version: int) -> Workflow[..., Any]:
        """Return a function of this process, or the stored version of a definition."""
        try:
            return registered(name)
        except NotFound:
            return await self._driver.run(self.definitions.load(name, version))

    async def startable(self, given: Startable, version: int | None) -> Workflow[..., Any]:
        """Return what a subworkflow names: a function of this process, or a stored definition that is active.

        A definition that is given as such is stored first.
        """
        return await self._driver.run(self.definitions.startable(given, version))

    def plan(self, workflow: DeclaredWorkflow) -> Plan:
        """Return the plan by which the kernel runs a declared workflow."""
        return self.definitions.plan(workflow)

    async def names(self) -> tuple[str, ...]:
        """Return the names of all workflows."""
        return (*registered_names(), *await self._stored_names())

    async def versions(self) -> dict[str, int]:
        """Return the names of all workflows, each with the newest version that this worker can run."""
        return dict.fromkeys(await self._stored_names(), ANY_VERSION) | registered_versions()

    async def _stored_names(self) -> tuple[str, ...]:
        if monotonic() - self._read_at >= _REFRESH_SECONDS:
            self._stored = await self._driver.run(self.definitions.names())
            self._read_at = monotonic()
        return (*self._stored, *self.definitions.known_names())
