"""``backup``: back a store up, check a backup, restore it, and let what was restored go on."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click
import msgspec

from stepwell.cli.exit_codes import ExitCode
from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import MOMENT, complete_folder, settings
from stepwell.cli.output import printable
from stepwell.cli.report import counted, report, report_rows

__all__ = ["backup"]

_AT = "stepwell.cli.commands.backup"


@click.group(
    "backup",
    cls=Group,
    entries={
        "create": CommandEntry(f"{_AT}:create", "Back the store up into a folder."),
        "list": CommandEntry(f"{_AT}:list_", "List the backups that a folder keeps."),
        "verify": CommandEntry(f"{_AT}:verify", "Check a backup without restoring it."),
        "restore": CommandEntry(f"{_AT}:restore", "Restore a backup into a new store."),
        "resume": CommandEntry(f"{_AT}:resume", "Let what was restored go on."),
    },
)
def backup() -> None:
    """Back a store up, and restore it into another one."""


_KEPT = {"BACKUP": "backup_id", "NUMBER": "generation", "MADE": "created_at", "COUNTS": "counts", "DIGEST": "digest"}
_at = click.option("--at", type=MOMENT, metavar="TIME", help="The last backup that was made by this time. Default: the newest.")
_folder = click.argument("folder", metavar="FOLDER", shell_complete=complete_folder)


@command("create")
@_folder
@click.option("--workspace", "-w", default=None, help="Back up only this workspace. Default: everything.")
@click.option("--keep", type=click.IntRange(0), default=7, show_default=True, help="How many earlier backups of the folder stay.")
def create(folder: str, workspace: str | None, keep: int) -> None:
    """Back the store up into a folder, while it is in use. A folder with a backup gets what is new since then."""
    given = settings()
    with given.open() as well:
        done = well.backup(folder, workspace=workspace, keep=keep)
    counts = ", ".join(counted(count, what.removesuffix("s")) for what, count in done.counts.items())
    report(given, done, f"{printable(folder)} has {counts}; new: {counted(done.new_commits, 'commit')}; {done.size:,} bytes in all")


@command("list")
@_folder
def list_(folder: str) -> None:
    """List the backups that a folder keeps, the oldest first. It needs no store."""
    from stepwell.maintenance.backup import list_backups

    report_rows(settings(), list_backups(folder), _KEPT, "no backups")


@command("verify")
@_folder
@_at
def verify(folder: str, at: datetime | None) -> None:
    """Check a backup: every checksum and every receipt. It needs no store."""
    from stepwell.maintenance.backup import verify_backup

    given = settings()
    found = verify_backup(folder, at=at)
    facts: Any = msgspec.to_builtins(found)
    if given.is_json:
        given.screen.json(facts)
    elif found.ok:
        given.screen.write(
            f"ok: {counted(found.executions, 'execution')}, {counted(found.receipts, 'receipt')}, "
            f"{counted(found.keys, 'key')}, {counted(found.items, 'item')}"
        )
    else:
        for problem in found.problems:
            given.screen.write(printable(problem))
    if not found.ok:
        sys.exit(ExitCode.FAILED)


@command("restore")
@_folder
@_at
def restore(folder: str, at: datetime | None) -> None:
    """Restore a backup into the store of --url, which must be new. Nothing runs before `stepwell backup resume`."""
    given = settings()
    with given.open(creates=True) as well:
        done = well.restore_backup(folder, at=at)
    counts = ", ".join(counted(count, what.removesuffix("s")) for what, count in done.counts.items())
    report(given, done, f"restored {counts}; waiting for `stepwell backup resume`: {counted(done.held, 'execution')}")


@command("resume")
def resume() -> None:
    """Resume a restored store: executions come due, and workspaces start their items."""
    given = settings()
    with given.open() as well:
        count = well.resume_restored()
    report(given, {"resumed": count}, f"resumed {counted(count, 'execution')}, for workers that have their workflows")
