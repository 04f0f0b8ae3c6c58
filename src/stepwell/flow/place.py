"""Where a workflow's function is defined: two of one name are one workflow that was loaded again, or a mistake.

An execution finds its workflow by name. Were a second function to take the name silently, executions of the first would go on with
the code of the second.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

from stepwell.errors import InvalidInput

__all__ = ["check_place"]


class HasFunction(Protocol):
    """A workflow that is a function."""

    name: str
    function: Callable[..., Any]


def check_place(found: HasFunction | None, made: HasFunction) -> None:
    """Refuse a workflow whose name another function has. A module that is loaded again and a function that is defined again, as in
    a notebook, take the place of what they were. What is defined inside of a function, as in tests of a program that changes, is
    that function's own affair. What nobody can reach any more gives its name away."""
    if found is None or _is_inner(made.function) or _is_same(found.function, made.function) or not _is_reachable(found):
        return
    raise InvalidInput(
        f"there are two workflows {made.name!r}, {_shown(found.function)} and {_shown(made.function)}; "
        "executions find their workflow by its name, so give one of them another with @workflow(name=...)"
    )


def _is_inner(function: Callable[..., Any]) -> bool:
    return "<locals>" in function.__qualname__


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same name in the same module, or in the same file: a program is ``__main__`` when it is run and itself when imported."""
    is_named_alike = one.__qualname__ == other.__qualname__
    return is_named_alike and (one.__module__ == other.__module__ or _file(one) == _file(other) is not None)


def _is_reachable(found: HasFunction) -> bool:
    """Whether its module still has it; what is defined inside of a function, it never has."""
    module = sys.modules.get(found.function.__module__)
    try:
        there = attrgetter(found.function.__qualname__)(module)
    except AttributeError:
        return False
    return there is found or there is found.function


def _file(function: Callable[..., Any]) -> str | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else code.co_filename


def _shown(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{function.__module__}.{function.__qualname__}{where}"
