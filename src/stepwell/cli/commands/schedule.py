"""``schedule``: runs at set times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import INPUT, MOMENT, QUEUE_NAME, SPAN, WORKSPACE, complete_startable, settings
from stepwell.cli.report import moment, report, report_fields, report_rows
from stepwell.cli.workflow_loader import find_workflow, known_workflow
from stepwell.errors import NotFound
from stepwell.model.queue_item import DEFAULT_QUEUE

if TYPE_CHECKING:
    from stepwell.app.blocking import Stepwell

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
        "put": CommandEntry(f"{_AT}:put", "Run a workflow at set times."),
        "list": CommandEntry(f"{_AT}:list_", "List schedules."),
        "show": CommandEntry(f"{_AT}:show", "Show a schedule and its next times."),
        "pause": CommandEntry(f"{_AT}:pause", "Pause a schedule."),
        "resume": CommandEntry(f"{_AT}:resume", "Resume a schedule."),
        "run": CommandEntry(f"{_AT}:run", "Start a run now."),
        "delete": CommandEntry(f"{_AT}:delete", "Delete a schedule."),
    },
)
def schedule() -> None:
    """Run workflows at set times."""


_name = click.argument("name", metavar="NAME")


@command("put")
@_name
@click.argument("target", metavar="FILE|WORKFLOW", shell_complete=complete_startable)
@INPUT
@WORKSPACE
@click.option("--cron", help="A cron expression, such as '0 9 * * MON-FRI'.")
@click.option("--zone", help="The time zone of the cron expression, such as Europe/Zurich. Default: UTC.")
@click.option("--every", type=SPAN, metavar="SPAN", help="An interval: 30s, 5m, ...")
@click.option("--at", type=MOMENT, metavar="TIME", help="A single time, such as 2027-01-01T09:00:00Z.")
@click.option(
    "--catch-up", type=click.Choice(["none", "last", "all"]), default="none", show_default=True, help="Which missed times to run."
)
@click.option("--queue", default=DEFAULT_QUEUE, show_default=True, help="The queue of its items.", shell_complete=QUEUE_NAME)
@click.option("--priority", "-p", type=int, default=0, show_default=True, help="Items with a higher priority start first.")
def put(name: str, target: str, value: Any, **timing: Any) -> None:
    """Run a workflow by a cron expression, at an interval, or once. Replaces a schedule of the same name."""
    given = settings()
    given.load_modules()
    workflow = find_workflow(target)
    with given.open(creates=True) as well:
        done = _hidden(well, well.schedules.put(name, known_workflow(well, target, workflow), value, **timing))
    report(given, done, f"{name} runs next at {moment(done.next_at)} UTC" if done.next_at else f"{name} will not run again")


def _hidden(well: Stepwell, found: Any) -> Any:
    """Return a schedule without the secrets in its input."""
    return msgspec.structs.replace(found, value=well.redact(found.value, secrets=found.secrets))


@command("list")
def list_() -> None:
    """List schedules. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = [_hidden(well, each) for each in well.schedules.list()]
    report_rows(given, found, _COLUMNS, "no schedules; create one with: stepwell schedule put NAME WORKFLOW --cron '...'")


@command("show")
@_name
@click.option("--next", "-n", "count", type=click.IntRange(0, 1000), default=5, show_default=True, help="The number of next times.")
def show(name: str, count: int) -> None:
    """Show a schedule and its next times."""
    given = settings()
    with given.open() as well:
        found = _hidden(well, well.schedules.get(name))
        ahead = well.schedules.next(name, count) if count else []
    report_fields(given, found, next=ahead)


@command("pause")
@_name
def pause(name: str) -> None:
    """Pause a schedule until it is resumed."""
    given = settings()
    with given.open() as well:
        done = _hidden(well, well.schedules.pause(name))
    report(given, done, f"{name} is paused")


@command("resume")
@_name
def resume(name: str) -> None:
    """Resume a schedule. Missed times are caught up as the schedule's --catch-up says."""
    given = settings()
    with given.open() as well:
        done = _hidden(well, well.schedules.resume(name))
    report(given, done, f"{name} is resumed")


@command("run")
@_name
def run(name: str) -> None:
    """Start a run of a schedule now. Its next times do not change."""
    given = settings()
    with given.open() as well:
        item = well.schedules.run_now(name)
    told = {"item_id": item.item_id, "execution_id": item.execution_id, "status": item.status}
    report(given, told, f"{item.item_id} is {item.status}")


@command("delete")
@_name
def delete(name: str) -> None:
    """Delete a schedule. Runs that it has enqueued stay."""
    given = settings()
    with given.open() as well:
        if not well.schedules.delete(name):
            raise NotFound(f"there is no schedule {name!r}; see stepwell schedule list")
    report(given, {"name": name, "deleted": True}, f"{name} will not run again")
