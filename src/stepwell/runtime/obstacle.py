"""What keeps this process from running an execution: it has no such workflow, only an older version, or not all steps."""

from __future__ import annotations

from typing import Any, cast

from stepwell.flow.function import registered_step, registered_versions
from stepwell.model.commit import Head
from stepwell.model.execution_state import ExecutionState
from stepwell.model.status import FINAL

__all__ = ["missing_steps", "obstacle_of"]


def obstacle_of(head: Head) -> str | None:
    """Why a worker of this process does not take an execution, and what to do; None if it does, or need not any more."""
    if head.status in FINAL:
        return None
    newest = registered_versions().get(head.workflow_id)
    if newest is None:
        return f"this process has no workflow {head.workflow_id!r}; import the module that defines it"
    if head.version > newest:
        return (
            f"it was started by version {head.version} of workflow {head.workflow_id!r}, and this process has version {newest}; "
            "it waits for a worker with the newer code"
        )
    return None


def missing_steps(state: ExecutionState) -> str | None:
    """What a run of a definition waits for that this process does not have; None if it has all its steps."""
    values = [cast("dict[str, Any]", token.value) for token in state.tokens.values() if isinstance(token.value, dict)]
    asked: set[str] = {value["missing"] for value in values if "missing" in value}
    names = sorted(name for name in asked if registered_step(name) is None)
    if not names:
        return None
    return f"it waits for a worker that has step {', '.join(map(repr, names))}; import the module that defines it"
