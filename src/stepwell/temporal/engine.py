"""The Temporal engine of the dispatcher: starts the workflow of a queue item on the server, then creates its execution.

The order matters. A workflow that was started is found again by its id, so a dispatcher that dies in between leaves nothing that
could be started twice, and the next one (the workflow, or the dispatcher that claims the item again) creates the execution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import msgspec
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RawValue

from stepwell.contract.engine import NotNow
from stepwell.errors import AlreadyExists, Conflict, EngineUnavailable, LeaseLost, NotFound
from stepwell.model.external_engines import TEMPORAL, EngineRecord, engine_id
from stepwell.model.queue_item import Claimed, workflow_and_engine, workflow_for
from stepwell.model.record import split_input
from stepwell.model.status import FINAL
from stepwell.pipeline.operations import write_or_raise
from stepwell.queue.local_engine import Resuming
from stepwell.runtime.inbox import CANCEL, delivery, fresh_key
from stepwell.runtime.start import Starting
from stepwell.temporal.activities import create
from stepwell.temporal.connection import TemporalConnection
from stepwell.temporal.host import TemporalHost
from stepwell.temporal.messages import ItemOrigin, RunInput
from stepwell.temporal.naming import task_queue

__all__ = ["TemporalEngine"]

_ROOM = 100
_ASK_AGAIN_SECONDS = 1.0
"""How long nothing is claimed after a call that found no server."""


class TemporalEngine:
    """Starts items as workflows on a Temporal server."""

    name = TEMPORAL
    concurrent_starts = 20
    """Each start is a call of the server, which takes long enough for others to go on beside it."""

    def __init__(
        self, host: TemporalHost, connection: TemporalConnection, starting: Starting, wake_starter: Callable[[], None]
    ) -> None:
        self._host, self._connection, self._starting, self._wake_starter = host, connection, starting, wake_starter
        self._resuming = Resuming(host.executions, host.new_id, host.services.workflows.definitions)
        self._asked_at = 0.0

    @property
    def room(self) -> int:
        """The number of items that can be started now: none while the server is away, so that items wait in the queue."""
        if not self._connection.is_away:
            return _ROOM
        if monotonic() - self._asked_at >= _ASK_AGAIN_SECONDS:
            self._asked_at = monotonic()
            self._asking = asyncio.ensure_future(self._ask())
        return 0

    async def _ask(self) -> None:
        try:
            await self._connection.check()
        except EngineUnavailable:
            return

    def on_room(self, call: Callable[[], None]) -> None:
        """Do nothing: there is room again when the server is, which the dispatcher looks for by itself."""

    async def workflows(self) -> tuple[str, ...]:
        """The names under which items for Temporal are claimed."""
        return tuple(workflow_for(name, TEMPORAL) for name in await self._host.services.workflows.names())

    async def start(self, claimed: Claimed) -> None:
        """Start the workflow of an item, and create its execution, or give the one that waits its slot."""
        name, _ = workflow_and_engine(claimed.workflow_id, TEMPORAL)
        workflow = await self._host.services.workflows.find(name, claimed.version)
        if claimed.version > workflow.version:
            raise NotFound(f"workflow {name!r} has version {workflow.version} here, and the item asks for {claimed.version}")
        driver = self._host.driver
        if claimed.fence > 1 and await driver.run(self._resuming.resume(claimed)):
            self._wake_starter()
            return
        asked = split_input(claimed.given())
        identity = self._starting.identity_of_item(
            workflow, claimed.execution_id, claimed.workspace_id, claimed.item_id, asked, TEMPORAL
        )
        origin = ItemOrigin(claimed.item_id, claimed.fence, identity, msgspec.Raw(asked.trigger))
        is_declared = await self._host.is_declared(name, claimed.version)
        given = RunInput(claimed.execution_id, claimed.workspace_id, name, workflow.version, is_declared, origin)
        record = EngineRecord(
            claimed.workspace_id,
            name,
            engine_id(claimed.execution_id),
            task_queue(claimed.workspace_id, claimed.queue),
            is_started=True,
        )
        data = await self._host.payloads.seal(claimed.execution_id, given)
        if not await self._connection.start(given, record, data):
            record = await self._look(claimed, given, record, data)
        try:
            await create(self._host, origin, record)
        except AlreadyExists:
            if not await driver.run(self._resuming.resume(claimed)):
                raise
        except LeaseLost:
            return  # the item was cancelled or is claimed elsewhere; the workflow finds that out, too

    async def _look(self, claimed: Claimed, given: RunInput, record: EngineRecord, data: RawValue) -> EngineRecord:
        """Look up a workflow that was started before. One that ended without an execution gets a successor."""
        status, _ = await self._connection.status(record.engine_id)
        if status is WorkflowExecutionStatus.RUNNING:
            return record
        again = msgspec.structs.replace(record, engine_id=f"{record.engine_id}~claim-{claimed.fence}")
        if not await self._connection.start(given, again, data):
            raise NotNow(f"the workflow of queue item {claimed.item_id!r} is about to end")
        return again

    async def cancel(self, execution_id: str) -> None:
        """Leave a request to end in the execution's inbox."""
        driver = self._host.driver
        head = await driver.run(self._host.executions.head(execution_id))
        if head.status in FINAL:
            raise Conflict(f"execution {execution_id!r} has ended as {head.status}")
        message = delivery(execution_id, head.workspace_id, CANCEL, "", None, fresh_key(self._host.new_id()))
        await driver.run(write_or_raise(message))
