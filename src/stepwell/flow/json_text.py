"""JSON with the line and column of every part. The standard library's reader gives values without places."""

from __future__ import annotations

import re
from bisect import bisect_right
from json import JSONDecodeError, JSONDecoder
from typing import NoReturn

from stepwell.flow.located import MAX_NESTING, MAX_PARTS, DocumentReading, Located, Mark
from stepwell.model.value import Value

__all__ = ["read_json"]

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_STRING = JSONDecoder().raw_decode
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"[A-Za-z]+")
_INT_MAX = 2**63 - 1


class _Stopped(Exception):
    """The text cannot be read any further; why is noted already."""


def read_json(text: str, reading: DocumentReading) -> Located | None:
    """The one value of a JSON text, or None if it cannot be read; what is wrong is noted in the reading."""
    scanner = _Scanner(text, reading)
    try:
        return scanner.document()
    except _Stopped:
        return None


def _closing(owner: Located) -> str:
    return "]" if owner.items is not None else "}"


class _Scanner:
    """Reads a text from its start to its end, with what is open in a list and not on Python's stack."""

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
        """Go over space; the sign that follows, or nothing at the end."""
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
        """The value that begins here; a list or object is only opened."""
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
        """One more part of what is open, or its end."""
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
        """The comma after a finished part, unless its owner ends here."""
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
        if (word := _WORD.match(self.text, start)) and word[0] in _WORDS:
            self.at = word.end()
            return _WORDS[word[0]]
        return self.stop("expected a value here" if start < len(self.text) else "the text ends where a value should stand")

    def number(self, found: re.Match[str]) -> Value:
        is_whole = found[1] is None and found[2] is None
        if is_whole and (len(found[0]) > 20 or not -_INT_MAX - 1 <= int(found[0]) <= _INT_MAX):
            self.stop("the number needs more than 64 bits; write it as a text", found.start())
        value = int(found[0]) if is_whole else float(found[0])
        if abs(value) == float("inf"):
            self.stop("the number is too large; write it as a text", found.start())
        return value
