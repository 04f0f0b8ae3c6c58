"""Writes units inside the transaction that the SQLite store has begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from stepwell.errors import AlreadyExists, Conflict, LeaseLost, LockHeld, NotFound, StepwellError
from stepwell.faults import fault, is_armed
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
    LockGuard,
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
from stepwell.model.entry import Delete, Resolution, ScopeTotals, StateOp, StoredEntry, resolve
from stepwell.model.ids import revision_in
from stepwell.model.limits import Limits
from stepwell.model.queue import ItemMark
from stepwell.model.scope import Scope
from stepwell.model.snapshot import StoredSnapshot
from stepwell.stores.sqlite.batch import FIRST, LAST, PLAIN, arguments_of, kind_of, lease_of
from stepwell.stores.sqlite.connection import Database
from stepwell.stores.sqlite.queue import QUEUE_UNITS, QueueWriting

__all__ = ["Writing", "commit_row"]

_WRITTEN = Written()
_ALL = 2**32 - 1
_MOST_NUMBERS = 100_000


class Writing:
    """One transaction under way. Whatever can be refused is refused before the unit's first lasting write."""

    def __init__(self, db: Database, sql: Mapping[str, str], now_ms: int, limits: Limits, numbers: dict[str, int]) -> None:
        self._db, self._sql, self._now_ms, self._limits = db, sql, now_ms, limits
        self._numbers = numbers
        self.tips: dict[str, str | None] = {}
        """The executions written to, with their new newest receipts."""
        self.took_back = False
        """Whether part of what was written was taken back."""
        self._queue: QueueWriting | None = None

    def write_all(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write units in order; commits that can be written many at a time are, unless a test listens at every point."""
        outcomes: list[Outcome] = [_WRITTEN] * len(units)
        gathered: dict[str, tuple[str, int, Commit]] = {}
        for place, unit in enumerate(units):
            kind = None if is_armed() else kind_of(unit, self._numbers)
            if kind is not None and isinstance(unit, Commit) and unit.execution_id not in gathered:
                gathered[unit.execution_id] = kind, place, unit
                continue
            self._write_gathered(gathered, outcomes)
            outcomes[place] = self.write(unit)
        self._write_gathered(gathered, outcomes)
        return outcomes

    def _write_gathered(self, gathered: dict[str, tuple[str, int, Commit]], outcomes: list[Outcome]) -> None:
        for kind in (PLAIN, FIRST, LAST):
            those = [(place, commit) for each, place, commit in gathered.values() if each == kind]
            if len(those) > 1 and self.write_many(kind, [commit for _, commit in those]):
                continue
            for place, commit in those:
                outcomes[place] = self.write(commit)
        gathered.clear()

    def write(self, unit: Unit) -> Outcome:
        """Write one unit, or say why not."""
        return _WRITERS[type(unit)](self, unit)

    def _run(self, name: str, *arguments: object) -> int:
        """Run a statement and say how many rows it changed."""
        return self._db.run(self._sql[name], *arguments)

    def _rows(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        return self._db.rows(self._sql[name], *arguments)

    @property
    def queue(self) -> QueueWriting:
        """The queue's part of this transaction, made when something first asks for it."""
        if self._queue is None:
            self._queue = QueueWriting(self._db, self._now_ms)
        return self._queue

    def queue_unit(self, unit: Unit) -> Outcome:
        return self.queue.write(unit)

    def commit(self, commit: Commit) -> Outcome:
        if commit.items:
            return self._commit_with_items(commit)
        return self._commit_alone(commit) if commit.mark is None else self._commit_with_mark(commit, commit.mark)

    def _commit_with_items(self, commit: Commit) -> Outcome:
        """A commit and the items that it enqueues: if any of them is refused, nothing of it stays."""
        self._db.rows("SAVEPOINT items")
        added = self.queue.add(commit.items)
        refusal = next((answer for answer in added if isinstance(answer, StepwellError)), None)
        if refusal is not None:
            outcome = self._seen(commit) or refusal
        else:
            outcome = self._commit_alone(commit) if commit.mark is None else self._commit_with_mark(commit, commit.mark)
        if not isinstance(outcome, Written):
            self._db.rows("ROLLBACK TO items")
            self.took_back = True
            self.queue.forget()
        self._db.rows("RELEASE items")
        return outcome

    def _commit_with_mark(self, commit: Commit, mark: ItemMark) -> Outcome:
        """A commit and what becomes of the item that its execution came from."""
        after = self.queue.plan_mark(mark, commit.execution_id)
        if isinstance(after, StepwellError):
            return self._seen(commit) or after
        outcome = self._commit_alone(commit)
        if after is not None and isinstance(outcome, Written):
            self.queue.write_mark(after)
        return outcome

    def _commit_alone(self, commit: Commit) -> Outcome:
        resolution = self._resolve(commit.ops) if commit.ops else None
        if isinstance(resolution, StepwellError):
            return self._seen(commit) or resolution  # a retry meets its own first writes
        broken = self._seen(commit) if commit.is_named else None
        broken = broken or (self._broken_guard(commit.guards) if commit.guards else None)
        if broken is not None:
            return self._seen(commit) or broken
        write = self._write_creation if commit.creation is not None else self._write_ordinary
        number = write(commit)
        if number is None:
            return self._refusal(commit)
        fault("store.commit_written")
        self.tips[commit.execution_id] = commit.digest
        if commit.snapshot is not None:
            self._write_snapshot(number, commit.snapshot)
        self._rest_and_nudge(number, commit.rest, commit.nudges)
        return _WRITTEN if resolution is None else self._write_state(resolution)

    def _write_ordinary(self, commit: Commit) -> int | None:
        """Write a commit to an execution, and give its number; None if the commit does not follow from the head."""
        number = self._numbers.get(commit.execution_id) or self._find_number(commit.execution_id)
        landed = self._db.run_view(self._sql["commit"], *commit_row(number, commit))
        if landed and commit.status is not None:
            self._run("set_status", number, commit.status)
        return number if landed else None

    def write_many(self, kind: str, commits: Sequence[Commit]) -> bool:
        """Write commits of one kind by one statement; False, and nothing written, if one of them cannot land."""
        if not self._db.run_all(self._sql[kind], *arguments_of(kind, commits, self._numbers, self._now_ms)):
            self.took_back = True
            return False
        if kind == FIRST:
            self._learn_numbers([commit.execution_id for commit in commits if commit.rest is None])
        if self._queue is not None:
            self._queue.forget()
        for commit in commits:
            fault("store.commit_written")
            self.tips[commit.execution_id] = commit.digest
        return True

    def _learn_numbers(self, execution_ids: list[str]) -> None:
        if execution_ids:
            if len(self._numbers) + len(execution_ids) > _MOST_NUMBERS:
                self._numbers.clear()
            self._numbers.update(self._rows("numbers", msgspec.json.encode(execution_ids).decode()))

    def _find_number(self, execution_id: str) -> int | None:
        rows = self._rows("head", execution_id)
        if not rows:
            return None
        if len(self._numbers) >= _MOST_NUMBERS:
            self._numbers.clear()
        # A number is never used twice, so remembering it is safe: at worst it finds nothing.
        self._numbers[execution_id] = rows[0][-1]
        return rows[0][-1]

    def _write_creation(self, commit: Commit) -> int | None:
        """Write the first commit of a new execution, and give its number; None if the id is taken."""
        creation = commit.creation
        rows = creation and self._rows(
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
            *lease_of(creation, None, self._now_ms),
        )
        if not rows:
            return None
        fault("store.head_written")
        number = rows[0][0]
        self._run("insert_commit", number, commit.revision, commit.commit_id, commit.is_named, commit.header, commit.body)
        return number

    def _rest_and_nudge(self, number: int, rest: Rest | None, nudges: Sequence[str]) -> None:
        if rest is not None:
            self._run("rest", number, rest.wake_ms, rest.is_final, self._now_ms)
            fault("lease.rested")
        self._nudge(nudges)

    def _nudge(self, execution_ids: Sequence[str]) -> None:
        for execution_id in execution_ids:
            self._run("nudge", execution_id, self._now_ms)
            fault("lease.nudged")

    def _refusal(self, commit: Commit) -> Outcome:
        """Why a commit was not written."""
        seen = self._seen(commit)
        if seen is not None:
            return seen
        if commit.creation is not None:
            return AlreadyExists(f"execution {commit.execution_id!r} exists already; ids are never used twice")
        head = self._head(commit.execution_id)
        if head is None:
            return NotFound(f"there is no execution {commit.execution_id!r}")
        if commit.fence is not None and commit.fence != head.fence:
            return LeaseLost(fence=commit.fence)
        return Conflict(expected=commit.revision - 1, actual=head.revision)

    def _head(self, execution_id: str) -> Head | None:
        rows = self._rows("head", execution_id)
        return Head(*rows[0][:-1]) if rows else None

    def _seen(self, commit: Commit) -> Seen | None:
        rows = self._rows("head", commit.execution_id)
        if not rows:
            return None
        number, revision = rows[0][-1], revision_in(commit.commit_id)
        found = [] if revision is None else self._rows("commit_at", number, revision, commit.commit_id)
        found = found or self._rows("commit_named", number, commit.commit_id)
        return Seen(found[0][1], found[0][2]) if found else None

    def _broken_guard(self, guards: Sequence[LockGuard]) -> LeaseLost | None:
        for guard in guards:
            rows = self._rows("lock", guard.name)
            if not rows or rows[0][1] != guard.fence:
                return LeaseLost(f"lock {guard.name!r} was lost; nothing was written", fence=guard.fence)
        return None

    def _write_snapshot(self, number: int, stored: StoredSnapshot) -> None:
        self._run("insert_snapshot", number, stored.revision, stored.data, stored.accumulator, stored.digest)
        fault("store.snapshot_written")

    def state_batch(self, batch: StateBatch) -> Outcome:
        resolution = self._broken_guard(batch.guards) or self._resolve(batch.ops)
        if isinstance(resolution, StepwellError):
            return resolution
        self._nudge(batch.nudges)
        return self._write_state(resolution)

    def _resolve(self, ops: Sequence[StateOp]) -> Resolution | StepwellError:
        return resolve(ops, self._lookup, self._totals, self._now_ms, self._limits, self._expired_in)

    def _lookup(self, scope: str, key: str) -> StoredEntry | None:
        rows = self._rows("stored_entry", scope, key)
        return None if not rows else StoredEntry(rows[0][0], rows[0][1], rows[0][2], rows[0][3], bool(rows[0][4]))

    def _totals(self, scope: str) -> ScopeTotals:
        rows = self._rows("totals", scope)
        return ScopeTotals(*rows[0]) if rows else ScopeTotals()

    def _expired_in(self, scope: str) -> list[str]:
        return [row[0] for row in self._rows("expired_in_scope", scope, self._now_ms)]

    def _write_state(self, resolution: Resolution) -> Outcome:
        for scope, revision in resolution.cleared.items():
            self._run("clear_scope", scope, revision, self._now_ms)
        for (scope, key), entry in resolution.entries.items():
            self._run(
                "write_entry",
                scope,
                key,
                entry.data,
                entry.revision,
                entry.expires_ms,
                entry.ttl_ms,
                int(entry.sliding),
            )
            fault("store.entry_written")
        for scope, totals in resolution.totals.items():
            workspace = Scope.parse(scope).workspace
            self._run("write_totals", scope, workspace, totals.revision, totals.keys, totals.bytes)
            fault("store.scope_written")
        return Written(resolution.answers)

    def claim(self, claim: Claim) -> Outcome:
        until = self._now_ms + round(claim.seconds * 1000)
        rows = self._rows("claim", claim.execution_id, claim.holder, until, self._now_ms)
        if rows:
            return Written([Lease(claim.execution_id, claim.holder, rows[0][0], until)])
        if self._head(claim.execution_id) is None:
            return NotFound(f"there is no execution {claim.execution_id!r}")
        return LockHeld(f"execution {claim.execution_id!r} is leased to another holder")

    def claim_due(self, claim: ClaimDue) -> Outcome:
        until = self._now_ms + round(claim.seconds * 1000)
        names = msgspec.json.encode(list(claim.newest().items())).decode()
        rows = self._rows("claim_due", names, claim.holder, until, self._now_ms, claim.limit)
        if rows:
            fault("lease.claimed")
        return Written([Lease(execution_id, claim.holder, fence, until) for execution_id, fence in rows])

    def extend(self, unit: Extension) -> Outcome:
        until = self._now_ms + round(unit.seconds * 1000)
        if not self._run("extend", unit.execution_id, unit.holder, unit.fence, until, self._now_ms):
            return LeaseLost(fence=unit.fence)
        return Written([Lease(unit.execution_id, unit.holder, unit.fence, until)])

    def release(self, unit: Release) -> Outcome:
        done = self._run("release", unit.execution_id, unit.holder, unit.fence, self._now_ms)
        return _WRITTEN if done else LeaseLost(fence=unit.fence)

    def acquire(self, unit: Acquire) -> Outcome:
        now, until = self._now_ms, self._now_ms + round(unit.seconds * 1000)
        rows = self._rows("lock", unit.name)
        holder, fence, acquired_ms, held_until_ms = rows[0] if rows else ("", 0, now, 0)
        if held_until_ms > now and holder != unit.holder:
            return LockHeld(f"lock {unit.name!r} is held by another", until_ms=held_until_ms)
        if held_until_ms <= now:
            fence, acquired_ms = self._rows("next_fence")[0][0], now
        self._run("write_lock", unit.name, unit.holder, fence, acquired_ms, until)
        return Written([Lease(unit.name, unit.holder, fence, until)])

    def renew(self, unit: Renew) -> Outcome:
        until = self._now_ms + round(unit.seconds * 1000)
        if not self._run("renew_lock", unit.name, unit.holder, unit.fence, until, self._now_ms):
            return LeaseLost(f"lock {unit.name!r} expired or was taken by another", fence=unit.fence)
        return Written([Lease(unit.name, unit.holder, unit.fence, until)])

    def unlock(self, unit: Unlock) -> Outcome:
        rows = self._rows("lock", unit.name)
        if not rows or rows[0][:2] != (unit.holder, unit.fence) or rows[0][3] <= self._now_ms:
            return LeaseLost(f"lock {unit.name!r} expired or was taken by another", fence=unit.fence)
        until = rows[0][2] + round(unit.at_least_seconds * 1000)
        if until > self._now_ms:
            self._run("write_lock", unit.name, "", unit.fence, rows[0][2], until)
        else:
            self._run("drop_lock", unit.name)
        return _WRITTEN

    def delete(self, deletion: Deletion) -> Outcome:
        rows = self._rows("bury_execution", deletion.execution_id, self._now_ms)
        if not rows:
            return NotFound(f"there is no execution {deletion.execution_id!r}")
        self.tips[deletion.execution_id] = None
        self._run("delete_commits", rows[0][0], _ALL)
        self._run("delete_snapshots", rows[0][0], _ALL)
        self.queue.end_of(deletion.execution_id)
        return _WRITTEN

    def archive(self, archiving: Archiving) -> Outcome:
        through = archiving.snapshot.revision
        rows = self._rows("rebase_execution", archiving.execution_id, through)
        if not rows:
            return NotFound(f"execution {archiving.execution_id!r} has no revision {through} to archive")
        self._run("delete_commits", rows[0][0], through)
        self._run("delete_snapshots", rows[0][0], through)
        self._write_snapshot(rows[0][0], archiving.snapshot)
        return _WRITTEN

    def adopt(self, adoption: Adoption) -> Outcome:
        made = self._rows(
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
        )
        if not made:
            return AlreadyExists(f"execution {adoption.execution_id!r} exists already; ids are never used twice")
        self._write_snapshot(made[0][0], adoption.snapshot)
        return _WRITTEN

    def sweep(self, sweep: Sweep) -> Outcome:
        self._run("drop_tombstones", self._now_ms - sweep.tombstone_ms, sweep.limit)
        self._run("drop_expired_locks", self._now_ms - sweep.tombstone_ms, sweep.limit)
        ops = [Delete(scope, key) for scope, key in self._rows("expired", self._now_ms, sweep.limit)]
        resolution = self._resolve(ops)
        if isinstance(resolution, StepwellError):
            return resolution
        self._write_state(resolution)
        return Written([len(ops)])


def commit_row(number: int | None, commit: Commit) -> tuple[object, ...]:
    """The arguments of the statement ``commit``."""
    return (
        number,
        commit.revision,
        commit.previous,
        commit.fence,
        commit.digest,
        commit.signature,
        commit.committed_ms,
        commit.commit_id,
        commit.is_named,
        commit.header,
        commit.body,
    )


_WRITERS: dict[type, Callable[[Writing, Any], Outcome]] = {
    Commit: Writing.commit,
    StateBatch: Writing.state_batch,
    Claim: Writing.claim,
    ClaimDue: Writing.claim_due,
    Extension: Writing.extend,
    Release: Writing.release,
    Acquire: Writing.acquire,
    Renew: Writing.renew,
    Unlock: Writing.unlock,
    Deletion: Writing.delete,
    Archiving: Writing.archive,
    Adoption: Writing.adopt,
    Sweep: Writing.sweep,
    **dict.fromkeys(QUEUE_UNITS, Writing.queue_unit),
}
