"""The rows that a group of units touches: their footprint, and the locked rows as the units so far leave them.

A group on the general path is written in three phases. Its footprint (ids, names, keys) follows from the units alone. The rows
of the footprint are locked and read in one round trip. Every unit is then decided in memory, in order, on what the units before it
leave, and a second round trip writes what changed. So a group takes two round trips, whatever is in it and however large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

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
    LockGuard,
    Release,
    Renew,
    StateBatch,
    StoredCommit,
    Sweep,
    Unit,
    Unlock,
)
from stepwell.model.ids import revision_in
from stepwell.model.lock import LockRow
from stepwell.model.scoped_operations import Clear, Copy, Resolution, ScopeTotals, StateOp, StoredEntry, alive
from stepwell.model.snapshot import StoredSnapshot
from stepwell.model.state_quota import Owner, StateRoom, StateSize, owners_of
from stepwell.stores.postgres.locked_items import ItemFootprint, LockedItems

__all__ = ["Footprint", "LockedRows", "footprint"]

_ALL = 2**62


class Footprint:
    """The rows that a group may read or write."""

    def __init__(self) -> None:
        self.executions: set[str] = set()
        self.commits: list[Commit] = []
        self.locks: set[str] = set()
        self.acquired: set[str] = set()
        self.keys: set[tuple[str, str]] = set()
        self.scopes: set[str] = set()
        self.cleared: set[str] = set()
        self.sweeps: list[Sweep] = []
        self.claims: list[ClaimDue] = []
        self.queue = ItemFootprint()

    def add(self, unit: Unit) -> None:
        """Add what one unit touches."""
        self.queue.add(unit)
        match unit:
            case Commit():
                self.executions.add(unit.execution_id)
                self.commits.append(unit)
                self.executions.update(unit.nudges)
                self._add_state(unit.ops, unit.guards)
            case StateBatch():
                self.executions.update(unit.nudges)
                self._add_state(unit.ops, unit.guards)
            case ClaimDue():
                self.claims.append(unit)
            case Deletion() | Archiving() | Adoption() | Claim() | Extension() | Release():
                self.executions.add(unit.execution_id)
            case Acquire() | Renew() | Unlock():
                self.locks.add(unit.name)
                if isinstance(unit, Acquire):
                    self.acquired.add(unit.name)
            case Sweep():
                self.sweeps.append(unit)
            case _:
                return

    def add_keys(self, keys: Iterable[tuple[str, str]]) -> None:
        """Add keys that were found expired."""
        for scope, key in keys:
            self.scopes.add(scope)
            self.keys.add((scope, key))

    def _add_state(self, ops: Sequence[StateOp], guards: Sequence[LockGuard]) -> None:
        self.locks.update(guard.name for guard in guards)
        for op in ops:
            self.scopes.add(op.scope)
            if isinstance(op, Clear):
                self.cleared.add(op.scope)
            else:
                self.keys.add((op.scope, op.key))
            if isinstance(op, Copy):
                self.scopes.add(op.to_scope)
                self.keys.add((op.to_scope, op.to_key))


def footprint(units: Iterable[Unit]) -> Footprint:
    """Return what these units touch."""
    found = Footprint()
    for unit in units:
        found.add(unit)
    return found


class LockedRows:
    """The rows of a footprint, and which of them the units so far have changed."""

    def __init__(
        self,
        now_ms: int,
        fetch_entry: Callable[[str, str], StoredEntry | None],
        fetch_expired: Callable[[str], list[str]],
    ) -> None:
        """Hold the rows of a footprint.

        ``fetch_entry`` reads an entry, and ``fetch_expired`` the expired keys of a scope, that the footprint did not name.
        """
        self.now_ms, self._fetch_entry, self._fetch_expired = now_ms, fetch_entry, fetch_expired
        self.heads: dict[str, Head] = {}
        self.deleted: dict[str, Head] = {}
        self.nudged: set[str] = set()
        self.seen: dict[tuple[str, str], StoredCommit] = {}
        self.fences: list[int] = []
        self.swept: list[tuple[str, str]] = []
        self.locks: dict[str, LockRow] = {}
        self.totals: dict[str, ScopeTotals] = {}
        self.rooms: dict[Owner, StateRoom] = {}
        self.entries: dict[tuple[str, str], StoredEntry | None] = {}

        self.created: set[str] = set()
        self.changed_heads: set[str] = set()
        self.new_commits: list[Commit] = []
        self.new_snapshots: dict[tuple[str, int], StoredSnapshot] = {}
        self.dropped_history: dict[str, int] = {}
        self.changed_locks: set[str] = set()
        self.dropped_locks: set[str] = set()
        self.cleared: dict[str, int] = {}
        self.changed_entries: set[tuple[str, str]] = set()
        self.changed_totals: set[str] = set()
        self.grown: dict[Owner, StateSize] = {}
        self.sweeps: list[Sweep] = []
        self.topics: set[str] = set()
        self.queue = LockedItems(now_ms, self.topics)

    def has_changes(self) -> bool:
        """Return whether there is anything to write."""
        changed = (self.created, self.changed_heads, self.new_commits, self.new_snapshots, self.dropped_history, self.sweeps)
        state = (self.changed_locks, self.dropped_locks, self.cleared, self.changed_entries, self.changed_totals)
        return any(changed) or any(state) or self.queue.has_changes()

    def is_taken(self, execution_id: str) -> bool:
        """Return whether an execution id was ever used."""
        return execution_id in self.heads or execution_id in self.deleted

    def create(self, head: Head) -> None:
        """Add an execution."""
        self.heads[head.execution_id] = head
        self.created.add(head.execution_id)

    def move(self, head: Head) -> None:
        """Change an execution's row."""
        self.heads[head.execution_id] = head
        self.changed_heads.add(head.execution_id)

    def add_commit(self, commit: Commit) -> None:
        """Add a commit, with its snapshot if it has one."""
        self.new_commits.append(commit)
        # A repeated commit later in this group has to find it, too.
        self.seen[commit.execution_id, commit.commit_id] = StoredCommit(commit.revision, commit.header, commit.body)
        if commit.snapshot is not None:
            self.add_snapshot(commit.execution_id, commit.snapshot)

    def add_snapshot(self, execution_id: str, stored: StoredSnapshot) -> None:
        """Add a snapshot."""
        self.new_snapshots[execution_id, stored.revision] = stored

    def bury(self, execution_id: str) -> None:
        """Delete an execution with its history; its id stays taken."""
        head = self.heads.pop(execution_id)
        # The row stays as a tombstone, and its fence rises: the holder of its lease cannot commit to it.
        gone = msgspec.structs.replace(head, holder=None, lease_until_ms=None, wake_ms=None, fence=head.fence + 1)
        self.deleted[execution_id] = gone
        self.changed_heads.add(execution_id)
        self.drop_history(execution_id, _ALL)

    def drop_history(self, execution_id: str, through: int) -> None:
        """Drop commits and snapshots up to a revision."""
        self.dropped_history[execution_id] = max(through, self.dropped_history.get(execution_id, -1))
        for address, row in [(a, row) for a, row in self.seen.items() if a[0] == execution_id and row.revision <= through]:
            del self.seen[address]
            if through < _ALL and revision_in(address[1]) != row.revision:
                self.seen[address] = StoredCommit(row.revision, b"", b"")  # archived: the id that a user chose stays
        for address in [a for a in self.new_snapshots if a[0] == execution_id and a[1] <= through]:
            del self.new_snapshots[address]

    def put_lock(self, name: str, row: LockRow) -> None:
        """Write a lock."""
        self.locks[name] = row
        self.changed_locks.add(name)
        self.dropped_locks.discard(name)

    def drop_lock(self, name: str) -> None:
        """Remove a lock."""
        del self.locks[name]
        self.changed_locks.discard(name)
        self.dropped_locks.add(name)

    def stored(self, scope: str, key: str) -> StoredEntry | None:
        """Return an entry as the units so far leave it."""
        if (scope, key) not in self.entries:
            found = self._fetch_entry(scope, key)
            # The statement that clears the scope has not run yet, so the database still shows the value.
            if found is not None and found.data is not None and scope in self.cleared:
                found = StoredEntry(None, self.cleared[scope], self.now_ms)
            self.entries[scope, key] = found
        return self.entries[scope, key]

    def totals_of(self, scope: str) -> ScopeTotals:
        """Return a scope's totals as the units so far leave them."""
        return self.totals.get(scope) or ScopeTotals()

    def expired_in(self, scope: str) -> list[str]:
        """Return the keys of a scope that have expired and are not yet tombstones."""
        mine = {key for path, key in self.entries if path == scope}
        stored = () if scope in self.cleared else self._fetch_expired(scope)
        return sorted([*(key for key in stored if key not in mine), *(key for key in mine if self._is_expired(scope, key))])

    def expired(self, keys: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return those of some keys that have expired and are not yet tombstones."""
        return [(scope, key) for scope, key in keys if self._is_expired(scope, key)]

    def _is_expired(self, scope: str, key: str) -> bool:
        stored = self.stored(scope, key)
        return stored is not None and stored.data is not None and alive(stored, self.now_ms) is None

    def write_state(self, resolution: Resolution) -> None:
        """Apply the results of operations on scoped state."""
        for scope, revision in resolution.cleared.items():
            self._clear(scope, revision)
        self.entries.update(resolution.entries)
        self.changed_entries.update(resolution.entries)
        self.totals.update(resolution.totals)
        self.changed_totals.update(resolution.totals)
        for scope, grown in resolution.grown.items() if self.rooms else ():
            for owner in owners_of(scope):
                self._hold(owner, grown)
        if resolution.totals:
            self.topics.add("state")

    def _hold(self, owner: Owner, grown: StateSize) -> None:
        """Add to what an owner holds, if its tier limits that."""
        room = self.rooms.get(owner)
        if room is not None:
            self.rooms[owner] = room.after(grown)
            self.grown[owner] = self.grown.get(owner, StateSize()).plus(grown)

    def _clear(self, scope: str, revision: int) -> None:
        """Turn the entries of a scope that were read into tombstones; ``clear_scopes`` does the same for the rest."""
        self.cleared.setdefault(scope, revision)
        tomb = StoredEntry(None, revision, self.now_ms)
        for address, entry in self.entries.items():
            if address[0] == scope and entry is not None and entry.data is not None:
                self.entries[address] = tomb
                self.changed_entries.add(address)
