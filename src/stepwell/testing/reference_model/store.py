"""A plain model of executions and scoped state: dicts, copies and ifs, with nothing to be fast and no digests.

It says what a store and its faces must come to, in the shortest code that is plainly right. ``machine`` holds a store against it.
Changes have the names of a transaction's methods; one that is not allowed raises ``Refused`` and changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stepwell.errors import Conflict, InvalidInput, StepwellError, ValidationFailed
from stepwell.model.execution_state import ExecutionState
from stepwell.model.receipt import Receipt
from stepwell.model.scoped_operations import ABSENT, Clear, Copy, Delete, Increment, Merge, Migrate, Put, StateOp, Touch
from stepwell.model.status import FINAL, Status, may_follow
from stepwell.model.value import Value, canonical, decode

__all__ = [
    "Change",
    "PlainEntry",
    "PlainExecution",
    "PlainLease",
    "PlainScope",
    "PlainState",
    "Refused",
    "apply_op",
    "view_of",
]

Change = tuple[str, tuple[Any, ...]]
"""The name of one of ``PlainState``'s methods, which a transaction has too, and its arguments."""


class Refused(Exception):
    """The plain model does not allow this; ``kind`` is the error that a store must give."""

    def __init__(self, kind: type[StepwellError]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


@dataclass
class PlainState:
    """The state of an execution, as a user sees it."""

    context: dict[str, Value] = field(default_factory=dict[str, Value])
    variables: dict[str, Value] = field(default_factory=dict[str, Value])
    steps: dict[str, Value] = field(default_factory=dict[str, Value])
    loops: dict[str, Value] = field(default_factory=dict[str, Value])
    tokens: dict[str, dict[str, Value]] = field(default_factory=dict[str, dict[str, Value]])
    scopes: dict[str, dict[str, Value]] = field(default_factory=lambda: {"root": {"parent": None, "status": "active"}})
    metadata: dict[str, Value] = field(default_factory=dict[str, Value])
    trigger: Value = None
    step_count: int = 0
    status: str = "PENDING"

    def set_context(self, context: dict[str, Value]) -> None:
        self.context = context

    def set_variable(self, name: str, value: Value) -> None:
        self.variables[name] = value

    def set_trigger(self, value: Value) -> None:
        refuse_if(self.trigger is not None)
        self.trigger = value

    def record_step(self, name: str, output: Value) -> None:
        refuse_if(name in self.steps)
        self.steps[name] = output

    def set_loop_context(self, loop_id: str, index: int, item: Value) -> None:
        self.loops[loop_id] = [index, item]

    def add_token(self, token_id: str, scope: str, value: Value) -> None:
        refuse_if(token_id in self.tokens or not self.is_active(scope))
        self.tokens[token_id] = {"scope": scope, "value": value, "status": "active"}

    def update_token(self, token_id: str, scope: str, value: Value) -> None:
        token = self.tokens.get(token_id)
        refuse_if(token is None or token["status"] == "cancelled" or not self.is_active(scope))
        self.tokens[token_id] = {"scope": scope, "value": value, "status": "active"}

    def remove_token(self, token_id: str) -> None:
        refuse_if(token_id not in self.tokens)
        del self.tokens[token_id]

    def enter_scope(self, scope_id: str, parent: str) -> None:
        refuse_if(scope_id in self.scopes or not self.is_active(parent))
        self.scopes[scope_id] = {"parent": parent, "status": "active"}

    def exit_scope(self, scope_id: str) -> None:
        tenants = [*(token["scope"] for token in self.tokens.values()), *(scope["parent"] for scope in self.scopes.values())]
        refuse_if(scope_id == "root" or scope_id not in self.scopes or scope_id in tenants)
        del self.scopes[scope_id]

    def cancel_scope(self, scope_id: str) -> None:
        refuse_if(scope_id not in self.scopes)
        self.scopes[scope_id]["status"] = "cancelled"
        for token in self.tokens.values():
            if token["scope"] == scope_id:
                token["status"] = "cancelled"
        for inner, scope in self.scopes.items():
            if scope["parent"] == scope_id:
                self.cancel_scope(inner)

    def increment_step_count(self) -> None:
        self.step_count += 1

    def set_metadata(self, metadata: dict[str, Value]) -> None:
        self.metadata = metadata

    def set_status(self, status: str) -> None:
        refuse_if(not may_follow(Status(self.status), Status(status)))
        self.status = status

    def is_active(self, scope_id: str) -> bool:
        """Return whether a cancel scope is open."""
        return scope_id in self.scopes and self.scopes[scope_id]["status"] == "active"

    def changed(self, changes: Iterable[Change]) -> tuple[PlainState, int]:
        """Return the state after these changes, and how many of them are not allowed: they land only if none is."""
        state, faults = copy.deepcopy(self), 0
        for name, arguments in changes:
            try:
                refuse_if(state.status in FINAL and name != "set_status")
                getattr(state, name)(*copy.deepcopy(arguments))
            except Refused:
                faults += 1
        return state, faults


def refuse_if(condition: bool, kind: type[StepwellError] = ValidationFailed) -> None:
    """Raise ``Refused`` on a condition."""
    if condition:
        raise Refused(kind)


def view_of(state: ExecutionState) -> PlainState:
    """Return a loaded state in the plain model's terms."""
    return PlainState(
        context=state.context,
        variables=state.variables,
        steps={name: step.output for name, step in state.steps.items()},
        loops={name: [loop.current_index, loop.current_item] for name, loop in state.loops.items()},
        tokens={
            name: {"scope": token.scope, "value": token.value, "status": str(token.status)} for name, token in state.tokens.items()
        },
        scopes={name: {"parent": scope.parent, "status": str(scope.status)} for name, scope in state.scopes.items()},
        metadata=state.metadata,
        trigger=state.trigger,
        step_count=state.step_count,
        status=str(state.status),
    )


@dataclass
class PlainLease:
    """A lease: its holder, its end and its fence."""

    holder: str = ""
    fence: int = 0
    until_ms: int = 0
    acquired_ms: int = 0


@dataclass
class PlainExecution:
    """An execution with everything that ever happened to it: its state and receipt at each retained revision."""

    base: int
    """The revision that the history starts with."""
    states: list[PlainState]
    receipts: list[Receipt] = field(default_factory=list[Receipt])
    is_based: bool = False
    """Whether the history starts with a snapshot, which has no receipt here."""
    lease: PlainLease = field(default_factory=PlainLease)

    @property
    def revision(self) -> int:
        """Return the newest revision."""
        return self.base + len(self.states) - 1

    @property
    def state(self) -> PlainState:
        """Return the newest state."""
        return self.states[-1]

    def land(self, state: PlainState, receipt: Receipt) -> None:
        """Add a commit."""
        self.states.append(state)
        self.receipts.append(receipt)

    def at(self, revision: int) -> PlainState:
        """Return the state at a retained revision."""
        return self.states[revision - self.base]

    def archive(self, through: int) -> None:
        """Drop everything before a revision, and the receipt that led to it."""
        self.receipts = [receipt for receipt in self.receipts if receipt.revision > through]
        self.states = self.states[through - self.base :]
        self.base, self.is_based = through, True


@dataclass
class PlainEntry:
    """A key's value, its revision and its end."""

    value: Value
    revision: int
    ends_ms: int | None = None
    ttl_ms: int | None = None
    sliding: bool = False


@dataclass
class PlainScope:
    """One scope: its keys, the expired ones among them until they are swept, and the keys that left a tombstone."""

    revision: int = 0
    entries: dict[str, PlainEntry] = field(default_factory=dict[str, PlainEntry])
    tombs: dict[str, int] = field(default_factory=dict[str, int])
    """When each of the tombstones was made."""
    before: PlainScope | None = None
    """The scope as it was when the present batch began."""

    def begin(self) -> None:
        """Begin a batch."""
        self.before = None
        self.before = copy.deepcopy(self)

    def live(self, key: str, now_ms: int) -> PlainEntry | None:
        """Return the entry, or None if it is absent or has expired."""
        entry = self.entries.get(key)
        return None if entry is None or (entry.ends_ms is not None and entry.ends_ms <= now_ms) else entry

    def put(self, key: str, value: Value, now_ms: int, ttl_ms: int | None = None, sliding: bool = False) -> PlainEntry:
        """Set a key at the next revision."""
        self.revision += 1
        ends = None if ttl_ms is None else now_ms + ttl_ms
        self.entries[key] = PlainEntry(value, self.revision, ends, ttl_ms, sliding)
        self.tombs.pop(key, None)
        return self.entries[key]

    def put_like(self, key: str, value: Value, now_ms: int, like: PlainEntry | None) -> PlainEntry:
        """Set a key with another's TTL: a fixed one goes on, a sliding one starts anew."""
        if like is None or like.ends_ms is None:
            return self.put(key, value, now_ms)
        return self.put(key, value, now_ms, like.ttl_ms if like.sliding else like.ends_ms - now_ms, like.sliding)

    def bury(self, key: str, now_ms: int) -> None:
        """Remove a key at the next revision, leaving a tombstone."""
        self.revision += 1
        del self.entries[key]
        self.tombs[key] = now_ms

    def touch(self, key: str, now_ms: int) -> bool:
        """Start a sliding TTL again."""
        found = self.live(key, now_ms)
        if found is None or not found.sliding:
            return False
        found.ends_ms = now_ms + (found.ttl_ms or 0)
        return True

    def replace(self, key: str, value: Value, revision: int, now_ms: int) -> bool:
        """Replace the value of a key that is still at a revision, which stays."""
        found = self.live(key, now_ms)
        if found is None or found.revision != revision:
            return False
        found.value = value
        return True

    def clear(self, now_ms: int) -> int:
        """Remove all keys at one revision; return how many had not expired. A key of the same batch leaves no tombstone."""
        self.revision += 1
        count, before = sum(self.live(key, now_ms) is not None for key in self.entries), self.before or PlainScope()
        self.tombs = before.tombs | dict.fromkeys(before.entries, now_ms)
        self.entries.clear()
        return count

    def sweep(self, now_ms: int, tombstone_ms: int) -> int:
        """Drop old tombstones, then bury what has ended; how many those were."""
        self.tombs = {key: made for key, made in self.tombs.items() if made > now_ms - tombstone_ms}
        ended = [key for key in self.entries if self.live(key, now_ms) is None]
        for key in ended:
            self.bury(key, now_ms)
        return len(ended)


def apply_op(scopes: dict[str, PlainScope], op: StateOp, now_ms: int) -> Value | PlainEntry:
    """Apply one operation to the scopes, and return its answer. Raise ``Refused`` if it is not allowed."""
    scope = scopes[op.scope]
    match op:
        case Put(key=key, expected=expected):
            found = scope.live(key, now_ms)
            if expected is not None and expected != (ABSENT if found is None else found.revision):
                refuse_if(op.strict, Conflict)
                return None
            return scope.put(key, decode(op.value), now_ms, op.ttl_ms, op.sliding)
        case Delete(key=key, expected=expected):
            found = scope.live(key, now_ms)
            refuse_if(expected is not None and expected != (ABSENT if found is None else found.revision), Conflict)
            if key in scope.entries:
                scope.bury(key, now_ms)
            return found is not None
        case Increment(key=key, by=by):
            found = scope.live(key, now_ms)
            before = 0 if found is None else found.value
            refuse_if(type(before) not in (int, float), InvalidInput)
            refuse_if(is_too_large(before + by), InvalidInput)
            scope.put_like(key, before + by, now_ms, found)
            return before + by
        case Copy(key=key, to_scope=to_scope, to_key=to_key):
            found = scope.live(key, now_ms)
            if found is None:
                return False
            scopes[to_scope].put_like(to_key, found.value, now_ms, found)
            if op.move and (op.scope, key) != (to_scope, to_key):
                scope.bury(key, now_ms)
            return True
        case Merge(key=key, how=how):
            found, given = scope.live(key, now_ms), decode(op.value)
            start: dict[str, Value] = {"add": 0, "union": []}
            after = merged(how, start.get(how, given) if found is None else found.value, given)
            scope.put_like(key, after, now_ms, found)
            return after
        case Touch(key=key):
            return scope.touch(key, now_ms)
        case Clear():
            return scope.clear(now_ms)
        case Migrate(key=key, expected=expected):
            return scope.replace(key, decode(op.value), expected, now_ms)


def merged(how: str, before: Value, given: Value) -> Value:
    """Return the merged value of two values."""
    if how == "union":
        refuse_if(type(before) is not list or type(given) is not list, InvalidInput)
        return [decode(data) for data in sorted({canonical(member) for member in before + given})]
    refuse_if(type(before) not in (int, float) or type(given) not in (int, float), InvalidInput)
    if how == "add":
        refuse_if(is_too_large(before + given), InvalidInput)
        return before + given
    # Of 1 and 1.0 the bytes decide.
    smaller, larger = sorted((before, given), key=lambda number: (number, canonical(number)))
    return larger if how == "max" else smaller


def is_too_large(number: float) -> bool:
    """Return whether a whole number needs more than 64 bits."""
    return isinstance(number, int) and not -(2**63) <= number < 2**63
