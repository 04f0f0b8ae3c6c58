"""A Django project in one program, run by `test_django.py` in a process of its own, since settings are those of a process."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

import django
from django.conf import settings

HAS_TASKS = find_spec("django.tasks") is not None
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "project.sqlite3"}},
    INSTALLED_APPS=["stepwell.integrations.django"],
    STEPWELL={"url": "sqlite:///stepwell.db", "worker": True},
    TASKS={"default": {"BACKEND": "stepwell.integrations.django.tasks.StepwellBackend", "QUEUES": ["default", "mail"]}},
    USE_TZ=True,
)
django.setup()

from django.db import connection, transaction  # noqa: E402

from stepwell import ExecutionFailed, step, workflow  # noqa: E402
from stepwell.integrations.django import close_connections, close_well, enqueue_on_commit, get_well  # noqa: E402


@step
@close_connections
def is_connected() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("select 1")
    return connection.connection is not None


@step
def connection_after() -> bool:
    """Whether this thread still has the connection of the step before: the pool of one worker thread is idle between them."""
    return connection.connection is not None


@workflow
def connections() -> list[bool]:
    return [is_connected(), connection_after()]


@workflow
def double(number: int) -> int:
    return 2 * number


def on_commit() -> None:
    well = get_well()
    with transaction.atomic():
        run_id = enqueue_on_commit(double, 4, execution_id="double-1")
        assert well.queue.list() == []
    print("nothing before the commit")
    [item] = well.queue.list()
    assert (item.execution_id, well.queue.item(item.item_id).result(10)) == (run_id, 8)
    try:
        with transaction.atomic():
            enqueue_on_commit(double, 5, execution_id="double-2")
            raise LookupError
    except LookupError:
        assert len(well.queue.list()) == 1
    print("nothing after a rollback")
    run_id = enqueue_on_commit(double, 6)
    assert run_id in {each.execution_id for each in well.queue.list()}
    print("at once outside of a transaction")


def closing() -> None:
    assert get_well().start(connections).result(10) == [True, False]
    print("closed after the step")


def reopening() -> None:
    first = get_well()
    assert get_well() is first
    close_well()
    assert get_well() is not first
    assert get_well().run("double-1").result(10) == 8
    print("opened again")


def tasks() -> None:
    from django.tasks import default_task_backend
    from django.tasks.base import TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from shop_tasks import add, ask, attempt, fail

    results: dict[str, Any] = {}
    for name, task, given in (
        ("add", add, {"one": 1, "number": 2}),
        ("ask", ask, {}),
        ("attempt", attempt, {}),
        ("fail", fail, {}),
    ):
        made = results[name] = task.enqueue(**given)
        try:
            get_well().queue.item(made.id).result(10)
        except ExecutionFailed:
            assert name == "fail"
        made.refresh()
    assert results["add"].return_value == 3
    assert results["ask"].return_value == "async"
    assert results["attempt"].return_value == [1, results["attempt"].id]
    assert results["fail"].status == TaskResultStatus.FAILED
    [error] = results["fail"].errors
    assert error.exception_class_path == "shop_tasks.Declined"
    assert "the card" in error.traceback
    assert (results["add"].attempts, results["add"].task.func) == (1, add.func)
    assert add.get_result(results["add"].id).return_value == 3
    later = add.using(run_after=datetime.now(UTC) + timedelta(days=1), priority=7, queue_name="mail").enqueue(1)
    kept = get_well().queue.item(later.id).state()
    assert (later.status, kept.priority, kept.queue) == (TaskResultStatus.READY, 7, "mail")
    assert asyncio.run(add.aenqueue(1)).task.func == add.func
    for unknown in ("none", get_well().enqueue(double, 1).item_id):
        try:
            default_task_backend.get_result(unknown)
        except TaskResultDoesNotExist:
            continue
        raise AssertionError(unknown)
    print("tasks")


if __name__ == "__main__":
    {"on_commit": on_commit, "closing": closing, "reopening": reopening, "tasks": tasks}[sys.argv[1]]()
    close_well()
