"""A Django project: requests land with its transactions, steps leave no old connections, and tasks are durable runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("django_program.py")
TASKS = """
from django.tasks import task


class Declined(Exception):
    pass


@task
def add(one, number=0):
    return one + number


@task
async def ask():
    return "async"


@task(takes_context=True)
def attempt(context):
    return [context.attempt, context.task_result.id]


@task
def fail():
    raise Declined("the card")
"""


def run_program(folder: Path, part: str) -> str:
    shutil.copy(PROGRAM, folder / "program.py")
    (folder / "shop_tasks.py").write_text(TASKS)
    command = [sys.executable, "-W", "error", "program.py", part]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_request_lands_with_the_transaction_and_not_without_it(tmp_path: Path):
    assert run_program(tmp_path, "on_commit").splitlines() == [
        "nothing before the commit",
        "nothing after a rollback",
        "at once outside of a transaction",
    ]


def test_a_step_leaves_no_database_connection_in_its_thread(tmp_path: Path):
    assert run_program(tmp_path, "closing") == "closed after the step\n"


def test_the_well_of_a_process_opens_once_and_again_after_it_was_closed(tmp_path: Path):
    run_program(tmp_path, "on_commit")
    assert run_program(tmp_path, "reopening") == "opened again\n"


@pytest.mark.skipif(find_spec("django.tasks") is None, reason="Django 6 has tasks, and needs Python 3.12")
def test_tasks_of_django_are_durable_runs(tmp_path: Path):
    assert run_program(tmp_path, "tasks") == "tasks\n"


def test_worker_command_runs_the_workflows_of_installed_applications(tmp_path: Path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "workflows.py").write_text(
        "from stepwell import workflow\n\n@workflow\ndef hello() -> str:\n    return 'from the worker'\n"
    )
    (tmp_path / "settings.py").write_text(
        "INSTALLED_APPS = ['stepwell.integrations.django', 'shop']\nSTEPWELL = {'url': 'sqlite:///stepwell.db'}\n"
    )
    asking = (
        "import django; django.setup()\nfrom stepwell.integrations.django import get_well\n"
        "print(get_well().start('hello').result(20))"
    )
    given = os.environ | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)}
    manage = [sys.executable, "-m", "django", "stepwell_worker"]
    with subprocess.Popen(manage, cwd=tmp_path, env=given, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        assert "worker is ready" in worker.stderr.readline()
        done = subprocess.run(
            [sys.executable, "-c", asking], cwd=tmp_path, env=given, capture_output=True, text=True, timeout=60, check=False
        )
        worker.terminate()
        worker.wait(30)
    assert done.stdout == "from the worker\n", done.stderr
