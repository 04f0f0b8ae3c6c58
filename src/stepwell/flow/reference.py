"""The paths that an expression reads, known without running it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from stepwell.flow.syntax import (
    AccessExpression,
    BinaryExpression,
    CallExpression,
    JoinedExpression,
    ListExpression,
    LiteralExpression,
    RootExpression,
    Syntax,
    UnaryExpression,
)

__all__ = ["Reference", "path_text", "references_of"]

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"})
_PLAIN_KEY = re.compile(r"\w+(?:-\w+)*")


class Reference(NamedTuple):
    """One path in an expression."""

    path: tuple[str | int | None, ...]
    """The root and the segments after it; None for one that is only known when it runs."""
    position: int
    """Where it stands in the text."""
    is_guarded: bool
    """Whether it may be missing: it has a default, or the expression asks whether it exists."""

    def __str__(self) -> str:
        return path_text(self.path)


def path_text(path: tuple[str | int | None, ...]) -> str:
    """A path as it is written in an expression, with quotes where they are needed."""
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
    """Every path of an expression, in order of its place."""
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
    """Each reference, and whether the expression asks if it exists (which guards it elsewhere in the expression, too)."""
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
