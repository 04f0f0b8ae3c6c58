"""``schedule``: runs at set times."""

from __future__ import annotations

from typing import Any

import click

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import INPUT, MOMENT, SPAN, WORKSPACE, settings
from stepwell.cli.report import moment, tell, tell_fields, tell_rows
from stepwell.cli.workflow_loader import check_name, find_workflow
from stepwell.errors import NotFound
from stepwell.model.queue_item import DEFAULT_QUEUE

__all__ = ["schedule"]

_AT = "stepwell.cli.commands.schedule"
_COLUMNS = {
    "NAME": "name",
    "WORKFLOW": "workflow_id",
    "WORKSPACE": "workspace_id",
    "CRON": "cron",
    "EVERY s": "every_seconds",
    "PAUSED": "is_paused",
    "NEXT": "next_at",
    "LAST": "last_at",
}


@click.group(
    "schedule",
    cls=Group,
    entries={
        "put": CommandEntry(f"{_AT}:put", "Have a workflow run at set times."),
        "list": CommandEntry(f"{_AT}:list_", "List schedules."),
        "show": CommandEntry(f"{_AT}:show", "Show a schedule, and when it fires next."),
        "pause": CommandEntry(f"{_AT}:pause", "Fire nothing until it is resumed."),
        "resume": CommandEntry(f"{_AT}:resume", "Fire again."),
        "run": CommandEntry(f"{_AT}:run", "Have it run now, beside its times."),
        "delete": CommandEntry(f"{_AT}:delete", "Fire no more."),
    },
)
def schedule() -> None:
    """Have workflows run at set times."""


_name = click.argument("name", metavar="NAME")


@command("put")
@_name
@click.argument("target", metavar="FILE|WORKFLOW")
@INPUT
@WORKSPACE
@click.option("--cron", help="By a cron expression, such as '0 9 * * MON-FRI'.")
@click.option("--zone", help="The time zone of the cron expression, such as Europe/Zurich; else UTC.")
@click.option("--every", type=SPAN, metavar="SPAN", help="Every 30s, 5m, ...")
@click.option("--at", type=MOMENT, metavar="TIME", help="Once, at a moment such as 2027-01-01T09:00:00Z.")
@click.option("--catch-up", type=click.Choice(["none", "last", "all"]), default="none", show_default=True, help="Of missed times.")
@click.option("--queue", default=DEFAULT_QUEUE, show_default=True, help="The queue that its runs wait in.")
@click.option("--priority", "-p", type=int, default=0, show_default=True, help="Higher goes first.")
def put(name: str, target: str, value: Any, **timing: Any) -> None:
    """Have a workflow run by a cron expression, every so often, or once. A schedule of the same name is replaced."""
    given = settings()
    given.load_modules()
    workflow = find_workflow(target)
    with given.open(creates=True) as well:
        check_name(well, workflow)
        done = well.schedules.put(name, workflow, value, **timing)
    tell(given, done, f"{name} fires next at {moment(done.next_at)} UTC" if done.next_at else f"{name} fires no more")


@command("list")
def list_() -> None:
    """List schedules. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.schedules.list()
    tell_rows(given, found, _COLUMNS, "no schedules; make one with: stepwell schedule put NAME WORKFLOW --cron '...'")


@command("show")
@_name
@click.option("--next", "-n", "count", type=click.IntRange(0, 1000), default=5, show_default=True, help="How many times ahead.")
def show(name: str, count: int) -> None:
    """Show a schedule, and when it fires next."""
    given = settings()
    with given.open() as well:
        found = well.schedules.get(name)
        ahead = well.schedules.next(name, count) if count else []
    tell_fields(given, found, next=ahead)


@command("pause")
@_name
def pause(name: str) -> None:
    """Fire nothing until it is resumed."""
    given = settings()
    with given.open() as well:
        done = well.schedules.pause(name)
    tell(given, done, f"{name} is paused")


@command("resume")
@_name
def resume(name: str) -> None:
    """Fire again. What was missed is caught up as the schedule says."""
    given = settings()
    with given.open() as well:
        done = well.schedules.resume(name)
    tell(given, done, f"{name} goes on")


@command("run")
@_name
def run(name: str) -> None:
    """Have it run now, beside its times."""
    given = settings()
    with given.open() as well:
        item = well.schedules.run_now(name)
    told = {"item_id": item.item_id, "execution_id": item.execution_id, "status": item.status}
    tell(given, told, f"{item.item_id} is {item.status}")


@command("delete")
@_name
def delete(name: str) -> None:
    """Fire no more. Runs that it asked for are not touched."""
    given = settings()
    with given.open() as well:
        if not well.schedules.delete(name):
            raise NotFound(f"there is no schedule {name!r}; see stepwell schedule list")
    tell(given, {"name": name, "deleted": True}, f"{name} fires no more")
