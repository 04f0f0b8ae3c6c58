"""Enqueues of one group, as few of them as possible: many callers that add an item each share a script, as they share a packet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeGuard

from stepwell.model.commit import Outcome, Unit, Written
from stepwell.model.queue_item import Enqueue, NewItem

__all__ = ["Merged", "are_enqueues"]

# Nothing else runs on the server while a script does; so many items take it about ten milliseconds.
_MOST_ITEMS = 1_000


def are_enqueues(units: Sequence[Unit]) -> TypeGuard[Sequence[Enqueue]]:
    """Whether the group only adds items, and some of its units can be one."""
    return all(type(unit) is Enqueue and len(unit.items) < _MOST_ITEMS for unit in units)


class Merged:
    """Enqueues put together; each of the old ones stays whole, since it is never divided between two new ones."""

    def __init__(self, enqueues: Sequence[Enqueue]) -> None:
        self._groups: list[list[Enqueue]] = []
        room = 0
        for unit in enqueues:
            if not self._groups or len(unit.items) > room:
                self._groups.append([])
                room = _MOST_ITEMS
            self._groups[-1].append(unit)
            room -= len(unit.items)
        self.units = [Enqueue(tuple(_items(group))) for group in self._groups]

    def outcomes(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcome of each of the old ones."""
        return [each for group, outcome in zip(self._groups, outcomes, strict=True) for each in _shares(group, outcome)]


def _items(group: Sequence[Enqueue]) -> Iterator[NewItem]:
    return (new for unit in group for new in unit.items)


def _shares(group: Sequence[Enqueue], outcome: Outcome) -> Iterator[Outcome]:
    if not isinstance(outcome, Written):
        yield from [outcome] * len(group)
        return
    answers = iter(outcome.answers)
    for unit in group:
        yield Written(list(islice(answers, len(unit.items))))
