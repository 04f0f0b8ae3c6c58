"""The token of a ``map`` in a workflow function: how many items it has, and which calls are theirs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stepwell.model.record import Token

__all__ = ["FAN_OUT", "FanOut", "fan_outs"]

FAN_OUT = "map"
"""The node of such a token."""


class FanOut(msgspec.Struct, omit_defaults=True):
    """A function that is called for each of many items."""

    name: str
    """The name of the step, workflow or function."""
    size: int
    concurrency: int
    first: str = ""
    """The position of the first item's call, such as ``3``; or its branch, such as ``3/``."""
    labels: list[str] = []
    """The names of the items for people; empty without a ``label``."""

    def item_of(self, position: str) -> int | None:
        """Return the number of the item, from 0, that a recorded position belongs to; None for a position outside."""
        path, _, number = self.first.removesuffix("/").rpartition("/")
        path = f"{path}/" if path else ""
        if not position.startswith(path):
            return None
        own = position[len(path) :]
        if self.first.endswith("/"):
            own, is_inside, _ = own.partition("/")
            if not is_inside:
                return None
        index = int(own) - int(number) if own.isdigit() else -1
        return index if 0 <= index < self.size else None

    def item_name(self, index: int) -> str:
        """Return an item's name: its label, or the called name with its number."""
        return self.labels[index] if index < len(self.labels) else f"{self.name}[{index}]"

    def open_items(self, positions: Iterable[str]) -> list[int]:
        """Return the numbers of the items that have no call among the recorded positions."""
        done = {self.item_of(position) for position in positions}
        return [index for index in range(self.size) if index not in done]


def fan_outs(tokens: Iterable[Token]) -> list[FanOut]:
    """Return the maps that a run is in."""
    return [msgspec.convert(token.value, FanOut) for token in tokens if token.node == FAN_OUT]
