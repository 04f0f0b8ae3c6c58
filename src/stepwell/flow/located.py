"""A document as it was read: plain data that knows its line and column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stepwell.errors import InvalidDefinition, Problem
from stepwell.model.value import Value

__all__ = [
    "MAX_CHARACTERS",
    "MAX_FAULTS",
    "MAX_NESTING",
    "MAX_PARTS",
    "DocumentReading",
    "Located",
    "Mark",
    "TooManyFaults",
    "plain_of",
]

MAX_CHARACTERS = 4_000_000
"""Room for some ten thousand steps; YAML takes about a second for it."""
MAX_PARTS = 500_000
"""Values in a document, those behind aliases counted as often as they are used."""
MAX_NESTING = 500
"""Levels in a document; a hundred nested nodes take up to four hundred."""


MAX_FAULTS = 1000
"""More are not looked for: the text is not a definition at all."""


class TooManyFaults(Exception):
    """Enough is wrong; those found so far are in the reading."""


class Mark(NamedTuple):
    """A place in a text; lines and columns count from 1."""

    line: int
    column: int


class Located:
    """A value of a document with its place: a scalar, a list of these, or a mapping of them by key."""

    __slots__ = ("height", "inner", "is_faulty", "items", "keys", "mark", "members", "scalar", "size")

    def __init__(self, mark: Mark, scalar: Value = None, *, inner: int = -1) -> None:
        self.mark = mark
        self.scalar: Value = scalar
        """The value, unless it is a list or mapping."""
        self.items: list[Located] | None = None
        self.members: dict[str, Located] | None = None
        self.keys: dict[str, Mark] = {}
        """For a mapping: the places of its keys."""
        self.inner = inner
        """For a text: how far after the mark its first letter stands, or -1 if places in it cannot be told from it."""
        self.is_faulty = False
        """Whether it is noted already that this is wrong, so that nothing more need be said."""
        self.size, self.height = 1, 1
        """Values in it, and levels, with itself. Known without walking, so a bomb of aliases is found before it goes off."""

    @classmethod
    def opened(cls, mark: Mark, *, is_mapping: bool) -> Located:
        """A list or mapping to be filled, and then closed."""
        located = cls(mark)
        if is_mapping:
            located.members = {}
        else:
            located.items = []
        return located

    def close(self) -> None:
        """Work out size and height, when a list or mapping has all its parts."""
        for part in self.items or (self.members or {}).values():
            self.size += part.size
            self.height = max(self.height, part.height + 1)

    def put(self, key: str, part: Located, mark: Mark) -> bool:
        """Add a member to a mapping, unless its key is taken."""
        members = self.members if self.members is not None else {}
        if key in members:
            return False
        members[key] = part
        self.keys[key] = mark
        return True

    @property
    def is_null(self) -> bool:
        """Whether nothing stands there."""
        return self.scalar is None and not self.is_container

    @property
    def is_container(self) -> bool:
        """Whether it is a list or a mapping."""
        return self.items is not None or self.members is not None

    def children(self) -> Iterable[tuple[str | int, Located]]:
        """The parts of a list or mapping with their indexes or keys."""
        return enumerate(self.items) if self.items is not None else (self.members or {}).items()

    def place_in(self, offset: int) -> Mark:
        """The place of a letter of a text, as near as it is known."""
        if self.inner < 0 or (isinstance(self.scalar, str) and "\n" in self.scalar):
            return self.mark
        return Mark(self.mark.line, self.mark.column + self.inner + offset)


class DocumentReading:
    """What is found wrong while a document is read, and where its parts stand."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.marks: dict[tuple[str | int, ...], Located] = {}
        self.key_marks: dict[tuple[str | int, ...], Mark] = {}
        self.depth = 0
        """Nodes around the one that is being read."""
        self.damaged: set[tuple[str | int, ...]] = set()
        """Places of nodes with a field that could not be read: what the node lacks now, it may have had."""
        self.lost_names: set[str] = set()
        """Names that nodes may have that could not be read; if one of these is unknown, that may be the only reason."""

    def fault(self, mark: Mark, message: str) -> None:
        """Note one fault; the order is put right at the end."""
        if len(self.problems) >= MAX_FAULTS:
            raise TooManyFaults
        self.problems.append(Problem(InvalidDefinition.code, message, f"{self.source}:{mark.line}:{mark.column}"))

    def is_consequence(self, path: tuple[str | int, ...], unknown: str) -> bool:
        """Whether a finding may be due to what could not be read: a field of the same node, or the node of a name."""
        return path in self.damaged or path[:-1] in self.damaged or (unknown != "" and self.is_lost(unknown))

    def is_lost(self, name: str) -> bool:
        """Whether a name, perhaps with a number added, may be that of a node that could not be read."""
        base, _, number = name.rpartition("-")
        return name in self.lost_names or (number.isdecimal() and base in self.lost_names)

    def finish(self) -> None:
        """Raise everything that was found wrong, in the order of the document."""
        if self.problems:
            raise InvalidDefinition(sorted(self.problems, key=_place))


def _place(problem: Problem) -> tuple[int, int]:
    line, column = problem.where.rsplit(":", 2)[1:]
    return int(line), int(column)


def plain_of(located: Located) -> Value:
    """The value without its places."""
    if located.members is not None:
        return {key: plain_of(child) for key, child in located.members.items()}
    if located.items is not None:
        return [plain_of(child) for child in located.items]
    return located.scalar
