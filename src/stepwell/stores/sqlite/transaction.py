"""The general way to write to SQLite: units of any kind, inside the transaction that the store has begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from stepwell.errors import StepwellError
from stepwell.fault_points import fault
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
    Outcome,
    Release,
    Renew,
    Rest,
    Seen,
    StateBatch,
    Sweep,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.execution_row import refusal_of, unfit
from stepwell.model.ids import revision_in
from stepwell.model.limits import Limits
from stepwell.model.queue_item import ItemMark
from stepwell.model.refusals import changed_since_decision, id_taken, no_execution, no_revision
from stepwell.model.snapshot import StoredSnapshot
from stepwell.stores.sqlite.connection import Database, Statements
from stepwell.stores.sqlite.fast_path import (
    BATCH_STATEMENTS,
    FIRST,
    MOST_AT_ONCE,
    STEPS,
    batch_row,
    batch_statement,
    lease_of,
    step_row,
)
from stepwell.stores.sqlite.queue import QUEUE_UNITS, QueueWriting
from stepwell.stores.sqlite.scoped_state import SqliteEntries, SqliteLeases, SqliteLocks

__all__ = ["SqliteTransaction"]

_WRITTEN = Written()
_ALL = 2**32 - 1
_MOST_NUMBERS = 100_000


class SqliteTransaction:
    """One transaction. Every refusal comes before the unit's first lasting write."""

    def __init__(self, db: Database, sql: Mapping[str, str], now_ms: int, limits: Limits, numbers: dict[str, int]) -> None:
        self._do, self._numbers = Statements(db, sql, now_ms), numbers
        self.entries, self.leases, self.locks = SqliteEntries(self._do, limits), SqliteLeases(self._do), SqliteLocks(self._do)
        self._queue: QueueWriting | None = None

    def write_all(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write units in order. Adjacent commits to different executions are written by batch statements."""
        outcomes: list[Outcome] = [_WRITTEN] * len(units)
        together: dict[str, tuple[str, int, Commit]] = {}
        for place, unit in enumerate(units):
            statement = batch_statement(unit, self._numbers)
            # A second commit to the same execution builds on the first, which has to be written before it.
            if statement is not None and isinstance(unit, Commit) and unit.execution_id not in together:
                together[unit.execution_id] = statement, place, unit
                continue
            self._write_together(together, outcomes)
            outcomes[place] = self.write(unit)
        self._write_together(together, outcomes)
        return outcomes

    def _write_together(self, together: dict[str, tuple[str, int, Commit]], outcomes: list[Outcome]) -> None:
        for statement in BATCH_STATEMENTS:
            those = [(place, commit) for each, place, commit in together.values() if each == statement]
            for start in range(0, len(those), MOST_AT_ONCE):
                batch = those[start : start + MOST_AT_ONCE]
                # One statement writes all or none; if one commit cannot land, each is written alone to find its reason.
                if not self._write_batch(statement, [commit for _, commit in batch]):
                    for place, commit in batch:
                        outcomes[place] = self.write(commit)
        together.clear()

    def _write_batch(self, statement: str, commits: Sequence[Commit]) -> bool:
        """Write commits by one statement; return False, with nothing written, if one of them cannot land."""
        if not self._do.run_all(statement, [batch_row(statement, commit, self._numbers, self._do.now_ms) for commit in commits]):
            return False
        fault("store.commit_written")
        if statement == FIRST:
            # An execution that rests or ends with its first commit is not written to soon.
            self._learn_numbers([commit.execution_id for commit in commits if commit.rest is None])
        if self._queue is not None:
            self._queue.forget()
        return True

    def write(self, unit: Unit) -> Outcome:
        """Write one unit, or return its refusal."""
        return _WRITERS[type(unit)](self, unit)

    @property
    def queue(self) -> QueueWriting:
        """Return the queue's part of this transaction, made on demand."""
        if self._queue is None:
            self._queue = QueueWriting(self._do.db, self._do.now_ms)
        return self._queue

    def queue_unit(self, unit: Unit) -> Outcome:
        return self.queue.write(unit)

    def commit(self, commit: Commit) -> Outcome:
        if commit.items:
            return self._commit_with_items(commit)
        return self._commit_alone(commit) if commit.mark is None else self._commit_with_mark(commit, commit.mark)

    def _commit_with_items(self, commit: Commit) -> Outcome:
        """Write a commit and the items that it enqueues: all of it or nothing."""
        self._do.db.rows("SAVEPOINT items")
        added = self.queue.add(commit.items)
        refusal = next((answer for answer in added if isinstance(answer, StepwellError)), None)
        if refusal is not None:
            outcome = self._late(commit) or refusal
        else:
            outcome = self._commit_alone(commit) if commit.mark is None else self._commit_with_mark(commit, commit.mark)
        if not isinstance(outcome, Written):
            self._do.db.rows("ROLLBACK TO items")
            self.queue.forget()
        self._do.db.rows("RELEASE items")
        return outcome

    def _commit_with_mark(self, commit: Commit, mark: ItemMark) -> Outcome:
        """Write a commit and the mark of its execution's queue item."""
        # Planned before the commit is written, so that a lost claim refuses it without a rollback.
        after = self.queue.plan_mark(mark, commit.execution_id)
        if isinstance(after, StepwellError):
            return self._seen(commit) or after
        outcome = self._commit_alone(commit)
        if after is not None and isinstance(outcome, Written):
            self.queue.write_mark(after)
        return outcome

    def _commit_alone(self, commit: Commit) -> Outcome:
        resolution = self.entries.resolve(commit.ops) if commit.ops else None
        if isinstance(resolution, StepwellError):
            return self._late(commit) or resolution
        # An id that Stepwell made names its revision, so a repeated one is found by the write itself, which then fails.
        broken = self._seen(commit) if commit.is_named else None
        broken = broken or (self.locks.broken(commit.guards) if commit.guards else None)
        if broken is not None:
            return self._seen(commit) or broken
        write = self._write_creation if commit.creation is not None else self._write_ordinary
        number = write(commit)
        if number is None:
            return self._refusal(commit)
        fault("store.commit_written")
        if commit.snapshot is not None:
            self._write_snapshot(number, commit.snapshot)
        self._rest_and_nudge(number, commit.rest, commit.nudges)
        return _WRITTEN if resolution is None else self.entries.write(resolution)

    def _write_ordinary(self, commit: Commit) -> int | None:
        """Write a commit to an execution, and return the execution's number; None if the commit does not follow from the head."""
        number = self._numbers.get(commit.execution_id) or self._find_number(commit.execution_id)
        landed = self._do.run_all(STEPS, [step_row(number, commit)])
        if landed and commit.status is not None:
            self._do.run("set_status", number, commit.status)
        if landed and commit.version is not None:
            self._do.run("set_version", number, commit.version)
        return number if landed else None

    def _learn_numbers(self, execution_ids: list[str]) -> None:
        if execution_ids:
            if len(self._numbers) + len(execution_ids) > _MOST_NUMBERS:
                self._numbers.clear()
            self._numbers.update(self._do.rows("numbers", msgspec.json.encode(execution_ids).decode()))

    def _find_number(self, execution_id: str) -> int | None:
        rows = self._do.rows("head", execution_id)
        if not rows:
            return None
        if len(self._numbers) >= _MOST_NUMBERS:
            self._numbers.clear()
        # A number is never reused, so caching it is safe: at worst it finds nothing.
        self._numbers[execution_id] = rows[0][-1]
        return rows[0][-1]

    def _write_creation(self, commit: Commit) -> int | None:
        """Write the first commit of a new execution, and return the execution's number; None if the id is taken."""
        creation = commit.creation
        rows = creation and self._do.rows(
            "insert_execution",
            commit.execution_id,
            commit.workspace_id,
            creation.workflow_id,
            creation.version,
            creation.parent_id,
            commit.status or "PENDING",
            commit.revision,
            commit.digest,
            commit.signature,
            -1,
            commit.committed_ms,
            *lease_of(creation, None, self._do.now_ms),
        )
        if not rows:
            return None
        fault("store.head_written")
        number = rows[0][0]
        self._do.run("insert_commit", number, commit.revision, commit.commit_id, commit.is_named, commit.header, commit.body)
        return number

    def _rest_and_nudge(self, number: int, rest: Rest | None, nudges: Sequence[str]) -> None:
        if rest is not None:
            self._do.run("rest", number, rest.wake_ms, rest.is_final, self._do.now_ms)
            fault("lease.rested")
        self.leases.nudge(nudges)

    def _late(self, commit: Commit) -> Outcome | None:
        """Return the outcome of a commit that has landed before, whose lock or lease is lost, or whose execution exists already:
        this takes precedence over its state and items."""
        head = self._head(commit.execution_id)
        broken = self._seen(commit) or self.locks.broken(commit.guards)
        return broken or unfit(commit, head, is_taken=head is not None)

    def _refusal(self, commit: Commit) -> Outcome:
        """Return why a commit was not written."""
        seen = self._seen(commit)
        if seen is not None:
            return seen
        return refusal_of(commit, self._head(commit.execution_id))

    def _head(self, execution_id: str) -> Head | None:
        rows = self._do.rows("head", execution_id)
        return Head(*rows[0][:-1]) if rows else None

    def _seen(self, commit: Commit) -> Seen | None:
        rows = self._do.rows("head", commit.execution_id)
        if not rows:
            return None
        number, revision = rows[0][-1], revision_in(commit.commit_id)
        found = [] if revision is None else self._do.rows("commit_at", number, revision, commit.commit_id)
        found = found or self._do.rows("commit_named", number, commit.commit_id)
        return Seen(found[0][1], found[0][2]) if found else None

    def _write_snapshot(self, number: int, stored: StoredSnapshot) -> None:
        self._do.run("insert_snapshot", number, stored.revision, stored.data, stored.accumulator, stored.digest)
        fault("store.snapshot_written")

    def state_batch(self, batch: StateBatch) -> Outcome:
        resolution = self.locks.broken(batch.guards) or self.entries.resolve(batch.ops)
        if isinstance(resolution, StepwellError):
            return resolution
        self.leases.nudge(batch.nudges)
        return self.entries.write(resolution)

    def delete(self, deletion: Deletion) -> Outcome:
        rows = self._do.rows("bury_execution", deletion.execution_id, self._do.now_ms, deletion.head)
        if not rows:
            is_there = self._head(deletion.execution_id) is not None
            return (changed_since_decision if is_there else no_execution)(deletion.execution_id)
        self._do.run("delete_commits", rows[0][0], _ALL)
        self._do.run("delete_snapshots", rows[0][0], _ALL)
        self.queue.end_of(deletion.execution_id)
        return _WRITTEN

    def archive(self, archiving: Archiving) -> Outcome:
        through = archiving.snapshot.revision
        rows = self._do.rows("rebase_execution", archiving.execution_id, through)
        if not rows:
            return no_revision(archiving)
        self._do.run("archive_commits", rows[0][0], through)
        # An id that the caller chose stays, without its receipt, so that a repeated commit cannot land a second time.
        self._do.run("empty_named_commits", rows[0][0], through)
        self._do.run("delete_snapshots", rows[0][0], through)
        self._write_snapshot(rows[0][0], archiving.snapshot)
        return _WRITTEN

    def adopt(self, adoption: Adoption) -> Outcome:
        made = self._do.rows(
            "insert_execution",
            adoption.execution_id,
            adoption.workspace_id,
            adoption.creation.workflow_id,
            adoption.creation.version,
            adoption.creation.parent_id,
            adoption.status,
            adoption.snapshot.revision,
            adoption.digest,
            adoption.signature,
            adoption.snapshot.revision,
            adoption.adopted_ms,
            None,
            None,
            None,
            0,
        )
        if not made:
            return id_taken(adoption.execution_id)
        self._write_snapshot(made[0][0], adoption.snapshot)
        return _WRITTEN


_WRITERS: dict[type, Callable[[SqliteTransaction, Any], Outcome]] = {
    Commit: SqliteTransaction.commit,
    StateBatch: SqliteTransaction.state_batch,
    Claim: lambda writing, unit: writing.leases.claim(unit),
    ClaimDue: lambda writing, unit: writing.leases.claim_due(unit),
    Extension: lambda writing, unit: writing.leases.extend(unit),
    Release: lambda writing, unit: writing.leases.release(unit),
    Acquire: lambda writing, unit: writing.locks.acquire(unit),
    Renew: lambda writing, unit: writing.locks.renew(unit),
    Unlock: lambda writing, unit: writing.locks.unlock(unit),
    Deletion: SqliteTransaction.delete,
    Archiving: SqliteTransaction.archive,
    Adoption: SqliteTransaction.adopt,
    Sweep: lambda writing, unit: writing.entries.sweep(unit),
    **dict.fromkeys(QUEUE_UNITS, SqliteTransaction.queue_unit),
}
