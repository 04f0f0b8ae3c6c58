"""Compile expressions, a small typed language over an execution's data, to closures.

    steps.charge.output.total > 100 and variables.country in ['CH', 'LI']
    steps.charge.output.status = 'paid' AND NOT exists(variables.refund)

The language has no attribute access, no statements and no loops. Every operation is bounded, and each fault reports its
position. The paths that an expression reads are known without evaluating it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from stepwell.errors import ValidationFailed
from stepwell.flow.language.errors import (
    EvaluationBudget,
    EvaluationError,
    EvaluationFailed,
    MissingPath,
    MissingValue,
    listed,
    suggest,
)
from stepwell.flow.language.functions import call_function, checked_number, combined, holds, is_same, kind_of, order, plain
from stepwell.flow.language.parser import (
    AccessExpression,
    BinaryExpression,
    CallExpression,
    JoinedExpression,
    ListExpression,
    LiteralExpression,
    RootExpression,
    Syntax,
    UnaryExpression,
    parse_expression,
)
from stepwell.model.value import Value

__all__ = [
    "Expression",
    "Facts",
    "Reference",
    "compile_expression",
    "path_text",
    "references_of",
]


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"})
_PLAIN_KEY = re.compile(r"\w+(?:-\w+)*")


class Reference(NamedTuple):
    """A path that an expression reads."""

    path: tuple[str | int | None, ...]
    """The root and the segments after it; None for a segment that is computed."""
    position: int
    """The position in the text."""
    is_guarded: bool
    """Whether the path may be missing: it has a default, or the expression tests whether it exists."""

    def __str__(self) -> str:
        return path_text(self.path)


def path_text(path: tuple[str | int | None, ...]) -> str:
    """Return a path as it is written in an expression, quoted where necessary."""
    text = str(path[0])
    for segment in path[1:]:
        if segment is None:
            text += "[...]"
        elif isinstance(segment, int):
            text += f"[{segment}]"
        elif _PLAIN_KEY.fullmatch(segment):
            text += f".{segment}"
        else:
            text += f'."{segment.translate(_ESCAPES)}"'
    return text


def references_of(tree: Syntax) -> tuple[Reference, ...]:
    """Return every path of an expression in the order of the text."""
    found = list(_walk(tree, is_guarded=False))
    asked = [reference.path for reference, is_asked in found if is_asked]
    return tuple(
        sorted(
            (
                reference._replace(is_guarded=reference.is_guarded or any(reference.path[: len(path)] == path for path in asked))
                for reference, _ in found
            ),
            key=lambda reference: reference.position,
        )
    )


def _walk(tree: Syntax, *, is_guarded: bool, is_asked: bool = False) -> Iterator[tuple[Reference, bool]]:
    """Iterate over the references, each with whether the expression tests if it exists, which guards its other uses, too."""
    match tree:
        case LiteralExpression():
            return
        case RootExpression():
            yield Reference((tree.name,), tree.start, is_guarded), is_asked
        case AccessExpression(source=RootExpression() as root, segments=segments):
            path = tuple(part if isinstance(part, str | int) else None for part in segments)
            yield Reference((root.name, *path), tree.start, is_guarded), is_asked
            yield from _inside(tree, is_guarded=is_guarded)
        case AccessExpression():
            yield from _walk(tree.source, is_guarded=is_guarded)
            yield from _inside(tree, is_guarded=is_guarded)
        case CallExpression():
            yield from _arguments(tree, is_guarded=is_guarded)
        case ListExpression(items=parts) | JoinedExpression(operands=parts):
            for part in parts:
                yield from _walk(part, is_guarded=is_guarded)
        case UnaryExpression():
            yield from _walk(tree.operand, is_guarded=is_guarded)
        case BinaryExpression():
            yield from _walk(tree.left, is_guarded=is_guarded)
            yield from _walk(tree.right, is_guarded=is_guarded)


def _inside(tree: AccessExpression, *, is_guarded: bool) -> Iterator[tuple[Reference, bool]]:
    for part in tree.segments:
        if not isinstance(part, str | int):
            yield from _walk(part, is_guarded=is_guarded)


def _arguments(tree: CallExpression, *, is_guarded: bool) -> Iterator[tuple[Reference, bool]]:
    asks = tree.name in ("exists", "is_null")
    last = len(tree.arguments) - 1
    for number, part in enumerate(tree.arguments):
        has_default = asks or (tree.name in ("default", "coalesce") and number < last)
        yield from _walk(part, is_guarded=is_guarded or has_default, is_asked=asks)


Facts = Mapping[str, Any]
"""The data of an evaluation: a value for each root. A mapping may read lazily, and a root may be absent."""


class _Run(EvaluationBudget):
    """One evaluation: its data and its budget."""

    __slots__ = ("facts",)

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts


class _Fault(Exception):
    """A fault at a position of the text."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position, self.reason = position, reason


class _Missing(_Fault):
    """A path that leads to nothing, or an item of an empty list; a default replaces it."""


_Code = Callable[[_Run], Value]


class Expression:
    """A compiled expression."""

    __slots__ = ("_code", "references", "text", "tree")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = parse_expression(text)
        self.references: tuple[Reference, ...] = references_of(self.tree)
        self._code = _compile(self.tree)

    @property
    def is_constant(self) -> bool:
        """True if it has the same value on all data."""
        return not self.references

    def evaluate(self, facts: Facts) -> Value:
        """Return the value on this data.

        - ``facts``: the data: objects by name, such as ``steps`` and ``trigger``.

        Raise ``MissingPath`` or ``EvaluationFailed`` if it has none.
        """
        try:
            return plain(self._code(_Run(facts)))
        except _Missing as fault:
            raise MissingPath.at(self.text, fault.position, fault.reason) from None
        except _Fault as fault:
            raise EvaluationFailed.at(self.text, fault.position, fault.reason) from None

    def holds(self, facts: Facts) -> bool:
        """Return the value as a condition.

        - ``facts``: the data, as for ``evaluate``.

        Raise ``EvaluationFailed`` unless it is a boolean.
        """
        value = self.evaluate(facts)
        if type(value) is not bool:
            raise EvaluationFailed.at(self.text, 0, f"a condition must give true or false, not {kind_of(value)}")
        return value

    def __repr__(self) -> str:
        return f"<Expression {self.text!r}>"


@lru_cache(maxsize=4096)
def compile_expression(text: str) -> Expression:
    """Return the compiled expression of a text, from a cache if possible.

    - ``text``: the expression, such as ``steps.charge.output > 100``.

    Raise ``MalformedExpression`` for a syntax error.
    """
    return Expression(text)


def _compile(tree: Syntax) -> _Code:
    match tree:
        case LiteralExpression():
            value = tree.value
            return lambda _run: value
        case ListExpression():
            return _list(tree)
        case RootExpression():
            return partial(_root, tree.name, tree.start)
        case AccessExpression():
            return _access(tree)
        case UnaryExpression():
            return _unary(tree)
        case JoinedExpression():
            return _joined(tree)
        case BinaryExpression():
            return _binary(tree)
        case CallExpression():
            return _call(tree)


def _list(tree: ListExpression) -> _Code:
    codes = [_compile(item) for item in tree.items]
    return lambda run: [plain(code(run)) for code in codes]


def _root(name: str, start: int, run: _Run) -> Value:
    try:
        return run.facts[name]
    except KeyError:
        raise _Missing(start, f"there is no {name} here") from None


def _access(tree: AccessExpression) -> _Code:
    source = _compile(tree.source)
    ways = [part if isinstance(part, str | int) else _compile(part) for part in tree.segments]
    start, text = tree.start, tree.text

    def code(run: _Run) -> Value:
        value = source(run)
        for number, way in enumerate(ways):
            segment: Any = way(run) if callable(way) else way
            try:
                value = _enter(value, segment)
            except (KeyError, IndexError, TypeError):
                path = text if number == len(ways) - 1 else f"{text}, at {segment!r}"
                raise _Missing(start, f"{path} leads to nothing: {_instead(value, segment)}") from None
        return value

    return code


def _enter(value: Value, segment: Value) -> Value:
    """Return the part of a value under one segment. Raise the lookup's own error if there is none."""
    if type(segment) is str:
        if type(value) is list and segment.isdecimal() and segment.isascii() and len(segment) < 10:
            return cast("list[Value]", value)[int(segment)]
        if isinstance(value, Mapping):
            return cast("Mapping[str, Value]", value)[segment]
    elif type(segment) is int and type(value) is list:
        return cast("list[Value]", value)[segment]
    raise TypeError


def _instead(value: Value, segment: Value) -> str:
    """Describe what the value has instead of a missing segment."""
    if not isinstance(segment, str | int) or isinstance(segment, bool):
        return f"{kind_of(segment)} is neither a key nor an index"
    if isinstance(value, Mapping):
        keys = list(cast("Mapping[str, Value]", value))
        if isinstance(segment, int):
            return "an object has keys, not indexes"
        near = suggest(segment, keys[:1000])
        return f"no key {segment!r} in an object with {'the keys ' + listed(keys) if keys else 'no keys'}{near}"
    if isinstance(value, list):
        length = len(cast("list[Value]", value))
        return f"no index {segment!r} in a list of {length} items" if isinstance(segment, int) else f"a list has no key {segment!r}"
    return f"{kind_of(value)} has no {'key' if isinstance(segment, str) else 'index'} {segment!r}"


def _operation(position: int, apply: Callable[..., Value], *codes: _Code) -> _Code:
    """Wrap an operation so that its errors carry the position in the text."""

    def code(run: _Run) -> Value:
        values = [each(run) for each in codes]
        try:
            return apply(run, *values)
        except MissingValue as nothing:
            raise _Missing(position, str(nothing)) from None
        except EvaluationError as wrong:
            raise _Fault(position, str(wrong)) from None
        except ValidationFailed as error:
            raise _Fault(position, error.message) from None

    return code


def _unary(tree: UnaryExpression) -> _Code:
    operand = _compile(tree.operand)
    if tree.operator == "not":
        decide = _decision(tree.operand, operand, "not")
        return lambda run: not decide(run)
    return _operation(tree.start, _negated if tree.operator == "-" else _unchanged, operand)


def _negated(_run: _Run, value: Value) -> Value:
    return checked_number(-_number(value))


def _unchanged(_run: _Run, value: Value) -> Value:
    return _number(value)


def _number(value: Value) -> Any:
    if type(value) is not int and type(value) is not float:
        raise EvaluationError(f"arithmetic needs numbers, not {kind_of(value)}")
    return value


# Truth needs a boolean: with Python's truthiness, a condition over a text such as "false" would hold.
def _decision(tree: Syntax, code: _Code, word: str) -> Callable[[_Run], bool]:
    def decide(run: _Run) -> bool:
        value = code(run)
        if type(value) is not bool:
            raise _Fault(tree.start, f"{word!r} takes true or false, not {kind_of(value)}; compare it with something")
        return value

    return decide


def _joined(tree: JoinedExpression) -> _Code:
    decisions = [_decision(part, _compile(part), tree.operator) for part in tree.operands]
    if tree.operator == "and":
        return lambda run: all(decide(run) for decide in decisions)
    return lambda run: any(decide(run) for decide in decisions)


def _binary(tree: BinaryExpression) -> _Code:
    return _operation(tree.start, _BINARY[tree.operator], _compile(tree.left), _compile(tree.right))


def _ordered(accepts: Callable[[int, int], bool]) -> Callable[..., bool]:
    def call(_run: _Run, left: Value, right: Value) -> bool:
        return accepts(order(left, right), 0)

    return call


def _arithmetic(apply: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    def call(_run: _Run, left: Value, right: Value) -> Value:
        try:
            return checked_number(apply(_number(left), _number(right)))
        except ZeroDivisionError:
            raise EvaluationError("division by zero") from None
        except OverflowError:
            raise EvaluationError("the result is too large") from None

    return call


def _differs(run: _Run, left: Value, right: Value) -> bool:
    return not is_same(run, left, right)


def _is_in(run: _Run, left: Value, right: Value) -> bool:
    return holds(run, right, left)


def _divided(left: Any, right: Any) -> Any:
    return left / right


_BINARY: dict[str, Callable[..., Value]] = {
    "==": is_same,
    "!=": _differs,
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
    "in": _is_in,
    "contains": holds,
    "+": combined,
    "-": _arithmetic(operator.sub),
    "*": _arithmetic(operator.mul),
    "/": _arithmetic(_divided),
    "%": _arithmetic(operator.mod),
}


def _call(tree: CallExpression) -> _Code:
    codes = [_compile(argument) for argument in tree.arguments]
    match tree.name:
        case "default" | "coalesce":
            return partial(_first_present, codes)
        case "exists":
            return lambda run: _found(codes[0], run)[0]
        case "is_null":
            return lambda run: _found(codes[0], run)[1] is None
        case _:
            return _operation(tree.start, call_function(tree.name), *codes)


def _found(code: _Code, run: _Run) -> tuple[bool, Value]:
    try:
        return True, code(run)
    except _Missing:
        return False, None


def _first_present(codes: list[_Code], run: _Run) -> Value:
    for code in codes[:-1]:
        value = _found(code, run)[1]
        if value is not None:
            return value
    return codes[-1](run)
