"""``workspace``: tenants and their tiers."""

from __future__ import annotations

from typing import Any

import click

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import limits_of, settings
from stepwell.cli.report import tell, tell_rows

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
}


@click.group(
    "workspace",
    cls=Group,
    entries={
        "put": CommandEntry(f"{_AT}:put", "Make a workspace, or give it another tier."),
        "list": CommandEntry(f"{_AT}:list_", "List workspaces."),
        "pause": CommandEntry(f"{_AT}:pause", "Have its items wait."),
        "resume": CommandEntry(f"{_AT}:resume", "Have its items start again."),
        "tiers": CommandEntry(f"{_AT}:tiers", "List tiers and their limits."),
        "tier": CommandEntry(f"{_AT}:tier", "Make a tier, or change its limits."),
    },
)
def workspace() -> None:
    """Workspaces, and the tiers that limit them."""


_id = click.argument("workspace_id", metavar="ID")


@command("put")
@_id
@click.option("--tier", help="Its tier; else free, or the one that it has.")
def put(workspace_id: str, tier: str | None) -> None:
    """Make a workspace, or give it another tier."""
    given = settings()
    with given.open(creates=True) as well:
        done = well.workspaces.put(workspace_id, tier=tier)
    tell(given, done, f"{workspace_id} has tier {done.tier}")


@command("list")
def list_() -> None:
    """List workspaces. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.workspaces.list()
    tell_rows(given, found, {"ID": "workspace_id", "TIER": "tier", "PAUSED": "is_paused"}, "no workspaces")


@command("pause")
@_id
def pause(workspace_id: str) -> None:
    """Have its items wait, whatever capacity there is; what runs goes on."""
    given = settings()
    with given.open() as well:
        done = well.workspaces.pause(workspace_id)
    tell(given, done, f"{workspace_id} is paused")


@command("resume")
@_id
def resume(workspace_id: str) -> None:
    """Have its items start again."""
    given = settings()
    with given.open() as well:
        done = well.workspaces.resume(workspace_id)
    tell(given, done, f"{workspace_id} goes on")


@command("tiers")
def tiers() -> None:
    """List tiers and their limits; an empty cell is no limit."""
    given = settings()
    with given.open() as well:
        found = well.workspaces.tiers()
    tell_rows(given, found, _TIERS)


@command("tier")
@click.argument("name", metavar="TIER")
@click.option("--concurrency", "-c", type=click.IntRange(0), help="How many runs of a workspace at once.")
@click.option("--weight", type=click.FloatRange(0.001, 1_000_000), help="Its share when workspaces compete.")
@click.option("--rate", "rate_per_second", type=click.FloatRange(0), help="How many runs of a workspace start in a second.")
@click.option("--queue-depth", type=click.IntRange(0), help="How many items of a workspace may wait.")
@click.option("--state-bytes", type=click.IntRange(0), help="How much scoped state a workspace may hold.")
@click.option("--retention", "retention_seconds", type=click.FloatRange(0), help="How many seconds ended items stay.")
@click.option(
    "--unlimited",
    multiple=True,
    type=click.Choice(["concurrency", "rate_per_second", "queue_depth", "state_bytes", "retention_seconds"]),
    help="Take a limit away.",
)
def tier(name: str, unlimited: tuple[str, ...], **limits: Any) -> None:
    """Make a tier, or change what is given of it, at once for all its workspaces."""
    given = settings()
    with given.open(creates=True) as well:
        done = well.workspaces.put_tier(name, **limits_of(limits, unlimited))
    tell(given, done, f"tier {name} is set")
