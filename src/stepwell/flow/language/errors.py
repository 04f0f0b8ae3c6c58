"""Errors of templates and expressions, the budget of an evaluation, and "did you mean" suggestions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from stepwell.errors import InvalidDefinition, InvalidInput, Problem
from stepwell.model.value import Value

__all__ = [
    "BUDGET",
    "MAX_MADE",
    "EvaluationBudget",
    "EvaluationError",
    "EvaluationFailed",
    "MalformedExpression",
    "MissingPath",
    "MissingValue",
    "caret",
    "listed",
    "suggest",
]


_WINDOW = 100
"""How many characters of a long text are shown around a fault."""


def caret(text: str, position: int) -> str:
    """Return the line that contains the position, with a caret under it on a second line."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)]
    column = position - start
    if len(line) > _WINDOW:
        cut = max(0, column - _WINDOW // 2)
        line, column = line[cut : cut + _WINDOW], column - cut
    return f"    {line}\n    {' ' * column}^"


class MalformedExpression(InvalidDefinition):
    """A template or expression has a syntax error."""

    def __init__(self, errors: Sequence[Problem] | str, *, reason: str = "", text: str = "", position: int = 0) -> None:
        super().__init__(errors)
        self.reason, self.text, self.position = reason, text, position

    @classmethod
    def at(cls, text: str, position: int, reason: str) -> MalformedExpression:
        """Return the error for a position in a text, with a caret under it."""
        return cls(f"{reason}\n{caret(text, position)}", reason=reason, text=text, position=position)


class EvaluationFailed(InvalidInput):
    """A template or expression has no result on this data."""

    def __init__(self, errors: Sequence[Problem] | str, *, reason: str = "", text: str = "", position: int = 0) -> None:
        super().__init__(errors)
        self.reason, self.text, self.position = reason, text, position

    @classmethod
    def at(cls, text: str, position: int, reason: str) -> EvaluationFailed:
        """Return the error for a position in a text, with a caret under it."""
        return cls(f"{reason}\n{caret(text, position)}", reason=reason, text=text, position=position)


class MissingPath(EvaluationFailed):
    """A path leads to nothing; the message names it and what was there instead."""


BUDGET = 1_000_000
"""Items read, or 32 characters of a text each: a fraction of a second on a slow machine."""

MAX_MADE = 256 * 1024
"""Characters or items of one result; a larger value could not be stored."""

Sized = TypeVar("Sized", str, list[Value])


class EvaluationError(Exception):
    """An operation has no result; turned into an ``EvaluationFailed`` with its position."""


class MissingValue(EvaluationError):
    """An item that does not exist; a default replaces it, as for a path that leads to nothing."""


class EvaluationBudget:
    """The units of work that an evaluation may still spend."""

    __slots__ = ("left",)

    def __init__(self, budget: int = BUDGET) -> None:
        self.left = budget

    def spend(self, units: int) -> None:
        """Take units from the budget. Raise ``EvaluationError`` when it is exhausted."""
        self.left -= units
        if self.left < 0:
            raise EvaluationError(f"the expression looks at more than {BUDGET:,} items; do this in a step")

    def read(self, value: str | list[Value]) -> None:
        """Spend for reading a value once."""
        self.spend(len(value) // 32 if isinstance(value, str) else len(value))

    def made(self, value: Sized) -> Sized:
        """Spend for a new text or list and return it. Raise ``EvaluationError`` if it is too large."""
        if len(value) > MAX_MADE:
            what = "letters" if isinstance(value, str) else "items"
            raise EvaluationError(f"the result has {len(value):,} {what}, at most {MAX_MADE:,} are allowed")
        self.read(value)
        return value


_SHOWN = 10


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the most similar known word, or an empty text."""
    from difflib import get_close_matches  # only errors need it, and importing it takes milliseconds

    near = get_close_matches(word[:100], [text[:100] for text in known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(words: Iterable[str]) -> str:
    """Return the first words of a list for a message, and how many more there are."""
    found = sorted(words)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
