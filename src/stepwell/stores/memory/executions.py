"""Executions in memory: their heads, commits, snapshots and leases."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec

from stepwell.clock import Clock
from stepwell.contract.store import ExecutionQuery
from stepwell.errors import StepwellError
from stepwell.fault_points import fault
from stepwell.model.commit import (
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
    Rest,
    Seen,
    StoredCommit,
    Written,
)
from stepwell.model.execution_row import (
    adopted,
    archived,
    claimed,
    due,
    extended,
    first_head,
    granted,
    lease_on,
    moved,
    released,
    rested,
    unfit,
)
from stepwell.model.ids import revision_in
from stepwell.model.refusals import changed_since_decision, id_taken, no_execution
from stepwell.model.snapshot import StoredSnapshot
from stepwell.model.status import FINAL
from stepwell.stores.memory.undo import UndoLog

__all__ = [
    "MemoryExecution",
    "MemoryExecutions",
    "MemoryLeases",
]


class MemoryExecution:
    """Rows of one execution; ``commits`` starts right after the head's base revision."""

    __slots__ = ("by_commit_id", "commits", "head", "is_nudged", "snapshots")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.commits: list[StoredCommit] = []
        self.by_commit_id: dict[str, int] = {}
        self.snapshots: list[StoredSnapshot] = []
        self.is_nudged = False

    def row(self, revision: int) -> StoredCommit:
        base = self.head.base_revision
        return self.commits[revision - base - 1] if revision > base else StoredCommit(revision, b"", b"")

    def rows(self, after: int, upto: int) -> list[StoredCommit]:
        base = self.head.base_revision + 1
        return self.commits[max(after + 1 - base, 0) : max(upto + 1 - base, 0)]

    def copied(self) -> MemoryExecution:
        """Return an execution with the same rows."""
        copy = MemoryExecution(self.head)
        copy.commits, copy.snapshots = list(self.commits), list(self.snapshots)
        copy.by_commit_id, copy.is_nudged = dict(self.by_commit_id), self.is_nudged
        return copy

    def seen(self, commit: Commit) -> Seen | None:
        """Return the first writing of a commit id, if there was one."""
        revision = self.by_commit_id.get(commit.commit_id)
        if revision is None:
            return None
        row = self.row(revision)
        return Seen(row.header, row.body)


replace = msgspec.structs.replace


class MemoryLeases:
    """Leases of all executions of a store. Callers hold the store's lock."""

    def __init__(self, clock: Clock, executions: Mapping[str, MemoryExecution]) -> None:
        self._clock, self._executions = clock, executions
        self.waking: dict[str, MemoryExecution] = {}
        """The heads of executions that will come due, so that a claim does not read all executions."""

    def write(self, unit: Claim | ClaimDue | Extension | Release, undo: UndoLog) -> Outcome:
        """Write one unit, or return its refusal."""
        match unit:
            case Claim():
                return self._claim(unit, undo)
            case ClaimDue():
                return self._claim_due(unit, undo)
            case Extension():
                return self._extend(unit, undo)
            case Release():
                return self._release(unit, undo)

    def _claim(self, claim: Claim, undo: UndoLog) -> Outcome:
        head = claimed(self._head(claim.execution_id), claim, self._clock.now_ms())
        return head if isinstance(head, StepwellError) else Written([self._grant(head, undo)])

    def _claim_due(self, claim: ClaimDue, undo: UndoLog) -> Outcome:
        now = self._clock.now_ms()
        heads = due([execution.head for execution in self.waking.values()], claim, now)
        leases = [self._grant(granted(head, claim, now), undo) for head in heads]
        if leases:
            fault("lease.claimed")
        return Written(leases)

    def _extend(self, unit: Extension, undo: UndoLog) -> Outcome:
        head = extended(self._head(unit.execution_id), unit, self._clock.now_ms())
        if isinstance(head, StepwellError):
            return head
        undo.set(self._executions[unit.execution_id], "head", head)
        return Written([lease_on(head)])

    def _release(self, unit: Release, undo: UndoLog) -> Outcome:
        head = released(self._head(unit.execution_id), unit, self._clock.now_ms())
        if isinstance(head, StepwellError):
            return head
        undo.set(self._executions[unit.execution_id], "head", head)
        return Written()

    def rest(self, execution: MemoryExecution, rest: Rest, undo: UndoLog) -> None:
        """End the lease of an execution, and set when it is due."""
        undo.set(execution, "head", rested(execution.head, rest, self._clock.now_ms(), is_nudged=execution.is_nudged))
        self.note(execution, undo)
        undo.set(execution, "is_nudged", False)
        fault("lease.rested")

    def nudge(self, execution_ids: Sequence[str], undo: UndoLog) -> None:
        """Make executions due: now, or as soon as their holders rest."""
        for execution_id in execution_ids:
            execution = self._executions.get(execution_id)
            if execution is not None and execution.head.status not in FINAL:
                undo.set(execution, "is_nudged", True)
                if execution.head.holder is None:
                    undo.set(execution, "head", replace(execution.head, wake_ms=self._clock.now_ms()))
                    self.note(execution, undo)
            fault("lease.nudged")

    def note(self, execution: MemoryExecution, undo: UndoLog) -> None:
        """Update the heads that will come due with a head that was written."""
        execution_id, is_noted = execution.head.execution_id, execution.head.execution_id in self.waking
        if execution.head.wake_ms is None and is_noted:
            undo.drop(self.waking, execution_id)
        elif execution.head.wake_ms is not None and not is_noted:
            undo.put(self.waking, execution_id, execution)

    def forget(self, execution_id: str, undo: UndoLog) -> None:
        """Remove a deleted execution from the heads that will come due."""
        if execution_id in self.waking:
            undo.drop(self.waking, execution_id)

    def _head(self, execution_id: str) -> Head | None:
        execution = self._executions.get(execution_id)
        return None if execution is None else execution.head

    def _grant(self, head: Head, undo: UndoLog) -> Lease:
        execution = self._executions[head.execution_id]
        undo.set(execution, "head", head)
        undo.set(execution, "is_nudged", False)
        return lease_on(head)


class MemoryExecutions:
    """All executions of a store. Callers hold the store's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.rows: dict[str, MemoryExecution] = {}
        self._deleted: set[str] = set()
        self.leases = MemoryLeases(clock, self.rows)

    # Writing.

    def seen(self, commit: Commit) -> Seen | None:
        """Return the first writing of a commit id, if there was one."""
        execution = self.rows.get(commit.execution_id)
        return None if execution is None else execution.seen(commit)

    def unfit(self, commit: Commit) -> StepwellError | None:
        """Return why a commit cannot be written; None if it can."""
        execution = self.rows.get(commit.execution_id)
        head = None if execution is None else execution.head
        return unfit(commit, head, is_taken=head is not None or commit.execution_id in self._deleted)

    def write(self, commit: Commit, undo: UndoLog) -> None:
        """Write a commit that fits, with its snapshot and its rest."""
        execution = self.rows.get(commit.execution_id) or self._create(commit, undo)
        undo.put(execution.by_commit_id, commit.commit_id, commit.revision)
        undo.append(execution.commits, StoredCommit(commit.revision, commit.header, commit.body))
        fault("store.commit_written")
        if commit.creation is None:
            undo.set(execution, "head", moved(execution.head, commit))
        fault("store.head_written")
        if commit.snapshot is not None:
            undo.append(execution.snapshots, commit.snapshot)
            fault("store.snapshot_written")
        if commit.rest is not None:
            self.leases.rest(execution, commit.rest, undo)

    def delete(self, deletion: Deletion, undo: UndoLog) -> Outcome:
        head = self.head(deletion.execution_id)
        if head is None:
            return no_execution(deletion.execution_id)
        if deletion.head not in (None, head.digest):
            return changed_since_decision(deletion.execution_id)
        undo.drop(self.rows, deletion.execution_id)
        self.leases.forget(deletion.execution_id, undo)
        undo.mark(self._deleted, deletion.execution_id)
        return Written()

    def archive(self, archiving: Archiving, undo: UndoLog) -> Outcome:
        through, head = archiving.snapshot.revision, archived(self.head(archiving.execution_id), archiving)
        if isinstance(head, StepwellError):
            return head
        execution = self.rows[archiving.execution_id]
        newer = [stored for stored in execution.snapshots if stored.revision > through]
        undo.set(execution, "commits", execution.rows(through, head.revision))
        # Commit ids that users chose stay, so that a very late retry is recognised; Stepwell's own contain their revision.
        kept = {name: at for name, at in execution.by_commit_id.items() if at > through or revision_in(name) != at}
        undo.set(execution, "by_commit_id", kept)
        undo.set(execution, "snapshots", [archiving.snapshot, *newer])
        undo.set(execution, "head", head)
        return Written()

    def adopt(self, adoption: Adoption, undo: UndoLog) -> Outcome:
        if self._is_taken(adoption.execution_id):
            return id_taken(adoption.execution_id)
        execution = MemoryExecution(adopted(adoption))
        execution.snapshots.append(adoption.snapshot)
        undo.put(self.rows, adoption.execution_id, execution)
        return Written()

    def _create(self, commit: Commit, undo: UndoLog) -> MemoryExecution:
        assert commit.creation is not None, "only a creation makes a new execution"  # noqa: S101
        execution = MemoryExecution(first_head(commit, commit.creation, self._clock.now_ms()))
        undo.put(self.rows, commit.execution_id, execution)
        self.leases.note(execution, undo)
        return execution

    def _is_taken(self, execution_id: str) -> bool:
        return execution_id in self.rows or execution_id in self._deleted

    # Reading. Rows are frozen, so handing them out is handing out copies.

    def take(self, other: MemoryExecutions) -> None:
        """Take the rows of another store as they are now."""
        self.rows.update((name, execution.copied()) for name, execution in other.rows.items())

    def head(self, execution_id: str) -> Head | None:
        """Return the row of an execution."""
        execution = self.rows.get(execution_id)
        return None if execution is None else execution.head

    def load(self, execution_id: str, at: int | None, since: int | None) -> Loaded | None:
        """Return the rows that an execution's state at a revision is built from."""
        execution = self.rows.get(execution_id)
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
        """Return commits after a revision."""
        execution = self.rows.get(execution_id)
        return [] if execution is None else execution.rows(after, execution.head.revision)[:limit]

    def base(self, execution_id: str) -> StoredSnapshot | None:
        """Return the snapshot that the chain starts from, if it does."""
        execution = self.rows.get(execution_id)
        if execution is None or execution.head.base_revision < 0:
            return None
        return execution.snapshots[0]

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        """Return the commit by that id."""
        execution = self.rows.get(execution_id)
        revision = None if execution is None else execution.by_commit_id.get(commit_id)
        return None if execution is None or revision is None else execution.row(revision)

    def find(self, query: ExecutionQuery) -> list[Head]:
        """Return executions that match, newest first."""
        heads = [execution.head for execution in self.rows.values()]
        wanted = [head for head in heads if query.matches(head)]
        wanted.sort(key=lambda head: (head.created_ms, head.execution_id), reverse=True)
        return wanted[: query.limit]
