"""``errors``: failed runs grouped by what went wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import settings
from stepwell.cli.output import printable
from stepwell.cli.report import counted, report, report_fields, report_rows
from stepwell.duration import seconds_of

__all__ = ["errors"]

_AT = "stepwell.cli.commands.errors"


@click.group(
    "errors",
    cls=Group,
    entries={
        "list": CommandEntry(f"{_AT}:list_", "List the groups of failed runs."),
        "show": CommandEntry(f"{_AT}:show", "Show a group with its newest runs."),
        "resolve": CommandEntry(f"{_AT}:resolve", "Call a group solved; the next failure opens it again."),
        "ignore": CommandEntry(f"{_AT}:ignore", "Ignore a group, until something happens."),
        "reopen": CommandEntry(f"{_AT}:reopen", "Open a group that was resolved or ignored."),
        "retry": CommandEntry(f"{_AT}:retry", "Retry every run of a group."),
    },
)
def errors() -> None:
    """Look at failed runs in groups: the same error class, message, step and place in the code."""


_workspace = click.option("--workspace", "-w", default="default", show_default=True, help="The workspace.")
_reason = click.option("--reason", default="", help="The reason, for people who look later.")


@command("list")
@_workspace
@click.option("--status", type=click.Choice(["open", "resolved", "ignored"]), help="Show only groups with this status.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="How many of the newest failed runs to group."
)
def list_(workspace: str, status: str | None, limit: int) -> None:
    """List the groups of failed runs, the one that failed last first. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.errors.within(workspace).list(status=status, limit=limit)
    columns = {
        "FINGERPRINT": "fingerprint",
        "COUNT": "count",
        "STATUS": "status",
        "KIND": "kind",
        "STEP": "step",
        "MESSAGE": "message",
    }
    report_rows(given, found, columns, "no run failed" if status is None else f"no group is {status}")


@command("show")
@click.argument("fingerprint")
@_workspace
def show(fingerprint: str, workspace: str) -> None:
    """Show a group: when it was seen, where it comes from, and its newest runs."""
    given = settings()
    with given.open() as well:
        group = well.errors.within(workspace).get(fingerprint)
    report_fields(given, group)


@command("resolve")
@click.argument("fingerprint")
@_workspace
@_reason
def resolve(fingerprint: str, workspace: str, reason: str) -> None:
    """Resolve a group. The next failure of its kind opens it again."""
    given = settings()
    with given.open() as well:
        group = well.errors.within(workspace).resolve(fingerprint, reason=reason)
    report(given, group, f"{fingerprint} is {group.status}")


@command("ignore")
@click.argument("fingerprint")
@_workspace
@click.option("--for", "span", metavar="SPAN", help="How long, such as 7d.")
@click.option("--more", type=click.IntRange(min=1), help="Until more than so many further failures.")
@click.option(
    "--until-version", type=click.IntRange(min=1), help="Until a failure of this version of its workflow, or a newer one."
)
@_reason
def ignore(fingerprint: str, workspace: str, span: str | None, more: int | None, until_version: int | None, reason: str) -> None:
    """Ignore a group until the first of these; without an option, until it is opened again."""
    given = settings()
    until = None if span is None else datetime.now(UTC) + timedelta(seconds=seconds_of(span, "--for"))
    with given.open() as well:
        group = well.errors.within(workspace).ignore(fingerprint, until=until, more=more, version=until_version, reason=reason)
    report(given, group, f"{fingerprint} is {group.status}")


@command("reopen")
@click.argument("fingerprint")
@_workspace
def reopen(fingerprint: str, workspace: str) -> None:
    """Open a group that was resolved or ignored."""
    given = settings()
    with given.open() as well:
        group = well.errors.within(workspace).reopen(fingerprint)
    report(given, group, f"{fingerprint} is {group.status}")


@command("retry")
@click.argument("fingerprint")
@_workspace
def retry(fingerprint: str, workspace: str) -> None:
    """Retry every run of a group at the step that failed."""
    given = settings()
    with given.open() as well:
        done = well.errors.within(workspace).retry(fingerprint)
    report(given, done, f"continued at the step that failed: {counted(len(done.retried), 'run')}")
    for name, why in done.refused.items() if not given.is_json else ():
        given.screen.note(printable(f"{name} was not retried: {why}"))
