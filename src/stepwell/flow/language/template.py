"""Compile templates: texts with ``{{ expression }}`` in them, anywhere inside a value.

A text that consists of one ``{{ ... }}`` keeps the type of the expression's value; in a longer text, values become text. Keys
are never templates. Two literal braces are written ``{{ '{{' }}``.

``state_keys`` names the scoped state that templates read. It is loaded before evaluation, which does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, cast

from stepwell.flow.language.errors import MAX_MADE, EvaluationFailed, MalformedExpression, suggest
from stepwell.flow.language.expression import Expression, Facts, Reference, compile_expression, path_text
from stepwell.flow.language.functions import as_text
from stepwell.model.value import Value

__all__ = [
    "StateKey",
    "Template",
    "TextPart",
    "compile_template",
    "is_template",
    "parts_of",
    "state_fault",
    "state_keys",
    "texts_of",
]


Path = tuple[str | int, ...]
_Fill = Callable[[Facts], Value]
# Match up to the closing braces, skipping quoted texts, which may contain braces.
_INNER = re.compile(r"""(?:[^'"}]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\}(?!\}))*+""", re.DOTALL)


class TextPart(NamedTuple):
    """An expression within a text and its offset."""

    expression: Expression
    offset: int


class _Text:
    """A compiled text with at least one expression."""

    __slots__ = ("is_exact", "parts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.parts: tuple[str | TextPart, ...] = tuple(_parts(text))
        self.is_exact = len(self.parts) == 1 and isinstance(self.parts[0], TextPart)

    def fill(self, facts: Facts) -> Value:
        if self.is_exact:
            return cast("TextPart", self.parts[0]).expression.evaluate(facts)
        filled = "".join(part if isinstance(part, str) else as_text(part.expression.evaluate(facts)) for part in self.parts)
        if len(filled) > MAX_MADE:
            raise EvaluationFailed.at(self.text, 0, f"the text has {len(filled):,} letters, at most {MAX_MADE:,} are allowed")
        return filled


class Template:
    """A compiled value. Texts with templates are filled, and everything else is copied."""

    __slots__ = ("_fill", "references", "source")

    def __init__(self, source: Value) -> None:
        self.source = source
        self.references: tuple[Reference, ...] = tuple(
            reference for _, text in texts_of(source) for part in parts_of(text) for reference in part.expression.references
        )
        self._fill = _compile(source)

    @property
    def is_constant(self) -> bool:
        """True if it gives the same value on all data."""
        return not self.references

    def fill(self, facts: Facts) -> Value:
        """Return the value with its templates filled.

        - ``facts``: the data: objects by name, such as ``steps`` and ``trigger``.

        Raise ``MissingPath`` or ``EvaluationFailed`` if one has no value.
        """
        return self._fill(facts)

    def __repr__(self) -> str:
        return f"<Template {self.source!r}>"


def compile_template(source: Value) -> Template:
    """Return the compiled template of a value.

    - ``source``: a value, in whose texts ``{{ ... }}`` are expressions.

    Raise ``MalformedExpression`` for a syntax error in one of its texts.
    """
    return Template(source)


def is_template(value: object) -> bool:
    """Return whether a value is a text with an expression in it."""
    return isinstance(value, str) and "{{" in value


def texts_of(source: Value, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Iterate over the texts with templates in a value, each with its path."""
    pending: list[tuple[Path, Value]] = [(path, source)]
    while pending:
        here, value = pending.pop()
        if is_template(value):
            yield here, value
        elif isinstance(value, list):
            pending.extend(((*here, index), child) for index, child in enumerate(cast("list[Value]", value)))
        elif isinstance(value, dict):
            pending.extend(((*here, key), child) for key, child in cast("dict[str, Value]", value).items())


def parts_of(text: str) -> Iterator[TextPart]:
    """Iterate over the expressions within a text with their offsets."""
    yield from (part for part in _text(text).parts if isinstance(part, TextPart))


@lru_cache(maxsize=4096)
def _text(text: str) -> _Text:
    return _Text(text)


def _compile(source: Value) -> _Fill:
    if is_template(source):
        return _text(source).fill
    if isinstance(source, list):
        items = [_compile(child) for child in cast("list[Value]", source)]
        return lambda facts: [item(facts) for item in items]
    if isinstance(source, dict):
        members = {key: _compile(child) for key, child in cast("dict[str, Value]", source).items()}
        return lambda facts: {key: member(facts) for key, member in members.items()}
    return lambda _facts: source


def _parts(text: str) -> Iterator[str | TextPart]:
    position = 0
    while (opening := text.find("{{", position)) >= 0:
        if opening > position:
            yield text[position:opening]
        found = _INNER.match(text, opening + 2)
        end = found.end() if found else opening
        if text[end : end + 2] != "}}":
            raise MalformedExpression.at(text, opening, "the template that begins here has no closing '}}'")
        yield TextPart(_part(text, opening + 2, end), opening + 2)
        position = end + 2
    if position < len(text):
        yield text[position:]


def _part(text: str, start: int, end: int) -> Expression:
    inner = text[start:end]
    if not inner.strip():
        raise MalformedExpression.at(text, start, "the template is empty")
    try:
        return compile_expression(inner)
    except MalformedExpression as error:
        raise MalformedExpression.at(text, start + error.position, error.reason) from None


_NAMED = ("custom", "conversation", "step")
_SCOPES = ("global", "workspace", "workflow", *_NAMED)


class StateKey(NamedTuple):
    """One key of scoped state: ``state.SCOPE.KEY``, or ``state.SCOPE.NAME.KEY`` for scopes that have a name."""

    scope: str
    """``global``, ``workspace``, ``workflow``, ``step``, ``custom`` or ``conversation``, in the execution's workspace."""
    name: str
    """The name of the step, namespace or conversation; else empty."""
    key: str


def state_keys(references: Iterable[Reference]) -> tuple[StateKey, ...]:
    """Return the distinct state keys that references read."""
    found: dict[StateKey, None] = {}
    for reference in references:
        if reference.path[0] == "state" and not state_fault(reference.path):
            scope, *rest = (str(part) for part in reference.path[1:])
            found[StateKey(scope, rest[0], rest[1]) if scope in _NAMED else StateKey(scope, "", rest[0])] = None
    return tuple(found)


def state_fault(path: tuple[str | int | None, ...]) -> str:
    """Return why a path into state cannot be loaded before evaluation, or an empty text."""
    scope = path[1] if len(path) > 1 else None
    if scope not in _SCOPES:
        hint = suggest(str(scope), _SCOPES) if scope is not None else ""
        return f"state is read as state.SCOPE.KEY with a scope of {', '.join(_SCOPES)}{hint}"
    needed = path[2:4] if scope in _NAMED else path[2:3]
    if len(needed) < (2 if scope in _NAMED else 1) or not all(isinstance(part, str) for part in needed):
        form = f"state.{scope}.NAME.KEY" if scope in _NAMED else f"state.{scope}.KEY"
        return f"{path_text(path)} must be written {form}, with a fixed key, so that it can be loaded beforehand"
    return ""
