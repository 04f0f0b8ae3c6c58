"""``list``: the runs of a store."""

from __future__ import annotations

import click

from stepwell.cli.command import command
from stepwell.cli.report import tell_rows
from stepwell.cli.settings import settings
from stepwell.model.status import Status

__all__ = ["list_"]

_COLUMNS = {
    "ID": "execution_id",
    "WORKFLOW": "workflow_id",
    "STATUS": "status",
    "WORKSPACE": "workspace_id",
    "REVISION": "revision",
    "UPDATED": "updated_at",
}


@command("list")
@click.option("--status", "-s", type=click.Choice([*Status], case_sensitive=False), help="Only those that stand there.")
@click.option("--workspace", "-w", help="Only those of a workspace.")
@click.option("--workflow", help="Only those of a workflow.")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
def list_(status: str | None, workspace: str | None, workflow: str | None, limit: int) -> None:
    """List runs, newest first. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.executions.list(status=status, workspace=workspace, workflow=workflow, limit=limit)
    tell_rows(given, found, _COLUMNS, "no runs; start one with: stepwell run FILE")
    if len(found) == limit and not given.is_json:
        given.screen.note(f"the newest {limit}; more with --limit")
