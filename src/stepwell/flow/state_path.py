"""Which keys of scoped state a template or condition reads: they are loaded before it is worked out, which does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stepwell.flow.reference import Reference, path_text
from stepwell.flow.suggestion import suggest

__all__ = ["StateKey", "state_fault", "state_keys"]

_NAMED = ("custom", "conversation", "step")
_SCOPES = ("global", "workspace", "workflow", *_NAMED)


class StateKey(NamedTuple):
    """One key of scoped state: ``state.SCOPE.KEY``, or ``state.SCOPE.NAME.KEY`` for scopes that have a name."""

    scope: str
    """``global``, ``workspace``, ``workflow``, ``step``, ``custom`` or ``conversation``, of the execution's own workspace."""
    name: str
    """Of the step, the namespace or the conversation; else empty."""
    key: str


def state_keys(references: Iterable[Reference]) -> tuple[StateKey, ...]:
    """The keys that references read, each once."""
    found: dict[StateKey, None] = {}
    for reference in references:
        if reference.path[0] == "state" and not state_fault(reference.path):
            scope, *rest = (str(part) for part in reference.path[1:])
            found[StateKey(scope, rest[0], rest[1]) if scope in _NAMED else StateKey(scope, "", rest[0])] = None
    return tuple(found)


def state_fault(path: tuple[str | int | None, ...]) -> str:
    """Why a path into state cannot be loaded beforehand, or nothing."""
    scope = path[1] if len(path) > 1 else None
    if scope not in _SCOPES:
        hint = suggest(str(scope), _SCOPES) if scope is not None else ""
        return f"state is read as state.SCOPE.KEY with a scope of {', '.join(_SCOPES)}{hint}"
    needed = path[2:4] if scope in _NAMED else path[2:3]
    if len(needed) < (2 if scope in _NAMED else 1) or not all(isinstance(part, str) for part in needed):
        form = f"state.{scope}.NAME.KEY" if scope in _NAMED else f"state.{scope}.KEY"
        return f"{path_text(path)} must be written {form}, with a fixed key, so that it can be loaded beforehand"
    return ""
