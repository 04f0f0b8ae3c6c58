"""``workspace``: tenants and their tiers."""

from __future__ import annotations

from typing import Any

import click

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import SPAN, limits_of, settings
from stepwell.cli.report import moment, report, report_rows
from stepwell.clock import from_ms
from stepwell.errors import InvalidInput
from stepwell.model.queue_item import SIZE_LIMITS, TIER_LIMITS

__all__ = ["workspace"]

_AT = "stepwell.cli.commands.workspace"
_TIERS = {
    "TIER": "name",
    "CONCURRENCY": "concurrency",
    "WEIGHT": "weight",
    "RATE /s": "rate_per_second",
    "QUEUE DEPTH": "queue_depth",
    "STATE bytes": "state_bytes",
    "RETENTION s": "retention_seconds",
    "CHILDREN": "child_concurrency",
    "STATE keys": "state_keys",
    "WORKFLOW bytes": "workflow_state_bytes",
    "WORKFLOW keys": "workflow_state_keys",
}


@click.group(
    "workspace",
    cls=Group,
    entries={
        "put": CommandEntry(f"{_AT}:put", "Create a workspace, or change its tier."),
        "list": CommandEntry(f"{_AT}:list_", "List workspaces."),
        "pause": CommandEntry(f"{_AT}:pause", "Pause a workspace."),
        "resume": CommandEntry(f"{_AT}:resume", "Resume a workspace."),
        "limit": CommandEntry(f"{_AT}:limit", "Override a limit of a workspace for a while."),
        "tiers": CommandEntry(f"{_AT}:tiers", "List tiers and their limits."),
        "tier": CommandEntry(f"{_AT}:tier", "Create a tier, or change its limits."),
    },
)
def workspace() -> None:
    """Manage workspaces and the tiers that limit them."""


_id = click.argument("workspace_id", metavar="ID")


@command("put")
@_id
@click.option("--tier", help="Its tier. Default: its current tier, or free for a new workspace.")
def put(workspace_id: str, tier: str | None) -> None:
    """Create a workspace, or change its tier."""
    given = settings()
    with given.open(creates=True) as well:
        done = well.workspaces.put(workspace_id, tier=tier)
    report(given, done, f"{workspace_id} has tier {done.tier}")


@command("list")
def list_() -> None:
    """List workspaces. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.workspaces.list()
    report_rows(given, found, {"ID": "workspace_id", "TIER": "tier", "PAUSED": "is_paused"}, "no workspaces")


@command("pause")
@_id
def pause(workspace_id: str) -> None:
    """Pause a workspace: start no more of its items. Running items continue."""
    given = settings()
    with given.open() as well:
        done = well.workspaces.pause(workspace_id)
    report(given, done, f"{workspace_id} is paused")


@command("resume")
@_id
def resume(workspace_id: str) -> None:
    """Resume a paused workspace."""
    given = settings()
    with given.open() as well:
        done = well.workspaces.resume(workspace_id)
    report(given, done, f"{workspace_id} is resumed")


@command("limit")
@_id
@click.argument("name", metavar="LIMIT", type=click.Choice(TIER_LIMITS))
@click.argument("value", required=False)
@click.option("--for", "span", type=SPAN, help="How long it holds, such as 7d. Then the tier's limit holds again.")
@click.option("--reason", default="", help="The reason, for people who look at the workspace.")
@click.option("--end", "ends", is_flag=True, help="End the override of this limit now.")
def limit(workspace_id: str, name: str, value: str | None, span: float | None, reason: str, *, ends: bool) -> None:
    """Override a limit of a workspace for a while.

    VALUE is a number, a size such as 2GiB for a limit in bytes, a span such as 30d for retention_seconds, or "none" for no limit.
    """
    if ends == (value is not None) or (not ends and span is None):
        raise click.UsageError("give a VALUE and --for, or --end alone")
    given = settings()
    with given.open() as well:
        if value is None or span is None:
            done, sentence = well.workspaces.end_override(workspace_id, name), f"{workspace_id} has the {name} of its tier again"
        else:
            done = well.workspaces.override(workspace_id, name, _limit_value(name, value), span=span, reason=reason)
            ends_at = moment(from_ms(done.overrides[name].until_ms))
            sentence = f"{workspace_id} has {name} {value} until {ends_at} UTC"
    report(given, done, sentence)


def _limit_value(name: str, text: str) -> float | str | None:
    """Return the value of a limit as ``override`` takes it."""
    if text.lower() in ("none", "unlimited"):
        return None
    try:
        return int(text)
    except ValueError:
        pass
    if name in (*SIZE_LIMITS, "retention_seconds"):
        return text
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"{name} is a number or none, not {text!r}") from None


@command("tiers")
def tiers() -> None:
    """List tiers and their limits; an empty cell means no limit."""
    given = settings()
    with given.open() as well:
        found = well.workspaces.tiers()
    report_rows(given, found, _TIERS)


@command("tier")
@click.argument("name", metavar="TIER")
@click.option("--concurrency", "-c", type=click.IntRange(0), help="The maximum number of concurrent runs of a workspace.")
@click.option("--weight", type=click.FloatRange(0.001, 1_000_000), help="Its share when workspaces compete for capacity.")
@click.option("--rate", "rate_per_second", type=click.FloatRange(0), help="The maximum number of starts of a workspace per second.")
@click.option("--queue-depth", type=click.IntRange(0), help="The maximum number of waiting items of a workspace.")
@click.option("--state-bytes", type=click.IntRange(0), help="The maximum size of a workspace's scoped state.")
@click.option("--retention", "retention_seconds", type=click.FloatRange(0), help="Seconds that ended items are kept.")
@click.option("--child-concurrency", type=click.IntRange(1), help="The maximum number of concurrent children below one root.")
@click.option("--state-keys", type=click.IntRange(0), help="The maximum number of keys of a workspace's scoped state.")
@click.option("--workflow-state-bytes", type=click.IntRange(0), help="The maximum size of the scoped state of a workflow in it.")
@click.option("--workflow-state-keys", type=click.IntRange(0), help="The maximum number of its keys.")
@click.option(
    "--unlimited",
    multiple=True,
    type=click.Choice([name for name in TIER_LIMITS if name != "weight"]),
    help="Remove a limit.",
)
def tier(name: str, unlimited: tuple[str, ...], **limits: Any) -> None:
    """Create a tier, or change the limits that are given. Changes apply to all its workspaces at once."""
    given = settings()
    with given.open(creates=True) as well:
        done = well.workspaces.put_tier(name, **limits_of(limits, unlimited))
    report(given, done, f"tier {name} is set")
