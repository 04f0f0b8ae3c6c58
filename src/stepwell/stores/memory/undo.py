"""Undo log: rolls back the writes of a group that failed half-way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

__all__ = ["UndoLog"]

T = TypeVar("T")
K = TypeVar("K")


class UndoLog:
    """Writes of a group, with what each replaced; undone newest first."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def take_back(self, to: int = 0) -> None:
        """Undo all writes, or those after the first ``to`` ones."""
        while len(self._steps) > to:
            self._steps.pop()()

    def __len__(self) -> int:
        return len(self._steps)

    def put(self, table: dict[K, T], key: K, value: T) -> None:
        if key in table:
            self._steps.append(partial(table.__setitem__, key, table[key]))
        else:
            self._steps.append(partial(table.pop, key))
        table[key] = value

    def drop(self, table: dict[str, T], key: str) -> None:
        self._steps.append(partial(table.__setitem__, key, table.pop(key)))

    def append(self, rows: list[T], row: T) -> None:
        self._steps.append(rows.pop)
        rows.append(row)

    def mark(self, marks: set[str], mark: str) -> None:
        self._steps.append(partial(marks.discard, mark))
        marks.add(mark)

    def set(self, thing: object, attribute: str, value: object) -> None:
        self._steps.append(partial(setattr, thing, attribute, getattr(thing, attribute)))
        setattr(thing, attribute, value)

    def call(self, step: Callable[[], object]) -> None:
        """Add the undo function of a write that was done elsewhere."""
        self._steps.append(step)
