"""What a template or an expression can raise: that it is written wrong, or that it cannot be worked out on this data."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.errors import InvalidDefinition, InvalidInput, Problem

__all__ = ["EvaluationFailed", "MalformedExpression", "MissingPath", "caret"]

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
