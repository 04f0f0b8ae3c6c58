"""The parts that both faces are made of: how they are put together on a store, and what is asked of them."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

import msgspec

from stepwell.clock import Clock, SystemClock, from_ms
from stepwell.config import DEFAULT_URL, choose_url, without_secrets
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput, LockHeld, StepwellError, StoreUnavailable
from stepwell.model.commit import Acquire, Head
from stepwell.model.ids import check_key, new_id
from stepwell.model.limits import Limits
from stepwell.model.lock import probe_lock
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.status import Status
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.notifications import Notifications
from stepwell.pipeline.operations import AsyncDriver, Operation, read, write_or_raise
from stepwell.pipeline.store_writer import StoreWriter
from stepwell.queue.assembly import QueueParts
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.worker import Worker
from stepwell.state.conversations import DAY_SECONDS, ConversationOperations
from stepwell.state.copies import Copies
from stepwell.state.executions import Executions
from stepwell.state.locks import Keeper, LockOperations
from stepwell.state.scoped_state import StateOperations
from stepwell.stores.url import store_of

__all__ = ["ExecutionSummary", "Health", "Parts", "check_settings", "file_of", "grace_of", "lease_of"]

log = logging.getLogger("stepwell")

_PROBE_SECONDS = 0.001


class ExecutionSummary(msgspec.Struct, frozen=True):
    """An execution as a list shows it."""

    execution_id: str
    workspace_id: str
    workflow_id: str
    version: int
    status: Status
    revision: int
    created_at: datetime
    updated_at: datetime
    parent_id: str | None = None

    @classmethod
    def of(cls, head: Head) -> ExecutionSummary:
        """The summary of an execution's row."""
        return cls(
            head.execution_id,
            head.workspace_id,
            head.workflow_id,
            head.version,
            Status(head.status),
            head.revision,
            from_ms(head.created_ms),
            from_ms(head.updated_ms),
            head.parent_id,
        )


class Health(msgspec.Struct, frozen=True):
    """Whether the store serves, and for each part ``ok`` or what is wrong with it: ``read``, ``write`` and, where a worker runs,
    ``queue``: whether it starts what it could."""

    is_ok: bool
    parts: dict[str, str]


class Parts:
    """What both faces are made of."""

    def __init__(self, url: str | Store | None, clock: Clock | None, limits: Limits | None, signing_key: bytes | None) -> None:
        self.clock, self.limits = clock or SystemClock(), limits or Limits()
        self.store, self.address = _store_of(url, self.clock, self.limits)
        self.pulse = Notifications(self.store)
        writer, can = StoreWriter(self.store, self.pulse), self.store.capabilities()
        self.group = GroupCommit(writer.write, is_instant=not can.has_blocking_writes)
        self.executions = Executions(self.store, self.clock, self.limits, new_id, signing_key)
        self.copies = Copies(self.executions, self.store, self.clock, signing_key)
        self.definitions = DefinitionOperations(self.store)
        self.state = StateOperations(self.store, self.limits, self.pulse)
        self.keeper = Keeper(self.group)
        self._worker_driver: AsyncDriver | None = None
        self.locks = LockOperations(self.pulse, self.keeper, new_id)
        self.conversations = ConversationOperations(self.state, self.clock, DEFAULT_WORKSPACE, DAY_SECONDS)
        self.queue = QueueParts(
            store=self.store,
            executions=self.executions,
            definitions=self.definitions,
            pulse=self.pulse,
            clock=self.clock,
            locks=self.locks,
            new_id=new_id,
        )

    def close(self) -> None:
        if self._worker_driver is not None:
            self._worker_driver.let_go()
        self.keeper.close()
        self.pulse.close()
        self.group.close()
        self.store.close()

    def health(self) -> Operation[Health]:
        parts = {"read": "ok", "write": "ok"}
        try:
            yield from read(self.store.check)
        except StepwellError as error:
            parts["read"] = str(error)
        try:
            # A write of nothing would not notice a full disk. This one leaves a row that is free again at once, and wakes nobody.
            yield from write_or_raise(Acquire(probe_lock(), new_id(), _PROBE_SECONDS))
        except LockHeld:
            pass  # by another probe of this very moment, which the store wrote
        except StepwellError as error:
            parts["write"] = str(error)
        try:
            queue = yield from self.queue.health()
        except StepwellError as error:
            queue = str(error)
        if queue is not None:
            parts["queue"] = queue
        return Health(all(state == "ok" for state in parts.values()), parts)

    def worker(self, driver: AsyncDriver, concurrency: int, lease_seconds: float, queues: tuple[str, ...]) -> Worker:
        """A worker on this store, that also serves its queue."""
        worker = Worker(
            store=self.store,
            executions=self.executions,
            driver=driver,
            pulse=self.pulse,
            clock=self.clock,
            limits=self.limits,
            new_id=new_id,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            definitions=self.definitions,
        )
        self.queue.attach(worker, driver, concurrency, queues)
        return worker

    def worker_alone(self, concurrency: int, lease_seconds: float, queues: tuple[str, ...]) -> Worker:
        """A worker that has an event loop to itself."""

        def is_alone() -> bool:
            return worker.is_alone_with_one()

        driver = self._worker_driver = AsyncDriver(self.group, self.store, is_open=True, may_block=is_alone)
        worker = self.worker(driver, concurrency, lease_seconds, queues)
        return worker

    def list_executions(
        self,
        status: str | None,
        workspace: str | None,
        workflow: str | None,
        after: ExecutionSummary | None,
        limit: int,
    ) -> Operation[list[ExecutionSummary]]:
        if type(limit) is not int or not 1 <= limit <= 10_000:
            raise InvalidInput(f"limit is a whole number from 1 to 10,000, not {limit!r}")
        if status is not None and status not in frozenset(Status):
            raise InvalidInput(f"{status!r} is no status; use one of {', '.join(Status)}")
        for what, name in (("workspace", workspace), ("workflow", workflow)):
            if name is not None:
                check_key(name, f"{what} in a query")
        if after is not None and not isinstance(after, ExecutionSummary):
            raise InvalidInput(f"after is the last execution of the page before, not {after!r}")
        cursor = None if after is None else (round(after.created_at.timestamp() * 1000), after.execution_id)
        query = ExecutionQuery(
            workspace_id=workspace,
            workflow_id=workflow,
            status=None if status is None else str(status),
            after=cursor,
            limit=limit,
        )
        heads = yield from self.executions.find(query)
        return [ExecutionSummary.of(head) for head in heads]


def _store_of(url: str | Store | None, clock: Clock, limits: Limits) -> tuple[Store, str]:
    """The store that was asked for, and what to call it: an object of one's own, or by a URL from the caller or the environment."""
    if url is not None and not isinstance(url, str) and hasattr(url, "durability"):
        return url, type(url).__name__
    chosen, origin = choose_url(url)  # pyright: ignore[reportArgumentType] - what is neither text nor a store is refused there
    store = store_of(chosen, clock, limits)
    address = without_secrets(chosen)
    log.info("store: %s (from %s)", address, origin)
    if chosen == DEFAULT_URL and url is None:
        _make_default_folder()
    return store, address


def _make_default_folder() -> None:
    try:
        Path(".stepwell").mkdir(exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"the folder '.stepwell' cannot be made here ({error}); give a url, or set STEPWELL_URL") from None


def check_settings(worker: object, concurrency: object, clock: object, limits: object, signing_key: object) -> None:
    """Refuse settings of the wrong kind at once, and not when they are first used."""
    if not isinstance(worker, bool):
        raise InvalidInput(f"worker is True or False, not {worker!r}")
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidInput(f"concurrency is a whole number, 1 or more, not {concurrency!r}")
    if clock is not None and not _is_clock(clock):
        raise InvalidInput(f"clock is a SystemClock() or FakeClock(), or has their now, now_ms and ahead_ms; not {clock!r}")
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidInput(f"limits is a stepwell.Limits(...), not {limits!r}")
    if signing_key is not None and not (isinstance(signing_key, bytes) and signing_key):
        raise InvalidInput(f"signing_key is bytes, one or more, not {type(signing_key).__name__}")


def _is_clock(clock: object) -> bool:
    # The class is not one, though it has the methods.
    has_all = all(callable(getattr(clock, name, None)) for name in ("now", "now_ms", "ahead_ms"))
    return has_all and not isinstance(clock, type)


def file_of(path: str | Path) -> Path:
    """The file that a path names."""
    if not isinstance(path, str | Path):
        raise InvalidInput(f"a file is named by a text or a Path, not {path!r}")
    return Path(path)


def lease_of(span: Span) -> float:
    """The length of a worker's lease in seconds."""
    return seconds_of(span, "lease_seconds", least=1, most=86_400)


def grace_of(span: Span | None) -> float | None:
    """How long steps under way are waited for; None: until they end."""
    return None if span is None else seconds_of(span, "grace_seconds")
