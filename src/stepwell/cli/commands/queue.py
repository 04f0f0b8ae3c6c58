"""``enqueue`` and ``queue``: items that wait for capacity."""

from __future__ import annotations

from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
import msgspec

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import (
    ENGINE,
    ID,
    INPUT,
    MOMENT,
    QUEUE_NAME,
    SPAN,
    SUBJECT,
    WORKFLOW_NAME,
    WORKSPACE,
    complete_startable,
    limits_of,
    settings,
)
from stepwell.cli.output import printable
from stepwell.cli.report import report, report_fields, report_rows
from stepwell.cli.workflow_loader import find_workflow, known_workflow
from stepwell.model.queue_item import DEFAULT_QUEUE, ItemStatus

if TYPE_CHECKING:
    from stepwell.app.blocking import Stepwell

__all__ = ["enqueue", "queue"]

_AT = "stepwell.cli.commands.queue"
_ITEMS = {
    "ITEM": "item_id",
    "WORKFLOW": "workflow_id",
    "STATUS": "status",
    "WORKSPACE": "workspace_id",
    "QUEUE": "queue",
    "PRIORITY": "priority",
    "RUN": "execution_id",
    "ERROR": "error",
}
_LANES = {
    "WORKSPACE": "workspace_id",
    "QUEUE": "queue",
    "READY": "ready",
    "DELAYED": "delayed",
    "RUNNING": "running",
    "CAP": "cap",
    "OLDEST s": "oldest_seconds",
    "WAIT p50 s": "wait_p50_seconds",
    "WAIT p99 s": "wait_p99_seconds",
}
_WORKERS = {"WORKER": "name", "ENGINE": "engine", "WORKFLOWS": "workflows", "QUEUES": "queues", "SEEN": "seen_at"}


@command("enqueue")
@click.argument("target", metavar="FILE|NAME", shell_complete=complete_startable)
@INPUT
@ID
@WORKSPACE
@ENGINE
@SUBJECT
@click.option("--queue", default=DEFAULT_QUEUE, show_default=True, help="The queue of the item.", shell_complete=QUEUE_NAME)
@click.option("--priority", "-p", type=int, default=0, show_default=True, help="Items with a higher priority start first.")
@click.option("--key", help="Idempotency key: the same key returns the same item.")
@click.option("--delay", type=SPAN, metavar="SPAN", help="Start after 30s, 5m, ... at the earliest.")
@click.option(
    "--at", "run_at", type=MOMENT, metavar="TIME", help="Start at this time at the earliest, such as 2027-01-01T09:00:00Z."
)
@click.option("--attempts", type=click.IntRange(1), default=3, show_default=True, help="The maximum number of start attempts.")
def enqueue(target: str, value: Any, run_at: datetime | None, attempts: int, **request: Any) -> None:
    """Request a run when its workspace has capacity, and print the item's id. FILE and NAME are those of `stepwell run`."""
    given = settings()
    given.load_modules()
    workflow = find_workflow(target)
    with given.open(creates=True) as well:
        item = well.enqueue(known_workflow(well, target, workflow), value, run_at=run_at, max_attempts=attempts, **request)
    if given.is_json:
        given.screen.json({"item_id": item.item_id, "execution_id": item.execution_id, "status": item.status})
    else:
        given.screen.write(printable(item.item_id))


@click.group(
    "queue",
    cls=Group,
    entries={
        "list": CommandEntry(f"{_AT}:list_", "List items, newest first."),
        "show": CommandEntry(f"{_AT}:show", "Show an item, and why it waits."),
        "stats": CommandEntry(f"{_AT}:stats", "Show depth and waiting times per workspace and queue."),
        "workers": CommandEntry(f"{_AT}:workers", "List the workers that dispatch items."),
        "cancel": CommandEntry(f"{_AT}:cancel", "Cancel an item."),
        "redrive": CommandEntry(f"{_AT}:redrive", "Run a failed item again."),
        "put": CommandEntry(f"{_AT}:put", "Set the limits of a queue."),
        "pause": CommandEntry(f"{_AT}:pause", "Pause a queue."),
        "resume": CommandEntry(f"{_AT}:resume", "Resume a queue."),
        "drain": CommandEntry(f"{_AT}:drain", "Pause a queue and wait until none of its items runs."),
        "metrics": CommandEntry(f"{_AT}:metrics", "Print metrics for Prometheus."),
    },
)
def queue() -> None:
    """Inspect the queue and manage its items."""


def _hidden(well: Stepwell, item: Any) -> Any:
    """Return an item without the secrets in its input."""
    return msgspec.structs.replace(item, input=well.redact(item.input, secrets=item.secrets))


@command("list")
@click.option("--status", "-s", type=click.Choice([*ItemStatus], case_sensitive=False), help="Show only items with this status.")
@click.option("--workspace", "-w", help="Show only this workspace.")
@click.option("--queue", help="Show only this queue.", shell_complete=QUEUE_NAME)
@click.option("--workflow", help="Show only this workflow.", shell_complete=WORKFLOW_NAME)
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The maximum number of results.")
def list_(**query: Any) -> None:
    """List items, newest first. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = [_hidden(well, each) for each in well.queue.list(**query)]
    is_filtered = any(query[name] is not None for name in ("status", "workspace", "queue", "workflow"))
    nothing = (
        "no item matches; see all with: stepwell queue list" if is_filtered else "no items; add one with: stepwell enqueue FILE"
    )
    report_rows(given, found, _ITEMS, nothing)


@command("show")
@click.argument("item_id", metavar="ITEM")
def show(item_id: str) -> None:
    """Show an item, and why it waits."""
    given = settings()
    with given.open() as well:
        state, why = _hidden(well, well.queue.item(item_id).state()), well.queue.why(item_id)
    report_fields(given, state, why=why if given.is_json else why.message)


@command("stats")
@click.option("--workspace", "-w", help="Show only this workspace.")
def stats(workspace: str | None) -> None:
    """Show the depth of the queue, running items and waiting times. With --json, one line for each workspace and queue."""
    given = settings()
    with given.open() as well:
        found = well.queue.stats(workspace)
    report_rows(given, found, _LANES, "nothing waits and nothing runs")


@command("workers")
def workers() -> None:
    """List the workers that dispatch items."""
    given = settings()
    with given.open() as well:
        found = well.queue.workers()
    report_rows(given, found, _WORKERS, "no workers; start one with: stepwell worker MODULE")


@command("cancel")
@click.argument("item_id", metavar="ITEM")
def cancel(item_id: str) -> None:
    """Cancel an item. A waiting item ends at once; a running one gets a request."""
    given = settings()
    with given.open() as well:
        state = well.queue.item(item_id).cancel()
    report(given, state, f"{item_id} is {state.status}")


@command("redrive")
@click.argument("item_id", metavar="ITEM")
def redrive(item_id: str) -> None:
    """Run a failed or cancelled item again as a new run, with all its attempts."""
    given = settings()
    with given.open() as well:
        item = well.queue.redrive(item_id)
    told = {"item_id": item.item_id, "execution_id": item.execution_id, "status": item.status}
    report(given, told, f"{item.item_id} is {item.status}, as run {item.execution_id}")


_name = click.argument("name", metavar="[QUEUE]", default=DEFAULT_QUEUE, shell_complete=QUEUE_NAME)


@command("put")
@click.argument("name", metavar="QUEUE", shell_complete=QUEUE_NAME)
@click.option("--concurrency", "-c", type=click.IntRange(0), help="The maximum number of its items that run concurrently.")
@click.option("--rate", "rate_per_second", type=click.FloatRange(0), help="The maximum number of starts per second.")
@click.option("--unlimited", multiple=True, type=click.Choice(["concurrency", "rate_per_second"]), help="Remove a limit.")
def put(name: str, unlimited: tuple[str, ...], **limits: Any) -> None:
    """Set limits of a queue across all workspaces. Limits that are not given stay."""
    given = settings()
    with given.open(creates=True) as well:
        done = well.queue.put(name, **limits_of(limits, unlimited))
    most, often = ("any number" if limit is None else f"{limit:g}" for limit in (done.concurrency, done.rate_per_second))
    report(given, done, f"queue {name}: {most} concurrently, {often} per second")


@command("pause")
@_name
def pause(name: str) -> None:
    """Pause a queue: start no more of its items. Running items continue."""
    given = settings()
    with given.open() as well:
        done = well.queue.pause(name)
    report(given, done, f"queue {name} is paused")


@command("resume")
@_name
def resume(name: str) -> None:
    """Resume a paused queue."""
    given = settings()
    with given.open() as well:
        done = well.queue.resume(name)
    report(given, done, f"queue {name} is resumed")


@command("drain")
@_name
@click.option("--timeout", type=SPAN, metavar="SPAN", help="Stop waiting after 30s, 5m, ...")
def drain(name: str, timeout: float | None) -> None:
    """Pause a queue and wait until none of its items runs. Exits with 124 after the timeout."""
    given, shown = settings(), quote(printable(name))
    with given.open() as well:
        if not well.queue.drain(name, timeout):
            raise TimeoutError(
                f"queue {name!r} is paused, and some of its items still run; see stepwell queue list --queue {shown}, "
                f"or let it start items again with: stepwell queue resume {shown}"
            )
    text = f"queue {name} is paused, and none of its items runs; let it start items again with: stepwell queue resume {shown}"
    report(given, {"name": name, "is_drained": True}, text)


@command("metrics")
def metrics() -> None:
    """Print metrics of the queue in the Prometheus text format."""
    given = settings()
    with given.open() as well:
        text = well.queue.metrics()
    if given.is_json:
        given.screen.json({"metrics": text})
    else:
        for line in text.rstrip("\n").split("\n"):  # names may contain other line separators
            given.screen.write(printable(line))
