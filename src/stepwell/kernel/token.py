"""The live tokens of an execution, each with its place, frame and children, and their timers.

Timers that are due in the same millisecond fire in document order, frames before their children: the order in which they were
set is not known after a resume. A timer whose token no longer waits for it is dropped when it is due.
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
    "AGAIN",
    "BEGINS",
    "CHILDREN",
    "CHOICES",
    "CHOSEN",
    "DO",
    "DUE",
    "LIFE",
    "LOOSE",
    "NOT_UNDONE",
    "RETRIES",
    "ROOT",
    "TIMES",
    "UNDO",
    "LiveToken",
    "TokenTimers",
]


DUE, RETRIES, BEGINS = "due_ms", "retries_ms", "begins_ms"
TIMES = (DUE, RETRIES, BEGINS)
"""The keys in a token's value for its timers: its timeout, its next attempt, the start of its iteration."""

Order = tuple[int, At]
"""The position of a token in the document, and its iteration."""


class TokenTimers:
    """The timers of one execution."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, Order, int, LiveToken, str]] = []
        self._count = 0

    def set(self, token: LiveToken, due_ms: int, field: str, order: Order) -> None:
        """Set a token's timer."""
        token.value[field] = due_ms
        self._count += 1
        heappush(self._entries, (due_ms, order, self._count, token, field))

    @property
    def soonest_ms(self) -> int | None:
        """The time of the next timer."""
        while self._entries and not _is_live(*self._entries[0]):
            heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def take(self, now_ms: int) -> tuple[LiveToken, str] | None:
        """Return the next token whose timer is due, with the timer's key, and remove the timer."""
        while self._entries and self._entries[0][0] <= now_ms:
            entry = heappop(self._entries)
            if _is_live(*entry):
                *_, token, field = entry
                del token.value[field]
                return token, field
        return None


def _is_live(due_ms: int, _order: Order, _number: int, token: LiveToken, field: str) -> bool:
    return not token.is_gone and token.value.get(field) == due_ms


ROOT = "(root)"
"""The id of the token that represents the whole execution."""
LIFE = "life"
"""The key in the root token's value for the number of retries of the execution: results of an earlier life's children do not
count.
"""
CHOSEN = "chosen"
"""The key in the record of a deferred choice that failed: the chosen branch, and its signal's value if it has one."""
CHOICES = "choices"
"""The key in the root token's value for choices of an earlier life, by the key of the deferred choice that is entered again."""
CHILDREN = "children"
"""The key in the root token's value for children of an earlier life that go on in this one, by the key of their node."""
AGAIN = "again"
"""The key in the value of a token whose child is such a one, until the driver has retried it."""
DO = "do"
LOOSE, UNDO = "(loose)", "(undo)"
"""Slots inside a scope: detached tokens, and compensations. No branch has such a name."""
CALL_KEY, CALL_DIGEST = "call_key", "call_digest"
"""The keys in a token's value for the key of the user's own under which its step is called, and for the digest of that call."""
SUMMARY = "summary"
"""The key in the value of a step's token for the line about its call."""
AFTER_CALL = "after_call"
"""The key in the value of a token that waits for the end of another call with the same key of the user's own."""
NOT_UNDONE = "not_undone"
"""The key in a compensation's value for its error, once it has failed for good."""


class LiveToken:
    """One token. It moves along sequences and choices; where it splits or repeats, it stays as a frame and has children."""

    __slots__ = (
        "at",
        "children",
        "compensations",
        "id",
        "is_gone",
        "is_stored",
        "item",
        "item_from",
        "loops",
        "parent",
        "place",
        "scope",
        "slot",
        "tally",
        "value",
    )

    def __init__(self, id: str, place: Place, parent: LiveToken | None, slot: str, at: At) -> None:
        self.id, self.place, self.parent, self.slot, self.at = id, place, parent, slot, at
        self.value: dict[str, Any] = {}
        """The data of its place."""
        self.item: Value | UnsetType = UNSET
        """The item of a token with a single one; the items of a loop are kept by the loop."""
        self.item_from: LiveToken | None = None
        self.loops: dict[str, dict[str, Any]] = {}
        """Enclosing loops that may end before it does, by key, with what it reads of them."""
        self.children: dict[str, LiveToken] = {}
        self.tally: JoinCount | None = None
        self.scope: LiveToken = self
        """The nearest enclosing token that is a scope; the root is its own."""
        self.compensations: list[LiveToken] = []
        """The compensations of the steps that completed in this scope."""
        self.is_stored = self.is_gone = False

    @property
    def key(self) -> str:
        """The key of the record of its place."""
        return key_of(self.place, self.at)

    @property
    def scope_id(self) -> str:
        """The id of the cancel scope that this token is."""
        return "root" if self.parent is None else self.key

    def encode(self, limits: Limits) -> bytes:
        """Return the stored form of the token."""
        value = {"in": None if self.parent is None else self.parent.id, "slot": self.slot, "at": list(self.at), **self.value}
        if self.item is not UNSET:
            value["item"] = self.item
        if self.loops:
            value["loops"] = self.loops
        scope = "root" if self.parent is None else self.scope.scope_id
        return encode_token(Token(self.id, self.place.name, scope, value), limits)

    def __repr__(self) -> str:
        return f"<Thread {self.id!r} at {self.place.name!r}>"
