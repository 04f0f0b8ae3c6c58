"""Writes units inside the transaction that the SQLite store has begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apsw

from stepwell.errors import AlreadyExists, Conflict, LeaseLost, LockHeld, NotFound, StepwellError
from stepwell.faults import fault
from stepwell.model.commit import (
    Acquire,
    Adoption,
    Archiving,
    Claim,
    Commit,
    Deletion,
    Extension,
    Lease,
    LockGuard,
    Outcome,
    Release,
    Renew,
    Seen,
    StateBatch,
    Sweep,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.entry import Delete, Resolution, ScopeTotals, StateOp, StoredEntry, resolve
from stepwell.model.limits import Limits
from stepwell.model.scope import Scope
from stepwell.model.snapshot import StoredSnapshot

__all__ = ["Writing"]

_WRITTEN = Written()
_ALL = 2**62


class Writing:
    """One transaction under way. Whatever can be refused is refused before the unit's first lasting write."""

    def __init__(
        self, connection: apsw.Connection, cursor: apsw.Cursor, sql: Mapping[str, str], now_ms: int, limits: Limits
    ) -> None:
        self._connection, self._cursor, self._sql = connection, cursor, sql
        self._now_ms, self._limits = now_ms, limits

    def write(self, unit: Unit) -> Outcome:
        """Write one unit, or say why not."""
        return _WRITERS[type(unit)](self, unit)

    def _run(self, name: str, *arguments: Any) -> int:
        """Run a statement and say how many rows it changed."""
        self._cursor.execute(self._sql[name], arguments)
        return self._connection.changes()

    def _rows(self, name: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self._cursor.execute(self._sql[name], arguments).fetchall()

    def commit(self, commit: Commit) -> Outcome:
        resolution = self._resolve(commit.ops) if commit.ops else None
        if isinstance(resolution, StepwellError):
            return resolution
        broken = self._broken_guard(commit.guards) if commit.guards else None
        if broken is not None:
            return self._seen(commit) or broken
        row = (commit.execution_id, commit.revision, commit.commit_id, commit.header, commit.body)
        if not self._run("insert_commit", *row):
            return self._refusal(commit)
        fault("store.commit_written")
        moved = self._move_head(commit) if commit.creation is None else self._create(commit)
        if not moved:
            self._run("delete_commit", commit.execution_id, commit.revision)
            return self._refusal(commit)
        fault("store.head_written")
        if commit.snapshot is not None:
            self._write_snapshot(commit.execution_id, commit.snapshot)
        return _WRITTEN if resolution is None else self._write_state(resolution)

    def _move_head(self, commit: Commit) -> int:
        return self._run(
            "move_head",
            commit.revision,
            commit.digest,
            commit.status,
            commit.signature,
            commit.committed_ms,
            commit.execution_id,
            commit.previous,
            commit.fence,
        )

    def _create(self, commit: Commit) -> int:
        creation = commit.creation
        assert creation is not None, "only a creation makes a new execution"  # noqa: S101
        return self._run(
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
        )

    def _refusal(self, commit: Commit) -> Outcome:
        """Why a commit was not written."""
        seen = self._seen(commit)
        if seen is not None:
            return seen
        heads = self._rows("head", commit.execution_id)
        if commit.creation is not None:
            return AlreadyExists(f"execution {commit.execution_id!r} exists already; ids are never used twice")
        if not heads:
            return NotFound(f"there is no execution {commit.execution_id!r}")
        revision, fence = heads[0][5], heads[0][7]
        if commit.fence is not None and commit.fence != fence:
            return LeaseLost(fence=commit.fence)
        return Conflict(expected=commit.revision - 1, actual=revision)

    def _seen(self, commit: Commit) -> Seen | None:
        rows = self._rows("commit_by_id", commit.execution_id, commit.commit_id)
        return Seen(rows[0][1], rows[0][2]) if rows else None

    def _broken_guard(self, guards: Sequence[LockGuard]) -> LeaseLost | None:
        for guard in guards:
            rows = self._rows("lock", guard.name)
            if not rows or rows[0][1] != guard.fence:
                return LeaseLost(f"lock {guard.name!r} was lost; nothing was written", fence=guard.fence)
        return None

    def _write_snapshot(self, execution_id: str, stored: StoredSnapshot) -> None:
        self._run("insert_snapshot", execution_id, stored.revision, stored.data, stored.accumulator, stored.digest)
        fault("store.snapshot_written")

    def state_batch(self, batch: StateBatch) -> Outcome:
        resolution = self._broken_guard(batch.guards) or self._resolve(batch.ops)
        return resolution if isinstance(resolution, StepwellError) else self._write_state(resolution)

    def _resolve(self, ops: Sequence[StateOp]) -> Resolution | StepwellError:
        return resolve(ops, self._lookup, self._totals, self._now_ms, self._limits, self._expired_in)

    def _lookup(self, scope: str, key: str) -> StoredEntry | None:
        rows = self._rows("stored_entry", scope, key)
        return StoredEntry(*rows[0][:4], bool(rows[0][4])) if rows else None

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
        if not self._rows("head", claim.execution_id):
            return NotFound(f"there is no execution {claim.execution_id!r}")
        return LockHeld(f"execution {claim.execution_id!r} is leased to another holder")

    def extend(self, unit: Extension) -> Outcome:
        until = self._now_ms + round(unit.seconds * 1000)
        if not self._run("extend", unit.execution_id, unit.holder, unit.fence, until, self._now_ms):
            return LeaseLost(fence=unit.fence)
        return Written([Lease(unit.execution_id, unit.holder, unit.fence, until)])

    def release(self, unit: Release) -> Outcome:
        done = self._run("release", unit.execution_id, unit.holder, unit.fence)
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
        if not self._run("bury_execution", deletion.execution_id, self._now_ms):
            return NotFound(f"there is no execution {deletion.execution_id!r}")
        self._run("delete_commits", deletion.execution_id, _ALL)
        self._run("delete_snapshots", deletion.execution_id, _ALL)
        return _WRITTEN

    def archive(self, archiving: Archiving) -> Outcome:
        through = archiving.snapshot.revision
        if not self._run("rebase_execution", archiving.execution_id, through):
            return NotFound(f"execution {archiving.execution_id!r} has no revision {through} to archive")
        self._run("delete_commits", archiving.execution_id, through)
        self._run("delete_snapshots", archiving.execution_id, through)
        self._write_snapshot(archiving.execution_id, archiving.snapshot)
        return _WRITTEN

    def adopt(self, adoption: Adoption) -> Outcome:
        made = self._run(
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
        )
        if not made:
            return AlreadyExists(f"execution {adoption.execution_id!r} exists already; ids are never used twice")
        self._write_snapshot(adoption.execution_id, adoption.snapshot)
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


_WRITERS: dict[type, Callable[[Writing, Any], Outcome]] = {
    Commit: Writing.commit,
    StateBatch: Writing.state_batch,
    Claim: Writing.claim,
    Extension: Writing.extend,
    Release: Writing.release,
    Acquire: Writing.acquire,
    Renew: Writing.renew,
    Unlock: Writing.unlock,
    Deletion: Writing.delete,
    Archiving: Writing.archive,
    Adoption: Writing.adopt,
    Sweep: Writing.sweep,
}
