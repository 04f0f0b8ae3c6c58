"""Memory store: implements the contract in dicts, for tests and scratch work; nothing survives the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from stepwell.clock import Clock
from stepwell.contract.store import Capabilities, Durability, ExecutionQuery, StoreReads
from stepwell.errors import StepwellError, StoreUnavailable
from stepwell.fault_points import fault, fault_after_commit
from stepwell.model.commit import (
    Acquire,
    Adoption,
    Archiving,
    Claim,
    ClaimDue,
    Commit,
    Deletion,
    Extension,
    Head,
    Loaded,
    Outcome,
    Release,
    Renew,
    Seen,
    StateBatch,
    StoredCommit,
    Sweep,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Item, ItemQuery, Lane, QueueSettings, Tier, Workspace
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry
from stepwell.model.snapshot import StoredSnapshot
from stepwell.stores.memory.executions import MemoryExecutions
from stepwell.stores.memory.queue import MemoryQueue
from stepwell.stores.memory.scoped_state import MemoryEntries, MemoryLocks
from stepwell.stores.memory.undo import UndoLog

__all__ = ["MemoryStore"]


class _Closed:
    """Takes the place of the lock while the store is closed."""

    def __enter__(self) -> None:
        raise StoreUnavailable("the store is closed; open it again")

    def __exit__(self, *_: object) -> None: ...


class MemoryStore:
    """Keeps everything in this process, under one lock. Values are bytes, so that values that were read cannot be changed."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._open_lock = threading.RLock()
        self._lock: threading.RLock | _Closed = self._open_lock
        self._executions = MemoryExecutions(clock)
        self._locks = MemoryLocks(clock)
        self._queue = MemoryQueue(clock)
        self._entries = MemoryEntries(clock, limits, self._queue.limits_of)

    def open(self) -> None:
        """Serve again after ``close``: the data lives as long as this object."""
        self._lock = self._open_lock

    def close(self) -> None:
        """Serve no more until it is opened again."""
        with self._open_lock:  # not while a write is under way
            self._lock = _Closed()

    def capabilities(self) -> Capabilities:
        return Capabilities(is_shared=False, has_blocking_writes=False, has_consistent_view=True)

    @contextmanager
    def consistent_view(self) -> Generator[StoreReads]:
        with self._lock:
            copy = self._copied()
        yield copy

    def _copied(self) -> MemoryStore:
        """Return a store of its own with the same rows, which are never changed."""
        copy = MemoryStore(self._clock, Limits())
        copy._executions.take(self._executions)
        copy._entries.take(self._entries)
        copy._queue.take(self._queue)
        return copy

    def durability(self) -> Durability:
        return Durability("none", "memory:// keeps nothing when the process ends")

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def check(self) -> None:
        with self._lock:
            pass

    def listen(self, wake: Callable[[str], None]) -> Callable[[], None]:  # noqa: ARG002 - no other process can write here
        return lambda: None

    # Writing. All rules of a unit are checked before its first write, so only a fault in between needs a roll-back; `_undo` keeps
    # what the units replaced.

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        fault("store.before_begin")
        with self._lock:
            undo = UndoLog()
            try:
                fault("store.begun")
                outcomes = [self._write_one(unit, undo) for unit in units]
                fault("store.before_commit")
            except BaseException:
                undo.take_back()
                raise
        fault_after_commit()
        return outcomes

    def _write_one(self, unit: Unit, undo: UndoLog) -> Outcome:
        match unit:
            case Commit():
                return self._commit(unit, undo)
            case StateBatch():
                return self._write_batch(unit, undo)
            case Acquire() | Renew() | Unlock():
                return self._locks.write(unit, undo)
            case Claim() | ClaimDue() | Extension() | Release():
                return self._executions.leases.write(unit, undo)
            case Deletion():
                return self._delete(unit, undo)
            case Archiving():
                return self._executions.archive(unit, undo)
            case Adoption():
                return self._executions.adopt(unit, undo)
            case Sweep():
                return self._sweep(unit, undo)
            case _:
                return self._queue.write(unit, undo)

    def _commit(self, commit: Commit, undo: UndoLog) -> Outcome:
        if commit.items or commit.mark is not None:
            return self._commit_with_items(commit, undo)
        return self._commit_alone(commit, undo)

    def _commit_with_items(self, commit: Commit, undo: UndoLog) -> Outcome:
        """Write a commit and its changes of the queue: all of it or nothing."""
        before = len(undo)
        added = self._queue.add(commit.items, undo) if commit.items else []
        refusal = next((answer for answer in added if isinstance(answer, StepwellError)), None)
        late = None if refusal is None else self._check(commit)
        if refusal is None and commit.mark is not None:
            refusal = self._queue.mark(commit.mark, undo, commit.execution_id)
        outcome = self._commit_alone(commit, undo) if refusal is None else late or self._executions.seen(commit) or refusal
        if not isinstance(outcome, Written):
            undo.take_back(before)
        return outcome

    def _commit_alone(self, commit: Commit, undo: UndoLog) -> Outcome:
        refusal = self._check(commit)  # before its state: a late writer hears that its lock or lease is lost
        if refusal is not None:
            return refusal
        resolution = self._entries.resolve(commit.ops) if commit.ops else None
        if isinstance(resolution, StepwellError):
            return resolution
        self._executions.write(commit, undo)
        if commit.nudges:
            self._executions.leases.nudge(commit.nudges, undo)
        return Written() if resolution is None else self._entries.write(resolution, undo)

    def _check(self, commit: Commit) -> Seen | StepwellError | None:
        """Return why a commit cannot be written now; None if it can."""
        broken = self._locks.broken(commit.guards) if commit.guards else None
        return self._executions.seen(commit) or broken or self._executions.unfit(commit)

    def _write_batch(self, batch: StateBatch, undo: UndoLog) -> Outcome:
        resolution = self._locks.broken(batch.guards) or self._entries.resolve(batch.ops)
        if isinstance(resolution, StepwellError):
            return resolution
        self._executions.leases.nudge(batch.nudges, undo)
        return self._entries.write(resolution, undo)

    def _delete(self, deletion: Deletion, undo: UndoLog) -> Outcome:
        outcome = self._executions.delete(deletion, undo)
        if isinstance(outcome, Written):
            self._queue.end_of(deletion.execution_id, undo)
        return outcome

    def _sweep(self, sweep: Sweep, undo: UndoLog) -> Outcome:
        self._locks.drop_expired(self.now_ms() - sweep.tombstone_ms, sweep.limit, undo)
        return self._entries.sweep(sweep, undo)

    # Reading. Rows are frozen, so handing them out is handing out copies.

    def head_digests(self, execution_ids: Sequence[str]) -> list[str | None]:
        heads = map(self.head, execution_ids)
        return [None if head is None else head.digest for head in heads]

    def nudged(self, execution_ids: Sequence[str]) -> list[str]:
        with self._lock:
            found = ((execution_id, self._executions.rows.get(execution_id)) for execution_id in execution_ids)
            return [execution_id for execution_id, execution in found if execution is not None and execution.is_nudged]

    def head(self, execution_id: str) -> Head | None:
        with self._lock:
            return self._executions.head(execution_id)

    def load(self, execution_id: str, at: int | None = None, since: int | None = None) -> Loaded | None:
        with self._lock:
            return self._executions.load(execution_id, at, since)

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        with self._lock:
            return self._executions.history(execution_id, after, limit)

    def base(self, execution_id: str) -> StoredSnapshot | None:
        with self._lock:
            return self._executions.base(execution_id)

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        with self._lock:
            return self._executions.commit_of(execution_id, commit_id)

    def find(self, query: ExecutionQuery) -> list[Head]:
        with self._lock:
            return self._executions.find(query)

    def entries(self, scope: str, keys: Sequence[str]) -> dict[str, StoredEntry]:
        with self._lock:
            return self._entries.entries(scope, keys)

    def scan(self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> list[tuple[str, StoredEntry]]:
        with self._lock:
            return self._entries.scan(scope, prefix, after, limit)

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        with self._lock:
            return self._entries.changes(scope, after)

    def totals(self, scope: str) -> ScopeTotals:
        with self._lock:
            return self._entries.totals(scope)

    def scopes(self, workspace_id: str | None = None) -> Iterator[str]:
        with self._lock:
            return self._entries.scopes(workspace_id)

    def item(self, item_id: str) -> Item | None:
        with self._lock:
            return self._queue.rows.get(item_id)

    def items(self, query: ItemQuery) -> list[Item]:
        with self._lock:
            return self._queue.items(query)

    def lanes(self, workspace_id: str | None = None) -> list[Lane]:
        with self._lock:
            return self._queue.lanes(workspace_id)

    def next_ready_ms(self) -> int | None:
        with self._lock:
            return self._queue.rows.next_ready_ms()

    def has_ready(self) -> bool:
        with self._lock:
            return self._queue.rows.has_ready()

    def workspaces(self) -> list[Workspace]:
        with self._lock:
            return self._queue.workspaces()

    def tiers(self) -> list[Tier]:
        with self._lock:
            return self._queue.tiers()

    def queues(self) -> list[QueueSettings]:
        with self._lock:
            return self._queue.queues()
