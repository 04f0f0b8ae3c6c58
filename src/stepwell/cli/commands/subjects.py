"""``find`` and ``erase``: what is stored about a subject, and its erasure."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from stepwell.cli.main import command
from stepwell.cli.options import settings
from stepwell.cli.output import printable
from stepwell.cli.report import counted

__all__ = ["erase", "find"]

_workspace = click.option("--workspace", "-w", default=None, help="Only this workspace. Default: all workspaces.")
_HEADINGS = ("ERASED AT", "WORKSPACE", "RUNS", "ITEMS", "SCOPES", "DIGEST")


@command("find")
@click.option("--subject", required=True, metavar="SUBJECT", help="The person or thing, such as user:42.")
@_workspace
def find(subject: str, workspace: str | None) -> None:
    """List the runs, queue items and scopes of state that hold the data of a subject."""
    given = settings()
    with given.open() as well:
        found = well.find(subject, workspace=workspace)
    if given.is_json:
        for each in found:
            given.screen.json_line(msgspec.to_builtins(each))
        return
    rows: list[tuple[str, ...]] = []
    for each in found:
        rows += [(each.workspace, "run", run.execution_id, str(run.status)) for run in each.runs]
        rows += [(each.workspace, "item", item_id, "") for item_id in each.items]
        rows += [(each.workspace, "scope", path, "") for path in each.scopes]
    given.screen.table(("WORKSPACE", "KIND", "ID", "STATUS"), rows)


@command("erase")
@click.option("--subject", metavar="SUBJECT", help="The person or thing, such as user:42.")
@_workspace
@click.option("--cancel", is_flag=True, help="End runs that have not ended, at once and without compensation.")
@click.option("--list", "is_list", is_flag=True, help="List the receipts of all erasures instead.")
def erase(subject: str | None, workspace: str | None, cancel: bool, is_list: bool) -> None:
    """Erase the data of a subject by destroying its key. Every chain of receipts still verifies."""
    given = settings()
    if (subject is None) != is_list:
        raise click.UsageError("Give --subject SUBJECT, or --list.", click.get_current_context())
    with given.open() as well:
        receipts = (
            well.erasures(workspace=workspace) if subject is None else well.erase(subject, workspace=workspace, cancel=cancel)
        )
    if given.is_json:
        for each in receipts:
            facts: Any = msgspec.to_builtins(each)
            given.screen.json_line(facts)
        return
    if is_list:
        given.screen.table(
            _HEADINGS,
            [
                (
                    f"{each.erased_at:%Y-%m-%d %H:%M:%S}",
                    each.workspace,
                    str(each.runs),
                    str(each.items),
                    str(each.scopes),
                    each.digest[:12],
                )
                for each in receipts
            ],
        )
        return
    for each in receipts:
        what = f"{counted(each.runs, 'run')}, {counted(each.items, 'queue item')} and {counted(each.scopes, 'scope')}"
        given.screen.write(f"erased {what} in workspace {printable(each.workspace)}; receipt {each.digest}")
