"""Read YAML and JSON into data that knows its line and column.

YAML is read strictly, from the parser's events, so that only plain data is built. Words are read as in YAML 1.2: ``yes``, ``no``,
``on``, ``off`` are texts. These are refused: tags, duplicate keys, keys that are not texts, merge keys, several documents,
numbers that JSON does not have, and aliases that expand to more than a document may hold.

JSON has its own scanner, because the standard library's decoder does not report positions.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from json import JSONDecodeError, JSONDecoder
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from stepwell.errors import InvalidDefinition, Problem
from stepwell.model.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MAX_CHARACTERS",
    "MAX_FAULTS",
    "MAX_NESTING",
    "MAX_PARTS",
    "DocumentReading",
    "Located",
    "Mark",
    "TooManyFaults",
    "is_plain_text",
    "plain_of",
    "read_json",
    "read_yaml",
]


MAX_CHARACTERS = 4_000_000
"""Enough for about ten thousand steps, which YAML takes about a second to parse."""
MAX_PARTS = 500_000
"""Values in a document; aliased values count each time they are used."""
MAX_NESTING = 500
"""Levels in a document; a hundred nested nodes take up to four hundred."""


MAX_FAULTS = 1000
"""Reading stops after this many faults: the text is not a definition at all."""


class TooManyFaults(Exception):
    """The limit of faults is reached; the reading holds those found so far."""


class Mark(NamedTuple):
    """A position in a text; lines and columns count from 1."""

    line: int
    column: int


class Located:
    """A value of a document with its position: a scalar, a list, or a mapping."""

    __slots__ = ("height", "inner", "is_faulty", "items", "keys", "mark", "members", "scalar", "size")

    def __init__(self, mark: Mark, scalar: Value = None, *, inner: int = -1) -> None:
        self.mark = mark
        self.scalar: Value = scalar
        """The value, unless it is a list or mapping."""
        self.items: list[Located] | None = None
        self.members: dict[str, Located] | None = None
        self.keys: dict[str, Mark] = {}
        """The positions of a mapping's keys."""
        self.inner = inner
        """The offset of a text's first character from the mark; -1 if positions inside the text are unknown."""
        self.is_faulty = False
        """Whether a fault is already noted here, so that no second one is reported."""
        self.size, self.height = 1, 1
        """The number of values and levels including itself. Computed when a container closes, so that an alias bomb is refused
        before anything expands it.
        """

    @classmethod
    def opened(cls, mark: Mark, *, is_mapping: bool) -> Located:
        """Return an empty list or mapping, to be filled and then closed."""
        located = cls(mark)
        if is_mapping:
            located.members = {}
        else:
            located.items = []
        return located

    def close(self) -> None:
        """Compute size and height once all parts are added."""
        for part in self.items or (self.members or {}).values():
            self.size += part.size
            self.height = max(self.height, part.height + 1)

    def put(self, key: str, part: Located, mark: Mark) -> bool:
        """Add a member to a mapping. Return False if its key is taken."""
        members = self.members if self.members is not None else {}
        if key in members:
            return False
        members[key] = part
        self.keys[key] = mark
        return True

    @property
    def is_null(self) -> bool:
        """True if the value is null."""
        return self.scalar is None and not self.is_container

    @property
    def is_container(self) -> bool:
        """True if it is a list or a mapping."""
        return self.items is not None or self.members is not None

    def children(self) -> Iterable[tuple[str | int, Located]]:
        """Iterate over the parts of a list or mapping with their indexes or keys."""
        return enumerate(self.items) if self.items is not None else (self.members or {}).items()

    def place_in(self, offset: int) -> Mark:
        """Return the position of a character of a text, or the text's position if that is unknown."""
        if self.inner < 0 or (isinstance(self.scalar, str) and "\n" in self.scalar):
            return self.mark
        return Mark(self.mark.line, self.mark.column + self.inner + offset)


class DocumentReading:
    """The faults found while a document is read, and the positions of its parts."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.marks: dict[tuple[str | int, ...], Located] = {}
        self.key_marks: dict[tuple[str | int, ...], Mark] = {}
        self.depth = 0
        """The number of nodes around the current one."""
        self.damaged: set[tuple[str | int, ...]] = set()
        """Paths of nodes with an unreadable field: a fault "is missing" may only follow from that."""
        self.lost_names: set[str] = set()
        """Names that unreadable nodes may have; a reference to one of these may be correct."""

    def fault(self, mark: Mark, message: str) -> None:
        """Note a fault. Raise ``TooManyFaults`` at the limit. ``finish`` sorts the faults."""
        if len(self.problems) >= MAX_FAULTS:
            raise TooManyFaults
        self.problems.append(Problem(InvalidDefinition.code, message, f"{self.source}:{mark.line}:{mark.column}"))

    def is_consequence(self, path: tuple[str | int, ...], unknown: str) -> bool:
        """Return whether a finding may only follow from an unreadable part: a field of the same node, or the named node."""
        return path in self.damaged or path[:-1] in self.damaged or (unknown != "" and self.is_lost(unknown))

    def is_lost(self, name: str) -> bool:
        """Return whether a name, perhaps with a number added, may belong to an unreadable node."""
        base, _, number = name.rpartition("-")
        return name in self.lost_names or (number.isdecimal() and base in self.lost_names)

    def finish(self) -> None:
        """Raise ``InvalidDefinition`` with every fault in document order, if there is any."""
        if self.problems:
            raise InvalidDefinition(sorted(self.problems, key=_place))


def _place(problem: Problem) -> tuple[int, int]:
    line, column = problem.where.rsplit(":", 2)[1:]
    return int(line), int(column)


def plain_of(located: Located) -> Value:
    """Return the value without positions."""
    if located.members is not None:
        return {key: plain_of(child) for key, child in located.members.items()}
    if located.items is not None:
        return [plain_of(child) for child in located.items]
    return located.scalar


_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_ODD_INT = re.compile(r"[-+]?(0o[0-7]+|0x[0-9a-fA-F]+|0b[01]+|0[0-9]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", "")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT_MAX = 2**63 - 1


class _Stopped(Exception):
    """The text cannot be read any further; the reason is noted."""


def read_yaml(text: str, reading: DocumentReading) -> Located | None:
    """Return the document of a YAML text, or None if it cannot be read; faults are noted in the reading."""
    import yaml  # only when a document is read

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(reading)
    try:
        for event in cast("Iterator[Any]", cast("Any", yaml).parse(text, Loader=loader)):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        reading.fault(_mark(error.problem_mark or error.context_mark), _explain(error, text))
        return None
    except yaml.YAMLError as error:
        reading.fault(Mark(1, 1), f"the text cannot be read as YAML: {' '.join(str(error).split())}")
        return None
    except _Stopped:
        return None
    if builder.document is None and not reading.problems:
        reading.fault(Mark(1, 1), "the document is empty")
    return builder.document


def is_plain_text(text: str) -> bool:
    """Return whether YAML reads the unquoted text as this text, and not as a number, boolean or null."""
    is_other = text in _WORDS or text == "<<" or any(pattern.fullmatch(text) for pattern in (_INT, _ODD_INT, _FLOAT, _NO_NUMBER))
    return not is_other


def _explain(error: Any, text: str) -> str:
    problem = str(error.problem or "the text cannot be read as YAML")
    place = error.problem_mark.index if error.problem_mark is not None else len(text)
    if text[place : place + 1] == "\t":
        return "a tab stands where YAML allows only spaces; indent with spaces"
    context = f" {error.context}" if error.context else ""
    return f"the text is not YAML:{context} {problem}"


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1) if mark is not None else Mark(1, 1)


class _Builder:
    """Build located data from the events of the YAML parser."""

    def __init__(self, reading: DocumentReading) -> None:
        self.reading = reading
        self.document: Located | None = None
        self.anchors: dict[str, Located] = {}
        self.open: list[tuple[Located, str | None]] = []
        """The unfinished lists and mappings with their anchors."""
        self.keys: list[Located | None] = []
        """For each unfinished mapping, the key whose value comes next."""
        self.documents = 0

    def take(self, event: Any) -> None:
        """Handle one event. Kinds are compared by name, so that PyYAML is imported only when a document is read."""
        mark = _mark(event.start_mark)
        match type(event).__name__:
            case "DocumentStartEvent":
                self.documents += 1
                if self.documents > 1:
                    self.stop(mark, "a second document begins here; one file holds one definition")
            case "ScalarEvent":
                self.add(self.scalar(event, mark), event.anchor)
            case "SequenceStartEvent" | "MappingStartEvent":
                self.begin(event, mark)
            case "SequenceEndEvent" | "MappingEndEvent":
                self.end()
            case "AliasEvent":
                self.alias(event, mark)
            case _:
                pass

    def stop(self, mark: Mark, message: str) -> None:
        self.reading.fault(mark, message)
        raise _Stopped

    def begin(self, event: Any, mark: Mark) -> None:
        self.check_tag(event, mark)
        if len(self.open) >= MAX_NESTING:
            self.stop(mark, f"the document is nested more than {MAX_NESTING} levels deep")
        is_mapping = type(event).__name__ == "MappingStartEvent"
        self.open.append((Located.opened(mark, is_mapping=is_mapping), event.anchor))
        self.keys.append(None)

    def end(self) -> None:
        part, anchor = self.open.pop()
        self.keys.pop()
        part.close()
        if part.size > MAX_PARTS or part.height > MAX_NESTING:
            self.stop(part.mark, f"with its aliases written out, this has more than {MAX_PARTS:,} parts or {MAX_NESTING} levels")
        self.add(part, anchor)

    def alias(self, event: Any, mark: Mark) -> None:
        target = self.anchors.get(event.anchor)
        if target is None:
            self.stop(mark, f"the alias *{event.anchor} stands for nothing that ended before it")
        else:
            self.add(target, None)

    def check_tag(self, event: Any, mark: Mark) -> None:
        if event.tag is not None:
            self.reading.fault(mark, f"the tag {event.tag} is refused; a definition is plain data")

    def scalar(self, event: Any, mark: Mark) -> Located:
        self.check_tag(event, mark)
        style = event.style or ""
        if style not in ("'", '"', "|", ">"):
            before = len(self.reading.problems)
            word = Located(mark, self.word(event.value, mark), inner=0)
            word.is_faulty = len(self.reading.problems) > before
            return word
        return Located(mark, event.value, inner=1 if style in ("'", '"') else -1)

    def word(self, text: str, mark: Mark) -> Value:
        """Return the value of an unquoted text."""
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return self.number(text, mark)
        if _ODD_INT.fullmatch(text):
            self.reading.fault(mark, f"{text} is read as different numbers by different readers; write it in decimal or in quotes")
            return None
        if _NO_NUMBER.fullmatch(text) or (_FLOAT.fullmatch(text) and abs(float(text)) == float("inf")):
            self.reading.fault(mark, f"{text} is not a number that JSON has; write null or a text in quotes")
            return None
        return float(text) if _FLOAT.fullmatch(text) else text

    def number(self, text: str, mark: Mark) -> Value:
        # Check the length first: int() of a long text takes quadratic time.
        if len(text) > 20 or not -_INT_MAX - 1 <= int(text) <= _INT_MAX:
            self.reading.fault(mark, "the number needs more than 64 bits; write it as a text in quotes")
            return None
        return int(text)

    def add(self, part: Located, anchor: str | None) -> None:
        """Add a finished part to the innermost open container, or keep it as the document."""
        if anchor is not None:
            self.anchors[anchor] = part
        if not self.open:
            self.document = part
            return
        owner = self.open[-1][0]
        if owner.items is not None:
            owner.items.append(part)
        elif self.keys[-1] is None:
            self.keys[-1] = part
        else:
            self.pair(owner, self.keys[-1], part)
            self.keys[-1] = None

    def pair(self, owner: Located, key: Located, part: Located) -> None:
        name = key.scalar
        if key.is_faulty:
            return
        if not isinstance(name, str):
            what = "a list or mapping" if key.is_container else f"{name!r}"
            self.reading.fault(key.mark, f"a key must be a text, not {what}; put it in quotes")
        elif name == "<<" and not key.inner:  # a quoted "<<" is an ordinary key
            self.reading.fault(key.mark, "merge keys (<<) are refused; write the keys out")
        elif not owner.put(name, part, key.mark):
            self.reading.fault(key.mark, f"the key {name!r} stands twice; first in line {owner.keys[name].line}")


_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_STRING = JSONDecoder().raw_decode
_JSON_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"[A-Za-z]+")


def read_json(text: str, reading: DocumentReading) -> Located | None:
    """Return the value of a JSON text, or None if it cannot be read; faults are noted in the reading."""
    scanner = _Scanner(text, reading)
    try:
        return scanner.document()
    except _Stopped:
        return None


def _closing(owner: Located) -> str:
    return "]" if owner.items is not None else "}"


class _Scanner:
    """A JSON scanner that keeps open containers in a list, so that deep nesting cannot exhaust Python's stack."""

    def __init__(self, text: str, reading: DocumentReading) -> None:
        self.text, self.reading = text, reading
        self.lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self.at = 0
        self.parts = 0
        self.open: list[Located] = []

    def mark(self, position: int) -> Mark:
        line = bisect_right(self.lines, position)
        return Mark(line, position - self.lines[line - 1] + 1)

    def stop(self, message: str, position: int | None = None) -> NoReturn:
        self.reading.fault(self.mark(self.at if position is None else position), message)
        raise _Stopped

    def skip(self) -> str:
        """Skip whitespace and return the next character, or an empty text at the end."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.text[self.at : self.at + 1]

    def document(self) -> Located:
        document = self.value()
        while self.open:
            self.member()
        if self.skip():
            self.stop("something stands after the end of the document")
        return document

    def value(self) -> Located:
        """Read the value that begins here; a list or object is only opened."""
        sign = self.skip()
        start = self.at
        self.parts += 1
        if self.parts > MAX_PARTS:
            self.stop(f"the document has more than {MAX_PARTS:,} parts")
        if sign in ("{", "["):
            self.at += 1
            if len(self.open) >= MAX_NESTING:
                self.stop(f"the document is nested more than {MAX_NESTING} levels deep", start)
            self.open.append(Located.opened(self.mark(start), is_mapping=sign == "{"))
            return self.open[-1]
        if sign == '"':
            return Located(self.mark(start), self.string(), inner=1)
        return Located(self.mark(start), self.atom(), inner=0)

    def member(self) -> None:
        """Read the next part of the open container, or its end."""
        owner = self.open[-1]
        if self.skip() == _closing(owner):
            self.at += 1
            self.open.pop()
            owner.close()
            self.after()
            return
        if owner.items is not None:
            owner.items.append(self.value())
        else:
            self.pair(owner)
        if self.open[-1] is owner:
            self.after()

    def after(self) -> None:
        """Read the comma after a finished part, unless its container ends here."""
        if not self.open:
            return
        closing = _closing(self.open[-1])
        sign = self.skip()
        if sign == ",":
            comma = self.at
            self.at += 1
            if self.skip() == closing:
                self.stop("a comma stands before the end", comma)
        elif sign != closing:
            self.stop(f"expected a comma or {closing!r} here")

    def pair(self, owner: Located) -> None:
        if self.skip() != '"':
            self.stop("expected a key in double quotes here")
        mark = self.mark(self.at)
        key = self.string()
        if self.skip() != ":":
            self.stop("expected ':' after the key")
        self.at += 1
        value = self.value()
        if not owner.put(key, value, mark):
            self.reading.fault(mark, f"the key {key!r} stands twice; first in line {owner.keys[key].line}")

    def string(self) -> str:
        try:
            text, self.at = _STRING(self.text, self.at)
        except JSONDecodeError as error:
            self.stop(f"the text is not JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.pos)
        return text

    def atom(self) -> Value:
        start = self.at
        if number := _NUMBER.match(self.text, start):
            self.at = number.end()
            return self.number(number)
        if (word := _WORD.match(self.text, start)) and word[0] in _JSON_WORDS:
            self.at = word.end()
            return _JSON_WORDS[word[0]]
        return self.stop("expected a value here" if start < len(self.text) else "the text ends where a value should stand")

    def number(self, found: re.Match[str]) -> Value:
        is_whole = found[1] is None and found[2] is None
        if is_whole and (len(found[0]) > 20 or not -_INT_MAX - 1 <= int(found[0]) <= _INT_MAX):
            self.stop("the number needs more than 64 bits; write it as a text", found.start())
        value = int(found[0]) if is_whole else float(found[0])
        if abs(value) == float("inf"):
            self.stop("the number is too large; write it as a text", found.start())
        return value
