"""Times that threads wait for, the soonest first. One that its thread no longer waits for is passed over when its turn comes.

Times that come in the same millisecond are served in the order of the document, what is around before what is inside: the order in
which they were set is not known any more when an execution was taken up again.

Threads: the tokens of an execution as the interpreter holds them, each with its place, its parent and its children.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from stepwell.flow.definition.outline import Place
from stepwell.kernel.plan import At, key_of
from stepwell.model.limits import Limits
from stepwell.model.record import Token, encode_token
from stepwell.model.value import Value

if TYPE_CHECKING:
    from stepwell.kernel.nodes.joins import JoinCount

__all__ = [
    "BEGINS",
    "DO",
    "DUE",
    "LIFE",
    "LOOSE",
    "RETRIES",
    "ROOT",
    "TIMES",
    "UNDO",
    "LiveToken",
    "TokenTimers",
]


DUE, RETRIES, BEGINS = "due_ms", "retries_ms", "begins_ms"
TIMES = (DUE, RETRIES, BEGINS)
"""Where a token says what it waits for: its end, its next attempt, the begin of its iteration."""

Order = tuple[int, At]
"""Where a thread stands in the document, and in which iteration."""


class TokenTimers:
    """The times of one execution."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, Order, int, LiveToken, str]] = []
        self._count = 0

    def set(self, thread: LiveToken, due_ms: int, field: str, order: Order) -> None:
        """Have a thread woken at a time."""
        thread.value[field] = due_ms
        self._count += 1
        heappush(self._entries, (due_ms, order, self._count, thread, field))

    @property
    def soonest_ms(self) -> int | None:
        """The first of the times."""
        while self._entries and not _is_live(*self._entries[0]):
            heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def take(self, now_ms: int) -> tuple[LiveToken, str] | None:
        """The next thread whose time has come, and where it said so; it waits for it no more."""
        while self._entries and self._entries[0][0] <= now_ms:
            entry = heappop(self._entries)
            if _is_live(*entry):
                *_, thread, field = entry
                del thread.value[field]
                return thread, field
        return None


def _is_live(due_ms: int, _order: Order, _number: int, thread: LiveToken, field: str) -> bool:
    return not thread.is_gone and thread.value.get(field) == due_ms


ROOT = "(root)"
"""The id of the token that stands for the whole execution."""
LIFE = "life"
"""Where it says how often the execution was retried: children of an earlier life have ended, and are no answer any more."""
DO = "do"
LOOSE, UNDO = "(loose)", "(undo)"
"""Slots inside a region: what runs on without anybody waiting for it, and what undoes. No branch has such a name."""


class LiveToken:
    """One token. A thread moves along sequences and choices; where it splits or repeats, it stays and has children."""

    __slots__ = (
        "at",
        "children",
        "id",
        "is_gone",
        "is_stored",
        "item",
        "item_from",
        "loops",
        "parent",
        "place",
        "region",
        "slot",
        "tally",
        "undos",
        "value",
    )

    def __init__(self, id: str, place: Place, parent: LiveToken | None, slot: str, at: At) -> None:
        self.id, self.place, self.parent, self.slot, self.at = id, place, parent, slot, at
        self.value: dict[str, Any] = {}
        """What it remembers at its place."""
        self.item: Value | UnsetType = UNSET
        """The item that it was given as a whole; items of loops are kept by the loop."""
        self.item_from: LiveToken | None = None
        self.loops: dict[str, dict[str, Any]] = {}
        """Loops around it that may end before it does, by key: what is asked of them inside."""
        self.children: dict[str, LiveToken] = {}
        self.tally: JoinCount | None = None
        self.region: LiveToken = self
        """The nearest thread around that is a cancel scope; the root is its own."""
        self.undos: list[LiveToken] = []
        """What would undo the steps that were completed in this region."""
        self.is_stored = self.is_gone = False

    @property
    def key(self) -> str:
        """What the output at its place is recorded under."""
        return key_of(self.place, self.at)

    @property
    def scope_id(self) -> str:
        """The cancel scope that this region is."""
        return "root" if self.parent is None else self.key

    def encode(self, limits: Limits) -> bytes:
        """The token to store."""
        value = {"in": None if self.parent is None else self.parent.id, "slot": self.slot, "at": list(self.at), **self.value}
        if self.item is not UNSET:
            value["item"] = self.item
        if self.loops:
            value["loops"] = self.loops
        scope = "root" if self.parent is None else self.region.scope_id
        return encode_token(Token(self.id, self.place.name, scope, value), limits)

    def __repr__(self) -> str:
        return f"<Thread {self.id!r} at {self.place.name!r}>"
