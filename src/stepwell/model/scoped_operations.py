"""Scoped state: entries, operations on them, and their results.

``resolve`` is the only place with the rules of TTL, compare-and-set, counters and limits. A store passes it the stored entries
and the time, and writes the result; it has no rules of its own.

Every write in a scope takes the scope's next revision, which only rises. So a key that was deleted and set again never has an
earlier revision, and "everything after revision n" is what changed since n. A deleted key leaves a tombstone (an entry without
data) for watchers, until a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

import msgspec

from stepwell.clock import from_ms
from stepwell.errors import Conflict, Corrupted, InvalidInput, LimitExceeded, StepwellError
from stepwell.model.limits import Limits
from stepwell.model.plain_data import PlainRecord
from stepwell.model.state_quota import RoomOf, StateSize, boundless, overfull
from stepwell.model.state_versions import FIRST_VERSION, check_writable, converted, current_version
from stepwell.model.value import Value, canonical, decode, recode

__all__ = [
    "ABSENT",
    "Clear",
    "Copy",
    "Delete",
    "Entry",
    "Increment",
    "Merge",
    "Migrate",
    "Put",
    "Resolution",
    "ScopeTotals",
    "StateChange",
    "StateOp",
    "StoredEntry",
    "Touch",
    "alive",
    "current_entry",
    "merged",
    "prefix_end",
    "resolve",
    "summed",
]


Raw = msgspec.Raw
ABSENT = 0
"""The expected revision of an absent key."""


class _Op(msgspec.Struct, frozen=True, tag_field="op", omit_defaults=True, gc=False):
    scope: str


class Put(_Op, frozen=True, gc=False, tag="put"):
    """Set a key; with ``expected``, only at that revision (``ABSENT``: only if the key is absent)."""

    key: str
    value: Raw
    ttl_ms: int | None = None
    sliding: bool = False
    expected: int | None = None
    strict: bool = True
    """Whether an unexpected revision is a ``Conflict``; else the key stays as it is."""
    version: int | None = None
    """The version of the value; None for the one that this process writes. For copies of stored values."""


class Delete(_Op, frozen=True, gc=False, tag="delete"):
    """Remove a key; with ``expected``, only at that revision."""

    key: str
    expected: int | None = None


class Increment(_Op, frozen=True, gc=False, tag="increment"):
    """Add to a number; an absent key counts as 0. The TTL stays."""

    key: str
    by: int | float = 1


class Copy(_Op, frozen=True, gc=False, tag="copy"):
    """Copy a key to another key or scope, with its TTL; ``move`` also removes the first."""

    key: str
    to_scope: str
    to_key: str
    move: bool = False


class Merge(_Op, frozen=True, gc=False, tag="merge"):
    """Merge a value into a key's value, in any order: writers on many nodes need not agree on one."""

    key: str
    value: Raw
    how: str
    """``add``, ``max``, ``min`` of numbers; ``union`` of lists, in order of their canonical bytes."""


class Touch(_Op, frozen=True, gc=False, tag="touch"):
    """Restart a sliding TTL; with ``ttl_ms``, with that length."""

    key: str
    ttl_ms: int | None = None


class Clear(_Op, frozen=True, gc=False, tag="clear"):
    """Remove every key of the scope."""


class Migrate(_Op, frozen=True, gc=False, tag="migrate"):
    """Replace a key's value by the same value in another version, unless the key was written since.

    Its revision and its end stay: what it means did not change, so that no other writer's compare-and-set fails.
    """

    key: str
    value: Raw
    version: int
    expected: int
    """The revision that the key must be at."""
    before: int
    """The version that its value must have."""


StateOp = Put | Delete | Increment | Copy | Merge | Touch | Clear | Migrate


class StoredEntry(msgspec.Struct, frozen=True, gc=False):
    """A row of a scope; ``data`` is None for the tombstone of a deleted key."""

    data: bytes | None
    revision: int
    expires_ms: int | None = None
    ttl_ms: int | None = None
    sliding: bool = False
    is_sound: bool = True
    """Whether it matches its checksum; a damaged row can be overwritten, but not read."""
    version: int = FIRST_VERSION
    """The version of its value, for state migrations."""

    def checked(self, scope: str, key: str) -> StoredEntry:
        """Return the row. Raise ``Corrupted`` if it is damaged."""
        if not self.is_sound:
            raise Corrupted(
                f"the value of key {key!r} in scope {scope!r} does not match its checksum; set or delete it, or restore a backup",
                key=key,
            )
        return self


class ScopeTotals(msgspec.Struct, frozen=True, gc=False):
    """The revision, number of keys and bytes of a scope, updated in the transactions that change them."""

    revision: int = 0
    keys: int = 0
    bytes: int = 0


class Entry(PlainRecord, frozen=True):
    """A value with its revision and, if it has one, its end."""

    value: Value
    revision: int
    expires_at: datetime | None = None

    @classmethod
    def of(cls, stored: StoredEntry) -> Entry:
        """Return the entry as users see it."""
        ends = None if stored.expires_ms is None else from_ms(stored.expires_ms)
        return cls(decode(stored.data or b"null"), stored.revision, ends)


class StateChange(PlainRecord, frozen=True):
    """One change in a scope: the key, its new value (None if it was deleted), and the scope's revision."""

    key: str
    value: Value
    revision: int
    is_deleted: bool = False

    @classmethod
    def of(cls, key: str, stored: StoredEntry) -> StateChange:
        """Return the change of which this row is the result."""
        if stored.data is None:
            return cls(key, None, stored.revision, is_deleted=True)
        return cls(key, decode(stored.data), stored.revision)

    @classmethod
    def seen_at(cls, key: str, stored: StoredEntry, now_ms: int) -> StateChange:
        """Return the change as seen at a time: an expired value is deleted."""
        return cls.of(key, stored if alive(stored, now_ms) else msgspec.structs.replace(stored, data=None))


def current_entry(scope: str, key: str, stored: StoredEntry) -> StoredEntry:
    """Return an entry with its value in the version that this process uses.

    Raise ``StateNewer`` for a value of newer code, and ``MigrationFailed`` if a migration fails.
    """
    if stored.data is None or (stored.version == FIRST_VERSION and current_version(scope) == FIRST_VERSION):
        return stored
    data, version = converted(scope, key, stored.data, stored.version)
    return stored if data is stored.data else msgspec.structs.replace(stored, data=data, version=version)


def alive(stored: StoredEntry | None, now_ms: int) -> StoredEntry | None:
    """Return the entry, unless it is deleted or has expired: an expired entry is absent at once."""
    if stored is None or stored.data is None:
        return None
    if stored.expires_ms is not None and stored.expires_ms <= now_ms:
        return None
    return stored


class Resolution:
    """The result of a list of operations: rows to write, scopes to empty first, totals, and an answer to each operation."""

    __slots__ = ("_expired_in", "_lookup", "_totals_of", "answers", "cleared", "entries", "grown", "limits", "now_ms", "totals")

    def __init__(
        self,
        lookup: Callable[[str, str], StoredEntry | None],
        totals_of: Callable[[str], ScopeTotals],
        now_ms: int,
        limits: Limits,
        expired_in: Callable[[str], Sequence[str]],
    ) -> None:
        self._lookup, self._totals_of, self._expired_in = lookup, totals_of, expired_in
        self.now_ms, self.limits = now_ms, limits
        self.entries: dict[tuple[str, str], StoredEntry] = {}
        self.totals: dict[str, ScopeTotals] = {}
        self.grown: dict[str, StateSize] = {}
        """The growth of each scope that is written to."""
        self.cleared: dict[str, int] = {}
        self.answers: list[object] = []

    def stored(self, scope: str, key: str) -> StoredEntry | None:
        """Return the row after the operations so far."""
        # The store still has the rows of a scope that an earlier operation cleared.
        found = self.entries.get((scope, key))
        if found is not None or scope in self.cleared:
            return found
        return self._lookup(scope, key)

    def live(self, scope: str, key: str) -> StoredEntry | None:
        """Return the row, unless deleted or expired."""
        return alive(self.stored(scope, key), self.now_ms)

    def sound(self, scope: str, key: str) -> StoredEntry | None:
        """Return the row to continue from. Raise ``Corrupted`` if it is damaged."""
        found = self.live(scope, key)
        return None if found is None else found.checked(scope, key)

    def current(self, scope: str, key: str) -> StoredEntry | None:
        """Return the row to continue from, in the version that this process writes."""
        found = self.sound(scope, key)
        return None if found is None else current_entry(scope, key, found)

    def scope(self, scope: str) -> ScopeTotals:
        """Return the scope's totals after the operations so far."""
        found = self.totals.get(scope)
        return found if found is not None else self._totals_of(scope)

    def write(
        self,
        scope: str,
        key: str,
        data: bytes | None,
        *,
        ttl_ms: int | None = None,
        sliding: bool = False,
        version: int | None = None,
    ) -> StoredEntry:
        """Write a row (None: a tombstone) at the scope's next revision, within the limits.

        Without a ``version``, the value has the one that this process writes; raise ``StateNewer`` if a newer value is there.
        """
        totals, before = self.scope(scope), self.stored(scope, key)
        if version is None:
            version = current_version(scope)
            # During a rolling deployment older code must not overwrite what newer code wrote: it would lose what it does not know.
            if before is not None and before.version > version and alive(before, self.now_ms) is not None:
                check_writable(scope, key, before.version)
        held = before is not None and before.data is not None
        keys = totals.keys - held + (data is not None)
        size = totals.bytes - (_size(key, before.data) if held and before else 0) + _size(key, data)
        # A scope that is over a limit, since that was lowered, can still be changed as long as it does not grow.
        if data is not None and keys > max(self.limits.scope_keys, totals.keys):
            raise LimitExceeded.of("scope_keys", self.limits.scope_keys, keys, f"the number of keys of scope {scope!r}")
        if data is not None and size > max(self.limits.scope_bytes, totals.bytes):
            raise LimitExceeded.of("scope_bytes", self.limits.scope_bytes, size, f"the size of scope {scope!r}, in bytes,")
        self.totals[scope] = ScopeTotals(totals.revision + 1, keys, size)
        self._grow(scope, StateSize(size - totals.bytes, keys - totals.keys))
        # A tombstone's end is the time it was made, so that a sweep can tell its age.
        ends = self.now_ms if data is None else None if ttl_ms is None else self.now_ms + ttl_ms
        kept = FIRST_VERSION if data is None else version
        entry = StoredEntry(data, totals.revision + 1, ends, ttl_ms, sliding, version=kept)
        self.entries[scope, key] = entry
        return entry

    def migrate(self, scope: str, key: str, found: StoredEntry, data: bytes, version: int) -> None:
        """Replace the value of a row by the same in another version, within the limits."""
        totals, grown = self.scope(scope), len(data) - len(found.data or b"")
        size = totals.bytes + grown
        if grown > 0 and size > self.limits.scope_bytes:
            raise LimitExceeded.of("scope_bytes", self.limits.scope_bytes, size, f"the size of scope {scope!r}, in bytes,")
        # The revision stays: the meaning of the value did not change, so watchers and compare-and-set must not notice.
        self.totals[scope] = ScopeTotals(totals.revision, totals.keys, size)
        self._grow(scope, StateSize(grown))
        self.entries[scope, key] = msgspec.structs.replace(found, data=data, version=version)

    def clear(self, scope: str) -> int:
        """Remove every key of the scope, and return their number, without expired ones."""
        totals = self.scope(scope)
        # Entries that earlier operations wrote have not expired, and entries that they deleted are not in the totals.
        is_stored = scope not in self.cleared and self._totals_of(scope).keys > 0
        expired = sum((scope, key) not in self.entries for key in self._expired_in(scope)) if is_stored else 0
        self.entries = {address: row for address, row in self.entries.items() if address[0] != scope}
        self.cleared[scope] = totals.revision + 1
        self.totals[scope] = ScopeTotals(totals.revision + 1, 0, 0)
        self._grow(scope, StateSize(-totals.bytes, -totals.keys))
        return totals.keys - expired

    def _grow(self, scope: str, grown: StateSize) -> None:
        self.grown[scope] = self.grown.get(scope, StateSize()).plus(grown)


def resolve(
    ops: Sequence[StateOp],
    lookup: Callable[[str, str], StoredEntry | None],
    totals_of: Callable[[str], ScopeTotals],
    now_ms: int,
    limits: Limits,
    expired_in: Callable[[str], Sequence[str]],
    room_of: RoomOf = boundless,
) -> Resolution | StepwellError:
    """Resolve a list of operations as one: return the result of all, or the reason why none can be written.

    Expired keys count towards the limits of a scope and of its owners until they are swept. If one seems full, the scopes that
    are written to are swept first.
    """
    begin = partial(Resolution, lookup, totals_of, now_ms, limits, expired_in)
    resolution = _resolve(ops, begin(), room_of)
    if not isinstance(resolution, LimitExceeded):
        return resolution
    # Only now, since most writes need no read of the expired keys.
    scopes = {op.scope for op in ops} | {op.to_scope for op in ops if isinstance(op, Copy)}
    swept = [Delete(scope, key) for scope in sorted(scopes) for key in expired_in(scope)]
    if not swept:
        return resolution
    resolution = _resolve([*swept, *ops], begin(), room_of)
    if isinstance(resolution, Resolution):
        del resolution.answers[: len(swept)]
    return resolution


def _resolve(ops: Sequence[StateOp], resolution: Resolution, room_of: RoomOf) -> Resolution | StepwellError:
    try:
        for op in ops:
            resolution.answers.append(_RULES[type(op)](resolution, op))
    except StepwellError as refusal:
        return refusal
    return overfull(resolution.grown.items(), room_of) or resolution


def prefix_end(prefix: str) -> str | None:
    """Return the first string after all that start with ``prefix``, in order of code points; None if there is none."""
    for length in range(len(prefix), 0, -1):
        last = ord(prefix[length - 1])
        if last < 0x10FFFF:
            # The code points between the two are surrogates, which are no text.
            return prefix[: length - 1] + chr(0xE000 if last == 0xD7FF else last + 1)
    return None


def _put(state: Resolution, op: Put) -> StoredEntry | None:
    if op.expected is not None:
        found = state.live(op.scope, op.key)
        actual = ABSENT if found is None else found.revision
        if actual != op.expected:
            if op.strict:
                raise _unexpected(op.key, op.expected, actual)
            return None
    return state.write(op.scope, op.key, bytes(op.value), ttl_ms=op.ttl_ms, sliding=op.sliding, version=op.version)


def _delete(state: Resolution, op: Delete) -> bool:
    found = state.live(op.scope, op.key)
    actual = ABSENT if found is None else found.revision
    if op.expected is not None and actual != op.expected:
        raise _unexpected(op.key, op.expected, actual)
    # Deleting an expired key frees its space; the caller gets the answer for an absent key.
    stored = state.stored(op.scope, op.key)
    if stored is not None and stored.data is not None:
        state.write(op.scope, op.key, None)
    return found is not None


def _increment(state: Resolution, op: Increment) -> int | float:
    found = state.current(op.scope, op.key)
    after = summed(op.key, 0 if found is None or found.data is None else decode(found.data), op.by)
    _rewrite(state, op.scope, op.key, msgspec.json.encode(after), found)
    return after


def _copy(state: Resolution, op: Copy) -> bool:
    found = state.current(op.scope, op.key)
    if found is None:
        return False
    _rewrite(state, op.to_scope, op.to_key, found.data, found)
    if op.move and (op.scope, op.key) != (op.to_scope, op.to_key):
        state.write(op.scope, op.key, None)
    return True


def _touch(state: Resolution, op: Touch) -> bool:
    found = state.sound(op.scope, op.key)
    if found is None or not found.sliding:
        return False
    # The value did not change, so the revision stays: a read must not break another writer's compare-and-set.
    ttl_ms = (found.ttl_ms or 0) if op.ttl_ms is None else op.ttl_ms
    state.entries[op.scope, op.key] = msgspec.structs.replace(found, expires_ms=state.now_ms + ttl_ms, ttl_ms=ttl_ms)
    return True


def _merge(state: Resolution, op: Merge) -> Value:
    found = state.current(op.scope, op.key)
    given = decode(op.value)
    # An absent key's value is merged with itself, which checks it and changes nothing; a sum starts at 0.
    before = decode(found.data) if found is not None and found.data is not None else 0 if op.how == "add" else given
    after = merged(op.key, op.how, before, given)
    _rewrite(state, op.scope, op.key, canonical(after, state.limits), found)
    return after


def _clear(state: Resolution, op: Clear) -> int:
    return state.clear(op.scope)


def _migrate(state: Resolution, op: Migrate) -> bool:
    found = state.sound(op.scope, op.key)
    if found is None or (found.revision, found.version) != (op.expected, op.before):
        return False
    state.migrate(op.scope, op.key, found, bytes(op.value), op.version)
    return True


def _rewrite(state: Resolution, scope: str, key: str, data: bytes | None, like: StoredEntry | None) -> None:
    """Write with the TTL of another row: a fixed one continues, a sliding one restarts."""
    if like is None or like.expires_ms is None:
        state.write(scope, key, data)
    elif like.sliding:
        state.write(scope, key, data, ttl_ms=like.ttl_ms, sliding=True)
    else:
        state.write(scope, key, data, ttl_ms=like.expires_ms - state.now_ms)


def _unexpected(key: str, expected: int, actual: int) -> Conflict:
    now = "is not there" if actual == ABSENT else f"is at revision {actual}"
    asked = "not to be there" if expected == ABSENT else f"at revision {expected}"
    return Conflict(f"key {key!r} was expected {asked} but {now}; read it again and decide", expected=expected, actual=actual)


def _size(key: str, data: bytes | None) -> int:
    return 0 if data is None else len(key.encode()) + len(data)


_RULES: dict[type, Callable[[Resolution, StateOp], object]] = {  # pyright: ignore[reportAssignmentType] - keyed by the type
    Put: _put,
    Delete: _delete,
    Increment: _increment,
    Copy: _copy,
    Merge: _merge,
    Touch: _touch,
    Clear: _clear,
    Migrate: _migrate,
}


def summed(key: str, before: Value, by: float) -> int | float:
    """Return the sum of two numbers. Refuse a sum outside the range that every store keeps."""
    if not _is_number(before):
        raise InvalidInput(f"key {key!r} holds no number, so it cannot be incremented; set it first")
    after = before + by
    if isinstance(after, int) and not -(2**63) <= after < 2**63:
        raise InvalidInput(f"key {key!r} would leave the range of 64-bit integers")
    if after - after != 0:
        raise InvalidInput(f"key {key!r} would leave the range of floats")
    return after


def merged(key: str, how: str, before: Value, given: Value) -> Value:
    """Return the merge of two values by ``add``, ``max``, ``min`` or ``union``; the order of the writers does not matter."""
    if how == "union":
        if not isinstance(before, list) or not isinstance(given, list):
            raise InvalidInput(f"key {key!r} holds no list, so nothing can be united with it")
        both: list[Value] = [*before, *given]
        members = {recode(each): each for each in both}
        return [members[data] for data in sorted(members)]
    if not _is_number(before) or not _is_number(given):
        raise InvalidInput(f"key {key!r} holds no number, so {how} cannot be taken")
    # 1 and 1.0 are as large as each other and yet differ; the bytes decide, so that the order of the writers does not.
    return before + given if how == "add" else (max if how == "max" else min)(before, given, key=_rank)


def _rank(number: Value) -> tuple[Value, bytes]:
    return number, recode(number)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
