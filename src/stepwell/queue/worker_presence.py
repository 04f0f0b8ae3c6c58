"""Presence of workers: each worker that serves the queue renews a heartbeat row in the store while it lives.

A damaged row hides only its own worker.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Annotated, Protocol

import msgspec

from stepwell.clock import from_ms, to_ms
from stepwell.contract.engine import Engine
from stepwell.contract.store import Store
from stepwell.errors import Corrupted, StepwellError
from stepwell.flow.function import registered_versions
from stepwell.model.commit import StateBatch
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import Delete, Put, StoredEntry
from stepwell.model.status import Status
from stepwell.pipeline.operations import AsyncDriver, read, write
from stepwell.queue.requests import LATEST_MS
from stepwell.runtime.periodic import PeriodicTask

__all__ = [
    "HEARTBEAT_SECONDS",
    "LATE_SECONDS",
    "Heartbeat",
    "LeasedRun",
    "Presences",
    "WorkerPresence",
    "absence",
    "drain_request",
    "presence",
    "scan_sound",
]


_PAGE = 1_000


def scan_sound(store: Store, path: str) -> tuple[list[tuple[str, StoredEntry]], list[str]]:
    """Return all entries of a scope, and the keys of those that are damaged."""
    found: list[tuple[str, StoredEntry]] = []
    damaged: list[str] = []
    after, limit = None, _PAGE
    while True:
        try:
            rows = store.scan(path, after=after, limit=limit)
        except Corrupted as error:
            if error.key is None:
                raise
            # A page with a damaged row is not returned. Smaller pages return the rows before it, until a page holds that row
            # alone.
            limit //= 2
            if not limit:
                damaged.append(error.key)
                after, limit = error.key, _PAGE
            continue
        if not rows:
            return found, damaged
        found += rows
        after = rows[-1][0]


log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 20.0
LATE_SECONDS = 1.5 * HEARTBEAT_SECONDS
"""The age from which on a heartbeat is late; soon after, the worker is taken for gone."""
_GONE_AFTER_MS = 60_000
_PATH = internal_path("worker", DEFAULT_WORKSPACE)
_DRAINS = internal_path("worker_drain", DEFAULT_WORKSPACE)
"""The scope of the requests to drain a worker, by its name."""
_DRAIN_TTL_MS = 30 * 86_400_000
"""A request to a worker that is gone for good is forgotten: no later one has its name."""


class WorkerPresence(PlainRecord, frozen=True):
    """A process that takes items from the queue."""

    name: str
    engine: str
    workflows: tuple[str, ...]
    queues: tuple[str, ...]
    """The queues that it serves; empty for all."""
    concurrency: int
    seen_at: datetime
    versions: dict[str, int] = msgspec.field(default_factory=dict)
    """The versions of its workflow functions; it can run these and earlier ones."""
    running: int = 0
    """How many runs it had at its last heartbeat: the slots in use, of ``concurrency``."""
    is_draining: bool = False
    """Whether it takes nothing more, since it was asked to drain."""


class LeasedRun(PlainRecord, frozen=True):
    """An execution that a worker has."""

    execution_id: str
    workspace_id: str
    workflow_id: str
    status: Status
    until: datetime
    """The end of the lease, which the worker renews while it lives."""


class _StoredPresence(msgspec.Struct, frozen=True):
    """A heartbeat row: a ``WorkerPresence`` as it is stored."""

    engine: str
    workflows: tuple[str, ...]
    queues: tuple[str, ...]
    concurrency: int
    seen_ms: Annotated[int, msgspec.Meta(ge=0, le=LATEST_MS)]
    versions: dict[str, int] = {}
    """Empty in a row of an earlier release: then any version may be there."""
    running: int = 0
    is_draining: bool = False


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(_StoredPresence).decode


def presence(worker: WorkerPresence) -> StateBatch:
    """Return the write of a heartbeat row, which expires by itself."""
    stored = _StoredPresence(
        worker.engine,
        worker.workflows,
        worker.queues,
        worker.concurrency,
        to_ms(worker.seen_at),
        worker.versions,
        worker.running,
        worker.is_draining,
    )
    return StateBatch((Put(_PATH, worker.name, msgspec.Raw(_encode(stored)), ttl_ms=_GONE_AFTER_MS),))


def absence(name: str) -> StateBatch:
    """Return the write that removes a heartbeat row."""
    return StateBatch((Delete(_PATH, name),))


class Presences:
    """Reads the heartbeat rows of a store's workers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unread: frozenset[str] = frozenset()
        """The rows that could not be read at the last look."""

    def workers(self) -> list[WorkerPresence]:
        """Return the workers that renewed their heartbeat lately. Log an unreadable row only once."""
        rows, damaged = scan_sound(self._store, _PATH)
        unread = dict.fromkeys(damaged, "it does not match its checksum")
        found: list[WorkerPresence] = []
        for name, row in rows:
            try:
                found.append(_read(name, row.data or b""))
            except msgspec.DecodeError as error:
                unread[name] = str(error)
        for name in unread.keys() - self._unread:
            log.warning("the heartbeat of worker %r cannot be read and is ignored until it is renewed: %s", name, unread[name])
        self._unread = frozenset(unread)
        return found


def _read(name: str, data: bytes) -> WorkerPresence:
    stored = _decode(data)
    seen_at = from_ms(stored.seen_ms)
    return WorkerPresence(
        name,
        stored.engine,
        stored.workflows,
        stored.queues,
        stored.concurrency,
        seen_at,
        stored.versions,
        stored.running,
        stored.is_draining,
    )


def drain_request(name: str, *, is_wanted: bool) -> StateBatch:
    """Return the write that asks a worker to drain, or to take work again."""
    if is_wanted:
        return StateBatch((Put(_DRAINS, name, msgspec.Raw(b"true"), ttl_ms=_DRAIN_TTL_MS),))
    return StateBatch((Delete(_DRAINS, name),))


class Drainable(Protocol):
    """A worker that can stop taking work for a while."""

    is_draining: bool

    @property
    def held(self) -> int:
        """The number of executions that it has."""
        ...

    def set_draining(self, is_draining: bool) -> None:
        """Take nothing more, and hand back what runs; or take work again."""
        ...


class Heartbeat(PeriodicTask):
    """Renew the heartbeat row of a worker, see whether it is to drain, and remove the row at the end.

    Args:
        worker: what drains; None if another engine has the executions.
    """

    name = "the heartbeat of the worker"

    def __init__(
        self,
        name: str,
        engine: Engine,
        store: Store,
        driver: AsyncDriver,
        queues: tuple[str, ...],
        concurrency: int,
        worker: Drainable | None = None,
    ) -> None:
        super().__init__()
        self._drainable = worker
        self._worker, self._engine, self._store, self._driver = name, engine, store, driver
        self._queues, self._concurrency = queues, concurrency

    async def run(self) -> None:
        """Renew the row until stopped."""
        await super().run()
        try:
            await self._driver.run(write(absence(self._worker)))
        except StepwellError as error:
            log.warning("the heartbeat row of worker %r could not be removed, and expires: %s", self._worker, error)

    async def work(self) -> float:
        """Write the heartbeat row."""
        names = await self._engine.workflows()
        now = await self._driver.run(read(self._store.now_ms))
        running, is_draining = 0, False
        if self._drainable is not None:
            asked = await self._driver.run(read(lambda: self._store.entries(_DRAINS, (self._worker,))))
            self._drainable.set_draining(is_draining := bool(asked))
            running = self._drainable.held
        versions = {name: version for name, version in registered_versions().items() if name in names}
        worker = WorkerPresence(
            self._worker,
            self._engine.name,
            names,
            self._queues,
            self._concurrency,
            from_ms(now),
            versions,
            running,
            is_draining,
        )
        await self._driver.run(write(presence(worker)))
        return HEARTBEAT_SECONDS
