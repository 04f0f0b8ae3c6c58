"""Plan the scoped-state writes of a group of units: read the rows that their operations need, and compute the rows to write.

``model.scoped_operations.resolve`` has the rules. A planned write lands only if each scope is still as it was read. The script
compares the scope's totals, which every write changes (a sliding TTL that starts anew changes their edition). A unit builds on
the units before it in the group as if they had landed; if one of them does not land, the comparison fails and the writer plans
the unit again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from stepwell.errors import StepwellError
from stepwell.model.limits import Limits
from stepwell.model.scope import workspace_of
from stepwell.model.scoped_operations import Clear, Copy, Resolution, ScopeTotals, StateOp, StoredEntry, alive, resolve
from stepwell.model.state_quota import Owner, StateRoom, StateSize, growth_in, owners_of
from stepwell.stores.redis.connection import Command, Reply
from stepwell.stores.redis.keys import Keys, ScopeKeys, workspace_place
from stepwell.stores.redis.rows import encoded, pack_entry, pack_totals, read_entry, read_totals, text
from stepwell.stores.redis.scripts import SCRIPTS

__all__ = ["ScopeWrite", "StatePlan"]

ReadCommands = Callable[[Sequence[Command]], list[Reply]]


class ScopeWrite:
    """The changes of one unit to one scope."""

    def __init__(self, path: str, keys: ScopeKeys, before: bytes, after: bytes) -> None:
        self.path, self.keys, self.before, self.after = path, keys, before, after
        self.is_new = False
        """Whether the scope may be missing in the index: it has no key yet."""
        self.cleared: int | None = None
        self.grown = StateSize()
        self.most_held: dict[Owner, tuple[int | None, int | None]] = {}
        """How many bytes and keys the owners may have before this write, if that is limited."""
        self.rows: dict[str, StoredEntry] = {}

    def packed(self, now_ms: int) -> dict[str, object]:
        """Return the scope as ``includes/scoped_state.lua`` takes it."""
        scope: dict[str, object] = {
            "path": self.path,
            "keys": [text(key) for key in self.keys],
            "before": text(self.before),
            "after": text(self.after),
            "time": now_ms,
            "grown": self.grown.bytes,
            "more": self.grown.keys,
            "owners": [(_owner_name(owner), *self.most_held.get(owner, ())) for owner in owners_of(self.path)],
            "rows": [_packed_row(self.path, key, entry) for key, entry in self.rows.items()],
        }
        if self.is_new:
            scope["place"] = text(workspace_place(workspace_of(self.path)) + self.path.encode())
        if self.cleared is not None:
            scope["cleared"] = self.cleared
        return scope


def _packed_row(path: str, key: str, entry: StoredEntry) -> tuple[object, ...]:
    return key, text(pack_entry(path, key, entry)), entry.revision, entry.expires_ms, entry.data is None


class _Scope:
    """A scope as it was read, with the changes of the units planned so far."""

    __slots__ = ("edition", "is_cleared", "is_untouched", "raw", "rows", "totals")

    def __init__(self, path: str, raw: object) -> None:
        self.raw = raw if isinstance(raw, bytes) else b""
        self.edition, self.totals = read_totals(path, raw)
        self.rows: dict[str, StoredEntry | None] = {}
        self.is_cleared, self.is_untouched = False, True


class StatePlan:
    """Plan the scoped-state writes of one group of units."""

    def __init__(self, read_commands: ReadCommands, keys: Keys, limits: Limits, ahead_ms: int) -> None:
        self._read_commands, self._keys, self._limits, self._ahead_ms = read_commands, keys, limits, ahead_ms
        self._scopes: dict[str, _Scope] = {}
        self._rooms: dict[Owner, StateRoom] = {}
        self._filled: set[Owner] = set()
        self.now_ms = 0

    def read(self, ops: Iterable[StateOp]) -> None:
        """Read every row that the operations name, and the totals of their scopes, in one round trip."""
        wanted: dict[str, dict[str, None]] = {}
        for op in ops:
            rows = wanted.setdefault(op.scope, {})
            if not isinstance(op, Clear):
                rows[op.key] = None
            if isinstance(op, Copy):
                wanted.setdefault(op.to_scope, {})[op.to_key] = None
        tables = {path: self._keys.scope(path).rows for path in wanted}
        reads: list[Command] = [("HMGET", tables[path], "", *keys) for path, keys in wanted.items()]
        owners = sorted({owner for path in wanted for owner in owners_of(path) if owner.workspace_id})
        rooms = [self._room_call(owners)] if owners else []
        # The server's clock decides which of the rows have expired, so it is read with them.
        (seconds, micros), *found = self._read_commands([("TIME",), *reads, *rooms])
        if rooms:
            self._read_rooms(owners, found.pop())
        self.now_ms = int(seconds) * 1000 + int(micros) // 1000 + self._ahead_ms
        for (path, keys), (totals, *rows) in zip(wanted.items(), found, strict=True):
            scope = self._scopes[path] = _Scope(path, totals)
            scope.rows = {key: read_entry(path, key, row) for key, row in zip(keys, rows, strict=True)}

    def _room_call(self, owners: Sequence[Owner]) -> Command:
        keys, script = self._keys, SCRIPTS["state_quotas"].sha
        names = (name for owner in owners for name in (*map(encoded, owner), workspace_place(owner.workspace_id)))
        return ("EVALSHA", script, 3, keys.queue, keys.counts, keys.scopes, self._ahead_ms, keys.prefix, *names)

    def _read_rooms(self, owners: Sequence[Owner], found: Reply) -> None:
        numbers = [int(each) if each else None for each in cast("list[bytes]", found)]
        rooms = zip(owners, numbers[::4], numbers[1::4], numbers[2::4], numbers[3::4], strict=True)
        self._rooms = {
            owner: StateRoom(most_bytes, most_keys, StateSize(size or 0, keys or 0))
            for owner, most_bytes, most_keys, size, keys in rooms
            if size is not None
        }

    def resolve(self, ops: Sequence[StateOp]) -> Resolution | StepwellError:
        """Return the result of operations after the units so far, or their refusal."""
        return resolve(
            ops, self._lookup, lambda path: self._scopes[path].totals, self.now_ms, self._limits, self._expired, self._rooms.get
        )

    def _lookup(self, path: str, key: str) -> StoredEntry | None:
        scope = self._scopes[path]
        if key not in scope.rows and not scope.is_cleared:
            table = self._keys.scope(path).rows
            scope.rows[key] = read_entry(path, key, self._read_commands([("HGET", table, key)])[0])
        return scope.rows.get(key)

    def _expired(self, path: str) -> list[str]:
        """Return the keys of a scope that have expired and are not tombstones yet, after the units so far."""
        scope, ends = self._scopes[path], self._keys.scope(path).ends
        if scope.is_cleared:
            return []
        [names] = self._read_commands([("ZRANGEBYSCORE", ends, "-inf", self.now_ms)])
        return [key for key in map(bytes.decode, names) if key not in scope.rows or self._is_expired(scope.rows[key])]

    def _is_expired(self, stored: StoredEntry | None) -> bool:
        return stored is not None and stored.data is not None and alive(stored, self.now_ms) is None

    def checks(self, ops: Sequence[StateOp]) -> list[ScopeWrite]:
        """Return the comparisons for the script of a refused unit: the refusal holds while the scopes are as they were read."""
        return [ScopeWrite(path, self._keys.scope(path), self._scopes[path].raw, b"") for path in _paths(ops)]

    def is_untouched(self, ops: Sequence[StateOp]) -> bool:
        """Return whether no unit before has written to what these operations read."""
        return all(self._scopes[path].is_untouched and self._filled.isdisjoint(owners_of(path)) for path in _paths(ops))

    def writes(self, ops: Sequence[StateOp], resolution: Resolution) -> list[ScopeWrite]:
        """Return the comparisons and writes for the script of a unit; the units after it build on them."""
        writes = {path: self._write(path, resolution) for path in _paths(ops)}
        for (path, key), entry in resolution.entries.items():
            writes[path].rows[key] = self._scopes[path].rows[key] = entry
        if self._rooms:
            self._fill(list(writes.values()), resolution)
        return list(writes.values())

    def _fill(self, writes: Sequence[ScopeWrite], resolution: Resolution) -> None:
        """Give each write how much its owners may hold before it, and count what they hold after it."""
        growth = growth_in(resolution.grown.items())
        limits = {owner: _most_before(self._rooms[owner], grown) for owner, grown in growth.items() if owner in self._rooms}
        for write in writes:
            for owner in owners_of(write.path):
                if owner in limits:
                    write.most_held[owner] = limits[owner]
                if any(write.grown) and owner in self._rooms:
                    self._rooms[owner] = self._rooms[owner].after(write.grown)
                    self._filled.add(owner)

    def _write(self, path: str, resolution: Resolution) -> ScopeWrite:
        scope, keys = self._scopes[path], self._keys.scope(path)
        is_changed = path in resolution.totals or any(address[0] == path for address in resolution.entries)
        # A scope that is only read is compared as well: what the unit decided must still hold when its script runs.
        if not is_changed:
            return ScopeWrite(path, keys, scope.raw, b"")
        totals: ScopeTotals = resolution.totals.get(path, scope.totals)
        write = ScopeWrite(path, keys, scope.raw, pack_totals(scope.edition + 1, totals))
        # Every change gets a new edition, even one that leaves revision and sizes as they were, so that a comparison finds it.
        write.is_new, write.cleared = not scope.totals.keys, resolution.cleared.get(path)
        write.grown = resolution.grown.get(path, StateSize())
        if write.cleared is not None:
            scope.rows, scope.is_cleared = {}, True
        scope.raw, scope.edition, scope.totals, scope.is_untouched = write.after, scope.edition + 1, totals, False
        return write


def _owner_name(owner: Owner) -> str:
    return "/".join(encoded(name) for name in owner if name)


def _most_before(room: StateRoom, grown: StateSize) -> tuple[int | None, int | None]:
    """Return how many bytes and keys an owner may hold before it grows; None for what does not grow or has no limit."""
    most_bytes = room.most_bytes - grown.bytes if room.most_bytes is not None and grown.bytes else None
    most_keys = room.most_keys - grown.keys if room.most_keys is not None and grown.keys else None
    return most_bytes, most_keys


def _paths(ops: Sequence[StateOp]) -> dict[str, None]:
    return {op.scope: None for op in ops} | {op.to_scope: None for op in ops if isinstance(op, Copy)}
