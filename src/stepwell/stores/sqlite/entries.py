"""Scoped state in a transaction of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.errors import StepwellError
from stepwell.fault_points import fault
from stepwell.model.checksum import seal, unseal
from stepwell.model.commit import Outcome, Sweep, Written
from stepwell.model.limits import Limits
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Delete, Resolution, ScopeTotals, StateOp, StoredEntry, resolve
from stepwell.model.state_quota import StateRoom
from stepwell.stores.sqlite.statements import Statements

__all__ = ["SqliteEntries"]


class SqliteEntries:
    """What is in which scope."""

    def __init__(self, statements: Statements, limits: Limits) -> None:
        self._do, self._limits = statements, limits

    def resolve(self, ops: Sequence[StateOp]) -> Resolution | StepwellError:
        """What operations come to; nothing is written."""
        return resolve(ops, self._lookup, self._totals, self._do.now_ms, self._limits, self._expired_in, self._room_of)

    def write(self, resolution: Resolution) -> Outcome:
        """Write what operations came to."""
        for scope, revision in resolution.cleared.items():
            self._do.run("clear_scope", scope, revision, self._do.now_ms)
        for (scope, key), entry in resolution.entries.items():
            life = entry.expires_ms, entry.ttl_ms, int(entry.sliding)
            self._do.run("write_entry", scope, key, seal(scope, key, entry), entry.revision, *life)
            fault("store.entry_written")
        for scope, totals in resolution.totals.items():
            workspace = Scope.parse(scope).workspace
            self._do.run("write_totals", scope, workspace, totals.revision, totals.keys, totals.bytes)
            fault("store.scope_written")
        return Written(resolution.answers)

    def sweep(self, sweep: Sweep) -> Outcome:
        """Drop what has expired, and tombstones and locks that are older than they need to be."""
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

    def _room_of(self, workspace_id: str) -> StateRoom | None:
        for maximum, held in self._do.rows("state_room", workspace_id):
            return StateRoom(maximum, self._do.rows("count_state", workspace_id)[0][0] if held is None else held)
        return None
