"""Threads: the tokens of an execution as the interpreter holds them, each with its place, its parent and its children."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from stepwell.flow.definition.outline import Place
from stepwell.kernel.plan import At, key_of
from stepwell.model.limits import Limits
from stepwell.model.record import Token, encode_token
from stepwell.model.value import Value

if TYPE_CHECKING:
    from stepwell.kernel.tally import JoinCount

__all__ = ["DO", "LIFE", "LOOSE", "ROOT", "UNDO", "LiveToken"]

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
