"""Scoped state that a definition reads: loaded before each event, since the kernel does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.contract.store import Store
from stepwell.flow.state_path import StateKey
from stepwell.model.record import Metadata
from stepwell.model.scope import Scope
from stepwell.model.value import Value, decode
from stepwell.state.operation import Operation, read

__all__ = ["read_state"]


def read_state(store: Store, keys: Sequence[StateKey], identity: Metadata) -> Operation[Value]:
    """The values of keys as templates see them: ``{scope: {key: value}}``, or with the scope's name in between."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for each in keys:
        wanted.setdefault((each.scope, each.name), []).append(each.key)
    found: dict[str, Any] = {}
    for (kind, name), names in wanted.items():
        path = _scope(kind, name, identity).path
        rows = yield from read(lambda path=path, names=names: store.entries(path, names))
        values = {key: decode(row.data) for key, row in rows.items() if row.data is not None}
        place = found.setdefault(kind, {})
        if name:
            place[name] = values
        else:
            place.update(values)
    return found


def _scope(kind: str, name: str, identity: Metadata) -> Scope:
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
