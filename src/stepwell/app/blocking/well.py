# Generated from app/awaited/well.py by `make blocking`. Do not edit: change that module and generate again.
"""`Stepwell`: a store with its executions, state and queue.

Importing this module is what `from stepwell import Stepwell` costs, so it imports at the top only what its signatures need at run
time. The classes that it returns, and all that runs, are imported when a well is opened or a handle is first returned.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec import UNSET

import stepwell.app.blocking as faces
from stepwell.clock import Clock
from stepwell.duration import DEFAULT_LOCK_SECONDS, Span
from stepwell.errors import AlreadyExists, LimitExceeded, NotFound, StepwellError
from stepwell.flow.function import Workflow, WorkflowCall, WorkflowOf, registered_workflow
from stepwell.flow.governance import Governance
from stepwell.model.ids import Id, id_text, new_id
from stepwell.model.limits import Limits
from stepwell.model.plain_data import Records
from stepwell.model.queue_item import DEFAULT_QUEUE
from stepwell.model.record import MANUAL, Trigger
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.value import Value
from stepwell.name_hints import WELL, hinted, missing_attribute

if TYPE_CHECKING:
    from typing import Unpack

    from stepwell.app.arguments import EnqueueOptions, StartOptions
    from stepwell.app.blocking.access import Access
    from stepwell.app.blocking.conversations import Conversations
    from stepwell.app.blocking.errors import Errors
    from stepwell.app.blocking.locks import Lock, Locks
    from stepwell.app.blocking.queue import Queue, QueueItem, Schedules, Workspaces
    from stepwell.app.blocking.requests import Requests
    from stepwell.app.blocking.retention import Retention
    from stepwell.app.blocking.runs import Definitions, Run
    from stepwell.app.blocking.state import State, Transaction
    from stepwell.app.blocking.usage import UsageMeter
    from stepwell.app.blocking.webhooks import Webhooks
    from stepwell.app.composition import Parts
    from stepwell.app.health import Health
    from stepwell.app.host import Host
    from stepwell.contract.store import Durability, Store
    from stepwell.flow.definition.node import Definition
    from stepwell.maintenance.backup import BackupReport
    from stepwell.maintenance.erasure import ErasureReceipt, RotationReport, SubjectData
    from stepwell.maintenance.restore import RestoreReport
    from stepwell.maintenance.run_upgrade import UpgradeReport
    from stepwell.maintenance.state_migration import MigrationReport, Progress
    from stepwell.model.cipher import KeyRing
    from stepwell.model.execution_state import Change, ExecutionState
    from stepwell.model.receipt import Receipt
    from stepwell.model.receipt_chain import Verification
    from stepwell.model.scope import Scope
    from stepwell.pipeline.operations import Driver
    from stepwell.pipeline.write_statistics import WriteStatistics
    from stepwell.queue.engine_choices import EngineChoice
    from stepwell.queue.requests import QueueRequest
    from stepwell.state.history import ExecutionSummary
    from stepwell.state.hooks import Hooks
    from stepwell.state.locks import HeldLock
    from stepwell.state.request_log import KeptReply, RequestKey

__all__ = ["ExecutionIndex", "Stepwell"]

A = TypeVar("A")
T = TypeVar("T")


class ExecutionIndex:
    """The executions of a store, to list them: ``well.executions``."""

    def __init__(self, parts: Parts, driver: Driver) -> None:
        self._parts, self._driver = parts, driver

    def __repr__(self) -> str:
        return f"<ExecutionIndex of {self._parts.address!r}>"

    def list(
        self,
        *,
        status: str | None = None,
        workspace: Id | None = None,
        workflow: str | None = None,
        after: ExecutionSummary | None = None,
        limit: int = 100,
    ) -> list[ExecutionSummary]:
        """Return a page of the executions that match, newest first.

        - ``status``, ``workspace``, ``workflow``: list only executions with this status, in this workspace, of this workflow.
        - ``after``: the last summary of the page before; None for the first page.
        - ``limit``: the size of a page, 1 to 10,000.

        Raise ``InvalidInput`` for an unknown status and a limit outside its range.

        Example:

            page = well.executions.list(workspace="acme", limit=100)
            rest = well.executions.list(workspace="acme", after=page[-1])
        """
        workspace = id_text(workspace)
        return Records(self._driver.run(self._parts.executions.summaries(status, workspace, workflow, after, limit)))

    def get(self, execution_id: Id, *, workspace: Id | None = None) -> ExecutionSummary:
        """Return the summary of one execution, without loading its state.

        - ``execution_id``: the execution.
        - ``workspace``: look only in this workspace; None for all of the store.

        Raise ``NotFound`` if there is none.
        """
        execution_id, workspace = id_text(execution_id), id_text(workspace)
        return self._driver.run(self._parts.executions.summary(execution_id, workspace))

    def digests(self, execution_ids: Iterable[Id]) -> dict[str, str]:
        """Return the digest of each execution's newest receipt, in one read; an execution that does not exist is left out.

        A digest that changed means that a commit landed: this is the cheapest way to follow many executions.

        - ``execution_ids``: the executions.
        """
        return self._driver.run(self._parts.executions.digests(list(map(id_text, execution_ids))))


class Stepwell:
    """Run durable executions and keep their state in one store. Every call blocks until it is done; any thread may call.

    - ``url``: ``sqlite:///path``, ``postgresql://...``, ``redis://...``, ``memory://``, or a store object of your own. None:
      ``STEPWELL_URL``, else ``REDIS_URL``, else ``sqlite:///.stepwell/well.db``.
    - ``worker``: True to run executions of the workflows that this process has imported, beside answering calls.
    - ``concurrency``: how many executions the worker runs at once.
    - ``lease_seconds``: how long after this worker's death other workers take over its executions, 1 second to a day.
    - ``queues``: the queues that the worker serves; empty for all.
    - ``clock``: the source of time; a ``FakeClock`` in tests.
    - ``limits``: how large ids, values and commits may be.
    - ``signing_key``: bytes, kept outside the store, that sign the newest receipt of each execution.
    - ``encryption``: a ``KeyRing``, or the path of its file, to encrypt all values with; ``STEPWELL_KEYRING`` by default.
    - ``compress_over``: compress values of more bytes than this; ``STEPWELL_COMPRESS_OVER`` by default.
    - ``secrets``: names of keys and fields whose values are shown nowhere, such as ``"password"`` or ``"*_token"``; those of
      ``STEPWELL_SECRETS``, separated by commas, as well.

    Opening raises ``InvalidInput`` for a bad argument or URL, and ``StoreUnavailable``, ``StoreForeign``, ``StoreNewer`` or
    ``StoreUnsafe`` for a store that cannot be used. Every call may raise ``StoreUnavailable`` (nothing was written),
    ``InvalidInput`` or ``LimitExceeded``, every call that writes ``CommitUnknown`` (it may have landed), and every call with
    the id of an existing execution, item or other record ``NotFound``.

    Example:

        with Stepwell("sqlite:///app.db") as well:
            run = well.start(order, {"id": 7})
            print(run.result(timeout="1m"))
    """

    @hinted
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
        encryption: KeyRing | str | Path | None = None,
        compress_over: int | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        from stepwell.app.arguments import check_queues, check_settings, lease_of
        from stepwell.app.composition import Parts
        from stepwell.app.sealing import sealing_of

        check_settings(worker, concurrency, clock, limits, signing_key)
        self.worker, self.concurrency, self.lease_seconds = worker, concurrency, lease_of(lease_seconds)
        self.queues = check_queues(queues)
        sealing = sealing_of(encryption, compress_over, secrets, is_by_url=url is None or isinstance(url, str))
        self._parts = Parts(url, clock, limits, signing_key, sealing)
        self._host = self._make_host()
        self._driver = self._host.driver

    def _make_host(self) -> Host:
        from stepwell.app.host import Host

        return Host(self._parts, self.concurrency, self.lease_seconds, self.queues, lambda: self.worker)

    @property
    def state(self) -> State:
        """Return the scoped state of this store: ``globals``, ``workspace(id)``, ``workflow(id)`` and other scopes."""
        return faces.State(self._parts.state, self._driver)

    @property
    def conversations(self) -> Conversations:
        """Return the conversations of the workspace ``default``: state, history, and one turn at a time."""
        return faces.Conversations(self._parts.conversations, self._parts.locks, self._driver)

    def lock(self, name: Id, *, seconds: Span = DEFAULT_LOCK_SECONDS, timeout: Span | None = 0) -> Lock:
        """Return a lock that one holder has at a time, over all processes and machines that share the store.

        - ``name``: the lock's name.
        - ``seconds``: how long after its holder's death the lock expires. A live holder's lock is renewed in time.
        - ``timeout``: how long to wait for a lock that another holder has: 0 not at all, None without a limit.

        Acquiring raises ``LockHeld`` if another holder had the lock during the whole ``timeout``.

        Example:

            with well.lock("nightly-report") as held:
                with well.transaction("report", lock=held) as tx:
                    tx.set_variable("by", held.holder)
        """
        from stepwell.model.lock import user_lock
        from stepwell.state.locks import lock_request

        name = id_text(name)
        return faces.Lock(self._parts.locks, lock_request(user_lock(name), name, seconds, timeout), self._driver)

    @property
    def locks(self) -> Locks:
        """Return locks on behalf of holders outside this process, such as clients of the HTTP API."""
        return faces.Locks(self._parts.remote_locks, self._driver)

    def scheduled_lock(self, name: Id, *, at_most: Span, at_least: Span = 0) -> Lock:
        """Return a lock for a job that many nodes start at the same time, so that one of them does it.

        The lock is not renewed. All times are the store's, so that a late node finds the lock held.

        - ``name``: the lock's name.
        - ``at_most``: how long after it was acquired the lock expires, even if the holder still works.
        - ``at_least``: for how long after it was acquired no other node gets the lock, even if it was released.

        Acquiring raises ``LockHeld`` if another node was first.
        """
        from stepwell.model.lock import scheduled_lock
        from stepwell.state.locks import schedule_request

        name = id_text(name)
        return faces.Lock(self._parts.locks, schedule_request(scheduled_lock(name), name, at_most, at_least), self._driver)

    @property
    def definitions(self) -> Definitions:
        """Return the definitions of declared workflows that are kept in this store."""
        return faces.Definitions(self._parts.definitions, self._driver)

    @property
    def write_statistics(self) -> WriteStatistics:
        """Return the counts of what this process wrote to the store: commits, groups and their latency, runs by status."""
        return self._parts.write_statistics

    @property
    def leases(self) -> int:
        """Return how many executions the worker of this process has leased now; 0 without a worker."""
        return 0 if self._host.worker is None else self._host.worker.held

    @property
    def address(self) -> str:
        """Return the store's URL without its password, for people."""
        return self._parts.address

    @property
    def address_origin(self) -> str:
        """Return what named the store: ``the argument``, an environment variable such as ``STEPWELL_URL``, or ``the default``."""
        return self._parts.address_origin

    @property
    def limits(self) -> Limits:
        """Return how large ids, values and commits may be."""
        return self._parts.limits

    def health(self) -> Health:
        """Check that the store can be read and written now, and that the queue is served; return the result for each part.

        Errors of the store are reported in the result and not raised.
        """
        return self._driver.run(self._parts.health())

    @overload
    def start(self, workflow: WorkflowCall[T], **options: Unpack[StartOptions]) -> Run[T]: ...
    @overload
    def start(self, workflow: WorkflowOf[A, Coroutine[Any, Any, T]], value: A, **options: Unpack[StartOptions]) -> Run[T]: ...
    @overload
    def start(self, workflow: WorkflowOf[A, T], value: A, **options: Unpack[StartOptions]) -> Run[T]: ...
    @overload
    def start(
        self, workflow: Workflow[..., Coroutine[Any, Any, T]], value: Mapping[str, Any] = ..., **options: Unpack[StartOptions]
    ) -> Run[T]: ...
    @overload
    def start(self, workflow: Workflow[..., T], value: Mapping[str, Any] = ..., **options: Unpack[StartOptions]) -> Run[T]: ...
    @overload
    def start(self, workflow: Definition | str, value: Any = ..., **options: Unpack[StartOptions]) -> Run[Any]: ...
    @hinted
    def start(
        self,
        workflow: Any,
        value: Any = UNSET,
        *,
        workspace: Id = DEFAULT_WORKSPACE,
        execution_id: Id | None = None,
        governance: Governance | None = None,
        trigger: Trigger | None = None,
        kept: tuple[RequestKey, KeptReply] | None = None,
        engine: str | None = None,
        subject: Id | None = None,
    ) -> Run[Any]:
        """Start an execution of a workflow, and return its handle.

        - ``workflow``: a workflow function, a call of one (``checkout.with_input("lamp", cents=4200)``), a definition, or the
          name of a function or definition.
        - ``value``: the input. Without one the workflow's parameters take their defaults.
        - ``workspace``: the workspace that the execution belongs to. ``default`` has no limit for executions started so; in any
          other the execution takes one of the slots that the workspace's tier allows.
        - ``execution_id``: an id of your own, which makes a retry safe: if this workflow has an execution with this id in
          this workspace, its handle is returned and nothing is started. With another input ``Conflict`` is raised.
        - ``governance``: the budgets and permissions of the execution; the workflow's own by default.
        - ``trigger``: what starts the execution, for ``current().trigger`` and templates: a ``WebhookTrigger``,
          ``EventTrigger``, ``ScheduleTrigger``, ``FunctionTrigger`` or ``ManualTrigger``. Without a ``value``, its own value
          (the body, the entity, the arguments) is the input.
        - ``kept``: the idempotency key of an HTTP request and the reply to keep under it: both land in the commit that creates
          the execution. ``Conflict`` is raised, and nothing is started, if the key is in use.
        - ``engine``: ``"temporal"`` for an execution that Temporal runs, once a ``stepwell worker --engine temporal`` takes it
          on; ``"local"`` for one that a worker of Stepwell's runs. By default as ``choose_engine`` says.
        - ``subject``: the person or thing whose data the execution holds, such as ``"user:42"``, for ``find`` and ``erase``. Its
          children and what it enqueues hold data of the same. The well needs ``encryption``.

        Raise ``InvalidInput`` for an input that does not fit, ``NotFound`` for an unknown workflow name or workspace,
        ``LimitExceeded`` if the workspace is paused or has no free slot (``enqueue`` waits for one), ``NotActive`` for a
        definition that is a draft or paused, ``InvalidDefinition`` for one with faults, ``Conflict`` if the id has an execution
        with another input, and ``AlreadyExists`` if another workflow or workspace has the id.

        Example:

            run = well.start(checkout, {"order": 7}, execution_id="order-7")
            receipt = run.result(timeout="5m")
        """
        from stepwell.model.external_engines import check_engine
        from stepwell.runtime.start import input_of

        check_engine(engine)
        workspace, execution_id, subject = id_text(workspace), id_text(execution_id), id_text(subject)
        workflow, value = WorkflowCall.unpack(workflow, value)
        found = self._driver.run(self._parts.definitions.startable(workflow))
        chosen = self._driver.run(self._parts.queue.engines.of(engine, found.name, workspace))
        run = self._run_of(new_id() if execution_id is None else execution_id, found)
        given, starting = input_of(found, value, trigger), self._parts.starting
        ops = () if kept is None else (self._parts.requests.keeping(*kept),)
        try:
            worker = self._host.start_worker()
            self._driver.run(
                starting.start(
                    found,
                    given,
                    run.execution_id,
                    workspace,
                    governance=governance,
                    worker=worker,
                    ops=ops,
                    engine=chosen,
                    trigger=trigger,
                    subject=subject,
                )
            )
        except (AlreadyExists, LimitExceeded, NotFound) as error:  # a run that has the id may be what fills the workspace
            self._driver.run(starting.check_same(found, given, run.execution_id, workspace, error, trigger))
        return run

    def choose_engine(
        self, engine: str | None, *, workspace: Id | None = None, queue: str | None = None, workflow: str | None = None
    ) -> EngineChoice:
        """Choose the engine of all later starts for one workspace, queue or workflow, and return the choice.

        - ``engine``: ``"temporal"``, ``"local"`` for Stepwell's own workers, or None to remove the choice.
        - ``workspace``, ``queue``, ``workflow``: what it is chosen for; give one of them.

        A start that names an engine gets that one. Otherwise the choice for its workflow holds, then that for its queue, then
        that for its workspace. It holds in this process at once, and in others within a second. Executions that exist, and
        queue items that wait, stay with the engine that they have.

        Raise ``InvalidInput`` for an unknown engine, and unless one thing is named.

        Example:

            well.choose_engine("temporal", workspace="acme")
        """
        engines = self._parts.queue.engines
        return self._driver.run(engines.choose(engine, id_text(workspace), queue, workflow))

    def engines(self) -> list[EngineChoice]:
        """Return the engines that were chosen with ``choose_engine``, sorted by kind and name."""
        return self._driver.run(self._parts.queue.engines.all())

    def run(self, execution_id: Id) -> Run[Any]:
        """Return the handle of an existing execution.

        Nothing is looked up: the calls of the handle raise ``NotFound`` if there is no such execution.

        - ``execution_id``: the id of the execution.
        """
        execution_id = id_text(execution_id)
        return self._run_of(execution_id, None)

    def _run_of(self, execution_id: str, workflow: Workflow[..., Any] | None) -> Run[Any]:
        return faces.Run(self._parts.run(execution_id, workflow), self._driver)

    @overload
    def enqueue(self, workflow: WorkflowCall[T], **options: Unpack[EnqueueOptions]) -> QueueItem[T]: ...
    @overload
    def enqueue(
        self, workflow: WorkflowOf[A, Coroutine[Any, Any, T]], value: A, **options: Unpack[EnqueueOptions]
    ) -> QueueItem[T]: ...
    @overload
    def enqueue(self, workflow: WorkflowOf[A, T], value: A, **options: Unpack[EnqueueOptions]) -> QueueItem[T]: ...
    @overload
    def enqueue(
        self, workflow: Workflow[..., Coroutine[Any, Any, T]], value: Mapping[str, Any] = ..., **options: Unpack[EnqueueOptions]
    ) -> QueueItem[T]: ...
    @overload
    def enqueue(
        self, workflow: Workflow[..., T], value: Mapping[str, Any] = ..., **options: Unpack[EnqueueOptions]
    ) -> QueueItem[T]: ...
    @overload
    def enqueue(self, workflow: Definition | str, value: Any = ..., **options: Unpack[EnqueueOptions]) -> QueueItem[Any]: ...
    @hinted
    def enqueue(
        self,
        workflow: Any,
        value: Any = UNSET,
        *,
        workspace: Id = DEFAULT_WORKSPACE,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        key: Id | None = None,
        singleton: bool | Id | None = None,
        debounce: Span | None = None,
        delay: Span | None = None,
        run_at: datetime | None = None,
        execution_id: Id | None = None,
        max_attempts: int = 3,
        engine: str | None = None,
        governance: Governance | None = None,
        subject: Id | None = None,
    ) -> QueueItem[Any]:
        """Request an execution of a workflow for when its workspace has capacity, and return the queue item at once.

        - ``workflow``, ``value``, ``workspace``: as for ``start``.
        - ``queue``: a named queue.
        - ``priority``: -1,000,000 to 1,000,000; higher goes first.
        - ``key``: an idempotency key: the same key and request again return the same item.
        - ``singleton``: True (per workflow) or a shared name: while an item of it has not ended, that item is returned.
        - ``debounce``: a waiting item takes the newer input and waits again for that long; ``key`` tells debounced items
          apart.
        - ``delay`` or ``run_at``: start no earlier than this span from now, or this aware datetime.
        - ``execution_id``: the id of the execution; the same id again returns the same item.
        - ``max_attempts``: how many times the item may be tried to start, 1 to 1,000.
        - ``engine``: ``"temporal"`` for an execution that Temporal runs, ``"local"`` for one that a worker of Stepwell's runs.
          By default as ``choose_engine`` says.
        - ``governance``: the budgets and permissions of the execution; the workflow's own by default.
        - ``subject``: whose data the execution holds, as for ``start``.

        Raise ``NotFound`` for an unknown workspace or workflow, ``NotActive``, ``InvalidInput``, ``Conflict`` if the ``key``
        or ``execution_id`` was used for another request, ``AlreadyExists`` if another execution has the id, and
        ``LimitExceeded`` if the workspace's part of the queue is full.

        Example:

            item = well.enqueue(report, 7, workspace="acme", key="report-7")
            print(item.result(timeout="10m"))
        """
        workspace, key, execution_id = id_text(workspace), id_text(key), id_text(execution_id)
        from stepwell.queue.requests import QueueRequest

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
            engine=engine,
            governance=governance,
            subject=id_text(subject),
        )
        self._host.start_worker()
        answer = self._driver.run(self._parts.queue.items.enqueue(request))
        return faces.QueueItem(answer, self._parts.queue.items, self._driver, request.workflow)

    def enqueue_many(self, requests: Iterable[QueueRequest]) -> list[QueueItem[Any] | StepwellError]:
        """Request many executions in a few writes; return a handle or an error for each request, in order.

        - ``requests``: ``QueueRequest`` objects, with the fields of ``enqueue``.

        All requests are checked before any is stored: the first fault is raised, and nothing was written. A request that the
        store refuses, such as one over the depth of its queue, has its error in the list, and the others are stored.
        """
        asked = list(requests)
        self._host.start_worker()
        answers = self._driver.run(self._parts.queue.items.enqueue_many(asked))
        items, driver = self._parts.queue.items, self._driver
        return [
            answer if isinstance(answer, StepwellError) else faces.QueueItem(answer, items, driver, request.workflow)
            for answer, request in zip(answers, asked, strict=True)
        ]

    @property
    def queue(self) -> Queue:
        """Return the queue of this store: its items, named queues and statistics."""
        return faces.Queue(self._parts.queue.items, self._driver)

    @property
    def workspaces(self) -> Workspaces:
        """Return the workspaces of this store and their tiers."""
        return faces.Workspaces(self._parts.queue.workspaces, self._driver)

    @property
    def hooks(self) -> Hooks:
        """Return the hooks of this well: functions that are called before and after changes, and for events of runs and steps."""
        return self._parts.hooks

    @property
    def retention(self) -> Retention:
        """Return the retention policies, and what they removed."""
        return faces.Retention(self._parts.retention, self._driver)

    @property
    def usage(self) -> UsageMeter:
        """Return how much of their limits scopes, executions, workflows and workspaces use."""
        return faces.UsageMeter(self._parts.usage, self._driver)

    @property
    def schedules(self) -> Schedules:
        """Return the schedules of this store."""
        return faces.Schedules(self._parts.queue.schedules, self._parts.queue.items, self._driver)

    @property
    def access(self) -> Access:
        """Return who may call the HTTP server of this store: tokens and sessions."""
        return faces.Access(self._parts.access, self._driver)

    @property
    def errors(self) -> Errors:
        """Return the failed executions of the workspace ``default`` in groups; ``within`` gives those of another."""
        return faces.Errors(self._parts.errors, self._driver)

    @property
    def webhooks(self) -> Webhooks:
        """Return the outgoing webhooks of the workspace ``default``; ``within`` gives those of another."""
        return faces.Webhooks(self._parts.webhooks, self._parts.receivers, self._driver)

    @property
    def requests(self) -> Requests:
        """Return what the HTTP server keeps about requests: replies under idempotency keys, and the audit."""
        return faces.Requests(self._parts.requests, self._driver)

    @property
    def executions(self) -> ExecutionIndex:
        """Return the index of this store's executions, to list them."""
        return ExecutionIndex(self._parts, self._driver)

    def durability(self) -> Durability:
        """Return which failures an acknowledged commit survives on this store: a level, and the reason for it."""
        return self._parts.store.durability()

    def transaction(
        self, execution_id: Id, *, commit_id: Id | None = None, fence: int | None = None, lock: HeldLock | None = None
    ) -> Transaction:
        """Return an atomic batch of changes to an execution. Leaving its block commits, or rolls back on an exception.

        - ``execution_id``: the execution to change.
        - ``commit_id``: an id of your own for the commit. A second commit with it and the same changes changes nothing and
          returns the first receipt; with other changes it raises ``Conflict``.
        - ``fence``: the number of an execution lease; the commit lands only if no newer lease was granted.
        - ``lock``: what acquiring a lock gave; the commit lands only if that is still held.

        Its commit raises ``ValidationFailed`` with all faults, ``Conflict`` if another writer was first, ``LeaseLost``, and
        ``CommitUnknown``.

        Example:

            with well.transaction("order-7") as tx:
                tx.set_variable("paid", True)
            print(tx.receipt.revision)
        """
        execution_id, commit_id = id_text(execution_id), id_text(commit_id)
        from stepwell.state.executions import CommitTerms
        from stepwell.state.locks import guards_of

        terms = CommitTerms(commit_id, fence, guards_of(lock), is_counted=True)
        return faces.Transaction(self._parts.executions, execution_id, terms, self._parts.limits, self._driver)

    def create(
        self,
        execution_id: Id,
        workspace: Id = "default",
        context: Mapping[str, Value] | None = None,
        *,
        workflow: str = MANUAL,
        version: int = 1,
        commit_id: Id | None = None,
        trace_id: str | None = None,
        subject: Id | None = None,
    ) -> Receipt:
        """Create an execution whose state you change by transactions, and return the receipt of its first commit.

        - ``execution_id``: its id. An id is never used twice in a store.
        - ``workspace``: the workspace that it belongs to.
        - ``context``: its first context, a dict of values.
        - ``workflow``, ``version``: the name and version to record for it.
        - ``commit_id``: an id of your own for the commit, which makes a retry safe.
        - ``trace_id``: the trace that it belongs to, 32 hexadecimal digits as in a ``traceparent`` header; a new one by default.
        - ``subject``: whose data it holds, as for ``start``.

        Raise ``AlreadyExists`` if the id was ever used.
        """
        execution_id, workspace, commit_id = id_text(execution_id), id_text(workspace), id_text(commit_id)
        about: str | None = id_text(subject)
        given: Mapping[str, Value] = {} if context is None else context
        return self._driver.run(
            self._parts.executions.create(execution_id, workspace, given, workflow, version, commit_id, trace_id, about)
        )

    def load(self, execution_id: Id, at: int | None = None) -> ExecutionState:
        """Return the state of an execution now, or at a revision.

        - ``execution_id``: the execution.
        - ``at``: the revision; the newest by default.

        Raise ``NotFound`` if there is no such execution, or the store no longer has that revision, and ``Corrupted`` if
        stored bytes do not match their digests.
        """
        execution_id = id_text(execution_id)
        return self._driver.run(self._parts.executions.load(execution_id, at))

    def receipts(self, execution_id: Id, *, after: int = -1, limit: int | None = None) -> list[Receipt]:
        """Return the receipts of an execution's commits, in order.

        - ``execution_id``: the execution.
        - ``after``: start after this revision; -1 for the first commit on.
        - ``limit``: at most this many; None for all.

        Raise ``NotFound`` if there is no such execution.
        """
        execution_id = id_text(execution_id)
        return self._driver.run(self._parts.executions.receipts(execution_id, after, limit))

    def receipt(self, execution_id: Id, commit_id: Id) -> Receipt | None:
        """Return the receipt of one commit id, or None if that commit did not land.

        This resolves a ``CommitUnknown``. Raise ``ReceiptArchived`` if the commit landed and its receipt was moved to an
        archive.

        - ``execution_id``: the execution.
        - ``commit_id``: the id of the commit: the one given to ``transaction``, or that of the error.
        """
        execution_id, commit_id = id_text(execution_id), id_text(commit_id)
        return self._driver.run(self._parts.executions.receipt(execution_id, commit_id))

    def verify(self, execution_id: Id, *, anchors: Iterable[Receipt] = ()) -> Verification:
        """Verify an execution's whole chain of receipts, and return every problem that was found.

        - ``execution_id``: the execution.
        - ``anchors``: receipts that you kept elsewhere. With them a chain that was rewritten or cut is found, too.

        Raise ``NotFound`` if there is no such execution. A broken chain raises nothing: it is in the result.
        """
        execution_id = id_text(execution_id)
        return self._driver.run(self._parts.executions.verify(execution_id, anchors))

    def snapshot(self, execution_id: Id) -> bytes:
        """Return an execution's state now as bytes, which ``restore`` takes.

        - ``execution_id``: the execution.

        Raise ``NotFound`` if there is no such execution.
        """
        execution_id = id_text(execution_id)
        return self._driver.run(self._parts.copies.snapshot(execution_id))

    def restore(self, execution_id: Id, data: bytes) -> ExecutionState:
        """Bring an execution to the state of a snapshot by a new commit, and return that state.

        An execution that this store does not have is created. Raise ``InvalidSnapshot`` for bytes that are no snapshot of it.

        - ``execution_id``: the execution of the snapshot.
        - ``data``: the bytes that ``snapshot`` returned.
        """
        execution_id = id_text(execution_id)
        return self._driver.run(self._parts.copies.restore(execution_id, data))

    def fork(
        self,
        execution_id: Id,
        new_id: Id,
        *,
        at: int | None = None,
        input: object = UNSET,
        variables: Mapping[str, Value] | None = None,
    ) -> Receipt:
        """Create an execution with the state of another, and return the receipt of its first commit.

        A worker continues the fork of a workflow's execution; the fork of one made by ``create`` is driven by you.

        - ``execution_id``: the execution to copy.
        - ``new_id``: the id of the fork.
        - ``at``: the revision to copy; the newest by default.
        - ``input``: another input for the fork. Steps that are recorded by then keep their outputs.
        - ``variables``: variables to set in the fork. A workflow's code that sets one of them again overwrites it.

        Raise ``AlreadyExists`` if ``new_id`` was ever used, ``NotFound`` if the store no longer has the revision,
        ``InvalidInput`` for an input that does not fit the workflow, and ``LimitExceeded`` if the workspace is paused or has no
        free slot for the fork of a workflow's execution.

        Example:

            well.fork("order-7", "order-7b", at=3, input={"order": 7, "express": True})
        """
        from functools import partial

        from stepwell.runtime.start import edited_trigger
        from stepwell.state.copies import ForkEdits

        execution_id, new_id = id_text(execution_id), id_text(new_id)
        change = None
        if input is not UNSET:
            workflow = self._workflow_of(execution_id)
            change = partial(edited_trigger, workflow, value=input, limits=self._parts.limits)
        edits = ForkEdits(change, variables or {})
        return self._driver.run(self._parts.copies.fork(execution_id, new_id, at, edits))

    def _workflow_of(self, execution_id: str) -> Workflow[..., Any] | None:
        """Return the workflow of an execution, in its version; None if this process and its store do not have it."""
        who = (self.load(execution_id)).identity
        found = registered_workflow(who.workflow_id)
        if found is not None:
            return found
        try:
            return self._driver.run(self._parts.definitions.load(who.workflow_id, who.version))
        except NotFound:
            return None

    def diff(self, execution_id: Id, a: int, b: int) -> list[Change]:
        """Return the changes between revision ``a`` and revision ``b`` of an execution.

        - ``execution_id``: the execution.
        - ``a``, ``b``: the revisions to compare.

        Raise ``NotFound`` for a revision that the store does not have.
        """
        execution_id = id_text(execution_id)
        return self._driver.run(self._parts.copies.diff(execution_id, a, b))

    def export(self, execution_id: Id) -> bytes:
        """Return an execution's receipts as a proof that ``stepwell.verify_proof`` checks without the store.

        - ``execution_id``: the execution.

        Raise ``NotFound`` if there is no such execution.
        """
        execution_id = id_text(execution_id)
        return self._driver.run(self._parts.executions.export(execution_id))

    def import_(self, proof: bytes, *, resume: bool = False) -> ExecutionSummary:
        """Take in an execution from a proof of ``export``, with every receipt as it was, and return its summary.

        - ``proof``: the bytes of the proof. Those of ``archive`` do as well, if they end with the execution.
        - ``resume``: let workers of this well go on with an execution that has not ended; by default it is held until it gets a
          signal, since the well that it comes from may still run it.

        The proof is checked first, and nothing of a broken one is written. An import that was interrupted is finished by the same
        call. State that the execution has written outside of itself, its children and its queue item are not in a proof.

        Raise ``InvalidInput`` for a broken proof, for one of an encrypted store, and in a well with encryption; and for an
        execution with a queue item that has not ended. Raise ``AlreadyExists`` if the id has another history here, or was deleted.
        """
        head = self._driver.run(self._parts.import_run(proof, resumes=resume))
        return self.executions.get(head.execution_id)

    def archive(self, execution_id: Id, to: str | Path, *, through: int | None = None) -> int:
        """Move an execution's receipts into a proof file, leave a snapshot in their place, and return how many were moved.

        - ``execution_id``: the execution.
        - ``to``: the path of a file that does not exist yet.
        - ``through``: the last revision to move; all by default.

        Raise ``InvalidInput`` if the file exists or cannot be written; nothing was moved then.
        """
        from stepwell.app.arguments import file_of

        execution_id = id_text(execution_id)
        return self._driver.run(self._parts.copies.archive(execution_id, file_of(to), through))

    def backup(self, folder: str | Path, *, workspace: Id | None = None, keep: int = 7) -> BackupReport:
        """Back this well up into a folder, as it is when the backup begins, and return a report. Others go on writing meanwhile.

        A folder that has a backup already gets the commits since then, and the state and queue of now.

        - ``folder``: a new folder, or one with an earlier backup of the same.
        - ``workspace``: back up only this workspace, with the definitions that all share; None for everything.
        - ``keep``: how many earlier backups of the folder stay, for ``restore_backup(at=...)``.

        Raise ``InvalidInput`` for another folder, ``InvalidBackup`` if the backup in it is damaged, and ``Conflict`` if the well is
        on Redis and written to without a pause. The earlier backup stays as it was then.
        """
        return self._driver.run(self._parts.backup(Path(folder), id_text(workspace), keep))

    def restore_backup(self, folder: str | Path, *, at: datetime | None = None) -> RestoreReport:
        """Restore a backup into this well, which must have nothing of it, compare everything with it, and return a report.

        Nothing runs before ``resume_restored``: executions do not come due, and workspaces are paused. A restore that was
        interrupted is continued by the same call.

        - ``folder``: the folder of the backup.
        - ``at``: restore the last backup in the folder that was made by this time; None: the newest.

        Raise ``InvalidBackup`` for a damaged backup before anything is written, and ``AlreadyExists`` if this well has other data.
        """
        return self._driver.run(self._parts.restore_backup(Path(folder), at))

    def resume_restored(self) -> int:
        """Let what was restored go on, and return how many executions were held. Raise ``NotFound`` if nothing was restored."""
        return self._driver.run(self._parts.resume_restored())

    def migrate_state(
        self,
        *,
        scope: str | Scope | None = None,
        workflow: str | None = None,
        to_version: int | None = None,
        workspace: Id | None = None,
        dry_run: bool = False,
        backup: str | Path | None = None,
        stop_at_failure: bool = False,
        batch: int = 500,
        progress: Progress | None = None,
    ) -> MigrationReport:
        """Bring stored values to the version that this process uses, by its ``stepwell.migration`` functions; return a report.

        Executions and workers go on meanwhile. A call that was interrupted is finished by the same call. Each execution is
        migrated by a commit with a receipt; one that a worker holds is left to the worker that loads it next. A value that
        fails is reported and stays as it was.

        - ``scope``, ``workflow``: migrate only this scope or workflow, as in ``stepwell.migration``; all by default.
        - ``to_version``: bring the values to this version; an earlier one needs the ``back`` of the migrations.
        - ``workspace``: migrate only this workspace.
        - ``dry_run``: call the functions on every value, write nothing, and report what would be done.
        - ``backup``: a new folder, into which everything is backed up first.
        - ``stop_at_failure``: stop at the first value that fails; by default the rest goes on.
        - ``batch``: how many values land in one transaction, 1 to 10,000.
        - ``progress``: called with the number of values that were looked at, and the number of all.

        Raise ``InvalidInput`` for a scope or workflow without migrations, ``StateNewer``, before anything is written, if newer
        code has written one of the values, and ``Conflict`` if no backup can be made on Redis because of constant writes.

        Example:

            report = well.migrate_state(scope="custom/prices", backup="before-prices")
            print(report.migrated, report.problems)
        """
        from stepwell.maintenance.state_migration import MigrationRequest

        return self._driver.run(
            self._parts.migrate_state(
                MigrationRequest(
                    scope=scope,
                    workflow=workflow,
                    to_version=to_version,
                    workspace=id_text(workspace),
                    is_dry_run=dry_run,
                    batch=batch,
                    stops=stop_at_failure,
                    backup=None if backup is None else Path(backup),
                    progress=progress,
                )
            )
        )

    def find(self, subject: Id, *, workspace: Id | None = None) -> list[SubjectData]:
        """Return what is stored about a subject: its runs, queue items and scopes of state, for each workspace that has some.

        - ``subject``: the person or thing, such as ``"user:42"``.
        - ``workspace``: look only there; None for all workspaces.

        Raise ``InvalidInput`` in a well without ``encryption``, which has no subjects.
        """
        return self._driver.run(self._parts.erasing.find(id_text(subject), id_text(workspace)))

    def erase(self, subject: Id, *, workspace: Id | None = None, cancel: bool = False) -> list[ErasureReceipt]:
        """Erase the data of a subject by destroying its key, and return a receipt for each workspace that had some.

        What is stored stays as it is, and every chain of receipts verifies; reading a value raises ``ValueErased``. An erasure
        that was interrupted is finished by the same call. Backups that were made before it still have the key.

        - ``subject``: the person or thing, such as ``"user:42"``.
        - ``workspace``: erase only there; None for all workspaces.
        - ``cancel``: end runs that have not ended, at once and without compensation.

        Raise ``NotFound`` if nothing is stored about the subject, and ``Conflict`` while it has runs that have not ended.

        Example:

            receipts = well.erase("user:42", cancel=True)
        """
        return self._driver.run(self._parts.erasing.erase(id_text(subject), id_text(workspace), cancels=cancel))

    def erasures(self, *, workspace: Id | None = None) -> list[ErasureReceipt]:
        """Return the receipts of all erasures, the oldest first. They do not have the subjects' names.

        - ``workspace``: only those of this workspace; None for all.
        """
        return self._driver.run(self._parts.erasing.receipts(id_text(workspace)))

    def rotate_keys(self) -> RotationReport:
        """Wrap every data key with the active key of the ring, so that older keys can be taken away; return the counts.

        No value is encrypted anew. A rotation that was interrupted goes on by the same call. Raise ``EncryptionKeyMissing`` if the
        ring lacks a key that data keys are wrapped with.
        """
        return self._driver.run(self._parts.rotate_keys())

    def redact(self, value: Value, *, secrets: Iterable[str] = ()) -> Value:
        """Return a value as it may be shown: with ``[secret]`` in place of what is declared secret.

        Secret is what this well's ``secrets`` name, and what the steps and workflows of this process declare.

        - ``value``: a value to show.
        - ``secrets``: more names, such as those of the run that the value is from (``state.identity.secrets``).
        """
        return self._parts.redaction_with(secrets).value(value)

    def upgrade_runs(self, workflow: str, *, to_version: int, workspace: Id | None = None, dry_run: bool = False) -> UpgradeReport:
        """Move the live runs of a declared workflow that can continue there to another version, and return which moved.

        A run keeps the version that it began with until this is called. A run can be moved if what it has passed, and where it
        is, are the same in both versions; the report has the reasons for each that cannot. A run that a worker holds is left,
        and can be moved when it waits again. Each move is a commit with a receipt.

        - ``workflow``: its name.
        - ``to_version``: a stored version; an earlier one is as good.
        - ``workspace``: move only the runs of this workspace.
        - ``dry_run``: move nothing, and report what would be done.

        Raise ``NotFound`` if the store has no such version, ``NotActive`` if it is a draft or paused, and ``InvalidInput`` for a
        workflow that is a function.

        Example:

            report = well.upgrade_runs("checkout", to_version=2, dry_run=True)
            print(len(report.moved), report.refused)
        """
        return self._driver.run(self._parts.upgrade_runs(workflow, to_version, id_text(workspace), is_dry_run=dry_run))

    def delete(self, execution_id: Id) -> None:
        """Delete an execution with its history. Its id is never used again, so that a late writer cannot revive it.

        - ``execution_id``: the execution to delete.

        Raise ``NotFound`` if there is no such execution. A worker that runs it stops at its next commit.
        """
        execution_id = id_text(execution_id)
        return self._driver.run(self._parts.executions.delete(execution_id))

    def drain(self, grace_seconds: Span | None = None) -> None:
        """Make the worker claim nothing more and hand its executions back, and return at once; ``close`` waits for the end.

        Waiting executions are handed back at once, others at their next call. Another worker continues them.

        - ``grace_seconds``: after this time steps that still run are abandoned, to run again elsewhere. None: they are waited
          for. A second call may shorten the time.
        """
        from stepwell.app.arguments import grace_of

        grace, self.worker = grace_of(grace_seconds), False
        self._host.stop_worker(grace)

    def close(self) -> None:
        """Finish what is under way, hand executions back, and close the store. A second call does nothing."""
        self._host.close()

    def __repr__(self) -> str:
        return f"<Stepwell {self._parts.address!r}{' closed' * self._host.is_closed}>"

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, WELL)

    def __enter__(self) -> Stepwell:
        self._host.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
