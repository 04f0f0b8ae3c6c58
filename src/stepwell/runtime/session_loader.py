"""Load executions that were leased to this worker, as sessions."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from stepwell.errors import Conflict, LeaseLost, NotFound, StateNewer
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.flow.function import Workflow
from stepwell.model.commit import Lease, Release, Rest
from stepwell.model.execution_state import ONLY
from stepwell.model.external_engines import recorded_again
from stepwell.model.ids import NewId
from stepwell.model.queue_item import ItemStatus
from stepwell.model.queue_lifecycle import waits_for_slot
from stepwell.model.record import decode_status
from stepwell.model.state_migration import due_migration
from stepwell.model.status import FINAL
from stepwell.pipeline.operations import AsyncDriver, write
from stepwell.runtime.run_retry import RunRetry
from stepwell.runtime.services import Services
from stepwell.runtime.sessions.declared_session import DeclaredSession
from stepwell.runtime.sessions.execution_writer import ExecutionWriter
from stepwell.runtime.sessions.function_session import FunctionSession
from stepwell.runtime.sessions.session import Session
from stepwell.state.executions import CachedExecution, CommitTerms, Executions, OpenTransaction

__all__ = ["SessionLoader", "session_of"]

log = logging.getLogger(__name__)


def session_of(services: Services, workflow: Workflow[..., Any], writer: ExecutionWriter, lease: Lease, *, is_new: bool) -> Session:
    """Return the session of a workflow: a definition is run by the kernel, a function by itself."""
    if isinstance(workflow, DeclaredWorkflow):
        return DeclaredSession(services, workflow, writer, lease, is_new=is_new)
    return FunctionSession(services, workflow, writer, lease, is_new=is_new)


class SessionLoader:
    """Loads executions from the store, or gives back their leases."""

    def __init__(self, executions: Executions, driver: AsyncDriver, services: Services, new_id: NewId) -> None:
        self._executions, self._driver, self._services, self._new_id = executions, driver, services, new_id

    async def load(self, lease: Lease, *, is_new: bool) -> tuple[Session, int] | None:
        """Return the session of an execution, and how often it was claimed since its last commit.

        None if it is left to others: it has ended, its queue item waits for a slot, this worker does not know its workflow, or
        newer code has written its state.
        """
        # It was created here a moment ago. If another worker has taken it since, the first commit is refused.
        live = self._executions.at_hand(lease.name) if is_new else None
        live = live or await self._driver.run(self._executions.newest(lease.name))
        if not await self._is_to_run(live, lease):
            return None
        try:
            live = await self._migrated(live, lease)
        except StateNewer as error:
            log.info("execution %r is left to newer workers: %s", lease.name, error)  # at every poll, until one comes
            await self._driver.run(write(Release(lease.name, lease.holder, lease.fence)))
            return None
        writer = ExecutionWriter(self._executions, self._driver, live, lease.fence, self._new_id)
        try:
            workflow = await self._services.workflows.of_state(writer.state)
        except NotFound:
            await self._driver.run(write(Release(lease.name, lease.holder, lease.fence)))
            return None
        claims = 0 if is_new else await self._claims_of(lease)
        return session_of(self._services, workflow, writer, lease, is_new=is_new), claims

    async def _migrated(self, live: CachedExecution, lease: Lease) -> CachedExecution:
        """Return an execution whose state is in the version that this process uses, before its code reads it."""
        while due_migration(live.state) is not None:
            transaction = OpenTransaction(live, CommitTerms(fence=lease.fence), self._new_id)
            try:
                await self._driver.run(self._executions.commit(transaction, []))  # the migration comes with every commit
            except Conflict:
                live = await self._driver.run(self._executions.newest(lease.name))
        return live

    async def _claims_of(self, lease: Lease) -> int:
        """Return how often an execution was claimed since its last commit. Raise ``LeaseLost`` if it was given back meanwhile.

        A dispatcher that continues a retried execution for its queue item takes it from a worker that claimed it too early.
        """
        head = await self._driver.run(self._executions.head(lease.name))
        if (head.holder, head.fence) != (lease.holder, lease.fence):
            raise LeaseLost(f"execution {lease.name!r} was given back before it was looked at", fence=lease.fence)
        return head.claims

    async def _has_slot(self, live: CachedExecution) -> bool:
        """Return whether the item of a PENDING execution has its slot: it has from the start, unless it waits for a retry."""
        item_id = live.state.identity.item_id
        item = None if item_id is None else await self._driver.run(self._executions.item(item_id))
        return item is not None and item.status is ItemStatus.DISPATCHED

    async def _is_to_run(self, live: CachedExecution, lease: Lease) -> bool:
        """Return whether to run an execution that came due: not while its queue item waits, nor after its end.

        Nor if it is another engine's.
        """
        if waits_for_slot(live.state) and not await self._has_slot(live):
            await self._driver.run(RunRetry(self._executions, self._new_id).wait_on(live, lease.fence))
            return False
        engine = live.state.identity.engine
        if engine is not None:  # nudged while that engine did not hold it, so that it came due here
            # By a commit, since a lease that is given back by itself makes it due again. Its engine finds it by its record, which
            # an execution that was restored in another store does not have yet.
            terms = CommitTerms(fence=lease.fence, rest=Rest())
            with suppress(Conflict, LeaseLost):
                transaction = OpenTransaction(live, terms, self._new_id)
                record = recorded_again(engine, live.state.identity, transaction.revision + 1, only_if_absent=True)
                await self._driver.run(self._executions.commit(transaction, [record]))
            return False
        return decode_status(live.state.sections["status"][ONLY]) not in FINAL
