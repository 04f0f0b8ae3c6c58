"""Composition root of `Stepwell` and `AsyncStepwell`: wires a store, the write path, the operations and the worker together."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import msgspec

from stepwell.app.health import Health, check_health
from stepwell.app.sealing import NO_SEALING, Sealing
from stepwell.clock import Clock, SystemClock
from stepwell.config import DEFAULT_URL, choose_url, without_secrets
from stepwell.contract.store import Store
from stepwell.errors import StepwellError, StoreUnavailable
from stepwell.flow.function import Workflow, declared_secrets, workflow_secrets
from stepwell.maintenance.backup import BackupReport, create_backup
from stepwell.maintenance.erasure import Erasing, RotationReport, rotate_keys
from stepwell.maintenance.restore import RestoreReport, import_run, restore_backup, resume_restored
from stepwell.maintenance.retention import RetentionOperations, RetentionTask
from stepwell.maintenance.run_upgrade import UpgradeReport, upgrade_runs
from stepwell.maintenance.state_migration import MigrationReport, MigrationRequest, migrate_state
from stepwell.maintenance.usage import UsageOperations
from stepwell.model.commit import Head
from stepwell.model.ids import new_id
from stepwell.model.limits import Limits
from stepwell.model.redaction import Redaction
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.notifications import Notifications
from stepwell.pipeline.operations import AsyncDriver, Operation, read_slowly
from stepwell.pipeline.store_clock import StoreClock
from stepwell.pipeline.store_writer import StoreWriter
from stepwell.pipeline.write_statistics import WriteStatistics
from stepwell.queue.dispatcher import Dispatcher
from stepwell.queue.engine_choices import EngineChoices
from stepwell.queue.local_engine import LocalEngine
from stepwell.queue.operations import QueueOperations
from stepwell.queue.recovery import QueueRecovery
from stepwell.queue.scheduler import ScheduleOperations, Scheduler
from stepwell.queue.worker_presence import Heartbeat
from stepwell.queue.workspaces import WorkspaceOperations
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.error_groups import ErrorOperations
from stepwell.runtime.known_workflows import KnownWorkflows
from stepwell.runtime.periodic import PeriodicTask
from stepwell.runtime.run_operations import RunOperations
from stepwell.runtime.services import Services
from stepwell.runtime.start import Starting
from stepwell.runtime.steps.scripts import install_engine
from stepwell.runtime.webhook_sender import WebhookSender
from stepwell.runtime.worker import Worker
from stepwell.script.lua import LuaEngine
from stepwell.state.access import AccessOperations
from stepwell.state.conversations import DAY_SECONDS, ConversationOperations
from stepwell.state.copies import Copies
from stepwell.state.executions import Executions
from stepwell.state.hooks import Hooks
from stepwell.state.locks import LockOperations, LockRenewal
from stepwell.state.remote_locks import RemoteLocks
from stepwell.state.request_log import RequestLog
from stepwell.state.scoped_state import StateOperations
from stepwell.state.subjects import Subjects
from stepwell.state.webhook_receivers import WebhookReceiverOperations
from stepwell.state.webhooks import WebhookOperations
from stepwell.stores.sealed_store import check_unsealed
from stepwell.stores.url import store_of

if TYPE_CHECKING:
    from stepwell.temporal.connection import TemporalAddress
    from stepwell.temporal.host import TemporalHost
    from stepwell.temporal.service import TemporalService

__all__ = ["Parts", "QueueParts"]

install_engine("lua", LuaEngine)

log = logging.getLogger("stepwell")


class QueueParts:
    """The operations of the queue of one store."""

    def __init__(
        self, store: Store, executions: Executions, definitions: DefinitionOperations, notifications: Notifications
    ) -> None:
        self.engines = EngineChoices(store)
        self.items = QueueOperations(store, executions, notifications, new_id, definitions, self.engines)
        self.workspaces = WorkspaceOperations(store)
        self.schedules = ScheduleOperations(store, self.items, new_id, notifications)


class Parts:
    """The collaborators of one well, wired together."""

    def __init__(
        self,
        url: str | Store | None,
        clock: Clock | None,
        limits: Limits | None,
        signing_key: bytes | None,
        sealing: Sealing = NO_SEALING,
    ) -> None:
        self._signing_key, self.redaction = signing_key, sealing.redaction
        clock, self.limits = clock or SystemClock(), limits or Limits()
        self.plain_store, self.address, self.address_origin = _store_of(url, clock, self.limits)
        """The store as it is, without opening sealed values: what a backup copies."""
        self.sealed = sealing.around(self.plain_store)
        self.store = self.plain_store if self.sealed is None else cast("Store", self.sealed)
        self.clock = StoreClock(self.store, clock)
        self.notifications = Notifications(self.store)
        self._writer, can = StoreWriter(self.store, self.notifications, self.clock), self.store.capabilities()
        self.group = GroupCommit(self._writer.write, is_instant=not can.has_blocking_writes)
        self.hooks, subjects = Hooks(self.limits), Subjects(self.sealed)
        self.state = StateOperations(self.store, self.limits, self.notifications, self.clock, subjects, self.hooks)
        self.webhooks = WebhookOperations(self.state, new_id)
        self.receivers = WebhookReceiverOperations(self.store)
        self.executions = Executions(
            self.store,
            self.clock,
            self.limits,
            new_id,
            signing_key,
            end_messages=self.webhooks,
            subjects=subjects,
            redaction=self.redaction,
            hooks=self.hooks,
        )
        self.copies = Copies(self.executions, self.store, self.clock, new_id, signing_key)
        self.definitions = DefinitionOperations(self.store)
        self.access = AccessOperations(self.state)
        self.requests = RequestLog(self.state, new_id)
        self.remote_locks = RemoteLocks(new_id)
        self.lock_renewal = LockRenewal(self.group)
        self._worker_driver: AsyncDriver | None = None
        self._worker: Worker | None = None
        self._dispatcher: Dispatcher | None = None
        self.locks = LockOperations(self.notifications, self.lock_renewal, new_id)
        self.conversations = ConversationOperations(self.state, self.clock, DEFAULT_WORKSPACE, DAY_SECONDS)
        self.starting = Starting(self.executions, self.clock, new_id)
        self.errors = ErrorOperations(self.executions, self.state, lambda execution_id: self.run(execution_id, None))
        self.retention = RetentionOperations(self.store, self.executions, self.clock)
        self.usage = UsageOperations(self.store, self.executions, self.limits)
        self.queue = QueueParts(self.store, self.executions, self.definitions, self.notifications)
        self.erasing = Erasing(self.plain_store, self.executions, self.queue.items, signing_key)

    def open(self) -> None:
        """Open the store, check its keys, and measure how far its clock is from this machine's."""
        self.store.open()
        if self.sealed is None:
            check_unsealed(self.store)
        else:
            self.sealed.check_settings()
        self.clock.measure()
        try:
            self.webhooks.load_now()
        except StepwellError as error:  # a worker tries again every few seconds
            log.warning("the webhooks of the store could not be read: %s", error)

    def close(self) -> None:
        if self._worker_driver is not None:
            self._worker_driver.let_go()
        self.hooks.close()
        self.lock_renewal.close()
        self.notifications.close()
        self.group.close()
        self.store.close()

    def run(self, execution_id: str, workflow: Workflow[..., Any] | None) -> RunOperations:
        """Return the operations on one execution, of a workflow that may be known."""
        return RunOperations(self.executions, self.notifications, new_id, execution_id, workflow, self.definitions)

    @property
    def write_statistics(self) -> WriteStatistics:
        """Counts of what this process wrote."""
        return self._writer.statistics

    def backup(self, folder: Path, workspace: str | None, keep: int) -> Operation[BackupReport]:
        """Back the store up into a folder."""
        return read_slowly(lambda: create_backup(self.plain_store, folder, workspace, new_id, keep))

    def restore_backup(self, folder: Path, at: datetime | None) -> Operation[RestoreReport]:
        """Restore a backup into the store."""
        return restore_backup(self.plain_store, folder, key=self._signing_key, sealed=self.sealed, at=at)

    def import_run(self, proof: bytes, *, resumes: bool) -> Operation[Head]:
        """Take in a run from its proof."""
        is_encrypting = self.sealed is not None and self.sealed.keys is not None
        return import_run(self.plain_store, proof, key=self._signing_key, is_encrypting=is_encrypting, resumes=resumes)

    def resume_restored(self) -> Operation[int]:
        """Let what was restored go on."""
        return resume_restored(self.plain_store)

    def redaction_with(self, secrets: Iterable[str]) -> Redaction:
        """Return what hides the secrets of the well, of this process's steps and workflows, and others."""
        return self.redaction.also(declared_secrets()).also(workflow_secrets()).also(Redaction(secrets).names)

    def rotate_keys(self) -> Operation[RotationReport]:
        """Wrap every data key with the active key."""
        subjects = self.executions.subjects
        _ = subjects.keys  # refuses a well without encryption
        assert self.sealed is not None  # noqa: S101 - the line before
        return rotate_keys(self.plain_store, subjects, self.sealed.renew_check)

    def migrate_state(self, request: MigrationRequest) -> Operation[MigrationReport]:
        """Migrate stored values."""
        return migrate_state(self.store, self.executions, request, new_id)

    def upgrade_runs(self, name: str, to_version: int, workspace: str | None, *, is_dry_run: bool) -> Operation[UpgradeReport]:
        """Move live runs of a workflow to another version of its definition."""
        return upgrade_runs(
            self.store, self.executions, self.definitions, name, to_version, workspace=workspace, is_dry_run=is_dry_run
        )

    def health(self) -> Operation[Health]:
        """Check the store, and the worker if there is one."""
        found = yield from check_health(self.store, self._writer, self._worker, self._dispatcher, self.clock, new_id)
        # A hook that is cut off is no reason to take the process out of service.
        return (
            found
            if not self.hooks.list()
            else msgspec.structs.replace(found, parts=found.parts | {"hooks": self.hooks.trouble or "ok"})
        )

    def worker(self, driver: AsyncDriver, concurrency: int, lease_seconds: float, queues: tuple[str, ...]) -> Worker:
        """Return a worker on this store that also serves its queue."""
        worker = self._worker = Worker(
            store=self.store,
            executions=self.executions,
            driver=driver,
            notifications=self.notifications,
            clock=self.clock,
            limits=self.limits,
            new_id=new_id,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            definitions=self.definitions,
        )
        engine = LocalEngine(worker, self.store, self.executions, driver, self.clock, new_id)
        self._dispatcher = Dispatcher(
            engine=engine,
            store=self.store,
            driver=driver,
            notifications=self.notifications,
            clock=self.clock,
            holder=worker.holder,
            lease_seconds=lease_seconds,
            queues=queues,
            hand_back_retry=worker.services.hand_back_retry,
        )
        worker.companions += [
            self._dispatcher,
            Heartbeat(worker.holder, engine, self.store, driver, queues, concurrency, worker),
            *self._tasks_of_store(driver, lease_seconds),
        ]
        return worker

    def temporal_host(self, concurrency: int, lease_seconds: float) -> TemporalHost:
        """Return what workflows and activities on Temporal share. On the loop that runs them."""
        from stepwell.temporal.host import NoLocalWorker, TemporalHost

        driver = self._worker_driver = AsyncDriver(self.group, self.store, is_open=True)
        services = Services(
            store=self.store,
            executions=self.executions,
            driver=driver,
            notifications=self.notifications,
            workflows=KnownWorkflows(driver, self.definitions),
            clock=self.clock,
            limits=self.limits,
            new_id=new_id,
            worker=NoLocalWorker(),
            concurrency=concurrency,
        )
        return TemporalHost(
            store=self.store,
            executions=self.executions,
            driver=driver,
            definitions=self.definitions,
            services=services,
            limits=self.limits,
            new_id=new_id,
            lease_seconds=lease_seconds,
        )

    async def temporal_service(
        self,
        address: TemporalAddress,
        *,
        concurrency: int,
        lease_seconds: float,
        grace_seconds: float,
        queues: tuple[str, ...],
        workspaces: tuple[str, ...],
        cached: int,
        deployment: tuple[str, str] | None,
        sweep_seconds: float,
    ) -> TemporalService:
        """Connect to a Temporal server, and return what serves it for this store, with its dispatcher. On the loop that runs it."""
        from stepwell.temporal.connection import TemporalConnection
        from stepwell.temporal.engine import TemporalEngine
        from stepwell.temporal.service import TemporalService

        connection = await TemporalConnection.open(address, lease_seconds)
        host = self.temporal_host(concurrency, lease_seconds)
        driver, services = host.driver, host.services
        service = TemporalService(
            host,
            connection,
            notifications=self.notifications,
            locks=self.locks,
            workspaces=workspaces,
            concurrency=concurrency,
            grace_seconds=grace_seconds,
            cached=cached,
            deployment=deployment,
            sweep_seconds=sweep_seconds,
        )
        engine = TemporalEngine(host, connection, self.starting, service.wake_starter)
        holder = f"{engine.name}:{socket.gethostname()}:{os.getpid()}:{new_id()}"
        dispatcher = Dispatcher(
            engine=engine,
            store=self.store,
            driver=driver,
            notifications=self.notifications,
            clock=self.clock,
            holder=holder,
            lease_seconds=lease_seconds,
            queues=queues,
            hand_back_retry=services.hand_back_retry,
        )
        service.companions += [
            dispatcher,
            Heartbeat(holder, engine, self.store, driver, queues, concurrency),
            *self._tasks_of_store(driver, lease_seconds),
        ]
        return service

    def tasks_without_workflows(self, lease_seconds: float) -> list[PeriodicTask]:
        """Return what a store needs beside workers that run workflows. On the loop that runs them."""
        driver = self._worker_driver = AsyncDriver(self.group, self.store, is_open=True)
        return self._tasks_of_store(driver, lease_seconds)

    def _tasks_of_store(self, driver: AsyncDriver, lease_seconds: float) -> list[PeriodicTask]:
        """Return the tasks that some process of a store has to do, whatever it runs."""
        return [
            Scheduler(self.queue.schedules, driver, self.notifications),
            WebhookSender(self.webhooks, driver, self.write_statistics.webhooks),
            QueueRecovery(self.queue.items, self.locks, driver, lease_seconds),
            RetentionTask(self.retention, self.locks, driver),
        ]

    def worker_alone(self, concurrency: int, lease_seconds: float, queues: tuple[str, ...]) -> Worker:
        """Return a worker that has an event loop to itself."""

        def is_alone() -> bool:
            return worker.is_alone_with_one()

        driver = self._worker_driver = AsyncDriver(self.group, self.store, is_open=True, may_block=is_alone)
        worker = self.worker(driver, concurrency, lease_seconds, queues)
        return worker


_VERBS = [name for name in dir(Store) if not name.startswith("_")]


def _is_store(given: object) -> TypeGuard[Store]:
    """Return whether an object has all verbs of a store, also those that it passes on to another one.

    ``isinstance`` asks for them statically from Python 3.12 on, and would not see what ``__getattr__`` passes on.
    """
    return given is not None and not isinstance(given, str) and all(hasattr(given, verb) for verb in _VERBS)


def _store_of(url: str | Store | None, clock: Clock, limits: Limits) -> tuple[Store, str, str]:
    """Return the caller's own store, or the one that a URL of the caller or of the environment names; its name for people; and what
    named it."""
    if _is_store(url):
        return url, type(url).__name__, "the argument"
    chosen, origin = choose_url(cast("str | None", url))
    store = store_of(chosen, clock, limits)
    address = without_secrets(chosen)
    log.info("store: %s (from %s)", address, origin)
    if chosen == DEFAULT_URL and url is None:
        _make_default_folder()
    return store, address, origin


def _make_default_folder() -> None:
    try:
        Path(".stepwell").mkdir(exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"the folder '.stepwell' cannot be made here ({error}); give a url, or set STEPWELL_URL") from None
