"""``retention``: policies, planned removals, and what was removed."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from stepwell.cli.exit_codes import ExitCode
from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import RUN_ID, SPAN, complete_folder, settings
from stepwell.cli.output import printable
from stepwell.cli.report import counted, moment, report, report_fields, report_rows
from stepwell.clock import from_ms
from stepwell.errors import InvalidInput
from stepwell.maintenance.archive_files import verify_archive
from stepwell.model.retention import EVERY_TIER

__all__ = ["retention"]

_AT = "stepwell.cli.commands.retention"


@click.group(
    "retention",
    cls=Group,
    entries={
        "put": CommandEntry(f"{_AT}:put", "Set the policy of a tier."),
        "list": CommandEntry(f"{_AT}:list_", "List policies."),
        "remove": CommandEntry(f"{_AT}:remove", "Remove the policy of a tier."),
        "plan": CommandEntry(f"{_AT}:plan", "Show what will be removed, and when. Nothing is removed now."),
        "apply": CommandEntry(f"{_AT}:apply", "Remove what is due now."),
        "show": CommandEntry(f"{_AT}:show", "Show the tombstone of a run."),
        "tombstones": CommandEntry(f"{_AT}:tombstones", "List tombstones."),
        "verify": CommandEntry(f"{_AT}:verify", "Verify an archive."),
    },
)
def retention() -> None:
    """Manage how long runs, their values and receipts, and queue items are kept. Without a policy nothing is removed."""


_tier = click.argument("tier", metavar="TIER", default=EVERY_TIER)


@command("put")
@_tier
@click.option("--runs", "executions", multiple=True, metavar="[STATUS=]SPAN", help="Remove ended runs after this time; repeatable.")
@click.option("--payloads", multiple=True, metavar="[STATUS=]SPAN", help="Remove the values of ended runs; repeatable.")
@click.option("--items", multiple=True, metavar="[STATUS=]SPAN", help="Remove ended queue items; repeatable.")
@click.option("--receipts", type=click.IntRange(1), help="Keep so many of the newest receipts of a run, behind a snapshot.")
@click.option("--tombstones", type=SPAN, help="Keep tombstones for this time. Default: for ever.")
@click.option("--archive", metavar="FOLDER", help="Write receipts into this folder before they are removed.")
def put(tier: str, **given_rules: Any) -> None:
    """Set the policy of TIER ("*": of all that have none). It replaces the present one.

    SPAN is a time such as 30d for every status; FAILED=365d is for one status.
    """
    given = settings()
    rules: dict[str, Any] = given_rules
    for what in ("executions", "payloads", "items"):
        rules[what] = _spans(rules[what], what)
    with given.open(creates=True) as well:
        done = well.retention.put(tier, **rules)
    report(given, done, f"the policy of tier {done.tier} is set; see stepwell retention plan")


def _spans(texts: tuple[str, ...], what: str) -> dict[str, str] | str | None:
    """Return spans as ``put`` takes them: one for all, or one for each status."""
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    pairs = [text.partition("=") for text in texts]
    if not all(sign for _, sign, _ in pairs):
        raise InvalidInput(f"--{what}: give one span for all, or STATUS=SPAN for each status")
    return {status: span for status, _, span in pairs}


@command("list")
def list_() -> None:
    """List policies. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.retention.list()
    columns = {
        "TIER": "tier",
        "RUNS s": "executions",
        "PAYLOADS s": "payloads",
        "ITEMS s": "items",
        "RECEIPTS": "receipts",
        "TOMBSTONES s": "tombstones",
        "ARCHIVE": "archive",
    }
    report_rows(given, found, columns, "no policies; nothing but ended queue items is removed")


@command("remove")
@_tier
def remove(tier: str) -> None:
    """Remove the policy of TIER."""
    given = settings()
    with given.open() as well:
        done = well.retention.remove(tier)
    report(given, {"tier": tier, "removed": done}, f"tier {tier} has no policy")


@command("plan")
@click.option("--within", type=SPAN, default=0, help="Show what is due within this time. Default: what is due now.")
@click.option("--limit", "-n", type=click.IntRange(0, 100_000), default=50, show_default=True, help="How many runs to list.")
def plan(within: float, limit: int) -> None:
    """Show what will be removed, and when. Nothing is removed now."""
    given = settings()
    with given.open() as well:
        found = well.retention.plan(within=within, limit=limit)
    if given.is_json:
        given.screen.json(msgspec.to_builtins(found))
        return
    rows = [
        [moment(from_ms(each.at_ms)), str(each.action), each.rule, each.workspace_id, each.execution_id] for each in found.first
    ]
    if rows:
        given.screen.table(["AT UTC", "WHAT", "RULE", "WORKSPACE", "RUN"], rows)
    counts = ", ".join(f"{name} {count:,}" for name, count in found.counts.items())
    given.screen.note(f"until {moment(from_ms(found.until_ms))} UTC: {counts}" + ("" if found.is_complete else ", and more items"))


@command("apply")
def apply() -> None:
    """Remove what is due now. Workers do it regularly."""
    given = settings()
    with given.open() as well:
        done = well.retention.apply()
    for problem in done.problems:
        given.screen.note(problem)
    receipts, items = counted(done.rotated, "old receipt"), counted(done.items, "queue item")
    told = f"removed {counted(done.removed, 'run')}, values of {done.cleared:,}, {receipts}, {items}"
    report(given, done, told)


@command("show")
@RUN_ID
def show(execution_id: str) -> None:
    """Show the tombstone of a run that was removed."""
    given = settings()
    with given.open() as well:
        found = well.retention.tombstone(execution_id)
    report_fields(given, found)


@command("tombstones")
@click.option("--workspace", "-w", help="Show only this workspace.")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
def tombstones(workspace: str | None, limit: int) -> None:
    """List tombstones. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.retention.tombstones(workspace=workspace, limit=limit)
    columns = {"RUN": "execution_id", "WORKSPACE": "workspace_id", "WORKFLOW": "workflow_id", "STATUS": "status", "RULE": "rule"}
    report_rows(given, found, columns, "no tombstones")


@command("verify")
@click.argument("folder", metavar="FOLDER", shell_complete=complete_folder)
def verify(folder: str) -> None:
    """Verify every receipt in an archive. No store is needed."""
    given = settings()
    found = verify_archive(folder)
    if given.is_json:
        given.screen.json(msgspec.to_builtins(found))
    elif found.ok:
        given.screen.write(
            f"ok: {counted(found.receipts, 'receipt')} in {counted(found.proofs, 'proof')} in {counted(found.files, 'file')}"
        )
    else:
        for problem in found.problems:
            given.screen.write(printable(problem))
    if not found.ok:
        sys.exit(ExitCode.FAILED)
