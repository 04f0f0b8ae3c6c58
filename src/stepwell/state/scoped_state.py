"""Operations on scoped state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, cast

import msgspec

from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.duration import Span, waited_seconds
from stepwell.errors import InvalidInput, Problem, ValidationFailed
from stepwell.model.commit import LockGuard, StateBatch, Sweep, Written
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.scope import Scope, is_internal
from stepwell.model.scoped_operations import (
    ABSENT,
    Clear,
    Copy,
    Delete,
    Entry,
    Increment,
    Merge,
    Put,
    StateChange,
    StateOp,
    StoredEntry,
    Touch,
    current_entry,
)
from stepwell.model.validation import refusal
from stepwell.model.value import Value, canonical, decode, from_value
from stepwell.pipeline.notifications import Notifications, Subscription
from stepwell.pipeline.operations import Operation, read, read_slowly, wait, write_or_raise
from stepwell.state.hooks import Hooks
from stepwell.state.subjects import Subjects
from stepwell.state.transaction_buffer import Buffer, HasScope, check_number, check_revision, scope_of, ttl_ms

__all__ = ["ScopeOperations", "StateOperations", "as_scope", "child_scope", "must_slide"]

Raw = msgspec.Raw
_PAGE = 1_000

MERGES = ("add", "max", "min", "union")
"""A rule to merge two values of concurrent writers."""
POLICIES = ("last", "reject", *MERGES)
"""The policy of ``set`` after another writer: overwrite, raise ``Conflict`` unless it saw that write, or merge."""

# Expired keys are absent at once; a sweep only frees their space. One sweep per 256 writes with a TTL drops more than they add.
_SWEEP_EVERY = 256
_SWEEP_LIMIT = 2 * _SWEEP_EVERY
_TOMBSTONE_MS = 3_600_000

# A read restarts a sliding TTL only after a hundredth of it has passed, so that reads in a loop do not write in a loop.
_SLIDE_SHARE = 100


class StateOperations:
    """Operations on the scoped state of one store.

    Args:
        subjects: whose data scopes hold.
        hooks: functions of the user that are called at changes.
    """

    def __init__(
        self, store: Store, limits: Limits, notifications: Notifications, clock: Clock, subjects: Subjects, hooks: Hooks
    ) -> None:
        self.store, self.limits, self.notifications, self.clock = store, limits, notifications, clock
        self.subjects, self._hooks = subjects, hooks
        self._writes_with_end = 0

    def write(self, *ops: StateOp, guards: tuple[LockGuard, ...] = ()) -> Operation[Sequence[object]]:
        """Write operations together, and return their answers."""
        if self._hooks.has("before_change"):
            ops = tuple((yield from read_slowly(lambda: self._hooks.before(ops))))
        outcome = yield from write_or_raise(StateBatch(ops, guards))
        self._hooks.tell_of_changes(ops)
        if any(isinstance(op, Put) and op.ttl_ms is not None for op in ops):
            self._writes_with_end += 1
            if self._writes_with_end % _SWEEP_EVERY == 0:
                yield from self.sweep()
        return outcome.answers if isinstance(outcome, Written) else ()

    def commit(self, buffer: Buffer, guards: tuple[LockGuard, ...]) -> Operation[None]:
        """Write everything in a buffer together: all scopes and keys, or none."""
        ops = buffer.state_ops()
        if ops:
            yield from self.write(*ops, guards=guards)

    def scopes(self, workspace_id: str | None) -> Operation[list[Scope]]:
        """Return all scopes in which users keep something."""
        if workspace_id is not None:
            check_key(workspace_id, "a workspace id")
        paths = yield from read(lambda: list(self.store.scopes(workspace_id)))
        return [Scope.parse(path) for path in paths if not is_internal(path)]

    def sweep(self) -> Operation[int]:
        """Drop expired keys and old tombstones; return how many keys had expired."""
        outcome = yield from write_or_raise(Sweep(_TOMBSTONE_MS, _SWEEP_LIMIT))
        count = outcome.answers[0] if isinstance(outcome, Written) else 0
        return count if isinstance(count, int) else 0


class ScopeOperations:
    """Operations on one scope. ``AsyncScopedState`` describes each of them."""

    def __init__(self, shared: StateOperations, scope: Scope, policy: str = "last") -> None:
        if policy not in POLICIES:
            raise InvalidInput(f"{policy!r} is no conflict policy; use one of {', '.join(POLICIES)}")
        self._shared, self._store, self._limits = shared, shared.store, shared.limits
        self.scope, self._path, self._policy = scope, scope.path, policy
        self._seen: dict[str, int] = {}

    def get(self, key: str, default: Any, kind: type[Any] | None = None) -> Operation[Any]:
        stored = yield from self._live(key)
        if stored is None:
            return default
        value = decode(stored.data or b"null")
        return value if kind is None else from_value(value, kind)

    def entry(self, key: str) -> Operation[Entry | None]:
        stored = yield from self._live(key)
        return None if stored is None else Entry.of(stored)

    def entry_to_cache(self, key: str) -> Operation[tuple[Entry | None, float]]:
        """Return the entry of a key, and for how many seconds a cache may answer for it."""
        stored = yield from self._live(key)
        if stored is None:
            return None, inf
        if stored.expires_ms is None or stored.ttl_ms is None:
            return Entry.of(stored), inf
        left = stored.expires_ms - (yield from read(self._store.now_ms))
        # A read that would restart the TTL has to reach the store, or a key in constant use would expire.
        most = stored.ttl_ms // _SLIDE_SHARE if stored.sliding else left
        return Entry.of(stored), max(0, min(left, most)) / 1000

    def exists(self, key: str) -> Operation[bool]:
        self._key(key)
        return key in (yield from read(lambda: self._store.entries(self._path, [key])))

    def get_many(self, keys: Sequence[str]) -> Operation[dict[str, Value]]:
        keys = self._keys_of(keys)
        found = yield from self._entries(keys)
        for key in keys:
            self._see(key, found[key].revision if key in found else ABSENT)
        sliding = [key for key, stored in found.items() if must_slide(stored, self._shared.clock.now_ms())]
        if sliding:
            yield from self._shared.write(*(Touch(self._path, key) for key in sliding))
        return {key: decode(found[key].data or b"null") for key in keys if key in found}

    def set(self, key: str, value: Value, ttl: Span | None, sliding: bool) -> Operation[int]:
        answers = yield from self._shared.write(self._set(key, value, ttl, sliding))
        if self._policy in MERGES:
            return (yield from self.revision())
        return self._see(key, _revision(answers[0]))

    def merge(self, key: str, value: Value, how: str) -> Operation[Value]:
        if how not in MERGES:
            raise InvalidInput(f"{how!r} is no way to merge; use one of {', '.join(MERGES)}")
        answers = yield from self._shared.write(self._merge(key, value, how))
        return answers[0]

    def set_many(self, values: Mapping[str, Value], ttl: Span | None, sliding: bool) -> Operation[None]:
        if not isinstance(values, Mapping):
            raise InvalidInput(f"set_many takes a dict of keys and values, not {type(values).__name__}")
        ops: list[StateOp] = []
        problems: list[Problem] = []
        for key, value in values.items():
            try:
                ops.append(self._set(key, value, ttl, sliding))
            except ValidationFailed as error:
                problems += error.errors
        if problems:
            raise refusal(list(dict.fromkeys(problems)))  # a wrong TTL is reported once, not for each key
        answers = (yield from self._shared.write(*ops)) if ops else ()
        for key, answer in zip(values, answers, strict=False):
            self._see(key, _revision(answer))

    def set_if_absent(self, key: str, value: Value, ttl: Span | None, sliding: bool) -> Operation[bool]:
        op = msgspec.structs.replace(self._put(key, value, ttl, sliding), expected=ABSENT, strict=False)
        answers = yield from self._shared.write(op)
        if answers[0] is not None:
            self._see(key, _revision(answers[0]))
        return answers[0] is not None

    def compare_and_set(self, key: str, value: Value, revision: int, ttl: Span | None) -> Operation[int]:
        op = msgspec.structs.replace(self._put(key, value, ttl, sliding=False), expected=check_revision(revision))
        answers = yield from self._shared.write(op)
        return self._see(key, _revision(answers[0]))

    def increment(self, key: str, by: float) -> Operation[int | float]:
        answers = yield from self._shared.write(Increment(self._path, self._key(key), check_number(by)))
        answer = answers[0]
        return answer if isinstance(answer, int | float) else 0

    def delete(self, key: str, revision: int | None = None) -> Operation[bool]:
        expected = None if revision is None else check_revision(revision)
        answers = yield from self._shared.write(Delete(self._path, self._key(key), expected))
        self._see(key, ABSENT)
        return bool(answers[0])

    def delete_many(self, keys: Sequence[str]) -> Operation[int]:
        keys = self._keys_of(keys)
        ops = [Delete(self._path, key) for key in keys]
        answers = (yield from self._shared.write(*ops)) if ops else ()
        for key in keys:
            self._see(key, ABSENT)
        return sum(1 for answer in answers if answer)

    def copy(self, key: str, to: str, scope: Scope | None, *, move: bool) -> Operation[bool]:
        target = self._path if scope is None else scope.path
        answers = yield from self._shared.write(Copy(self._path, self._key(key), target, self._key(to), move))
        return bool(answers[0])

    def clear(self) -> Operation[int]:
        answers = yield from self._shared.write(Clear(self._path))
        self._seen.clear()
        answer = answers[0]
        return answer if isinstance(answer, int) else 0

    def keys(self, prefix: str, after: str | None, limit: int | None) -> Operation[list[str]]:
        if after is not None:
            self._key(after)
        if not (limit is None or (type(limit) is int and limit >= 0)):
            raise InvalidInput(f"limit is a whole number, 0 or more, not {limit!r}")
        self._check_prefix(prefix)
        rows = yield from read(lambda: list(self._scan(prefix, after, limit)))
        return [key for key, _ in rows]

    def all(self, prefix: str) -> Operation[dict[str, Value]]:
        self._check_prefix(prefix)
        rows = yield from read(lambda: list(self._scan(prefix, None, None)))
        return {key: decode(current_entry(self._path, key, stored).data or b"null") for key, stored in rows}

    def revision(self) -> Operation[int]:
        totals = yield from read(lambda: self._store.totals(self._path))
        return totals.revision

    def next_changes(self, after: int, listening: Subscription, idle_seconds: Span | None) -> Operation[list[StateChange]]:
        """Return the changes after a revision, as soon as there are any; an empty list after ``idle_seconds`` without one."""
        check_revision(after)
        ends = monotonic() + waited_seconds(idle_seconds, "idle_seconds")
        while True:
            rows = yield from read(lambda: self._store.changes(self._path, after))
            left = ends - monotonic()
            if rows or left <= 0:
                now = self._shared.clock.now_ms()
                return [StateChange.seen_at(key, current_entry(self._path, key, stored), now) for key, stored in rows]
            yield from wait(listening, left)

    def _live(self, key: str) -> Operation[StoredEntry | None]:
        found = yield from self._entries([key])
        stored = found.get(key)
        self._see(key, ABSENT if stored is None else stored.revision)
        if stored is not None and must_slide(stored, self._shared.clock.now_ms()):
            yield from self._shared.write(Touch(self._path, key))
        return stored

    def _entries(self, keys: Sequence[str]) -> Operation[dict[str, StoredEntry]]:
        for key in keys:
            self._key(key)
        found = yield from read(lambda: self._store.entries(self._path, keys))
        return {key: current_entry(self._path, key, stored) for key, stored in found.items()}

    def _see(self, key: str, revision: int) -> int:
        """Note the revision of a key that this object has seen: with the policy ``reject``, ``set`` is refused after a newer
        one.
        """
        if self._policy == "reject":
            self._seen[key] = revision
        return revision

    def _scan(self, prefix: str, after: str | None, limit: int | None) -> Iterator[tuple[str, StoredEntry]]:
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            rows = self._store.scan(self._path, prefix=prefix, after=after, limit=size)
            yield from rows
            if len(rows) < size:
                return
            after, left = rows[-1][0], None if left is None else left - len(rows)

    def _set(self, key: str, value: Value, ttl: Span | None, sliding: bool) -> Put | Merge:
        """Return the operation of ``set`` under this object's policy."""
        if self._policy in MERGES:
            if ttl is not None or sliding:
                raise InvalidInput("a merge keeps the time to live that the key has; set one with the policy last or reject")
            return self._merge(key, value, self._policy)
        op = self._put(key, value, ttl, sliding)
        return msgspec.structs.replace(op, expected=self._seen.get(key, ABSENT)) if self._policy == "reject" else op

    def _merge(self, key: str, value: Value, how: str) -> Merge:
        data = canonical(value, self._limits, what=f"state key {key!r}")
        return Merge(self._path, self._key(key), Raw(data), how)

    def _put(self, key: str, value: Value, ttl: Span | None, sliding: bool) -> Put:
        data = canonical(value, self._limits, what=f"state key {key!r}")
        return Put(self._path, self._key(key), Raw(data), ttl_ms=ttl_ms(ttl, sliding=sliding), sliding=sliding)

    def _check_prefix(self, prefix: str) -> None:
        if prefix != "":
            check_key(prefix, "a prefix", self._limits.key_bytes)

    def _key(self, key: str) -> str:
        return check_key(key, "a state key", self._limits.key_bytes)

    def _keys_of(self, keys: object) -> list[str]:
        """Return several keys that were given. Raise one refusal that names every bad one."""
        several = _several(keys)
        problems: list[Problem] = []
        for key in several:
            try:
                self._key(key)
            except ValidationFailed as error:
                problems += error.errors
        if problems:
            raise refusal(problems)
        return several


def must_slide(stored: StoredEntry, now_ms: int) -> bool:
    """Return whether a read of this entry restarts its TTL."""
    if not stored.sliding or stored.ttl_ms is None or stored.expires_ms is None:
        return False
    return stored.expires_ms - now_ms < stored.ttl_ms - stored.ttl_ms // _SLIDE_SHARE


def _several(keys: object) -> list[str]:
    """Return keys that were given as a list or another iterable. A single text is refused: its letters would be taken for keys."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidInput(f"several keys are a list of texts, not {keys!r}")
    return list(cast("Iterable[str]", keys))


def _revision(answer: object) -> int:
    return answer.revision if isinstance(answer, StoredEntry) else 0


def as_scope(scope: Scope | HasScope | None) -> Scope | None:
    """Return the ``Scope`` of what was given, or None."""
    return None if scope is None else scope_of(scope)


def child_scope(scope: Scope, kind: str, name: str) -> Scope:
    """Return a scope below another: workflow, custom or conversation of a workspace, step of a workflow."""
    if kind == "step" and scope.kind == "workflow":
        return Scope("step", scope.workspace, (scope.names[0], name))
    if kind != "step" and scope.kind == "workspace":
        return Scope(kind, scope.workspace, (name,))
    raise InvalidInput(f"a {scope.kind} scope has no {kind} scope below it")
