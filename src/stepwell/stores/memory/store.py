"""The memory store: the contract in dicts. For tests and scratch work; nothing survives the process."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from stepwell.clock import Clock
from stepwell.contract.store import Capabilities, Durability, ExecutionQuery
from stepwell.errors import AlreadyExists, CommitUnknown, Conflict, LeaseLost, LockHeld, NotFound, StepwellError
from stepwell.faults import fault
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
    Lease,
    Loaded,
    Outcome,
    Release,
    Renew,
    Rest,
    Seen,
    StateBatch,
    StoredCommit,
    Sweep,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.entry import Delete, Resolution, ScopeTotals, StoredEntry, alive, resolve
from stepwell.model.limits import Limits
from stepwell.model.queue import Item, ItemQuery, Lane, QueueSettings, Tier, Workspace
from stepwell.model.scope import Scope
from stepwell.model.snapshot import StoredSnapshot
from stepwell.model.status import FINAL
from stepwell.stores.memory.execution import Execution, first_head
from stepwell.stores.memory.locks import Locks
from stepwell.stores.memory.queue import Queue
from stepwell.stores.memory.undo import Undo

__all__ = ["MemoryStore"]

T = TypeVar("T")
replace = msgspec.structs.replace


class MemoryStore:
    """Keeps everything in this process. One lock; values are bytes, so what is read cannot be changed."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock, self._limits = clock, limits
        self._lock = threading.RLock()
        self._executions: dict[str, Execution] = {}
        self._waking: dict[str, Execution] = {}
        """Those that come due some time, so that a claim does not look at all that ever ran."""
        self._deleted: set[str] = set()
        self._entries: dict[str, dict[str, StoredEntry]] = {}
        self._totals: dict[str, ScopeTotals] = {}
        self._locks = Locks(clock)
        self._queue = Queue(clock)

    def open(self) -> None:
        """There is nothing to open."""

    def close(self) -> None:
        """There is nothing to give back; the data goes with the last reference to the store."""

    def capabilities(self) -> Capabilities:
        return Capabilities(is_shared=False, has_blocking_writes=False)

    def durability(self) -> Durability:
        return Durability("none", "memory:// keeps nothing when the process ends")

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def check(self) -> None:
        """Memory is always there."""

    def listen(self, wake: Callable[[str], None]) -> Callable[[], None]:  # noqa: ARG002 - no other process can write here
        return lambda: None

    # Writing. Every rule of a unit is decided before its first write, so there is nothing to roll back but a fault in between;
    # `_undo` keeps what a unit replaced, to take back the whole group in that case.

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        fault("store.before_begin")
        with self._lock:
            undo = Undo()
            try:
                fault("store.begun")
                outcomes = [self._write_one(unit, undo) for unit in units]
                fault("store.before_commit")
            except BaseException:
                undo.take_back()
                raise
        try:
            fault("store.committed")
        except Exception as error:
            raise CommitUnknown from error
        return outcomes

    def _write_one(self, unit: Unit, undo: Undo) -> Outcome:  # noqa: PLR0912 - one branch for each kind of unit
        match unit:
            case Commit():
                return self._commit(unit, undo)
            case StateBatch():
                resolution = self._locks.broken(unit.guards) or self._resolve(unit.ops)
                if isinstance(resolution, StepwellError):
                    return resolution
                self._nudge(unit.nudges, undo)
                return self._write_state(resolution, undo)
            case Acquire():
                return self._locks.acquire(unit, undo)
            case Renew() | Unlock():
                return self._locks.keep(unit, undo)
            case Claim():
                return self._claim(unit, undo)
            case ClaimDue():
                return self._claim_due(unit, undo)
            case Extension() | Release():
                return self._keep(unit, undo)
            case Deletion():
                return self._delete(unit, undo)
            case Archiving():
                return self._archive(unit, undo)
            case Adoption():
                return self._adopt(unit, undo)
            case Sweep():
                return self._sweep(unit, undo)
            case _:
                return self._queue.write(unit, undo)

    def _commit(self, commit: Commit, undo: Undo) -> Outcome:
        if commit.items or commit.mark is not None:
            return self._commit_with_items(commit, undo)
        return self._commit_alone(commit, undo)

    def _commit_with_items(self, commit: Commit, undo: Undo) -> Outcome:
        """A commit and what it does to the queue: if any of it is refused, all of it is taken back."""
        before = len(undo)
        added = self._queue.add(commit.items, undo) if commit.items else []
        refusal = next((answer for answer in added if isinstance(answer, StepwellError)), None)
        if refusal is None and commit.mark is not None:
            refusal = self._queue.mark(commit.mark, undo, commit.execution_id)
        execution = self._executions.get(commit.execution_id)
        outcome = (_seen(commit, execution) or refusal) if refusal is not None else self._commit_alone(commit, undo)
        if not isinstance(outcome, Written):
            undo.take_back(before)
        return outcome

    def _commit_alone(self, commit: Commit, undo: Undo) -> Outcome:
        resolution = self._resolve(commit.ops) if commit.ops else None
        execution = self._executions.get(commit.execution_id)
        if isinstance(resolution, StepwellError):
            return _seen(commit, execution) or resolution  # a retry meets its own first writes
        refusal = self._check(commit)
        if refusal is not None:
            return refusal
        if execution is None:
            execution = Execution(first_head(commit, self.now_ms()))
            undo.put(self._executions, commit.execution_id, execution)
            self._note_wake(execution, undo)
        undo.put(execution.by_commit_id, commit.commit_id, commit.revision)
        undo.append(execution.commits, StoredCommit(commit.revision, commit.header, commit.body))
        fault("store.commit_written")
        undo.set(
            execution,
            "head",
            replace(
                execution.head,
                revision=commit.revision,
                digest=commit.digest,
                status=commit.status or execution.head.status,
                signature=commit.signature,
                updated_ms=commit.committed_ms,
                claims=0,
            ),
        )
        fault("store.head_written")
        if commit.snapshot is not None:
            undo.append(execution.snapshots, commit.snapshot)
            fault("store.snapshot_written")
        if commit.rest is not None:
            self._rest(execution, commit.rest, undo)
        if commit.nudges:
            self._nudge(commit.nudges, undo)
        return Written() if resolution is None else self._write_state(resolution, undo)

    def _rest(self, execution: Execution, rest: Rest, undo: Undo) -> None:
        wake = None if rest.is_final else self.now_ms() if execution.is_nudged else rest.wake_ms
        undo.set(execution, "head", replace(execution.head, holder=None, lease_until_ms=None, wake_ms=wake))
        self._note_wake(execution, undo)
        undo.set(execution, "is_nudged", False)
        fault("lease.rested")

    def _nudge(self, execution_ids: Sequence[str], undo: Undo) -> None:
        for execution_id in execution_ids:
            execution = self._executions.get(execution_id)
            if execution is not None and execution.head.status not in FINAL:
                undo.set(execution, "is_nudged", True)
                if execution.head.holder is None:
                    undo.set(execution, "head", replace(execution.head, wake_ms=self.now_ms()))
                    self._note_wake(execution, undo)
            fault("lease.nudged")

    def _note_wake(self, execution: Execution, undo: Undo) -> None:
        """Keep the list of those that come due up with a head that was written."""
        execution_id, is_noted = execution.head.execution_id, execution.head.execution_id in self._waking
        if execution.head.wake_ms is None and is_noted:
            undo.drop(self._waking, execution_id)
        elif execution.head.wake_ms is not None and not is_noted:
            undo.put(self._waking, execution_id, execution)

    def _claim_due(self, claim: ClaimDue, undo: Undo) -> Outcome:
        now, newest = self.now_ms(), claim.newest()
        due = [
            execution
            for execution in self._waking.values()
            if execution.head.wake_ms is not None
            and execution.head.wake_ms <= now
            and (execution.head.holder is None or (execution.head.lease_until_ms or 0) <= now)
            and execution.head.version <= newest.get(execution.head.workflow_id, -1)
        ]
        due.sort(key=lambda execution: (execution.head.wake_ms or 0, execution.head.execution_id))
        leases = [self._grant(execution, claim.holder, claim.seconds, undo) for execution in due[: claim.limit]]
        if leases:
            fault("lease.claimed")
        return Written(leases)

    def _grant(self, execution: Execution, holder: str, seconds: float, undo: Undo) -> Lease:
        head, until = execution.head, self.now_ms() + round(seconds * 1000)
        wake = None if head.wake_ms is None else until
        granted = replace(head, holder=holder, fence=head.fence + 1, lease_until_ms=until, wake_ms=wake, claims=head.claims + 1)
        undo.set(execution, "head", granted)
        undo.set(execution, "is_nudged", False)
        return Lease(head.execution_id, holder, granted.fence, until)

    def _check(self, commit: Commit) -> Outcome | None:
        """Why a commit cannot be written; None if it can."""
        execution = self._executions.get(commit.execution_id)
        seen = _seen(commit, execution)
        if seen is not None:
            return seen
        broken = self._locks.broken(commit.guards) if commit.guards else None
        if broken is not None:
            return broken
        if commit.creation is not None:
            taken = execution is not None or commit.execution_id in self._deleted
            return AlreadyExists(f"execution {commit.execution_id!r} exists already; ids are never used twice") if taken else None
        if execution is None:
            return NotFound(f"there is no execution {commit.execution_id!r}")
        head = execution.head
        if commit.fence is not None and commit.fence != head.fence:
            return LeaseLost(fence=commit.fence)
        if (head.revision, head.digest) != (commit.revision - 1, commit.previous):
            return Conflict(expected=commit.revision - 1, actual=head.revision)
        return None

    def _claim(self, claim: Claim, undo: Undo) -> Outcome:
        execution = self._executions.get(claim.execution_id)
        if execution is None:
            return NotFound(f"there is no execution {claim.execution_id!r}")
        head, now = execution.head, self.now_ms()
        if head.holder not in (None, claim.holder) and (head.lease_until_ms or 0) > now:
            return LockHeld(f"execution {claim.execution_id!r} is leased to another holder")
        return Written([self._grant(execution, claim.holder, claim.seconds, undo)])

    def _keep(self, unit: Extension | Release, undo: Undo) -> Outcome:
        execution = self._executions.get(unit.execution_id)
        head, now = execution.head if execution else None, self.now_ms()
        if execution is None or head is None or (head.holder, head.fence) != (unit.holder, unit.fence):
            return LeaseLost(fence=unit.fence)
        if isinstance(unit, Release):
            wake = None if head.wake_ms is None else now
            undo.set(execution, "head", replace(head, holder=None, lease_until_ms=None, wake_ms=wake))
            return Written()
        if (head.lease_until_ms or 0) <= now:
            return LeaseLost(fence=unit.fence)
        until = now + round(unit.seconds * 1000)
        wake = None if head.wake_ms is None else until
        undo.set(execution, "head", replace(head, lease_until_ms=until, wake_ms=wake))
        return Written([Lease(unit.execution_id, unit.holder, unit.fence, until)])

    def _delete(self, deletion: Deletion, undo: Undo) -> Outcome:
        if deletion.execution_id not in self._executions:
            return NotFound(f"there is no execution {deletion.execution_id!r}")
        undo.drop(self._executions, deletion.execution_id)
        if deletion.execution_id in self._waking:
            undo.drop(self._waking, deletion.execution_id)
        undo.mark(self._deleted, deletion.execution_id)
        self._queue.end_of(deletion.execution_id, undo)
        return Written()

    def _archive(self, archiving: Archiving, undo: Undo) -> Outcome:
        execution, through = self._executions.get(archiving.execution_id), archiving.snapshot.revision
        if execution is None or not execution.head.base_revision <= through <= execution.head.revision:
            return NotFound(f"execution {archiving.execution_id!r} has no revision {through} to archive")
        kept = execution.rows(through, execution.head.revision)
        newer = [stored for stored in execution.snapshots if stored.revision > through]
        undo.set(execution, "commits", kept)
        undo.set(execution, "by_commit_id", {c: r for c, r in execution.by_commit_id.items() if r > through})
        undo.set(execution, "snapshots", [archiving.snapshot, *newer])
        undo.set(execution, "head", replace(execution.head, base_revision=through))
        return Written()

    def _adopt(self, adoption: Adoption, undo: Undo) -> Outcome:
        if adoption.execution_id in self._executions or adoption.execution_id in self._deleted:
            return AlreadyExists(f"execution {adoption.execution_id!r} exists already; ids are never used twice")
        execution = Execution(
            Head(
                execution_id=adoption.execution_id,
                workspace_id=adoption.workspace_id,
                workflow_id=adoption.creation.workflow_id,
                version=adoption.creation.version,
                parent_id=adoption.creation.parent_id,
                status=adoption.status,
                revision=adoption.snapshot.revision,
                digest=adoption.digest,
                base_revision=adoption.snapshot.revision,
                signature=adoption.signature,
                created_ms=adoption.adopted_ms,
                updated_ms=adoption.adopted_ms,
            )
        )
        execution.snapshots.append(adoption.snapshot)
        undo.put(self._executions, adoption.execution_id, execution)
        return Written()

    def _resolve(self, ops: Sequence[object]) -> Resolution | StepwellError:
        return resolve(
            ops,  # pyright: ignore[reportArgumentType] - the units carry StateOps only
            lambda scope, key: self._entries.get(scope, {}).get(key),
            self.totals,
            self.now_ms(),
            self._limits,
            self._expired,
        )

    def _expired(self, scope: str) -> list[str]:
        now, rows = self.now_ms(), self._entries.get(scope, {})
        return [key for key, row in rows.items() if row.data is not None and alive(row, now) is None]

    def _write_state(self, resolution: Resolution, undo: Undo) -> Outcome:
        for scope, revision in resolution.cleared.items():
            rows = self._entries.get(scope, {})
            tomb = StoredEntry(None, revision, resolution.now_ms)
            undo.put(self._entries, scope, {key: tomb if row.data is not None else row for key, row in rows.items()})
        for (scope, key), entry in resolution.entries.items():
            if scope not in self._entries:
                undo.put(self._entries, scope, dict[str, StoredEntry]())
            undo.put(self._entries[scope], key, entry)
            fault("store.entry_written")
        for scope, totals in resolution.totals.items():
            undo.put(self._totals, scope, totals)
            fault("store.scope_written")
        return Written(resolution.answers)

    def _sweep(self, sweep: Sweep, undo: Undo) -> Outcome:
        oldest = self.now_ms() - sweep.tombstone_ms
        self._locks.drop_expired(oldest, sweep.limit, undo)
        for rows in self._entries.values():
            dead = [key for key, row in rows.items() if row.data is None and (row.expires_ms or 0) <= oldest]
            for key in dead[: sweep.limit]:
                undo.drop(rows, key)
        ops = [Delete(scope, key) for scope in self._entries for key in self._expired(scope)][: sweep.limit]
        resolution = self._resolve(ops)
        if isinstance(resolution, StepwellError):
            return resolution
        self._write_state(resolution, undo)
        return Written([len(ops)])

    # Reading. Rows are frozen, so handing them out is handing out copies.

    def known_tip(self, execution_id: str, *, is_guarded: bool = False) -> str | None:  # noqa: ARG002 - it is always sure
        head = self.head(execution_id)
        return None if head is None else head.digest

    def tips(self, execution_ids: Sequence[str]) -> list[str | None]:
        return [self.known_tip(execution_id) for execution_id in execution_ids]

    def nudged(self, execution_ids: Sequence[str]) -> list[str]:
        with self._lock:
            found = ((execution_id, self._executions.get(execution_id)) for execution_id in execution_ids)
            return [execution_id for execution_id, execution in found if execution is not None and execution.is_nudged]

    def head(self, execution_id: str) -> Head | None:
        with self._lock:
            execution = self._executions.get(execution_id)
            return None if execution is None else execution.head

    def load(self, execution_id: str, at: int | None = None, since: int | None = None) -> Loaded | None:
        with self._lock:
            execution = self._executions.get(execution_id)
            if execution is None:
                return None
            upto = execution.head.revision if at is None else at
            if since is not None:
                return Loaded(execution.head, None, execution.rows(since, upto))
            index = bisect_right(execution.snapshots, upto, key=lambda stored: stored.revision)
            snapshot = execution.snapshots[index - 1] if index else None
            start = -1 if snapshot is None else snapshot.revision
            return Loaded(execution.head, snapshot, execution.rows(start, upto))

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        with self._lock:
            execution = self._executions.get(execution_id)
            return [] if execution is None else execution.rows(after, execution.head.revision)[:limit]

    def base(self, execution_id: str) -> StoredSnapshot | None:
        with self._lock:
            execution = self._executions.get(execution_id)
            if execution is None or execution.head.base_revision < 0:
                return None
            return execution.snapshots[0]

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        with self._lock:
            execution = self._executions.get(execution_id)
            revision = None if execution is None else execution.by_commit_id.get(commit_id)
            return None if execution is None or revision is None else execution.row(revision)

    def find(self, query: ExecutionQuery) -> list[Head]:
        with self._lock:
            heads = [execution.head for execution in self._executions.values()]
        wanted = [
            head
            for head in heads
            if query.workspace_id in (None, head.workspace_id)
            and query.workflow_id in (None, head.workflow_id)
            and query.status in (None, head.status)
            and (query.after is None or (head.created_ms, head.execution_id) < query.after)
        ]
        wanted.sort(key=lambda head: (head.created_ms, head.execution_id), reverse=True)
        return wanted[: query.limit]

    def entries(self, scope: str, keys: Sequence[str]) -> dict[str, StoredEntry]:
        with self._lock:
            rows, now = self._entries.get(scope, {}), self.now_ms()
            found = ((key, alive(rows.get(key), now)) for key in keys)
            return {key: row for key, row in found if row is not None}

    def scan(self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> list[tuple[str, StoredEntry]]:
        with self._lock:
            rows, now = self._entries.get(scope, {}), self.now_ms()
            keys = sorted(key for key in rows if key.startswith(prefix) and (after is None or key > after))
            live = ((key, alive(rows[key], now)) for key in keys)
            return [(key, row) for key, row in live if row is not None][:limit]

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        with self._lock:
            rows = [(key, row) for key, row in self._entries.get(scope, {}).items() if row.revision > after]
        return sorted(rows, key=lambda pair: (pair[1].revision, pair[0]))

    def totals(self, scope: str) -> ScopeTotals:
        with self._lock:
            return self._totals.get(scope) or ScopeTotals()

    def scopes(self, workspace_id: str | None = None) -> Iterator[str]:
        with self._lock:
            paths = sorted(path for path, totals in self._totals.items() if totals.keys)
        return (path for path in paths if workspace_id is None or Scope.parse(path).workspace == workspace_id)

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

    def workspaces(self) -> list[Workspace]:
        with self._lock:
            return self._queue.workspaces()

    def tiers(self) -> list[Tier]:
        with self._lock:
            return self._queue.tiers()

    def queues(self) -> list[QueueSettings]:
        with self._lock:
            return self._queue.queues()


def _seen(commit: Commit, execution: Execution | None) -> Seen | None:
    """The first writing of a commit id, if there was one."""
    revision = None if execution is None else execution.by_commit_id.get(commit.commit_id)
    if execution is None or revision is None:
        return None
    row = execution.row(revision)
    return Seen(row.header, row.body)
