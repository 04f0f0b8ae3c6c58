"""``list``: the runs of a store."""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from stepwell.cli.command import command
from stepwell.cli.settings import settings
from stepwell.model.status import Status

__all__ = ["list_"]


@command("list")
@click.option("--status", "-s", type=click.Choice([*Status], case_sensitive=False), help="Only those that stand there.")
@click.option("--workspace", "-w", help="Only those of a workspace.")
@click.option("--workflow", help="Only those of a workflow.")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
def list_(status: str | None, workspace: str | None, workflow: str | None, limit: int) -> None:
    """List runs, newest first. With --json, one line for each."""
    given = settings()
    screen = given.screen
    with given.open() as well:
        found = well.executions.list(status=status, workspace=workspace, workflow=workflow, limit=limit)
    if given.is_json:
        for each in found:
            screen.json_line(msgspec.to_builtins(each))
        return
    rows = [
        (each.execution_id, each.workflow_id, str(each.status), each.workspace_id, str(each.revision), _moment(each.updated_at))
        for each in found
    ]
    if rows or not screen.is_table:
        screen.table(("ID", "WORKFLOW", "STATUS", "WORKSPACE", "REVISION", "UPDATED"), rows, status_column=2)
    if not rows:
        screen.note("no runs; start one with: stepwell run FILE")
    elif len(rows) == limit:
        screen.note(f"the newest {limit}; more with --limit")


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
