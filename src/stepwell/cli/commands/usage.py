"""``usage``: how much of their limits workspaces, workflows, runs and scopes use."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from stepwell.cli.commands.state import scope_of
from stepwell.cli.main import command
from stepwell.cli.options import RUN_NAME, WORKFLOW_NAME, settings
from stepwell.cli.report import moment
from stepwell.clock import from_ms
from stepwell.maintenance.usage import Amount, Usage
from stepwell.model.scope import DEFAULT_WORKSPACE

__all__ = ["usage"]


@command("usage")
@click.option("--workspace", "-w", default=DEFAULT_WORKSPACE, show_default=True, help="The workspace.")
@click.option("--workflow", help="A workflow of it.", shell_complete=WORKFLOW_NAME)
@click.option("--run", "execution_id", metavar="ID", help="One run.", shell_complete=RUN_NAME)
@click.option("--scope", metavar="SCOPE", help="One scope of state, as `stepwell state list` names it.")
@click.option(
    "--runs", "executions", type=click.IntRange(0, 10_000), default=1_000, show_default=True, help="How many runs to read."
)
def usage(workspace: str, workflow: str | None, execution_id: str | None, scope: str | None, executions: int) -> None:
    """Show what a workspace, a workflow, a run or a scope uses, and what is left of its limits."""
    if sum(each is not None for each in (workflow, execution_id, scope)) > 1:
        raise click.UsageError("give one of --workflow, --run and --scope")
    given = settings()
    with given.open() as well:
        if execution_id is not None:
            found = well.usage.execution(execution_id)
        elif scope is not None:
            found = well.usage.scope(scope_of(scope, workspace))
        elif workflow is not None:
            found = well.usage.workflow(workflow, workspace=workspace, executions=executions)
        else:
            found = well.usage.workspace(workspace, executions=executions)
    if given.is_json:
        given.screen.json(_record(found))
        return
    given.screen.table(["WHAT", "USED", "LIMIT", "LEFT", "UNTIL"], [_row(name, each) for name, each in found.amounts.items()])
    if not found.is_complete:
        given.screen.note(f"there are more runs than the newest {executions:,} that were read; count more with --runs")


def _record(found: Usage) -> dict[str, Any]:
    amounts = {name: msgspec.to_builtins(each) | {"left": each.left} for name, each in found.amounts.items()}
    return msgspec.to_builtins(found) | {"amounts": amounts}


def _row(name: str, amount: Amount) -> list[str]:
    until = "" if amount.override_until_ms is None else moment(from_ms(amount.override_until_ms))
    return [name, *("" if each is None else f"{each:,}" for each in (amount.used, amount.maximum, amount.left)), until]
