"""Scoped state as templates of a declared workflow see it: loaded by the driver, overlaid with writes that are about to land."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stepwell.flow.language.template import StateKey
from stepwell.model.draft import Planned
from stepwell.model.mutation import WriteState
from stepwell.model.record import Metadata
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Clear, Delete, Increment, Put
from stepwell.model.value import Value, decode

__all__ = ["by_scope", "inside", "lay_over", "scope_of"]


def lay_over(found: Value, keys: Sequence[StateKey], identity: Metadata, landing: Iterable[Planned]) -> None:
    """Overlay loaded values with writes that are about to land."""
    places = {scope_of(kind, name, identity).path: (kind, name) for kind, name in by_scope(keys)}
    for mutation in landing:
        if isinstance(mutation, WriteState) and mutation.op.scope in places:
            _apply(inside(found, *places[mutation.op.scope]), mutation.op)


def _apply(values: dict[str, Value], op: object) -> None:
    match op:
        case Put(key=key, value=value):
            values[key] = decode(value)
        case Delete(key=key):
            values.pop(key, None)
        case Increment(key=key, by=by):
            before = values.get(key, 0)
            values[key] = before + by if isinstance(before, int | float) else before
        case Clear():
            values.clear()
        case _:
            pass  # only the store can compute a merge or a copy: the step after the next sees it


def by_scope(keys: Sequence[StateKey]) -> dict[tuple[str, str], list[str]]:
    """Return the keys of each scope, by its kind and name."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for each in keys:
        wanted.setdefault((each.scope, each.name), []).append(each.key)
    return wanted


def inside(found: dict[str, Any], kind: str, name: str) -> dict[str, Value]:
    """Return the values of one scope from the loaded ones."""
    place: dict[str, Any] = found.setdefault(kind, {})
    return place.setdefault(name, {}) if name else place


def scope_of(kind: str, name: str, identity: Metadata) -> Scope:
    """Return the scope that a path of a template names, as seen from an execution."""
    workspace, workflow = identity.workspace_id, identity.workflow_id
    match kind:
        case "global":
            return Scope.globals()
        case "workspace":
            return Scope.of_workspace(workspace)
        case "workflow":
            return Scope.of_workflow(workflow, workspace)
        case "step":
            return Scope.of_step(workflow, name, workspace)
        case "conversation":
            return Scope.of_conversation(name, workspace)
        case _:
            return Scope.custom(name, workspace)
