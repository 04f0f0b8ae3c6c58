"""Taking an execution up: what its session needs to know before it runs, or why it is left to others."""

from __future__ import annotations

from typing import Any, NamedTuple

from stepwell.errors import LeaseLost, NotFound
from stepwell.flow.function import Workflow
from stepwell.model.commit import Lease, Release
from stepwell.model.execution_state import ONLY
from stepwell.model.ids import NewId
from stepwell.model.queue_lifecycle import waits_for_turn
from stepwell.model.record import decode_status
from stepwell.model.status import FINAL
from stepwell.pipeline.operations import AsyncDriver, write
from stepwell.runtime.again import RunRetry
from stepwell.runtime.recorder import Recorder
from stepwell.runtime.repertoire import KnownWorkflows
from stepwell.state.executions import CachedExecution, Executions

__all__ = ["LoadedSession", "SessionLoader"]


class LoadedSession(NamedTuple):
    """An execution that is to be run."""

    workflow: Workflow[..., Any]
    recorder: Recorder
    claims: int
    """How often it was claimed since its last commit."""


class SessionLoader:
    """Takes executions up that were leased to this worker."""

    def __init__(self, executions: Executions, driver: AsyncDriver, repertoire: KnownWorkflows, new_id: NewId) -> None:
        self._executions, self._driver, self._repertoire, self._new_id = executions, driver, repertoire, new_id

    async def take_up(self, lease: Lease, is_new: bool) -> LoadedSession | None:
        """What a session needs to know before it runs; None if the execution is left to others."""
        # A new one was made here a moment ago; if anybody was quicker than that, the first commit finds it out.
        live = self._executions.at_hand(lease.name) if is_new else None
        live = live or await self._driver.run(self._executions.newest(lease.name))
        if not await self._is_to_run(live, lease):
            return None
        recorder = Recorder(self._executions, self._driver, live, lease.fence, self._new_id)
        try:
            workflow = await self._repertoire.of_state(recorder.state)
        except NotFound:
            await self._driver.run(write(Release(lease.name, lease.holder, lease.fence)))
            return None
        return LoadedSession(workflow, recorder, 0 if is_new else await self._claims_of(lease))

    async def _claims_of(self, lease: Lease) -> int:
        """How often an execution was claimed since its last commit. Who gives it the turn of its queue item takes it away from a
        worker that had claimed it too early; if that comes to look afterwards, it finds a run that is the next one's."""
        head = await self._driver.run(self._executions.head(lease.name))
        if (head.holder, head.fence) != (lease.holder, lease.fence):
            raise LeaseLost(f"execution {lease.name!r} was given back before it was looked at", fence=lease.fence)
        return head.claims

    async def _is_to_run(self, live: CachedExecution, lease: Lease) -> bool:
        """Whether an execution that came due is run: not before the turn of its queue item, nor if it ended at this very moment."""
        if waits_for_turn(live.state):
            await self._driver.run(RunRetry(self._executions, self._new_id).wait_on(live, lease.fence))
            return False
        return decode_status(live.state.sections["status"][ONLY]) not in FINAL
