"""Leases of executions, and locks, in a transaction of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.errors import LeaseLost, StepwellError
from stepwell.fault_points import fault
from stepwell.model.commit import Acquire, Claim, ClaimDue, Extension, Lease, LockGuard, Outcome, Release, Renew, Unlock, Written
from stepwell.model.lock import LockRow, acquired, broken, lease_on, renewed, unlocked
from stepwell.model.refusals import leased, no_execution
from stepwell.stores.sqlite.statements import Statements

__all__ = ["SqliteLeases", "SqliteLocks"]


class SqliteLeases:
    """Who runs which execution."""

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
        """Lease those that are due."""
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
        """Give a lease back."""
        done = self._do.run("release", unit.execution_id, unit.holder, unit.fence, self._do.now_ms)
        return Written() if done else LeaseLost(fence=unit.fence)

    def nudge(self, execution_ids: Sequence[str]) -> None:
        """Have executions looked at."""
        for execution_id in execution_ids:
            self._do.run("nudge", execution_id, self._do.now_ms)
            fault("lease.nudged")

    def _until(self, seconds: float) -> int:
        return self._do.now_ms + round(seconds * 1000)


class SqliteLocks:
    """Who holds which lock."""

    def __init__(self, statements: Statements) -> None:
        self._do = statements

    def broken(self, guards: Sequence[LockGuard]) -> LeaseLost | None:
        """The first lock that a writer believes it holds and has lost."""
        return broken(guards, self._row)

    def acquire(self, unit: Acquire) -> Outcome:
        """Grant a lock that is free."""
        return self._put(unit.name, acquired(self._row(unit.name), unit, self._do.now_ms, self._next_fence))

    def renew(self, unit: Renew) -> Outcome:
        """Prolong a lock."""
        return self._put(unit.name, renewed(self._row(unit.name), unit, self._do.now_ms))

    def unlock(self, unit: Unlock) -> Outcome:
        """Give a lock back."""
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
