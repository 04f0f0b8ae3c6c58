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
from stepwell.model.state_quota import StateRoom, growth_in
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
        self.grown = 0
        self.most_held: int | None = None
        """How many bytes the workspace may have before this write, if that is limited."""
        self.rows: dict[str, StoredEntry] = {}

    def packed(self, now_ms: int) -> dict[str, object]:
        """Return the scope as ``includes/scoped_state.lua`` takes it."""
        scope: dict[str, object] = {
            "path": self.path,
            "keys": [text(key) for key in self.keys],
            "before": text(self.before),
            "after": text(self.after),
            "time": now_ms,
            "grown": self.grown,
            "rows": [_packed_row(self.path, key, entry) for key, entry in self.rows.items()],
        }
        if self.is_new:
            scope["place"] = text(workspace_place(workspace_of(self.path)) + self.path.encode())
        if self.cleared is not None:
            scope["cleared"] = self.cleared
        if self.most_held is not None:
            scope["most"] = self.most_held
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
        self._rooms: dict[str, StateRoom] = {}
        self._filled: set[str] = set()
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
        owners = sorted({name for name in map(workspace_of, wanted) if name})
        rooms = [self._room_call(owners)] if owners else []
        # The server's clock decides which of the rows have expired, so it is read with them.
        (seconds, micros), *found = self._read_commands([("TIME",), *reads, *rooms])
        if rooms:
            self._read_rooms(owners, found.pop())
        self.now_ms = int(seconds) * 1000 + int(micros) // 1000 + self._ahead_ms
        for (path, keys), (totals, *rows) in zip(wanted.items(), found, strict=True):
            scope = self._scopes[path] = _Scope(path, totals)
            scope.rows = {key: read_entry(path, key, row) for key, row in zip(keys, rows, strict=True)}

    def _room_call(self, owners: Sequence[str]) -> Command:
        script, names = SCRIPTS["state_quotas"].sha, [encoded(name) for name in owners]
        return ("EVALSHA", script, 2, self._keys.queue, self._keys.held, self._ahead_ms, *names)

    def _read_rooms(self, owners: Sequence[str], found: Reply) -> None:
        flat = cast("list[bytes]", found)
        rooms = zip(owners, flat[::2], flat[1::2], strict=True)
        self._rooms = {name: StateRoom(int(most), int(held)) for name, most, held in rooms if most}

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
        return all(self._scopes[path].is_untouched and workspace_of(path) not in self._filled for path in _paths(ops))

    def writes(self, ops: Sequence[StateOp], resolution: Resolution) -> list[ScopeWrite]:
        """Return the comparisons and writes for the script of a unit; the units after it build on them."""
        writes = {path: self._write(path, resolution) for path in _paths(ops)}
        for (path, key), entry in resolution.entries.items():
            writes[path].rows[key] = self._scopes[path].rows[key] = entry
        if self._rooms:
            self._fill(list(writes.values()), resolution)
        return list(writes.values())

    def _fill(self, writes: Sequence[ScopeWrite], resolution: Resolution) -> None:
        """Give each write the bytes that its workspace may hold before it, and count the bytes held after it."""
        growth = growth_in(resolution.grown.items())
        limits = {name: self._rooms[name].maximum - grown for name, grown in growth.items() if name in self._rooms}
        for write in writes:
            name = workspace_of(write.path)
            write.most_held = limits.get(name)
            if write.grown and name in self._rooms:
                self._rooms[name] = StateRoom(self._rooms[name].maximum, self._rooms[name].held + write.grown)
                self._filled.add(name)

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
        write.grown = resolution.grown.get(path, 0)
        if write.cleared is not None:
            scope.rows, scope.is_cleared = {}, True
        scope.raw, scope.edition, scope.totals, scope.is_untouched = write.after, scope.edition + 1, totals, False
        return write


def _paths(ops: Sequence[StateOp]) -> dict[str, None]:
    return {op.scope: None for op in ops} | {op.to_scope: None for op in ops if isinstance(op, Copy)}
