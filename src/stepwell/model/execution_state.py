"""Execution state: entries by section, their running digest, and the view that users get.

Every section (context, variables, steps, ...) is a dict from a key to canonical bytes. Digest, size, snapshot, diff and fork are
then the same few lines for all of them, and a value that was read cannot be changed.

The state digest costs O(change), not O(state). It is an AdHash (Bellare and Micciancio, 1997): every entry is hashed to a 4,096-bit
number and the state's accumulator is their sum modulo 2**4096. Replacing an entry subtracts its old number and adds its new one, in
any order and whatever the size of the rest. Finding two sets of entries with one sum is a generalised birthday problem, which costs
about 2**(2*sqrt(4096)) = 2**128 (Wagner, 2002). SHA-256 over the accumulator gives the digest that receipts carry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256, shake_128

import msgspec

from stepwell.errors import NotFound
from stepwell.model.plain_data import PlainRecord, plain_data
from stepwell.model.record import (
    CancelScope,
    LoopContext,
    Metadata,
    StepOutput,
    Token,
    Trigger,
    decode_loop,
    decode_metadata,
    decode_scope,
    decode_status,
    decode_step,
    decode_token,
    decode_trigger,
)
from stepwell.model.status import Status
from stepwell.model.value import Value, decode

__all__ = [
    "EMPTY",
    "MASK",
    "ONLY",
    "SECTIONS",
    "ZERO",
    "Change",
    "ExecutionState",
    "State",
    "common_element",
    "difference",
    "element",
    "result_element",
    "sha256_hex",
    "state_digest",
]


ONLY = ""
"""The key of a section that has a single entry."""

SECTIONS = {
    name: name.encode()
    for name in (
        "identity",
        "metadata",
        "status",
        "step_count",
        "trigger",
        "context",
        "variables",
        "steps",
        "loops",
        "tokens",
        "scopes",
        "result",
    )
}

Entries = dict[str, dict[str, bytes]]


class State:
    """The state of one execution at one revision, as its writer holds it. Changed only by ``Draft.apply``."""

    __slots__ = (
        "_identity",
        "accumulator",
        "digest",
        "elements",
        "receipt",
        "revision",
        "sections",
        "since_snapshot",
        "size",
        "tree",
    )

    def __init__(self) -> None:
        self.sections: Entries = {name: {} for name in SECTIONS}
        self.accumulator = 0
        self.digest = EMPTY
        """The digest of this state, as in ``Receipt.after``."""
        self.elements: dict[tuple[str, str], int] = {}
        """The digest numbers of entries written lately, since what was written last is likely replaced next."""
        self.size = 0
        self.revision = -1
        self.receipt = ZERO
        self.since_snapshot = 0
        self.tree = ScopeTree()
        self._identity: tuple[bytes, Metadata] | None = None
        """The identity, and the entry that it was decoded from: it is read often, and hardly ever changes."""

    @classmethod
    def of(cls, entries: Mapping[str, Mapping[str, bytes]], revision: int, receipt: str, accumulator: int | None) -> State:
        """Return the state with these entries; without an accumulator, compute it from them."""
        state = cls()
        state.revision, state.receipt = revision, receipt
        for section, rows in entries.items():
            state.sections[section].update(rows)
            state.size += sum(len(key) + len(data) for key, data in rows.items())
        for address in (("scopes", key) for key in state.sections["scopes"]):
            state.tree.put(address, state.sections["scopes"][address[1]])
        for key, data in state.sections["tokens"].items():
            state.tree.put(("tokens", key), data)
        state.accumulator = state.add_up() if accumulator is None else accumulator
        state.digest = state_digest(state.accumulator)
        return state

    def add_up(self) -> int:
        """Return the accumulator, computed from all entries."""
        return sum(element(SECTIONS[section], key, data) for section, key, data in self.rows()) & MASK

    def rows(self) -> Iterator[tuple[str, str, bytes]]:
        """Return every entry with its section and key."""
        for section, entries in self.sections.items():
            for key, data in entries.items():
                yield section, key, data

    @property
    def keys(self) -> int:
        """Return the number of entries."""
        return sum(map(len, self.sections.values()))

    @property
    def identity(self) -> Metadata:
        """Return the execution's identity."""
        data = self.sections["identity"][ONLY]
        if self._identity is None or self._identity[0] is not data:
            self._identity = data, decode_metadata(data)
        return self._identity[1]

    def name(self, data: bytes, identity: Metadata) -> None:
        """Set the identity: the entry, and the same decoded, which the caller has anyway."""
        self.sections["identity"][ONLY] = data
        self._identity = data, identity

    def copy_entries(self) -> Entries:
        """Return the entries in dicts of their own; the bytes are shared, since they are immutable."""
        return {section: dict(entries) for section, entries in self.sections.items()}


class ScopeTree:
    """The cancel scopes and tokens directly inside each scope, so that cancelling costs only what is inside."""

    __slots__ = ("scopes", "tokens")

    def __init__(self) -> None:
        self.scopes: dict[str, set[str]] = {}
        self.tokens: dict[str, set[str]] = {}

    def put(self, address: tuple[str, str], data: bytes) -> None:
        """Note an entry of the sections ``scopes`` or ``tokens``."""
        section, key = address
        if section == "scopes":
            parent = decode_scope(data).parent
            if parent is not None:
                self.scopes.setdefault(parent, set()).add(key)
        else:
            self.tokens.setdefault(decode_token(data).scope, set()).add(key)

    def remove(self, address: tuple[str, str], data: bytes) -> None:
        """Forget an entry that had this data."""
        section, key = address
        parent = decode_scope(data).parent if section == "scopes" else decode_token(data).scope
        if parent is not None:
            (self.scopes if section == "scopes" else self.tokens).get(parent, set()).discard(key)


class ExecutionState:
    """The state of an execution at one revision. Each attribute returns a fresh copy: changing it never changes the store."""

    __slots__ = ("_entries", "revision", "state_digest")

    def __init__(self, state: State, entries: Entries | None = None) -> None:
        """Show a state, or other ``entries`` at its revision."""
        self._entries = state.copy_entries() if entries is None else entries
        self.revision = state.revision
        self.state_digest = state.digest

    @property
    def identity(self) -> Metadata:
        """Return the ids, workflow, version and start of the execution."""
        return decode_metadata(self._entries["identity"][ONLY])

    @property
    def status(self) -> Status:
        """Return the status."""
        return decode_status(self._entries["status"][ONLY])

    @property
    def metadata(self) -> dict[str, Value]:
        """Return the free metadata that ``set_metadata`` set."""
        return decode(self._entries["metadata"].get(ONLY, b"{}"))

    @property
    def step_count(self) -> int:
        """Return the number of counted steps."""
        return decode(self._entries["step_count"][ONLY])

    @property
    def trigger(self) -> Trigger | Value:
        """Return what started the execution, or None."""
        data = self._entries["trigger"].get(ONLY)
        return None if data is None else decode_trigger(data)

    @property
    def result(self) -> Value:
        """Return ``{"output": ...}``, or ``{"error": ...}`` if it did not complete. None until the execution has ended."""
        data = self._entries["result"].get(ONLY)
        return None if data is None else decode(data)

    @property
    def context(self) -> dict[str, Value]:
        """Return the context."""
        return {key: decode(data) for key, data in self._entries["context"].items()}

    @property
    def variables(self) -> dict[str, Value]:
        """Return all variables, by name."""
        return {name: decode(data) for name, data in self._entries["variables"].items()}

    @property
    def steps(self) -> dict[str, StepOutput]:
        """Return all recorded step outputs, by name."""
        return {name: decode_step(data) for name, data in self._entries["steps"].items()}

    @property
    def loops(self) -> dict[str, LoopContext]:
        """Return the positions of all loops, by id."""
        return {name: decode_loop(data) for name, data in self._entries["loops"].items()}

    @property
    def tokens(self) -> dict[str, Token]:
        """Return all tokens, by id."""
        return {name: decode_token(data) for name, data in self._entries["tokens"].items()}

    @property
    def scopes(self) -> dict[str, CancelScope]:
        """Return all cancel scopes, by id, with ``root``."""
        return {name: decode_scope(data) for name, data in self._entries["scopes"].items()}

    def entries(self) -> Entries:
        """Return the canonical bytes of everything, by section and key."""
        return {section: dict(entries) for section, entries in self._entries.items()}

    def step(self, name: str) -> StepOutput:
        """Return one step's output. Raise ``NotFound`` if none is recorded under ``name``."""
        data = self._entries["steps"].get(name)
        if data is None:
            raise NotFound(f"step {name!r} has no output at revision {self.revision}")
        return decode_step(data)

    def to_dict(self) -> dict[str, Value]:
        """Return the state as plain data that ``json.dumps`` takes, with the names of its attributes."""
        names = [
            "status",
            "revision",
            "context",
            "variables",
            "trigger",
            "steps",
            "loops",
            "tokens",
            "scopes",
            "step_count",
            "result",
        ]
        return {"identity": plain_data(self.identity)} | {name: plain_data(getattr(self, name)) for name in names}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionState) and self._entries == other._entries

    __hash__ = None  # pyright: ignore[reportAssignmentType] - compares by content, so it is no dict key

    def __repr__(self) -> str:
        who = self.identity
        return f"<ExecutionState {who.execution_id!r} revision={self.revision} status={self.status}>"


class Change(PlainRecord, frozen=True):
    """One difference between two states: where, and the value before and after (absent: not there)."""

    section: str
    key: str
    before: Value | msgspec.UnsetType = msgspec.UNSET
    after: Value | msgspec.UnsetType = msgspec.UNSET


def difference(before: ExecutionState, after: ExecutionState) -> list[Change]:
    """Return everything that differs between two states, in order of section and key."""
    changes: list[Change] = []
    old, new = before.entries(), after.entries()
    for section in SECTIONS:
        for key in sorted(old[section].keys() | new[section].keys()):
            was, now = old[section].get(key), new[section].get(key)
            if was != now:
                changes.append(
                    Change(
                        section,
                        key,
                        msgspec.UNSET if was is None else decode(was),
                        msgspec.UNSET if now is None else decode(now),
                    )
                )
    return changes


_BYTES = 512
_SHORT = 64
MASK = (1 << (8 * _BYTES)) - 1
"""Sums are taken modulo 2**4096, which is the bits under this mask."""

ZERO = "0" * 64
"""The ``previous`` of an execution's first receipt."""


def element(section: bytes, key: str, data: bytes) -> int:
    """Return the number of one entry; its address is in it, with lengths, so that no two entries can be confused."""
    name = key.encode()
    return int.from_bytes(shake_128(b"%d:%b%d:%b%b" % (len(section), section, len(name), name, data)).digest(_BYTES), "little")


common_element = lru_cache(256)(element)
"""The same with a cache, for entries that are the same in most executions."""

_short_result = lru_cache(256)(element)


def result_element(section: bytes, key: str, data: bytes) -> int:
    """Return the number of a result's entry. Short results often repeat; a cache of their own keeps them from filling the other."""
    return _short_result(section, key, data) if len(data) <= _SHORT else element(section, key, data)


def state_digest(accumulator: int) -> str:
    """Return the digest of a state whose entries add up to ``accumulator``."""
    return sha256(b"stepwell.state.1\0" + accumulator.to_bytes(_BYTES, "little")).hexdigest()


def sha256_hex(data: bytes) -> str:
    """Return SHA-256 as 64 hex digits."""
    return sha256(data).hexdigest()


EMPTY = state_digest(0)
"""The digest of a state without entries."""
