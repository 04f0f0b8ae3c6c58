"""Tasks beside a Temporal worker: start what is recorded for Temporal, pass on messages, and end what Temporal has given up.

The records (``model.external_engines``) say which executions are Temporal's. Any worker does these tasks for all of them: starts
are found by their ids, messages are taken once, and one worker at a time runs the sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Any

import msgspec
from temporalio.client import WorkflowExecutionStatus

from stepwell.errors import Conflict, EngineUnavailable, InvalidInput, LeaseLost, LockHeld, NotFound, StepwellError
from stepwell.model.commit import Claim, Head, Lease, StateBatch, Written
from stepwell.model.external_engines import (
    HOLD_SECONDS,
    TEMPORAL,
    EngineRecord,
    record_of,
    recorded,
    records_path,
    unrecorded,
)
from stepwell.model.lock import scheduled_lock
from stepwell.model.scoped_operations import StoredEntry
from stepwell.model.status import FINAL
from stepwell.pipeline.notifications import DUE, Notifications
from stepwell.pipeline.operations import read, write, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.runtime.inbox import path_of
from stepwell.runtime.periodic import PeriodicTask
from stepwell.runtime.session_loader import session_of
from stepwell.runtime.sessions.execution_writer import ExecutionWriter
from stepwell.state.locks import LockOperations, schedule_request
from stepwell.temporal.connection import TemporalConnection
from stepwell.temporal.host import TemporalHost
from stepwell.temporal.messages import RunInput

__all__ = ["RunStarter", "RunSweep"]

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_SHORTEST_ROUND_SECONDS = 0.05
_AT_ONCE = 20
_AGE = 1_000
"""How many executions one question about nudges names."""

SWEEP_SECONDS = 30.0
_LOCK = "temporal-sweep"
_PATH = records_path(TEMPORAL)


async def _records(host: TemporalHost) -> list[tuple[str, StoredEntry]]:
    """Return the records of all executions that are Temporal's."""
    return await host.driver.run(read(lambda: list(all_entries(host.store, _PATH))))


async def _side_by_side(call: Callable[..., Awaitable[None]], given: Iterable[tuple[Any, ...]]) -> None:
    """Make calls, a few at a time; raise the first error when all have ended. No more are begun once the server is away."""
    gate = asyncio.Semaphore(_AT_ONCE)
    errors: list[Exception] = []
    is_away = False

    async def one(arguments: tuple[Any, ...]) -> None:
        nonlocal is_away
        async with gate:
            if is_away:
                return
            try:
                await call(*arguments)
            except Exception as error:  # noqa: BLE001 - it is raised once the others have ended
                errors.append(error)
                is_away = is_away or isinstance(error, EngineUnavailable)

    await asyncio.gather(*map(one, given))
    if errors:
        raise errors[0]


class _Refusals:
    """The executions for which a kind of call fails, as for want of permission; logs each change of state once."""

    def __init__(self, outcome: str) -> None:
        self._outcome = outcome
        self._told: dict[str, str] = {}

    def note(self, execution_id: str, error: StepwellError) -> None:
        """Log why a call failed, unless the last one failed in the same words."""
        if self._told.get(execution_id) != str(error):
            self._told[execution_id] = str(error)
            log.warning("execution %r %s: %s", execution_id, self._outcome, error)

    def over(self, execution_id: str) -> None:
        """Log that a call was accepted, if the last one failed."""
        if self._told.pop(execution_id, None) is not None:
            log.warning("execution %r %s; that is over", execution_id, self._outcome)

    def keep(self, executions: Container[str]) -> None:
        """Forget all other executions."""
        self._told = {key: text for key, text in self._told.items() if key in executions}


class RunStarter(PeriodicTask):
    """Starts executions that are recorded for Temporal, and has those that run there read their inboxes."""

    name = "the starter of recorded executions"

    def __init__(self, host: TemporalHost, connection: TemporalConnection, notifications: Notifications) -> None:
        super().__init__()
        self._host, self._connection, self._notifications = host, connection, notifications
        self._told: dict[str, frozenset[str]] = {}
        """By execution: the messages that its workflow was told to look for."""
        self._refusals = _Refusals("could not be told of its messages on Temporal")
        self._unstarted = _Refusals("could not be started on Temporal yet")

    async def run(self) -> None:
        """Work until stopped; a write that makes an execution due begins a round."""
        with self._notifications.subscribed(DUE, self.wake):
            await super().run()

    async def work(self) -> float:
        """Start what waits, and pass on what came."""
        rows = {execution_id: (record_of(row), row.revision) for execution_id, row in await _records(self._host)}
        waiting = [(key, *value) for key, value in rows.items() if not value[0].is_started]
        running = {key: record for key, (record, _) in rows.items() if record.is_started}
        self._told = {key: told for key, told in self._told.items() if key in running}
        self._refusals.keep(running)
        self._unstarted.keep(rows)
        await _side_by_side(self._start, waiting)
        names = list(running)
        for first in range(0, len(names), _AGE):
            part = names[first : first + _AGE]
            nudged = await self._host.driver.run(read(lambda part=part: self._host.store.nudged(part)))
            await _side_by_side(self._pass_on, ((key, running[key]) for key in nudged))
        # While many runs are started and nudged, one look is enough for all that came meanwhile.
        await asyncio.sleep(_SHORTEST_ROUND_SECONDS)
        return _POLL_SECONDS

    async def _start(self, execution_id: str, record: EngineRecord, revision: int) -> None:
        host = self._host
        try:
            head = await host.driver.run(host.executions.head(execution_id))
            is_declared = await host.is_declared(record.workflow_id, head.version)
            given = RunInput(execution_id, record.workspace_id, record.workflow_id, head.version, is_declared)
            data = await host.payloads.seal(execution_id, given)
            await self._connection.start(given, record, data)  # one that was started before is as good
            started = msgspec.structs.replace(record, is_started=True)
            op = recorded(TEMPORAL, execution_id, started, expected=revision).op
            await host.driver.run(write_or_raise(StateBatch((op,))))
        except EngineUnavailable:
            raise
        except NotFound:
            await host.driver.run(write(StateBatch((unrecorded(TEMPORAL, execution_id, expected=revision).op,))))
        except Conflict:
            return  # another worker was first, or it has ended meanwhile
        except StepwellError as error:
            self._unstarted.note(execution_id, error)
        else:
            self._unstarted.over(execution_id)

    async def _pass_on(self, execution_id: str, record: EngineRecord) -> None:
        """Signal a workflow to read its inbox if that has messages which were not passed on."""
        path = path_of(execution_id, record.workspace_id)
        rows = await self._host.driver.run(read(lambda: list(all_entries(self._host.store, path))))
        keys = frozenset(key for key, _ in rows)
        if keys - self._told.get(execution_id, frozenset()):
            try:
                await self._connection.look(record.engine_id)
            except InvalidInput as error:
                self._refusals.note(execution_id, error)
                return
            self._refusals.over(execution_id)
            self._told[execution_id] = keys


class RunSweep(PeriodicTask):
    """Ends executions whose workflows on Temporal were terminated, timed out, failed or have vanished."""

    name = "the sweep of Temporal's executions"

    def __init__(
        self, host: TemporalHost, connection: TemporalConnection, locks: LockOperations, seconds: float = SWEEP_SECONDS
    ) -> None:
        super().__init__()
        self._host, self._connection, self._locks, self._seconds = host, connection, locks, seconds
        self._refusals = _Refusals("could not be checked on Temporal")

    async def work(self) -> float:
        """Sweep, unless another worker does or just did."""
        request = schedule_request(scheduled_lock(_LOCK), _LOCK, max(4 * self._seconds, 2), self._seconds / 2)
        try:
            held = await self._host.driver.run(self._locks.acquire(request))
        except LockHeld:
            return self._seconds
        try:
            rows = await _records(self._host)
            self._refusals.keep({execution_id for execution_id, _ in rows})
            await _side_by_side(self._check, ((execution_id, record_of(row), row.revision) for execution_id, row in rows))
        finally:
            await self._host.driver.run(self._locks.release(held, self._seconds / 2))
        return self._seconds

    async def _check(self, execution_id: str, record: EngineRecord, revision: int) -> None:
        host = self._host
        try:
            head = await host.driver.run(host.executions.head(execution_id))
        except NotFound:
            head = None
        if head is None or head.status in FINAL:
            # Expected at its revision: a retry may have recorded it again meanwhile.
            await host.driver.run(write(StateBatch((unrecorded(TEMPORAL, execution_id, expected=revision).op,))))
            return
        if not record.is_started or host.store_now_ms() - head.updated_ms < self._seconds * 1000:
            return
        try:
            status, why = await self._connection.status(record.engine_id)
        except InvalidInput as error:
            self._refusals.note(execution_id, error)
            return
        self._refusals.over(execution_id)
        if status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW):
            return
        await self._end(head, why)

    async def _end(self, head: Head, why: str) -> None:
        """End an execution under a higher fence: its present holder cannot commit again."""
        host, execution_id = self._host, head.execution_id
        try:
            again = await host.driver.run(host.executions.head(execution_id))
            if again.status in FINAL or (again.holder, again.fence, again.revision) != (head.holder, head.fence, head.revision):
                return  # it moved while Temporal was asked
            outcome = await host.driver.run(write_or_raise(Claim(execution_id, TEMPORAL, HOLD_SECONDS)))
            lease = outcome.answers[0] if isinstance(outcome, Written) else None
            if not isinstance(lease, Lease):
                return
            live = await host.driver.run(host.executions.newest(execution_id))
            workflow = await host.services.workflows.of_state(live.state)
            writer = ExecutionWriter(host.executions, host.driver, live, lease.fence, host.new_id)
            session = session_of(host.services, workflow, writer, lease, is_new=False)
            await session.give_up("TemporalWorkflowEnded", f"{why}; run.retry() goes on from what is recorded")
            log.warning("execution %r is ended as FAILED: %s", execution_id, why)
        except (LeaseLost, LockHeld, NotFound) as error:
            log.info("execution %r is left as it is: %s", execution_id, error)
