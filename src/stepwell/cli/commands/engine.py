"""``engine``: which engine runs a workspace, a queue or a workflow."""

from __future__ import annotations

import click

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import QUEUE_NAME, WORKFLOW_NAME, settings
from stepwell.cli.report import report, report_rows

__all__ = ["engine"]

_AT = "stepwell.cli.commands.engine"


@click.group(
    "engine",
    cls=Group,
    entries={
        "choose": CommandEntry(f"{_AT}:choose", "Choose the engine of a workspace, a queue or a workflow."),
        "list": CommandEntry(f"{_AT}:list_", "List the engines that were chosen."),
    },
)
def engine() -> None:
    """Choose whether Stepwell's own workers or Temporal run what is started without --engine."""


@command("choose")
@click.argument("engine", type=click.Choice(["local", "temporal", "default"]))
@click.option("--workspace", "-w", help="All that is started in this workspace.")
@click.option("--queue", help="All that is enqueued in this queue.", shell_complete=QUEUE_NAME)
@click.option("--workflow", help="All runs of this workflow.", shell_complete=WORKFLOW_NAME)
def choose(engine: str, workspace: str | None, queue: str | None, workflow: str | None) -> None:
    """Choose the engine of later starts for one workspace, queue or workflow; "default" removes the choice.

    The choice for a workflow comes before that for its queue, and that before the one for its workspace. Existing runs and items
    keep their engine.
    """
    given = settings()
    with given.open(creates=True) as well:
        wanted = None if engine == "default" else engine
        done = well.choose_engine(wanted, workspace=workspace, queue=queue, workflow=workflow)
    report(given, done, f"{done.kind} {done.name} has engine {engine}")


@command("list")
def list_() -> None:
    """List the engines that were chosen. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.engines()
    report_rows(given, found, {"KIND": "kind", "NAME": "name", "ENGINE": "engine"}, "no engine was chosen: Stepwell's own workers")
