"""A document as it was read: plain data that knows its line and column."""

from __future__ import annotations

from typing import NamedTuple

from stepwell.errors import InvalidDefinition, Problem
from stepwell.model.value import Value

__all__ = ["MAX_CHARACTERS", "MAX_NESTING", "MAX_PARTS", "Located", "Mark", "Reading", "plain_of"]

MAX_CHARACTERS = 4_000_000
"""Room for some ten thousand steps; YAML takes about a second for it."""
MAX_PARTS = 500_000
"""Values in a document, those behind aliases counted as often as they are used."""
MAX_NESTING = 500
"""Levels in a document; a hundred nested nodes take up to four hundred."""


class Mark(NamedTuple):
    """A place in a text; lines and columns count from 1."""

    line: int
    column: int


class Located:
    """A value of a document with its place: a scalar, a list of these, or a mapping of them by key."""

    __slots__ = ("content", "height", "inner", "keys", "mark", "size")

    def __init__(self, content: Value | list[Located] | dict[str, Located], mark: Mark, *, inner: int = -1) -> None:
        self.content = content
        self.mark = mark
        self.inner = inner
        """For a text: how far after the mark its first letter stands, or -1 if places in it cannot be told from it."""
        self.keys: dict[str, Mark] = {}
        """For a mapping: the places of its keys."""
        self.size, self.height = 1, 1
        """Values in it, and levels, with itself. Known without walking, so a bomb of aliases is found before it goes off."""

    def close(self) -> None:
        """Work out size and height, when a list or mapping has all its parts."""
        parts = self.content.values() if isinstance(self.content, dict) else self.content
        for part in parts:
            self.size += part.size
            self.height = max(self.height, part.height + 1)

    def place_in(self, offset: int) -> Mark:
        """The place of a letter of a text, as near as it is known."""
        if self.inner < 0 or (isinstance(self.content, str) and "\n" in self.content):
            return self.mark
        return Mark(self.mark.line, self.mark.column + self.inner + offset)


class Reading:
    """What is found wrong while a document is read, and where its parts stand."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.marks: dict[tuple[str | int, ...], Located] = {}
        self.key_marks: dict[tuple[str | int, ...], Mark] = {}
        self.has_lost_names = False
        """Whether a node could not be read so far that its name is unknown; then a name may be missing for that reason alone."""

    def fault(self, mark: Mark, message: str) -> None:
        """Note one fault; the order is put right at the end."""
        self.problems.append(Problem(InvalidDefinition.code, message, f"{self.source}:{mark.line}:{mark.column}"))

    def finish(self) -> None:
        """Raise everything that was found wrong, in the order of the document."""
        if self.problems:
            raise InvalidDefinition(sorted(self.problems, key=_place))


def _place(problem: Problem) -> tuple[int, int]:
    line, column = problem.where.rsplit(":", 2)[1:]
    return int(line), int(column)


def plain_of(located: Located) -> Value:
    """The value without its places."""
    if isinstance(located.content, dict):
        return {key: plain_of(child) for key, child in located.content.items()}
    if isinstance(located.content, list):
        return [plain_of(child) for child in located.content]
    return located.content
