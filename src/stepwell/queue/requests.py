"""Requests for runs: checked, and made into queue items.

``enqueue`` requests a run from inside a step: the item lands with the commit that records the step's output, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol, cast
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import UNSET

from stepwell.clock import to_ms
from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput
from stepwell.flow.function import Workflow, WorkflowCall, registered, secrets_of
from stepwell.flow.governance import Governance, check_governance
from stepwell.model.data_key import index_path
from stepwell.model.execution_state import sha256_hex
from stepwell.model.external_engines import TEMPORAL, check_engine
from stepwell.model.ids import Id, check_key, keyed_id_of, new_id
from stepwell.model.limits import Limits
from stepwell.model.mutation import EnqueueItem, WriteState
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import DEFAULT_QUEUE, NewItem, workflow_and_engine, workflow_for
from stepwell.model.record import FunctionTrigger, encode_plain_trigger, governed_input, split_input
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.scoped_operations import Put
from stepwell.model.value import DEFAULT_LIMITS, Value, to_value
from stepwell.runtime.steps.context import StepContext, here

__all__ = [
    "LATEST_MS",
    "MOST_ATTEMPTS",
    "MOST_PRIORITY",
    "QueueRequest",
    "Runnable",
    "check_queue",
    "enqueue",
    "find_workflow",
    "moment_ms",
    "new_item",
    "workspace_queue",
]


MOST_PRIORITY = 1_000_000
MOST_ATTEMPTS = 1_000
LATEST_MS = to_ms(datetime.max.replace(tzinfo=UTC))
"""The last moment that a datetime in UTC can have. Spans of up to a hundred years from now are far before it."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class Runnable(Protocol):
    """A workflow that can be enqueued: a name, a version, and the inputs that it accepts."""

    @property
    def name(self) -> str:
        """The name of the workflow."""
        ...

    @property
    def version(self) -> int:
        """The version of the workflow."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of secret keys and fields that it declares."""
        ...

    def input_of(self, value: object) -> Value:
        """Return the value as the workflow's input, checked against its parameters."""
        ...

    def encode_input(self, value: object, limits: Limits = ...) -> bytes:
        """Return an input as canonical bytes, checked before anything is stored."""
        ...


class QueueRequest(PlainRecord, frozen=True, kw_only=True):
    """One request for ``well.enqueue_many``. Its fields are the parameters of ``well.enqueue``."""

    workflow: Any
    value: Any = msgspec.UNSET
    workspace: str = DEFAULT_WORKSPACE
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    key: str | None = None
    singleton: bool | Id | None = None
    debounce: Span | None = None
    delay: Span | None = None
    run_at: datetime | None = None
    execution_id: str | None = None
    max_attempts: int = 3
    engine: str | None = None
    governance: Governance | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        """Take a call of a workflow apart."""
        workflow, value = WorkflowCall.unpack(self.workflow, self.value)
        msgspec.structs.force_setattr(self, "workflow", workflow)
        msgspec.structs.force_setattr(self, "value", value)


def workspace_queue(workspace: str) -> str:
    """Return the name of a workspace's own queue.

    - ``workspace``: the id of the workspace.

    Raise ``InvalidInput`` for an invalid workspace id.
    """
    return f"workflow.workspace.{check_key(workspace, 'a workspace id')}"


def new_item(
    request: QueueRequest,
    workflow: Runnable,
    new_id: Callable[[], str],
    limits: Limits = DEFAULT_LIMITS,
    data_key: str | None = None,
    secrets: tuple[str, ...] = (),
) -> NewItem:
    """Return the item of a request. Raise an error if any part of it can never be accepted.

    ``data_key`` is the id of the data key of the request's subject.
    """
    if request.delay is not None and request.run_at is not None:
        raise InvalidInput("give either a delay or run_at, not both")
    if request.singleton and request.debounce is not None:
        raise InvalidInput("give either singleton or debounce, not both: one keeps the first request, the other the last")
    if request.debounce is not None and request.run_at is not None:
        # It would start at that time, no matter how recent the last request is.
        raise InvalidInput("give debounce with a delay, not with run_at: it starts when no request has come for so long")
    if request.execution_id is not None and (request.key is not None or request.debounce is not None):
        # Another key, or a later request with the debounced name, would make an item with the same execution id, which could only
        # fail.
        raise InvalidInput("give execution_id without key and debounce: the same id again is the same item already")
    delay_ms = 0 if request.delay is None else _span_ms(request.delay, "delay")
    if request.debounce is not None:
        delay_ms = max(delay_ms, _span_ms(request.debounce, "debounce"))
    key = None if request.key is None else check_key(request.key, "key")
    own_id = None if request.execution_id is None else check_key(request.execution_id, "execution_id")
    workspace, unique = check_key(request.workspace, "a workspace id"), _key_of(request, key, own_id)
    item = NewItem(
        item_id=new_id() if unique is None else keyed_id_of(workspace, unique),
        workspace_id=workspace,
        workflow_id=workflow_for(workflow.name, check_engine(request.engine)),
        version=workflow.version,
        execution_id=own_id or new_id(),
        input=_input_of(request, workflow, limits, data_key),
        queue=check_queue(request.queue),
        priority=_whole(request.priority, "priority", -MOST_PRIORITY, MOST_PRIORITY),
        delay_ms=delay_ms,
        run_at_ms=None if request.run_at is None else moment_ms(request.run_at, "run_at"),
        key=unique,
        singleton=_singleton_of(request, workflow),
        debounce=None if request.debounce is None else f"{quote(workflow.name, safe='')}/{key or ''}",
        max_attempts=_whole(request.max_attempts, "max_attempts", 1, MOST_ATTEMPTS),
    )
    if unique is not None:
        item = msgspec.structs.replace(item, body_digest=_digest(item, own_id))
    names = secrets_of(workflow.secrets, secrets)
    if not names:
        return item
    # After the digest: the same call again is the same, whatever was declared secret in between.
    return msgspec.structs.replace(item, input=governed_input(*split_input(item.input)[:4], names))


def check_queue(name: object) -> str:
    """Return the name of a queue that users may have. Raise ``InvalidInput`` for any other."""
    queue = check_key(name, "a queue's name")
    if queue.startswith("$"):
        raise InvalidInput(f"queue {queue!r} is Stepwell's own; choose a name that does not begin with $")
    return queue


def _input_of(request: QueueRequest, workflow: Runnable, limits: Limits, data_key: str | None) -> bytes:
    value = workflow.input_of(request.value)
    if request.value is None and isinstance(value, FunctionTrigger):
        only = ", ".join(map(repr, value.arguments))
        raise InvalidInput(
            f"None for workflow {workflow.name!r} would be no input in the queue, and come to the default of its parameter {only}; "
            "leave it out, or use well.start"
        )
    given = check_governance(request.governance)
    governance = None if given is None else cast("dict[str, Any]", to_value(given))
    trigger = encode_plain_trigger(workflow.encode_input(value, limits))
    return governed_input(trigger, governance, request.subject, data_key)


def _key_of(request: QueueRequest, key: str | None, own_id: str | None) -> str | None:
    if request.debounce is not None:
        return None  # the key is the debounced name, and the same name comes again with other inputs
    if key is not None:
        return f"key:{key}"
    # The same execution id again is the same run, as with ``start``.
    return None if own_id is None else f"execution:{own_id}"


def _singleton_of(request: QueueRequest, workflow: Runnable) -> str | None:
    singleton: object = request.singleton
    if singleton is None or singleton is False:
        return None
    if singleton is True:
        return f"workflow:{workflow.name}"
    if isinstance(singleton, str | UUID):
        return f"name:{check_key(singleton, 'singleton')}"
    raise InvalidInput(f"singleton is True, or a name to share, not {singleton!r}")


def _digest(item: NewItem, own_id: str | None) -> str:
    """Return a digest of the call, so that the same call again has the same digest.

    Version and engine are not part of it: a release, or a choice of an engine, may come between the two calls.
    """
    name, _ = workflow_and_engine(item.workflow_id, TEMPORAL)
    said = (name, item.queue, item.priority, item.delay_ms, item.run_at_ms, item.singleton, item.max_attempts, own_id)
    return sha256_hex(_encode(said) + b"\n" + item.input)


def _span_ms(span: Span, what: str) -> int:
    return round(seconds_of(span, what) * 1000)


def moment_ms(moment: object, what: str) -> int:
    """Return a moment in milliseconds since 1970; one before that counts as 1970.

    Refuse a moment that could be stored and never be shown again.
    """
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidInput(f"{what} is a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1), not {moment!r}")
    milliseconds = to_ms(moment)
    if milliseconds > LATEST_MS:
        raise InvalidInput(f"{what} is no later than the year 9999 in UTC, not {moment}")
    return max(milliseconds, 0)


def _whole(number: object, what: str, least: int, most: int) -> int:
    if type(number) is not int or not least <= number <= most:
        raise InvalidInput(f"{what} is a whole number from {least:,} to {most:,}, not {number!r}")
    return number


def find_workflow(workflow: object) -> Runnable:
    """Return the workflow of a request, which names it or is it."""
    if isinstance(workflow, Workflow):
        return cast("Workflow[..., Any]", workflow)
    if isinstance(workflow, str):
        return registered(check_key(workflow, "a workflow's name"))
    raise InvalidInput(f"a workflow is a function with @workflow, or a registered name, not {type(workflow).__name__}")


def enqueue(
    workflow: Any,
    value: Any = UNSET,
    *,
    workspace: str | None = None,
    queue: str = DEFAULT_QUEUE,
    priority: int = 0,
    key: str | None = None,
    singleton: bool | Id | None = None,
    debounce: Span | None = None,
    delay: Span | None = None,
    run_at: datetime | None = None,
    execution_id: str | None = None,
    max_attempts: int = 3,
    engine: str | None = None,
    governance: Governance | None = None,
    subject: str | None = None,
) -> str:
    """Request an execution of a workflow from inside a step, and return the queue item's id.

    The item lands in the commit that records the step's output: if it is refused, so is that commit.

    - ``workflow``, ``value``, ``queue``, ``priority``, ``debounce``, ``delay``, ``run_at``, ``max_attempts``, ``governance``: as
      for ``well.enqueue``.
    - ``workspace``, ``engine``: those of the execution that asks, unless others are named.
    - ``key``, ``execution_id``: as for ``well.enqueue``; the id of the existing item is returned, if there is one.
    - ``singleton``: as for ``well.enqueue``. The commit decides whether another item stands for the request, with ``singleton`` or
      ``debounce``; that item has another id than the one that is returned.
    - ``subject``: whose data the item holds. It is the subject of the execution that asks; no other can be named here.

    Raise ``InvalidInput`` outside a step, and for what ``well.enqueue`` refuses.

    Example:

        item_id = stepwell.enqueue(send_mail, {"to": user}, key=f"mail-{user}")
    """
    context = here.get()
    if not isinstance(context, StepContext):
        raise InvalidInput("stepwell.enqueue() is for the code of a step; elsewhere use well.enqueue(...)")
    own = workspace in (None, context.identity.workspace_id)
    if subject is not None and (not own or subject != context.identity.subject):
        raise InvalidInput("a step enqueues data of the subject of its own run; for another, use well.enqueue(..., subject=...)")
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
        engine=context.identity.engine if engine is None else engine,
        governance=governance,
        subject=context.identity.subject if own else None,
    )
    data_key = context.identity.data_key if own else None
    item = new_item(request, find_workflow(workflow), new_id, context.buffer.limits, data_key)
    if data_key is not None:
        name = f"item/{item.item_id}"
        context.buffer.add(WriteState(Put(index_path(item.workspace_id, data_key, name), name, msgspec.Raw(b"true"))))
    context.buffer.add(EnqueueItem.of(item))
    return item.item_id
