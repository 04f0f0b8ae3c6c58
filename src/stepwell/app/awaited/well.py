"""`AsyncStepwell`: a store with its executions, state and queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import UNSET

from stepwell.app.awaited.conversations import AsyncConversations
from stepwell.app.awaited.locks import AsyncLock
from stepwell.app.awaited.queue import AsyncQueue, AsyncQueueItem, AsyncSchedules, AsyncWorkspaces
from stepwell.app.awaited.runs import AsyncDefinitions, AsyncRun
from stepwell.app.awaited.state import AsyncState, AsyncTransaction
from stepwell.app.host import AsyncHost
from stepwell.app.parts import ExecutionSummary, Health, Parts, check_settings, file_of, grace_of, lease_of
from stepwell.clock import Clock
from stepwell.contract.store import Durability, Store
from stepwell.duration import Span
from stepwell.errors import AlreadyExists, StepwellError
from stepwell.flow.function import Workflow
from stepwell.flow.governance import Governance
from stepwell.model.execution_state import Change, ExecutionState
from stepwell.model.ids import new_id
from stepwell.model.limits import Limits
from stepwell.model.lock import scheduled_lock, user_lock
from stepwell.model.queue_item import DEFAULT_QUEUE
from stepwell.model.receipt import Receipt
from stepwell.model.receipt_chain import Verification
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.value import Value
from stepwell.pipeline.operations import AsyncDriver
from stepwell.queue.assembly import check_queues
from stepwell.queue.requests import QueueRequest
from stepwell.runtime.definitions import Startable
from stepwell.runtime.run_operations import RunOperations
from stepwell.runtime.start import Starting
from stepwell.state.executions import MANUAL, CommitTerms
from stepwell.state.locks import DEFAULT_SECONDS, HeldLock, guards_of, lock_request, schedule_request

__all__ = ["AsyncExecutionIndex", "AsyncStepwell"]


class AsyncExecutionIndex:
    """The executions of a store, to be listed."""

    def __init__(self, parts: Parts, driver: AsyncDriver) -> None:
        self._parts, self._driver = parts, driver

    def __repr__(self) -> str:
        return f"<AsyncExecutionIndex of {self._parts.address!r}>"

    async def list(
        self,
        *,
        status: str | None = None,
        workspace: str | None = None,
        workflow: str | None = None,
        after: ExecutionSummary | None = None,
        limit: int = 100,
    ) -> list[ExecutionSummary]:
        """Executions that match, newest first; the next page comes ``after`` the last one of this."""
        return await self._driver.run(self._parts.list_executions(status, workspace, workflow, after, limit))


class AsyncStepwell:
    """Durable executions and state in one store. Every call that does I/O is awaited.

    ``url`` is ``sqlite:///path``, ``postgresql://...``, ``redis://...`` or ``memory://``; without one, ``STEPWELL_URL``, else
    ``REDIS_URL``, else ``sqlite:///.stepwell/well.db``. With a ``signing_key`` (kept outside the store) the newest receipt of each
    execution is signed.
    """

    def __init__(
        self,
        url: str | Store | None = None,
        *,
        worker: bool = True,
        concurrency: int = 100,
        lease_seconds: Span = 30,
        queues: Iterable[str] = (),
        clock: Clock | None = None,
        limits: Limits | None = None,
        signing_key: bytes | None = None,
    ) -> None:
        check_settings(worker, concurrency, clock, limits, signing_key)
        self.worker, self.concurrency, self.lease_seconds = worker, concurrency, lease_of(lease_seconds)
        self.queues = check_queues(queues)
        self._parts = Parts(url, clock, limits, signing_key)
        self._host = self._make_host()
        self._driver = self._host.driver

    def _make_host(self) -> AsyncHost:
        return AsyncHost(self._parts, self.concurrency, self.lease_seconds, self.queues, lambda: self.worker)

    @property
    def state(self) -> AsyncState:
        """Scoped state: ``globals``, ``workspace(id)``, ``workflow(id)`` and so on."""
        return AsyncState(self._parts.state, self._driver)

    @property
    def conversations(self) -> AsyncConversations:
        """Conversations of the default workspace: state, history, one turn at a time."""
        return AsyncConversations(self._parts.conversations, self._parts.locks, self._driver)

    def lock(self, name: str, *, seconds: Span = DEFAULT_SECONDS, timeout: Span | None = 0) -> AsyncLock:
        """A name that one holder has at a time, wherever it runs: fails fast with ``LockHeld``, or waits for up to ``timeout``
        seconds (None: as long as it takes). While it is held it is renewed; it ends ``seconds`` after its holder died."""
        return AsyncLock(self._parts.locks, lock_request(user_lock(name), name, seconds, timeout), self._driver)

    def scheduled_lock(self, name: str, *, at_most: Span, at_least: Span = 0) -> AsyncLock:
        """A lock for a job that many nodes start at the same time: one of them gets it, the others ``LockHeld``. It ends by itself
        after ``at_most``, and is not free again before ``at_least``, by the store's clock, so that a late node finds it taken."""
        return AsyncLock(self._parts.locks, schedule_request(scheduled_lock(name), name, at_most, at_least), self._driver)

    @property
    def definitions(self) -> AsyncDefinitions:
        """Definitions of declared workflows that are kept in this store."""
        return AsyncDefinitions(self._parts.definitions, self._driver)

    async def health(self) -> Health:
        """Whether the store can be read and written now, and a worker here starts what it should; part by part."""
        return await self._driver.run(self._parts.health())

    async def start(
        self,
        workflow: Startable,
        value: Any = UNSET,
        *,
        workspace: str = DEFAULT_WORKSPACE,
        execution_id: str | None = None,
        governance: Governance | None = None,
    ) -> AsyncRun:
        """Start a run of a workflow (a function, a definition, or the name of either), with one value as its input. With an
        ``execution_id`` that this workflow has in this workspace already, it is that run; ``AlreadyExists`` if anybody else has it.
        ``governance`` limits what it may use up and do."""
        found = await self._driver.run(self._parts.definitions.startable(workflow))
        run = self._run_of(new_id() if execution_id is None else execution_id, found)
        starting = Starting(self._parts.executions, self._parts.clock)
        try:
            worker = self._host.start_worker()
            await self._driver.run(
                starting.start(found, found.input_of(value), run.execution_id, workspace, governance=governance, worker=worker)
            )
        except AlreadyExists as error:
            await self._driver.run(starting.check_same(found, run.execution_id, workspace, error))
        return run

    def run(self, execution_id: str) -> AsyncRun:
        """The handle of an execution that was started before."""
        return self._run_of(execution_id, None)

    def _run_of(self, execution_id: str, workflow: Workflow[..., Any] | None) -> AsyncRun:
        parts = self._parts
        operations = RunOperations(parts.executions, parts.pulse, new_id, execution_id, workflow, parts.definitions)
        return AsyncRun(operations, self._driver)

    async def enqueue(
        self,
        workflow: Any,
        value: Any = UNSET,
        *,
        workspace: str = DEFAULT_WORKSPACE,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        key: str | None = None,
        singleton: bool | str | None = None,
        debounce: Span | None = None,
        delay: Span | None = None,
        run_at: datetime | None = None,
        execution_id: str | None = None,
        max_attempts: int = 3,
    ) -> AsyncQueueItem:
        """Ask for a run of a workflow, when its workspace has capacity. The answer comes at once, with status ``QUEUED``.

        The same ``key`` again is the same item; while an item of a ``singleton`` has not ended, that one is the answer; with
        ``debounce``, a request that waits gets the newer input and starts when none has come for so long. ``queue`` is a named
        queue, higher ``priority`` goes first, ``delay`` or ``run_at`` say when.
        """
        request = QueueRequest(
            workflow=workflow,
            value=value,
            workspace=workspace,
            queue=queue,
            priority=priority,
            key=key,
            singleton=singleton,
            debounce=debounce,
            delay=delay,
            run_at=run_at,
            execution_id=execution_id,
            max_attempts=max_attempts,
        )
        self._host.start_worker()
        answer = await self._driver.run(self._parts.queue.items.enqueue(request))
        return AsyncQueueItem(answer, self._parts.queue.items, self._driver, workflow)

    async def enqueue_many(self, requests: Iterable[QueueRequest]) -> list[AsyncQueueItem | StepwellError]:
        """Ask for many runs in a few writes. All are checked before any is stored; then each gets its handle, or the error that it
        was refused with, in the same order."""
        asked = list(requests)
        self._host.start_worker()
        answers = await self._driver.run(self._parts.queue.items.enqueue_many(asked))
        items, driver = self._parts.queue.items, self._driver
        return [
            answer if isinstance(answer, StepwellError) else AsyncQueueItem(answer, items, driver, request.workflow)
            for answer, request in zip(answers, asked, strict=True)
        ]

    @property
    def queue(self) -> AsyncQueue:
        """The queue of this store: its items, named queues, and insight."""
        return AsyncQueue(self._parts.queue.items, self._driver)

    @property
    def workspaces(self) -> AsyncWorkspaces:
        """The workspaces of this store and their tiers."""
        return AsyncWorkspaces(self._parts.queue.workspaces, self._driver)

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules of this store."""
        return AsyncSchedules(self._parts.queue.schedules, self._parts.queue.items, self._driver)

    @property
    def executions(self) -> AsyncExecutionIndex:
        """The executions of this store."""
        return AsyncExecutionIndex(self._parts, self._driver)

    def durability(self) -> Durability:
        """What an acknowledged commit survives on this store."""
        return self._parts.store.durability()

    def transaction(
        self, execution_id: str, *, commit_id: str | None = None, fence: int | None = None, lock: HeldLock | None = None
    ) -> AsyncTransaction:
        """An atomic batch of changes to an execution. A ``commit_id`` of your own makes a retry safe: it lands once. Under a
        ``lock``, it lands only if that is still held."""
        terms = CommitTerms(commit_id, fence, guards_of(lock))
        return AsyncTransaction(self._parts.executions, execution_id, terms, self._parts.limits, self._driver)

    async def create(
        self,
        execution_id: str,
        workspace: str = "default",
        context: Mapping[str, Value] | None = None,
        *,
        workflow: str = MANUAL,
        version: int = 1,
        commit_id: str | None = None,
    ) -> Receipt:
        """Make an execution whose state is driven by hand, with ``transaction``. An id is never used twice."""
        return await self._driver.run(
            self._parts.executions.create(execution_id, workspace, {} if context is None else context, workflow, version, commit_id)
        )

    async def load(self, execution_id: str, at: int | None = None) -> ExecutionState:
        """The state of an execution now, or as it was at a revision."""
        return await self._driver.run(self._parts.executions.load(execution_id, at))

    async def receipts(self, execution_id: str, *, after: int = -1, limit: int | None = None) -> list[Receipt]:
        """The receipts of all commits after a revision, in order."""
        return await self._driver.run(self._parts.executions.receipts(execution_id, after, limit))

    async def receipt(self, execution_id: str, commit_id: str) -> Receipt | None:
        """The receipt of one commit id, or None if it did not land: the answer to ``CommitUnknown``. ``ReceiptArchived`` if it
        did, and the receipt is in an archive."""
        return await self._driver.run(self._parts.executions.receipt(execution_id, commit_id))

    async def verify(self, execution_id: str, *, anchors: Iterable[Receipt] = ()) -> Verification:
        """Walk the whole receipt chain; with receipts that you kept (``anchors``), rewriting and cutting are found, too."""
        return await self._driver.run(self._parts.executions.verify(execution_id, anchors))

    async def snapshot(self, execution_id: str) -> bytes:
        """The execution's state now as bytes, for ``restore``."""
        return await self._driver.run(self._parts.copies.snapshot(execution_id))

    async def restore(self, execution_id: str, data: bytes) -> ExecutionState:
        """Bring an execution to a snapshot's state by a new commit; if it is not in this store, take it in."""
        return await self._driver.run(self._parts.copies.restore(execution_id, data))

    async def fork(self, execution_id: str, new_id: str, *, at: int | None = None) -> Receipt:
        """Start a new execution from the state of another, now or at a revision. That of a run goes on from there."""
        return await self._driver.run(self._parts.copies.fork(execution_id, new_id, at))

    async def diff(self, execution_id: str, a: int, b: int) -> list[Change]:
        """What differs between two revisions."""
        return await self._driver.run(self._parts.copies.diff(execution_id, a, b))

    async def export(self, execution_id: str) -> bytes:
        """The execution's receipts as a file that ``stepwell.verify_proof`` checks without the store."""
        return await self._driver.run(self._parts.executions.export(execution_id))

    async def archive(self, execution_id: str, to: str | Path, *, through: int | None = None) -> int:
        """Move receipts up to a revision into a proof file; a snapshot takes their place. How many were moved."""
        return await self._driver.run(self._parts.copies.archive(execution_id, file_of(to), through))

    async def delete(self, execution_id: str) -> None:
        """Delete an execution with its history. Its id is never used again, and a late writer cannot revive it."""
        return await self._driver.run(self._parts.executions.delete(execution_id))

    async def drain(self, grace_seconds: Span | None = None) -> None:
        """Claim no more, and hand running executions back: at once those that wait, others at their next call. After a grace, steps
        still under way are left, to be made again elsewhere. Returns at once; ``close`` waits. A second call may end the grace."""
        grace, self.worker = grace_of(grace_seconds), False
        self._host.stop_worker(grace)

    async def close(self) -> None:
        """Finish what is under way, hand running executions back, and give everything back."""
        await self._host.close()

    def __repr__(self) -> str:
        return f"<AsyncStepwell {self._parts.address!r}{' closed' * self._host.is_closed}>"

    async def __aenter__(self) -> AsyncStepwell:
        await self._host.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
