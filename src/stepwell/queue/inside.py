"""Asking for runs from inside of a step: the items land with the commit that records the step's output, or not at all."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET

from stepwell.duration import Span
from stepwell.errors import InvalidInput
from stepwell.model.ids import new_id
from stepwell.model.mutation import EnqueueItem
from stepwell.model.queue_item import DEFAULT_QUEUE
from stepwell.queue.request import QueueRequest, find_workflow, new_item
from stepwell.runtime.steps.context import StepContext, here

__all__ = ["enqueue"]


def enqueue(
    workflow: Any,
    value: Any = UNSET,
    *,
    workspace: str | None = None,
    queue: str = DEFAULT_QUEUE,
    priority: int = 0,
    key: str | None = None,
    singleton: bool | str | None = None,
    debounce: Span | None = None,
    delay: Span | None = None,
    run_at: datetime | None = None,
    execution_id: str | None = None,
    max_attempts: int = 3,
) -> str:
    """Ask for a run of a workflow, as ``well.enqueue`` does, with the commit of the step that this is called in; its item's id.

    Unless another ``workspace`` is named, it is that of the execution. If the item is refused, so is the step's commit. With a key
    or an execution id, the id is that of the item that is there already, if one is. One that stands for the request by
    ``singleton`` or ``debounce`` is found with the commit alone, and has an id of its own.
    """
    context = here.get()
    if not isinstance(context, StepContext):
        raise InvalidInput("stepwell.enqueue() is for the code of a step; elsewhere use well.enqueue(...)")
    request = QueueRequest(
        workflow=workflow,
        value=value,
        workspace=context.identity.workspace_id if workspace is None else workspace,
        queue=queue,
        priority=priority,
        key=key,
        singleton=singleton,
        debounce=debounce,
        delay=delay,
        run_at=run_at,
        execution_id=execution_id,
        max_attempts=max_attempts,
    )
    item = new_item(request, find_workflow(workflow), new_id, context.buffer.limits)
    context.buffer.add(EnqueueItem.of(item))
    return item.item_id
