"""Stepwell in a Django project: the project's well, requests that land with a database transaction, and steps that use the ORM.

Add ``"stepwell.integrations.django"`` to ``INSTALLED_APPS``. The setting ``STEPWELL`` has the arguments of ``Stepwell``:

    STEPWELL = {"url": "postgresql://app@db/app"}
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stepwell.app.blocking import Stepwell
from stepwell.model.ids import new_id

if TYPE_CHECKING:
    from typing import Unpack

    from stepwell.app.arguments import EnqueueOptions

__all__ = ["close_connections", "close_well", "enqueue_on_commit", "get_well", "open_well"]

F = TypeVar("F", bound=Callable[..., Any])

_lock = threading.Lock()
# By process: a fork must not use the connections of its parent, nor close them.
_wells: dict[int, Stepwell] = {}


def _settings() -> dict[str, Any]:
    project: Any = import_module("django.conf").settings  # Django has no types
    return getattr(project, "STEPWELL", {})


def open_well(**settings: Any) -> Stepwell:
    """Return a new well with the arguments of the setting ``STEPWELL``; ``settings`` replace some of them."""
    return Stepwell(**(_settings() | settings))


def get_well() -> Stepwell:
    """Return the well of this process, which is opened at the first call.

    It runs no workflows unless the setting says ``"worker": True``: ``manage.py stepwell_worker`` does. A program with such a
    setting calls ``close_well`` at its end; a web process need not.

    Example:

        get_well().start(checkout, order.id, execution_id=f"order-{order.id}")
    """
    with _lock:
        well = _wells.get(os.getpid())
        if well is None:
            well = open_well(worker=_settings().get("worker", False))
            _wells[os.getpid()] = well
        return well


def close_well() -> None:
    """Close the well of this process; the next ``get_well`` opens another one."""
    with _lock:
        well = _wells.pop(os.getpid(), None)
    if well is not None:
        well.close()


def enqueue_on_commit(workflow: Any, value: Any = None, *, using: str | None = None, **options: Unpack[EnqueueOptions]) -> str:
    """Enqueue a run when the current database transaction commits, or at once outside a transaction; return the run's id.

    A transaction that is rolled back enqueues nothing. The database and the store commit one after the other: a process that
    dies in between enqueues nothing. Keep the returned id in the row to find such rows, and call this again for them with the
    same ``execution_id``.

    - ``workflow``: what to run: a workflow, a definition, or the name of either.
    - ``value``: its input.
    - ``using``: the alias of the database.
    - ``options``: the options of ``well.enqueue``.

    Example:

        with transaction.atomic():
            order = Order.objects.create(item="lamp")
            enqueue_on_commit(checkout, order.id, execution_id=f"order-{order.id}")
    """
    transaction: Any = import_module("django.db.transaction")
    execution_id = str(options.get("execution_id") or new_id())
    options["execution_id"] = execution_id

    def enqueue() -> None:
        well: Any = get_well()
        well.enqueue(workflow, value, **options)

    transaction.on_commit(enqueue, using=using)
    return execution_id


def close_connections(function: F) -> F:
    """Decorate the function of a step that uses the ORM: obsolete database connections are closed before and after it.

    Django does this around each request. A worker has no requests, so that its threads would keep connections that the
    database or ``CONN_MAX_AGE`` has ended.

    Example:

        @step
        @close_connections
        def mark_paid(order_id: int) -> None:
            Order.objects.filter(id=order_id).update(is_paid=True)
    """
    close_old_connections: Any = import_module("django.db").close_old_connections
    if inspect.iscoroutinefunction(function):
        from asgiref.sync import sync_to_async

        close: Any = sync_to_async(close_old_connections)  # in the thread that runs the ORM for async code

        @functools.wraps(function)
        async def around_async(*arguments: Any, **keywords: Any) -> Any:
            await close()
            try:
                return await function(*arguments, **keywords)
            finally:
                await close()

        return cast("F", around_async)

    @functools.wraps(function)
    def around(*arguments: Any, **keywords: Any) -> Any:
        close_old_connections()
        try:
            return function(*arguments, **keywords)
        finally:
            close_old_connections()

    return cast("F", around)
