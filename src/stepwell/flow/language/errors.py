"""What a template or an expression can raise: that it is written wrong, or that it cannot be worked out on this data.

The budget of one evaluation, and the way a function says what is wrong.

What somebody may have meant.
"""

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
"""How much of a long text is shown around a fault."""


def caret(text: str, position: int) -> str:
    """The line of the text that has the position, and under it a caret that points there."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)]
    column = position - start
    if len(line) > _WINDOW:
        cut = max(0, column - _WINDOW // 2)
        line, column = line[cut : cut + _WINDOW], column - cut
    return f"    {line}\n    {' ' * column}^"


class MalformedExpression(InvalidDefinition):
    """A template or expression is written wrong."""

    def __init__(self, errors: Sequence[Problem] | str, *, reason: str = "", text: str = "", position: int = 0) -> None:
        super().__init__(errors)
        self.reason, self.text, self.position = reason, text, position

    @classmethod
    def at(cls, text: str, position: int, reason: str) -> MalformedExpression:
        """The error for one place of a text, with a caret under it."""
        return cls(f"{reason}\n{caret(text, position)}", reason=reason, text=text, position=position)


class EvaluationFailed(InvalidInput):
    """A template or expression cannot be worked out on this data."""

    def __init__(self, errors: Sequence[Problem] | str, *, reason: str = "", text: str = "", position: int = 0) -> None:
        super().__init__(errors)
        self.reason, self.text, self.position = reason, text, position

    @classmethod
    def at(cls, text: str, position: int, reason: str) -> EvaluationFailed:
        """The error for one place of a text, with a caret under it."""
        return cls(f"{reason}\n{caret(text, position)}", reason=reason, text=text, position=position)


class MissingPath(EvaluationFailed):
    """A path leads to nothing; the message names it and says what was there instead."""


BUDGET = 1_000_000
"""Items looked at, or 32 letters of a text each: a fraction of a second on a slow machine."""

MAX_MADE = 256 * 1024
"""Letters or items of one result: a value larger than this could not be stored anyway."""

Sized = TypeVar("Sized", str, list[Value])


class EvaluationError(Exception):
    """Why an operation has no result; turned into an ``EvaluationFailed`` that says where."""


class MissingValue(EvaluationError):
    """There is no such item; a default takes its place, as for a path that leads to nothing."""


class EvaluationBudget:
    """What is left of a budget."""

    __slots__ = ("left",)

    def __init__(self, budget: int = BUDGET) -> None:
        self.left = budget

    def spend(self, units: int) -> None:
        """Take units of work from the budget."""
        self.left -= units
        if self.left < 0:
            raise EvaluationError(f"the expression looks at more than {BUDGET:,} items; do this in a step")

    def read(self, value: str | list[Value]) -> None:
        """Spend for reading a value once."""
        self.spend(len(value) // 32 if isinstance(value, str) else len(value))

    def made(self, value: Sized) -> Sized:
        """Give back a new text or list, paid for and not too large."""
        if len(value) > MAX_MADE:
            what = "letters" if isinstance(value, str) else "items"
            raise EvaluationError(f"the result has {len(value):,} {what}, at most {MAX_MADE:,} are allowed")
        self.read(value)
        return value


_SHOWN = 10


def suggest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the known word nearest to this one, or nothing."""
    from difflib import get_close_matches  # only when something is wrong: it is not needed otherwise

    near = get_close_matches(word[:100], [text[:100] for text in known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(words: Iterable[str]) -> str:
    """Some words for a message, with a hint that there are more."""
    found = sorted(words)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
