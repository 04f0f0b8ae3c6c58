"""Scoped state and locks in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stepwell.clock import Clock
from stepwell.errors import LeaseLost, StepwellError
from stepwell.fault_points import fault
from stepwell.model.commit import Acquire, LockGuard, Outcome, Renew, Sweep, Unlock, Written
from stepwell.model.limits import Limits
from stepwell.model.lock import LockRow, acquired, broken, lease_on, renewed, unlocked
from stepwell.model.queue_item import Tier
from stepwell.model.scope import workspace_of
from stepwell.model.scoped_operations import Delete, Resolution, ScopeTotals, StateOp, StoredEntry, alive, resolve
from stepwell.model.state_quota import Owner, StateRoom, StateSize, owners_of, room_in
from stepwell.stores.memory.undo import UndoLog

__all__ = [
    "MemoryEntries",
    "MemoryLocks",
]


class MemoryEntries:
    """State of all scopes of a store. Callers hold the store's lock."""

    def __init__(self, clock: Clock, limits: Limits, tier_of: Callable[[str], Tier | None]) -> None:
        self._clock, self._limits, self._tier_of = clock, limits, tier_of
        self.rows: dict[str, dict[str, StoredEntry]] = {}
        self._totals: dict[str, ScopeTotals] = {}
        self._held: dict[Owner, StateSize] = {}

    # Writing.

    def resolve(self, ops: Sequence[StateOp]) -> Resolution | StepwellError:
        """Return the result of operations, or their refusal."""
        return resolve(ops, self._stored, self.totals, self._clock.now_ms(), self._limits, self._expired, self._room_of)

    def _room_of(self, owner: Owner) -> StateRoom | None:
        tier = self._tier_of(owner.workspace_id)
        return None if tier is None else room_in(tier, owner, lambda: self._held.get(owner, StateSize()))

    def write(self, resolution: Resolution, undo: UndoLog) -> Outcome:
        """Write the result of operations."""
        for scope, revision in resolution.cleared.items():
            rows = self.rows.get(scope, {})
            tomb = StoredEntry(None, revision, resolution.now_ms)
            undo.put(self.rows, scope, {key: tomb if row.data is not None else row for key, row in rows.items()})
        for (scope, key), entry in resolution.entries.items():
            if scope not in self.rows:
                undo.put(self.rows, scope, dict[str, StoredEntry]())
            undo.put(self.rows[scope], key, entry)
            fault("store.entry_written")
        for scope, totals in resolution.totals.items():
            undo.put(self._totals, scope, totals)
            for owner in owners_of(scope):
                undo.put(self._held, owner, self._held.get(owner, StateSize()).plus(resolution.grown[scope]))
            fault("store.scope_written")
        return Written(resolution.answers)

    def sweep(self, sweep: Sweep, undo: UndoLog) -> Outcome:
        """Drop old tombstones, and turn expired entries into new ones."""
        oldest = self._clock.now_ms() - sweep.tombstone_ms
        for rows in self.rows.values():
            dead = [key for key, row in rows.items() if row.data is None and (row.expires_ms or 0) <= oldest]
            for key in dead[: sweep.limit]:
                undo.drop(rows, key)
        ops = [Delete(scope, key) for scope in self.rows for key in self._expired(scope)][: sweep.limit]
        resolution = self.resolve(ops)
        if isinstance(resolution, StepwellError):
            return resolution
        self.write(resolution, undo)
        return Written([len(ops)])

    def _stored(self, scope: str, key: str) -> StoredEntry | None:
        return self.rows.get(scope, {}).get(key)

    def _expired(self, scope: str) -> list[str]:
        now, rows = self._clock.now_ms(), self.rows.get(scope, {})
        return [key for key, row in rows.items() if row.data is not None and alive(row, now) is None]

    # Reading.

    def take(self, other: MemoryEntries) -> None:
        """Take the rows of another store as they are now."""
        self.rows.update((scope, dict(rows)) for scope, rows in other.rows.items())
        self._totals.update(other._totals)
        self._held.update(other._held)

    def entries(self, scope: str, keys: Sequence[str]) -> dict[str, StoredEntry]:
        """Return the live entries of some keys."""
        rows, now = self.rows.get(scope, {}), self._clock.now_ms()
        found = ((key, alive(rows.get(key), now)) for key in keys)
        return {key: row for key, row in found if row is not None}

    def scan(self, scope: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, StoredEntry]]:
        """Return keys of a scope in order."""
        rows, now = self.rows.get(scope, {}), self._clock.now_ms()
        keys = sorted(key for key in rows if key.startswith(prefix) and (after is None or key > after))
        live = ((key, alive(rows[key], now)) for key in keys)
        return [(key, row) for key, row in live if row is not None][:limit]

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        """Return entries that were written since a revision, with tombstones."""
        rows = [(key, row) for key, row in self.rows.get(scope, {}).items() if row.revision > after]
        return sorted(rows, key=lambda pair: (pair[1].revision, pair[0]))

    def totals(self, scope: str) -> ScopeTotals:
        """Return a scope's revision, number of keys and bytes."""
        return self._totals.get(scope) or ScopeTotals()

    def scopes(self, workspace_id: str | None) -> Iterator[str]:
        """Return the scopes with any keys."""
        paths = sorted(path for path, totals in self._totals.items() if totals.keys)
        return (path for path in paths if workspace_id is None or workspace_of(path) == workspace_id)


class MemoryLocks:
    """All locks of a store. Callers hold the store's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, LockRow] = {}
        self.fences = 0

    def broken(self, guards: Sequence[LockGuard]) -> LeaseLost | None:
        """Return the first guarded lock that the writer has lost."""
        return broken(guards, self._held.get)

    def write(self, unit: Acquire | Renew | Unlock, undo: UndoLog) -> Outcome:
        """Write one unit, or return its refusal."""
        match unit:
            case Acquire():
                return self._acquire(unit, undo)
            case Renew():
                return self._renew(unit, undo)
            case Unlock():
                return self._unlock(unit, undo)

    def _acquire(self, unit: Acquire, undo: UndoLog) -> Outcome:
        def next_fence() -> int:
            undo.set(self, "fences", self.fences + 1)
            return self.fences

        return self._put(unit.name, acquired(self._held.get(unit.name), unit, self._clock.now_ms(), next_fence), undo)

    def _renew(self, unit: Renew, undo: UndoLog) -> Outcome:
        return self._put(unit.name, renewed(self._held.get(unit.name), unit, self._clock.now_ms()), undo)

    def _unlock(self, unit: Unlock, undo: UndoLog) -> Outcome:
        row = unlocked(self._held.get(unit.name), unit, self._clock.now_ms())
        if isinstance(row, StepwellError):
            return row
        if row is None:
            undo.drop(self._held, unit.name)
        else:
            undo.put(self._held, unit.name, row)
        return Written()

    def drop_expired(self, oldest_ms: int, limit: int, undo: UndoLog) -> None:
        """Forget locks that ended before a time."""
        for name in [name for name, row in self._held.items() if row.until_ms <= oldest_ms][:limit]:
            undo.drop(self._held, name)

    def _put(self, name: str, row: LockRow | StepwellError, undo: UndoLog) -> Outcome:
        if isinstance(row, StepwellError):
            return row
        undo.put(self._held, name, row)
        return Written([lease_on(name, row)])
