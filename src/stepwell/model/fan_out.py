"""The token of a ``map`` in a workflow function: how many items it has, and which calls are theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from stepwell.model.record import Token

__all__ = ["FAN_OUT", "FanOut", "FanOutEstimate", "fan_outs"]

FAN_OUT = "map"
"""The node of such a token."""


class FanOutEstimate(NamedTuple):
    """The calls of a ``map`` that are still to come, and those under way."""

    calls_left: int
    current: list[int]
    """The numbers of the items that are under way."""


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

    def unbegun(self, positions: Iterable[str]) -> list[int]:
        """Return the numbers of the items that have no call among the recorded positions."""
        begun = {self.item_of(position) for position in positions}
        return [index for index in range(self.size) if index not in begun]

    def estimate(self, positions: Iterable[str]) -> FanOutEstimate:
        """Return what is left to do, from the recorded positions.

        A function may make several calls for an item, and how many is only known from the item that has made most. Items begin in
        order, and no more than ``concurrency`` are under way, so of those with fewer calls the first ones are over.
        """
        counts = Counter(item for item in map(self.item_of, positions) if item is not None)
        most = max(counts.values(), default=1)
        begun = [index for index in sorted(counts) if counts[index] < most][-self.concurrency :]
        waiting = [index for index in range(self.size) if index not in counts]
        left = sum(most - counts[index] for index in begun) + most * len(waiting)
        return FanOutEstimate(left, [*begun, *waiting][: self.concurrency])


def fan_outs(tokens: Iterable[Token]) -> list[FanOut]:
    """Return the maps that a run is in."""
    return [msgspec.convert(token.value, FanOut) for token in tokens if token.node == FAN_OUT]
