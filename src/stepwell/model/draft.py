"""Drafts: a state with a batch of mutations on top of it, not applied yet.

A draft knows every entry that changes and the digest afterwards, so that applying it, once it is stored, cannot fail.
``model.validation`` has the rules of each mutation.

Every run from the queue begins with the same three mutations. ``Opening`` has their entries, so that they are not computed again
for each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from stepwell.fault_points import fault
from stepwell.model.execution_state import MASK, ONLY, SECTIONS, State, common_element, element, result_element, state_digest
from stepwell.model.mutation import (
    Create,
    Mutation,
    SetStatus,
    SetTrigger,
)
from stepwell.model.queue_item import NewItem
from stepwell.model.record import CancelScope, decode_scope, decode_status, decode_token, encode_record
from stepwell.model.scoped_operations import StateOp
from stepwell.model.status import FINAL, Status

__all__ = [
    "ROOT_SCOPE",
    "Draft",
    "Opening",
    "Planned",
    "opening_of",
    "quoted",
]


def quoted(text: str) -> bytes:
    """Return a text as the JSON that an entry holds; for texts that need no escaping."""
    return b'"%b"' % text.encode()


_FINAL = frozenset(quoted(status) for status in FINAL)
_STATUSES = {quoted(status): status for status in Status}
_MISSING = object()

# Digest numbers take half a kilobyte each, so cached ones take at most this many half-kilobytes per cached execution.
_MOST_ELEMENTS = 64


class Draft(msgspec.Struct, gc=False, eq=False):
    """A state with a batch of mutations on top of it, not yet applied."""

    base: State
    accumulator: int
    digest: str
    size: int
    is_over: bool
    """Whether the execution has ended, as the mutations so far leave it."""
    status: Status | None = None
    """The status that this batch sets, if it sets one."""
    version: int | None = None
    """The version of the workflow that this batch goes on with, if it sets one."""
    mutations: list[Mutation] = []
    ops: list[StateOp] | None = None
    items: list[NewItem] | None = None
    _pending: dict[tuple[str, str], bytes | None] = {}
    _elements: dict[tuple[str, str], int] = {}
    _placed: dict[str | None, set[tuple[str, str]]] | None = None
    """The entries that this batch puts into each scope; built on demand, since few batches close or cancel scopes."""

    @classmethod
    def on(cls, base: State) -> Draft:
        """Return a draft in which nothing is changed yet."""
        return cls(base, base.accumulator, base.digest, base.size, base.sections["status"].get(ONLY) in _FINAL)

    def open(self, opening: Opening) -> None:
        """Begin with the opening of a new execution. Only on a state without entries."""
        self._pending.update(opening.entries)
        self.mutations.extend(opening.mutations)
        self.status = Status.RUNNING

    def get(self, section: str, key: str) -> bytes | None:
        """Return an entry as the mutations so far leave it."""
        found: Any = self._pending.get((section, key), _MISSING)
        return self.base.sections[section].get(key) if found is _MISSING else found

    def put(self, section: str, key: str, data: bytes) -> None:
        """Write an entry."""
        self._pending[section, key] = data
        if self._placed is not None and section in _IN_TREE:
            self._placed.setdefault(_parent(section, data), set()).add((section, key))

    def write_state(self, op: StateOp) -> None:
        """Add an operation on scoped state to the commit."""
        if self.ops is None:
            self.ops = []
        self.ops.append(op)

    def enqueue(self, item: NewItem) -> None:
        """Add a queue item to the commit."""
        if self.items is None:
            self.items = []
        self.items.append(item)

    def put_status(self, data: bytes) -> None:
        """Write the entry of the execution's status."""
        self.put("status", ONLY, data)
        self.is_over = data in _FINAL

    def remove(self, section: str, key: str) -> None:
        """Remove an entry."""
        self._pending[section, key] = None

    def keys(self, section: str) -> Iterator[str]:
        """Return the keys of a section as the mutations so far leave them."""
        for key in self.base.sections[section]:
            if self._pending.get((section, key), _MISSING) is not None:
                yield key
        for (name, key), data in self._pending.items():
            if name == section and data is not None and key not in self.base.sections[section]:
                yield key

    def count_keys(self) -> int:
        """Return the number of entries as the mutations so far leave them."""
        sections = self.base.sections
        changes = ((data is not None) - (key in sections[section]) for (section, key), data in self._pending.items())
        return self.base.keys + sum(changes)

    def current_status(self) -> Status | None:
        """Return the execution's status as the mutations so far leave it; None before it is created."""
        data = self.get("status", ONLY)
        return None if data is None else _STATUSES.get(data) or decode_status(data)

    def inside(self, scope_id: str) -> Iterator[tuple[str, str]]:
        """Return the scopes and tokens directly inside a scope, as the mutations so far leave them."""
        tree = self.base.tree
        seen = {("scopes", key) for key in tree.scopes.get(scope_id, ())}
        seen |= {("tokens", key) for key in tree.tokens.get(scope_id, ())}
        seen |= self._placements().get(scope_id, set())
        for section, key in sorted(seen):
            data = self.get(section, key)
            if data is not None and _parent(section, data) == scope_id:
                yield section, key

    def _placements(self) -> dict[str | None, set[tuple[str, str]]]:
        if self._placed is None:
            self._placed = {}
            for (section, key), data in self._pending.items():
                if data is not None and section in _IN_TREE:
                    self._placed.setdefault(_parent(section, data), set()).add((section, key))
        return self._placed

    def close(self) -> None:
        """Compute the digest and size after the batch."""
        base = self.base
        total, size, sections = base.accumulator, base.size, base.sections
        for address, data in self._pending.items():
            section, key = address
            before = sections[section].get(key)
            if before == data:
                continue
            name, number_of, is_kept = _HASHED[section]
            if before is not None:
                total -= base.elements.get(address) or number_of(name, key, before)
                size -= len(key) + len(before)
            if data is not None:
                number = number_of(name, key, data)
                if is_kept:
                    self._elements[address] = number
                total += number
                size += len(key) + len(data)
        self.accumulator = total = total & MASK
        self.size, self.digest = size, state_digest(total)

    def apply(self) -> State:
        """Apply this draft to the base state. Only called once the batch is stored, and cannot fail."""
        state, sections = self.base, self.base.sections
        for address, data in self._pending.items():
            fault("commit.applying")
            section, key = address
            if section in _IN_TREE:
                _follow(state, address, data)
            if data is not None:
                sections[section][key] = data
            else:
                sections[section].pop(key, None)
                state.elements.pop(address, None)
        fresh = self._elements
        if fresh:
            if len(state.elements) + len(fresh) > _MOST_ELEMENTS:
                state.elements.clear()
            if len(fresh) <= _MOST_ELEMENTS:
                state.elements.update(fresh)
        state.accumulator, state.digest, state.size = self.accumulator, self.digest, self.size
        return state


_IN_TREE = frozenset(("scopes", "tokens"))
_COMMON = frozenset(("status", "step_count", "scopes"))
_WRITTEN_ONCE = frozenset(("identity", "trigger", "steps"))
_ELEMENTS = {**dict.fromkeys(_COMMON, common_element), "result": result_element}
_HASHED = {section: (name, _ELEMENTS.get(section, element), section not in _WRITTEN_ONCE) for section, name in SECTIONS.items()}
"""For each section its name in the digest, the function that hashes an entry, and whether the number is cached.

Numbers of entries that stay need no cache, since hardly any of them is replaced.
"""


def _parent(section: str, data: bytes) -> str | None:
    """Return the scope around a scope or token."""
    return decode_scope(data).parent if section == "scopes" else decode_token(data).scope


def _follow(state: State, address: tuple[str, str], data: bytes | None) -> None:
    before = state.sections[address[0]].get(address[1])
    if before is not None:
        state.tree.remove(address, before)
    if data is not None:
        state.tree.put(address, data)


Planned = Mutation | Callable[[Draft], Mutation]
"""A mutation, or a function that returns one when the mutations before it are applied."""


ROOT_SCOPE = encode_record(CancelScope("root", None))
"""The entry of the scope that every execution has."""

_RUNS = SetStatus(Status.RUNNING)
_RUNNING = b'"RUNNING"'
_NO_CONTEXT = msgspec.Raw(b"{}")


class Opening(msgspec.Struct, frozen=True, gc=False):
    """The mutations that a new execution begins with."""

    mutations: tuple[Mutation, ...]
    entries: dict[tuple[str, str], bytes]
    """The entries that they write, by section and key."""


def opening_of(identity: bytes, trigger: bytes) -> Opening:
    """Return the opening of an execution from the stored forms of its identity and its trigger."""
    raw = msgspec.Raw
    return Opening(
        (Create(raw(identity), _NO_CONTEXT), SetTrigger(raw(trigger)), _RUNS),
        {
            ("identity", ONLY): identity,
            ("status", ONLY): _RUNNING,
            ("step_count", ONLY): b"0",
            ("scopes", "root"): ROOT_SCOPE,
            ("trigger", ONLY): trigger,
        },
    )
