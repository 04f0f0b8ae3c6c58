"""A backend for Django's tasks framework (Django 6): each task is a durable run on a Stepwell worker.

TASKS = {"default": {"BACKEND": "stepwell.integrations.django.tasks.StepwellBackend"}}
"""

from __future__ import annotations

import builtins
import os
import re
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stepwell.app.blocking import QueueItem, Run
from stepwell.errors import NotFound
from stepwell.flow.function import step, workflow
from stepwell.integrations.django import close_connections, get_well
from stepwell.model.queue_item import ItemStatus
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.queue.item import ItemSummary
from stepwell.runtime.step_history import AttemptRecord
from stepwell.runtime.steps.context import current

if TYPE_CHECKING:  # Django has no types, and its version for Python 3.11 no tasks
    TaskContext: Any = None
    TaskError: Any = None
    TaskResult: Any = None
    TaskResultStatus: Any = None
    TaskResultDoesNotExist = Exception
    task_enqueued: Any = None
    task_finished: Any = None
    task_started: Any = None
    normalize_json: Any = None
    import_string: Any = None

    class BaseTaskBackend:
        """The attributes that a backend inherits."""

        alias: str
        options: dict[str, Any]

        def validate_task(self, task: Any) -> None: ...
else:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
    from django.utils.module_loading import import_string

__all__ = ["StepwellBackend"]

_STATUS = {
    ItemStatus.COMPLETED: TaskResultStatus.SUCCESSFUL,
    ItemStatus.FAILED: TaskResultStatus.FAILED,
    ItemStatus.CANCELLED: TaskResultStatus.FAILED,
}
_WORKER = f"{socket.gethostname()}:{os.getpid()}"


class StepwellBackend(BaseTaskBackend):
    """Runs tasks as workflows of one step. A task is tried again after a crash of its worker, so it runs at least once.

    ``OPTIONS`` may have ``workspace``, the workspace that the tasks run in.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task, and return its result as it is now."""
        self.validate_task(task)
        arguments: dict[str, Any] = {"args": normalize_json(list(args)), "kwargs": normalize_json(kwargs)}
        item: QueueItem[Any] = get_well().enqueue(
            run_django_task,
            {"task": task.module_path, **arguments, "backend": self.alias},
            workspace=self.options.get("workspace", DEFAULT_WORKSPACE),
            queue=task.queue_name,
            priority=task.priority,
            run_at=task.run_after,
        )
        result = _result_of(item.state(), None)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: Any) -> Any:
        """Return the result of a task by its id. Raise ``TaskResultDoesNotExist`` if there is none, or no more."""
        well = get_well()
        try:
            found = well.queue.item(str(result_id)).state()
        except NotFound as error:
            raise TaskResultDoesNotExist(str(error)) from error
        if found.workflow_id != run_django_task.name:
            raise TaskResultDoesNotExist(f"queue item {result_id!r} is no task")
        return _result_of(found, well.run(found.execution_id))


def _result_of(item: ItemSummary, run: Run[Any] | None) -> Any:
    """Return a task's result from its queue item and its run; None for an item that has just been enqueued."""
    attempts = _attempts(run)
    status = _STATUS.get(item.status, TaskResultStatus.RUNNING if attempts is not None else TaskResultStatus.READY)
    made = attempts or ()
    given: Any = item.input
    result = TaskResult(
        task=import_string(given["task"]).using(queue_name=item.queue, priority=item.priority, backend=given["backend"]),
        id=item.item_id,
        status=status,
        enqueued_at=item.enqueued_at,
        started_at=made[0].started_at if made else item.dispatched_at,
        finished_at=item.finished_at,
        last_attempted_at=made[-1].started_at if made else item.dispatched_at,
        args=given["args"],
        kwargs=given["kwargs"],
        backend=given["backend"],
        errors=[_error_of(each) for each in made if each.error is not None],
        worker_ids=[item.holder or ""] * len(made),
    )
    if status == TaskResultStatus.SUCCESSFUL and run is not None:
        object.__setattr__(result, "_return_value", run.result(0))  # as Django's own backends set it
    return result


def _attempts(run: Run[Any] | None) -> tuple[AttemptRecord, ...] | None:
    """Return the attempts at a task; None before its run exists."""
    try:
        steps = [] if run is None else run.steps()
    except NotFound:
        return None
    if run is None:
        return None
    return tuple(attempt for each in steps for attempt in each.attempts)


def _error_of(attempt: AttemptRecord) -> Any:
    """Return a recorded error. The last line of its traceback has the module of its class."""
    kind = "" if attempt.error is None else attempt.error.kind
    text = attempt.traceback or f"{kind}: {'' if attempt.error is None else attempt.error.message}"
    paths = re.findall(rf"^((?:\w+\.)+{re.escape(kind)})(?=:|$)", text, re.MULTILINE)
    module = "builtins" if hasattr(builtins, kind) else "__main__"
    return TaskError(exception_class_path=paths[-1] if paths else f"{module}.{kind}", traceback=text)


@step(name="django.task")
@close_connections
def _call_task(task: str, args: list[Any], kwargs: dict[str, Any], backend: str) -> Any:
    """Call a task's function, with Django's signals around it."""
    found: Any = import_string(task).using(backend=backend)
    here, began = current(), datetime.now(UTC)
    result = TaskResult(
        task=found,
        id=str(here.identity.item_id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=here.identity.started_at,
        started_at=began,
        finished_at=None,
        last_attempted_at=began,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=[_WORKER] * here.attempt,
    )
    task_started.send(StepwellBackend, task_result=result)
    status = TaskResultStatus.FAILED
    try:
        given: Any = (TaskContext(task_result=result), *args) if found.takes_context else args
        output = normalize_json(found.call(*given, **kwargs))
        status = TaskResultStatus.SUCCESSFUL
        return output
    finally:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", datetime.now(UTC))
        task_finished.send(StepwellBackend, task_result=result)


@workflow(name="django.task")
def run_django_task(task: str, args: list[Any], kwargs: dict[str, Any], backend: str) -> Any:
    """Run one task of Django."""
    return _call_task(task, args, kwargs, backend)
