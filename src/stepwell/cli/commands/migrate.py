"""``migrate``: bring a store to the schema of this version, and stored values to the version that the code uses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stepwell.cli.exit_codes import ExitCode
from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import WORKFLOW_NAME, complete_folder, settings
from stepwell.cli.output import Terminal, printable
from stepwell.cli.report import counted, report
from stepwell.config import choose_url, without_secrets

if TYPE_CHECKING:
    from stepwell.maintenance.state_migration import MigrationReport

__all__ = ["migrate", "state"]

_SHOWN = 20
"""How many of the values that failed are printed; --json has all."""
_BAR = 30


@click.group(
    "migrate",
    cls=Group,
    invoke_without_command=True,
    entries={"state": CommandEntry(f"{__name__}:state", "Bring stored values to the version that the code uses.")},
)
@click.pass_context
def migrate(context: click.Context) -> None:
    """Migrate a store to the schema of this version, or create a new store. Opening a store does the same."""
    if context.invoked_subcommand is not None:
        return
    given = settings()
    with given.open(creates=True) as well:
        durability = well.durability()
    place = without_secrets(choose_url(given.url)[0])
    report(given, {"url": place, "is_ready": True, "durability": durability.level}, f"{place} is ready for this version")


@command("state")
@click.option("--scope", metavar="SCOPE", help="Migrate only these scopes: custom/NAME, workflow/NAME, user, ...")
@click.option("--workflow", metavar="NAME", help="Migrate only the executions of this workflow.", shell_complete=WORKFLOW_NAME)
@click.option("--to-version", type=click.IntRange(1), help="Bring them to this version. Default: the one that the code uses.")
@click.option("--workspace", "-w", default=None, help="Migrate only this workspace. Default: all.")
@click.option("--dry-run", is_flag=True, help="Call every migration, write nothing, and print what would be done.")
@click.option("--backup", metavar="FOLDER", help="Back everything up into this new folder first.", shell_complete=complete_folder)
@click.option("--no-backup", is_flag=True, help="Make no backup first, or resume a migration that made one.")
@click.option("--stop", is_flag=True, help="Stop at the first value that fails. Default: report it, and go on.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=500, show_default=True, help="Values in one transaction.")
def state(
    scope: str | None,
    workflow: str | None,
    to_version: int | None,
    workspace: str | None,
    dry_run: bool,
    backup: str | None,
    no_backup: bool,
    stop: bool,
    batch: int,
) -> None:
    """Bring stored values to the version that the code of -m MODULE uses, by its `stepwell.migration` functions.

    Workers go on meanwhile. If it is interrupted, the same command with --no-backup finishes it. Exits with 1 if a value failed.
    """
    given = settings()
    if not dry_run and (backup is None) is not no_backup:
        raise click.UsageError("give --backup FOLDER, or --no-backup if there is one already; or look first with --dry-run")
    bar = _Bar(given.screen)
    with given.open() as well:
        try:
            done = well.migrate_state(
                scope=scope,
                workflow=workflow,
                to_version=to_version,
                workspace=workspace,
                dry_run=dry_run,
                backup=None if dry_run else backup,
                stop_at_failure=stop,
                batch=batch,
                progress=bar.show,
            )
        finally:
            bar.end()
    if given.is_json:
        report(given, done, "")
    else:
        _write(given.screen, done)
    if done.failed or not (dry_run or done.is_verified):
        sys.exit(ExitCode.FAILED)


class _Bar:
    """A progress bar on standard error, where a line can be overwritten."""

    def __init__(self, screen: Terminal) -> None:
        self._screen, self._shown = screen, ""

    def show(self, done: int, total: int) -> None:
        """Draw how far it is."""
        filled = _BAR if not total else done * _BAR // total
        line = f"{self._screen.block * filled:{_BAR}} {done:,} of {total:,}"
        if self._screen.is_live and line != self._shown:
            self._screen.err.write(f"\r{line}")
            self._screen.err.flush()
            self._shown = line

    def end(self) -> None:
        """Go on to the next line."""
        if self._shown:
            self._screen.err.write("\n")


def _write(screen: Terminal, done: MigrationReport) -> None:
    rows = [
        (
            each.line,
            str(each.version),
            ", ".join(f"{count:,} at {version}" for version, count in each.versions.items()) or "none",
            f"{each.migrated:,}",
            f"{each.failed:,}",
            f"{each.held:,}",
        )
        for each in done.lines
    ]
    screen.table(("VALUES", "TO", "FOUND", "WOULD MIGRATE" if done.is_dry_run else "MIGRATED", "FAILED", "HELD"), rows)
    for each in done.problems[:_SHOWN]:
        screen.complain(printable(f"{each.scope or each.line} {each.key!r}: {each.message}"))
    if done.failed > _SHOWN:
        screen.complain(f"... and {done.failed - _SHOWN:,} more; see --json")
    if done.is_dry_run:
        screen.note("nothing was written")
    elif done.is_verified:
        screen.note("a last look found nothing else to migrate")
    if done.held:
        screen.note(f"held by workers, and left to the worker that loads them next: {counted(done.held, 'execution')}")
