"""Tracebacks of user code as text: recorded with a failed attempt, without library frames and without values of variables."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, walk_stack
from types import FrameType
from typing import Any, cast

__all__ = ["Told", "user_stack", "user_traceback"]

_MOST_BYTES = 8_192
_MOST_FRAMES = 100
"""Of each error of a chain, the innermost: endless recursion must not cost more than other failures."""
_MOST_LINE = 500
_CUT = "  ...\n"

_OWN = str(Path(__file__).parents[2])
_DEMO = str(Path(_OWN, "demo"))
_STANDARD = tuple({path for name, path in sysconfig.get_paths().items() if name in ("stdlib", "platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")


class Told(Exception):
    """The error of another execution or process, with its recorded class and message."""

    def __init__(self, message: str, told: dict[str, Any], names: list[str]) -> None:
        super().__init__(message)
        self.told, self.names = told, names
        """The recorded error, with all its names."""


def user_traceback(error: BaseException) -> str | None:
    """Return the traceback of an error and of its causes with the frames of user code, at most 8 KiB; None if there are none.

    Frames of Stepwell, of the standard library and of installed packages are left out. If none is left, since the user's program is
    an installed package itself, those of packages stay. A cause that was raised in another process has its recorded traceback.
    """
    told = TracebackException(type(error), error, error.__traceback__, limit=-_MOST_FRAMES, lookup_lines=False, compact=True)
    _put_recorded(told, error)
    stacks = [(each, list(each.stack)) for each in _chain(told)]
    for is_wanted in (_is_program, _is_not_stepwell):
        if any(is_wanted(frame) for _, frames in stacks for frame in frames):
            for each, frames in stacks:
                each.stack = StackSummary.from_list(_chosen(frames, is_wanted))
            return _bounded(line for text in told.format() for line in text.splitlines(keepends=True))
    return None


def user_stack(frame: FrameType) -> str | None:
    """Return where a thread is, as a traceback would show it, with the frames of user code; None if there are none."""
    frames = list(StackSummary.extract(walk_stack(frame), limit=_MOST_FRAMES, lookup_lines=False))
    for is_wanted in (_is_program, _is_not_stepwell):
        if chosen := _chosen(frames, is_wanted):
            lines = StackSummary.from_list(chosen[::-1]).format()
            return _bounded(line for text in lines for line in text.splitlines(keepends=True))
    return None


def _chain(told: TracebackException) -> Iterator[TracebackException]:
    pending, seen = [told], set[int]()
    while pending:
        each = pending.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            pending += [other for other in (each.__cause__, each.__context__, *(each.exceptions or ())) if other is not None]


def _put_recorded(told: TracebackException, error: BaseException) -> None:
    """Show each ``Told`` that led to an error as it was raised where it happened."""
    pending: list[tuple[TracebackException | None, BaseException | None]] = [(told, error)]
    while pending:
        each, cause = pending.pop()
        if each is None or cause is None:
            continue
        if isinstance(cause, Told):
            text = cause.told.get("traceback") or f"{cause.told.get('kind')}: {cause.told.get('message')}"
            each.format_exception_only = partial(_recorded, text)
        pending.append((each.__cause__, cause.__cause__))
        if isinstance(cause, BaseExceptionGroup):
            pending += zip(each.exceptions or (), cast("BaseExceptionGroup[BaseException]", cause).exceptions, strict=False)


def _recorded(text: str, *_: object, **__: object) -> Generator[str]:
    yield f"{text}\n"


def _chosen(frames: list[FrameSummary], is_wanted: Callable[[FrameSummary], bool]) -> list[FrameSummary]:
    return [frame for frame in frames if is_wanted(frame)]


def _is_not_stepwell(frame: FrameSummary) -> bool:
    return not frame.filename.startswith("<frozen") and _is_outside_stepwell(frame.filename) and not _is_standard(frame.filename)


def _is_program(frame: FrameSummary) -> bool:
    return _is_not_stepwell(frame) and not any(folder in Path(frame.filename).parts for folder in _INSTALLED)


def _is_outside_stepwell(name: str) -> bool:
    return not name.startswith(_OWN) or name.startswith(_DEMO)


def _is_standard(name: str) -> bool:
    return name.startswith(_STANDARD) and not any(folder in Path(name).parts for folder in _INSTALLED)


def _bounded(lines: Iterator[str]) -> str:
    """Return lines of at most 8 KiB; the last ones, which name the error, stay before the first ones."""
    cut = [line if len(line) <= _MOST_LINE else f"{line[:_MOST_LINE]} ...\n" for line in lines]
    encoded = [line.encode("utf-8", "replace") for line in cut]
    if sum(map(len, encoded)) > _MOST_BYTES:
        first, left = encoded[:1], _MOST_BYTES - len(encoded[0]) - len(_CUT)
        last: list[bytes] = []
        for line in reversed(encoded[1:]):
            left -= len(line)
            if left < 0:
                break
            last.append(line)
        encoded = [*first, _CUT.encode(), *reversed(last)]
    return b"".join(encoded).decode().rstrip("\n")
