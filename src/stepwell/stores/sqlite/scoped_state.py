"""Scoped state, leases of executions, and locks, inside a transaction of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.errors import LeaseLost, StepwellError
from stepwell.fault_points import fault
from stepwell.model.checksum import seal, unseal
from stepwell.model.commit import (
    Acquire,
    Claim,
    ClaimDue,
    Extension,
    Lease,
    LockGuard,
    Outcome,
    Release,
    Renew,
    Sweep,
    Unlock,
    Written,
)
from stepwell.model.limits import Limits
from stepwell.model.lock import LockRow, acquired, broken, lease_on, renewed, unlocked
from stepwell.model.refusals import leased, no_execution
from stepwell.model.scope import workspace_of
from stepwell.model.scoped_operations import Delete, Resolution, ScopeTotals, StateOp, StoredEntry, resolve
from stepwell.model.state_quota import Owner, StateRoom, StateSize, owners_of, room_in
from stepwell.stores.queue_rows import limits_in_row
from stepwell.stores.sqlite.connection import Statements

__all__ = [
    "SqliteEntries",
    "SqliteLeases",
    "SqliteLocks",
]


class SqliteEntries:
    """Entries of scopes, in one transaction."""

    def __init__(self, statements: Statements, limits: Limits) -> None:
        self._do, self._limits = statements, limits

    def resolve(self, ops: Sequence[StateOp]) -> Resolution | StepwellError:
        """Return the result of operations; nothing is written."""
        return resolve(ops, self._lookup, self._totals, self._do.now_ms, self._limits, self._expired_in, self._room_of)

    def write(self, resolution: Resolution) -> Outcome:
        """Write the result of operations."""
        for scope, revision in resolution.cleared.items():
            self._do.run("clear_scope", scope, revision, self._do.now_ms)
        for (scope, key), entry in resolution.entries.items():
            life = entry.expires_ms, entry.ttl_ms, int(entry.sliding)
            self._do.run("write_entry", scope, key, seal(scope, key, entry), entry.revision, *life)
            fault("store.entry_written")
        for scope, totals in resolution.totals.items():
            workspace = workspace_of(scope)
            self._do.run("write_totals", scope, workspace, totals.revision, totals.keys, totals.bytes)
            grown = resolution.grown[scope]
            for owner in owners_of(scope) if any(grown) else ():
                self._do.run("hold_state", *owner, *grown)
            fault("store.scope_written")
        return Written(resolution.answers)

    def sweep(self, sweep: Sweep) -> Outcome:
        """Drop expired entries, and tombstones and locks that are old enough."""
        oldest_ms = self._do.now_ms - sweep.tombstone_ms
        self._do.run("drop_tombstones", oldest_ms, sweep.limit)
        self._do.run("drop_expired_locks", oldest_ms, sweep.limit)
        ops = [Delete(scope, key) for scope, key in self._do.rows("expired", self._do.now_ms, sweep.limit)]
        resolution = self.resolve(ops)
        if isinstance(resolution, StepwellError):
            return resolution
        self.write(resolution)
        return Written([len(ops)])

    def _lookup(self, scope: str, key: str) -> StoredEntry | None:
        rows = self._do.rows("stored_entry", scope, key)
        if not rows:
            return None
        data, revision, expires_ms, ttl_ms, sliding = rows[0]
        return unseal(scope, key, StoredEntry(data, revision, expires_ms, ttl_ms, bool(sliding)))

    def _totals(self, scope: str) -> ScopeTotals:
        rows = self._do.rows("totals", scope)
        return ScopeTotals(*rows[0]) if rows else ScopeTotals()

    def _expired_in(self, scope: str) -> list[str]:
        return [row[0] for row in self._do.rows("expired_in_scope", scope, self._do.now_ms)]

    def _room_of(self, owner: Owner) -> StateRoom | None:
        for row in self._do.rows("state_limits", owner.workspace_id):
            return room_in(limits_in_row(row, self._do.now_ms), owner, lambda: self._held(owner))
        return None

    def _held(self, owner: Owner) -> StateSize:
        rows = self._do.rows("held_state", *owner) or self._do.rows("count_state", *owner, *owner.scope_paths)
        return StateSize(*rows[0])


class SqliteLeases:
    """Leases of executions, in one transaction."""

    def __init__(self, statements: Statements) -> None:
        self._do = statements

    def claim(self, claim: Claim) -> Outcome:
        """Lease one execution."""
        do, until = self._do, self._until(claim.seconds)
        rows = do.rows("claim", claim.execution_id, claim.holder, until, do.now_ms)
        if rows:
            return Written([Lease(claim.execution_id, claim.holder, rows[0][0], until)])
        held = do.rows("lease_end", claim.execution_id)
        return leased(claim.execution_id, held[0][0]) if held else no_execution(claim.execution_id)

    def claim_due(self, claim: ClaimDue) -> Outcome:
        """Lease due executions."""
        do, until = self._do, self._until(claim.seconds)
        names = msgspec.json.encode(list(claim.newest().items())).decode()
        rows = do.rows("claim_due", names, claim.holder, until, do.now_ms, claim.limit)
        if rows:
            fault("lease.claimed")
        return Written([Lease(execution_id, claim.holder, fence, until) for execution_id, fence in rows])

    def extend(self, unit: Extension) -> Outcome:
        """Prolong a lease."""
        do, until = self._do, self._until(unit.seconds)
        if not do.run("extend", unit.execution_id, unit.holder, unit.fence, until, do.now_ms):
            return LeaseLost(fence=unit.fence)
        return Written([Lease(unit.execution_id, unit.holder, unit.fence, until)])

    def release(self, unit: Release) -> Outcome:
        """End a lease."""
        done = self._do.run("release", unit.execution_id, unit.holder, unit.fence, self._do.now_ms)
        return Written() if done else LeaseLost(fence=unit.fence)

    def nudge(self, execution_ids: Sequence[str]) -> None:
        """Make resting executions due."""
        for execution_id in execution_ids:
            self._do.run("nudge", execution_id, self._do.now_ms)
            fault("lease.nudged")

    def _until(self, seconds: float) -> int:
        return self._do.now_ms + round(seconds * 1000)


class SqliteLocks:
    """Locks, in one transaction."""

    def __init__(self, statements: Statements) -> None:
        self._do = statements

    def broken(self, guards: Sequence[LockGuard]) -> LeaseLost | None:
        """Return the first guarded lock that the writer has lost."""
        return broken(guards, self._row)

    def acquire(self, unit: Acquire) -> Outcome:
        """Grant a lock that is free."""
        return self._put(unit.name, acquired(self._row(unit.name), unit, self._do.now_ms, self._next_fence))

    def renew(self, unit: Renew) -> Outcome:
        """Prolong a lock."""
        return self._put(unit.name, renewed(self._row(unit.name), unit, self._do.now_ms))

    def unlock(self, unit: Unlock) -> Outcome:
        """Release a lock."""
        row = unlocked(self._row(unit.name), unit, self._do.now_ms)
        if isinstance(row, LeaseLost):
            return row
        if row is None:
            self._do.run("drop_lock", unit.name)
        else:
            self._put(unit.name, row)
        return Written()

    def _put(self, name: str, row: LockRow | StepwellError) -> Outcome:
        if isinstance(row, StepwellError):
            return row
        self._do.run("write_lock", name, row.holder, row.fence, row.acquired_ms, row.until_ms)
        return Written([lease_on(name, row)])

    def _row(self, name: str) -> LockRow | None:
        rows = self._do.rows("lock", name)
        return LockRow(*rows[0]) if rows else None

    def _next_fence(self) -> int:
        return self._do.rows("next_fence")[0][0]
