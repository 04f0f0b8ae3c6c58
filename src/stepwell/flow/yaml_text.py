"""YAML, read strictly: from the parser's events, so that nothing is built but plain data, and every part knows its place.

Words are read as in YAML 1.2: ``yes``, ``no``, ``on``, ``off`` are texts. Refused: tags, keys that stand twice, keys that are not
texts, merge keys, several documents, numbers that JSON does not have, and aliases that grow into more than a document may hold.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from stepwell.flow.located import MAX_NESTING, MAX_PARTS, DocumentReading, Located, Mark
from stepwell.model.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_plain_text", "read_yaml"]

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
    """The text cannot be read any further; why is noted already."""


def read_yaml(text: str, reading: DocumentReading) -> Located | None:
    """The one document of a YAML text, or None if it cannot be read; what is wrong is noted in the reading."""
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
    """Whether a text without quotes would be read as this text, and not as a number or a word with a meaning."""
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
    """Makes located data of the events of a parser."""

    def __init__(self, reading: DocumentReading) -> None:
        self.reading = reading
        self.document: Located | None = None
        self.anchors: dict[str, Located] = {}
        self.open: list[tuple[Located, str | None]] = []
        """The lists and mappings that have not ended, and their anchors."""
        self.keys: list[Located | None] = []
        """For each of them, in a mapping, the key whose value comes next."""
        self.documents = 0

    def take(self, event: Any) -> None:
        """One event; the kinds are told by name, to import nothing here."""
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
        """What a text without quotes stands for."""
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
        # Length first: turning a very long text into an int takes time that grows with its square.
        if len(text) > 20 or not -_INT_MAX - 1 <= int(text) <= _INT_MAX:
            self.reading.fault(mark, "the number needs more than 64 bits; write it as a text in quotes")
            return None
        return int(text)

    def add(self, part: Located, anchor: str | None) -> None:
        """Put a finished part where it belongs: into what is open, or as the document itself."""
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
        elif name == "<<" and not key.inner:  # in quotes it is a text like any other
            self.reading.fault(key.mark, "merge keys (<<) are refused; write the keys out")
        elif not owner.put(name, part, key.mark):
            self.reading.fault(key.mark, f"the key {name!r} stands twice; first in line {owner.keys[name].line}")
