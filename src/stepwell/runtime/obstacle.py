"""What keeps this process from running an execution: that it has no such workflow, or only an older version of it."""

from __future__ import annotations

from stepwell.flow.program import registered_versions
from stepwell.model.commit import Head
from stepwell.model.status import FINAL

__all__ = ["obstacle_of"]


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
