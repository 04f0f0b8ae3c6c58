"""The repertoire of a worker: the workflows that it can run, as functions of its process or as stored definitions."""

from __future__ import annotations

from math import inf
from typing import Any

from stepwell.errors import NotFound
from stepwell.flow.function import Workflow, registered, registered_names, registered_versions
from stepwell.kernel.token import ROOT
from stepwell.model.commit import ANY_VERSION
from stepwell.model.execution_state import State
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.keeping import monotonic

__all__ = ["KnownWorkflows"]

_LOOK_AGAIN_SECONDS = 1.0


class KnownWorkflows:
    """Finds workflows by their names."""

    def __init__(self, driver: AsyncDriver, definitions: DefinitionOperations) -> None:
        self._driver, self._definitions = driver, definitions
        self._looked = -inf
        self._stored: tuple[str, ...] = ()

    async def of_state(self, state: State) -> Workflow[..., Any]:
        """What an execution runs, as its state says; ``NotFound`` if that is not known here."""
        identity = state.identity
        if ROOT in state.sections["tokens"]:  # it was begun by a definition, even if there is a function of that name here
            return await self._driver.run(self._definitions.load(identity.workflow_id, identity.version))
        return await self.find(identity.workflow_id, identity.version)

    async def find(self, name: str, version: int) -> Workflow[..., Any]:
        """A function of this process, or the stored version of a definition."""
        try:
            return registered(name)
        except NotFound:
            return await self._driver.run(self._definitions.load(name, version))

    async def names(self) -> tuple[str, ...]:
        """The names of all."""
        return (*registered_names(), *await self._stored_names())

    async def versions(self) -> dict[str, int]:
        """The names of all, each with the newest version that can be run."""
        return dict.fromkeys(await self._stored_names(), ANY_VERSION) | registered_versions()

    async def _stored_names(self) -> tuple[str, ...]:
        """Looked up again after a while, since other processes may store more."""
        if monotonic() - self._looked >= _LOOK_AGAIN_SECONDS:
            self._stored = await self._driver.run(self._definitions.names())
            self._looked = monotonic()
        return (*self._stored, *self._definitions.known_names())
