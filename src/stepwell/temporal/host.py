"""Collaborators of the workflows and activities of one worker: the store, and the services to steps."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from stepwell.contract.store import Store
from stepwell.errors import NotFound, StepwellError
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.kernel.plan import Plan
from stepwell.model.commit import Lease
from stepwell.model.execution_state import State
from stepwell.model.ids import NewId
from stepwell.model.limits import Limits
from stepwell.model.record import Metadata
from stepwell.pipeline.operations import AsyncDriver, Operation
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.services import Services
from stepwell.state.executions import Executions
from stepwell.temporal.messages import PayloadReference
from stepwell.temporal.payload_store import PayloadStore
from stepwell.temporal.workflow import TryTaskAgain

__all__ = ["NoLocalWorker", "TemporalHost"]

T = TypeVar("T")

_READ_SECONDS = 1.5
"""How long a workflow task waits for something that is read once: Temporal fails a task that takes two seconds."""


class NoLocalWorker:
    """Stands where services look for a worker that may take on children: Temporal runs them."""

    holder = ""
    lease_seconds = 0.0
    has_room = False

    def room_lent(self) -> AbstractContextManager[None]:
        """Lend nothing."""
        return nullcontext()

    def run_leased(self, lease: Lease, *, is_new: bool = True) -> None:
        """Leave it: there is no worker here."""


class TemporalHost:
    """The collaborators of one Temporal worker. Its loop is the one that it is made on."""

    def __init__(
        self,
        *,
        store: Store,
        executions: Executions,
        driver: AsyncDriver,
        definitions: DefinitionOperations,
        services: Services,
        limits: Limits,
        new_id: NewId,
        lease_seconds: float,
    ) -> None:
        self.store, self.executions, self.driver, self.services = store, executions, driver, services
        self.limits, self.new_id, self.lease_seconds = limits, new_id, lease_seconds
        self._definitions = definitions
        self.payloads = PayloadStore(store, driver)
        self._loop = asyncio.get_running_loop()

    def store_now_ms(self) -> int:
        """Return the time by the store's clock, as this process measured it."""
        return self.services.clock.now_ms()

    def plan(self, name: str, version: int) -> Plan:
        """Return the plan of a stored definition; read once, and the same for ever. In the workflow's thread."""
        return self._definitions.plan(self._read(self._definitions.load(name, version)))

    def state_at(self, execution_id: str, revision: int) -> State:
        """Return the state at a revision. In the workflow's thread."""
        return self._read(self.executions.state_at(execution_id, revision))

    def kept(self, reference: PayloadReference) -> bytes:
        """Return a payload that is kept in the store. In the workflow's thread."""
        return self._read(self.payloads.load(reference))

    def _read(self, operation: Operation[T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(self.driver.run(operation), self._loop).result(_READ_SECONDS)
        except (StepwellError, TimeoutError) as error:
            raise TryTaskAgain(f"the store did not give what the workflow task needs: {error!r}") from error

    async def grants(self, identity: Metadata) -> tuple[str, ...] | None:
        """Return the grants of the definition that an execution runs; None if it runs a function, or the definition is not here."""
        try:
            workflow = await self.services.workflows.find(identity.workflow_id, identity.version)
        except StepwellError:
            return None
        return workflow.grants if isinstance(workflow, DeclaredWorkflow) else None

    async def is_declared(self, name: str, version: int) -> bool:
        """Return whether a workflow is a definition, and no function of this process."""
        try:
            return isinstance(await self.services.workflows.find(name, version), DeclaredWorkflow)
        except NotFound:
            return False
