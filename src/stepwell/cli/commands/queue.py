"""``enqueue`` and ``queue``: requests that wait for capacity."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import ID, INPUT, MOMENT, SPAN, WORKSPACE, limits_of, settings
from stepwell.cli.output import printable
from stepwell.cli.report import tell, tell_fields, tell_rows
from stepwell.cli.workflow_loader import check_name, find_workflow
from stepwell.model.queue_item import DEFAULT_QUEUE, ItemStatus

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
@click.argument("target", metavar="FILE|NAME")
@INPUT
@ID
@WORKSPACE
@click.option("--queue", default=DEFAULT_QUEUE, show_default=True, help="The queue that it waits in.")
@click.option("--priority", "-p", type=int, default=0, show_default=True, help="Higher goes first.")
@click.option("--key", help="The same key again is the same item.")
@click.option("--delay", type=SPAN, metavar="SPAN", help="Not before 30s, 5m, ... have passed.")
@click.option("--at", "run_at", type=MOMENT, metavar="TIME", help="Not before a moment, such as 2027-01-01T09:00:00Z.")
@click.option("--attempts", type=click.IntRange(1), default=3, show_default=True, help="How often it may be tried to start it.")
def enqueue(target: str, value: Any, run_at: datetime | None, attempts: int, **request: Any) -> None:
    """Ask for a run when its workspace has capacity, and print the item's id. FILE and NAME are those of `stepwell run`."""
    given = settings()
    given.load_modules()
    workflow = find_workflow(target)
    with given.open(creates=True) as well:
        check_name(well, workflow)
        item = well.enqueue(workflow, value, run_at=run_at, max_attempts=attempts, **request)
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
        "stats": CommandEntry(f"{_AT}:stats", "Show depth and waits by workspace and queue."),
        "workers": CommandEntry(f"{_AT}:workers", "List the processes that take items."),
        "cancel": CommandEntry(f"{_AT}:cancel", "Cancel an item."),
        "redrive": CommandEntry(f"{_AT}:redrive", "Run a failed item again."),
        "put": CommandEntry(f"{_AT}:put", "Set the limits of a queue."),
        "pause": CommandEntry(f"{_AT}:pause", "Start nothing more from a queue."),
        "resume": CommandEntry(f"{_AT}:resume", "Start items from a queue again."),
        "drain": CommandEntry(f"{_AT}:drain", "Pause a queue, and wait until nothing of it runs."),
        "metrics": CommandEntry(f"{_AT}:metrics", "Print the figures for Prometheus."),
    },
)
def queue() -> None:
    """Look at the queue, and act on its items."""


@command("list")
@click.option("--status", "-s", type=click.Choice([*ItemStatus], case_sensitive=False), help="Only those that stand there.")
@click.option("--workspace", "-w", help="Only those of a workspace.")
@click.option("--queue", help="Only those of a queue.")
@click.option("--workflow", help="Only those of a workflow.")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
def list_(**query: Any) -> None:
    """List items, newest first. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.queue.list(**query)
    tell_rows(given, found, _ITEMS, "no items; ask for a run with: stepwell enqueue FILE")


@command("show")
@click.argument("item_id", metavar="ITEM")
def show(item_id: str) -> None:
    """Show an item, and why it waits."""
    given = settings()
    with given.open() as well:
        state, why = well.queue.item(item_id).state(), well.queue.why(item_id)
    tell_fields(given, state, why=why if given.is_json else why.message)


@command("stats")
@click.option("--workspace", "-w", help="Only a workspace.")
def stats(workspace: str | None) -> None:
    """Show how many items wait and run, and how long they waited. With --json, one line for each workspace and queue."""
    given = settings()
    with given.open() as well:
        found = well.queue.stats(workspace)
    tell_rows(given, found, _LANES, "nothing waits and nothing runs")


@command("workers")
def workers() -> None:
    """List the processes that take items from the queue."""
    given = settings()
    with given.open() as well:
        found = well.queue.workers()
    tell_rows(given, found, _WORKERS, "no workers; start one with: stepwell worker MODULE")


@command("cancel")
@click.argument("item_id", metavar="ITEM")
def cancel(item_id: str) -> None:
    """Cancel an item: one that waits ends at once, one that runs is asked to."""
    given = settings()
    with given.open() as well:
        state = well.queue.item(item_id).cancel()
    tell(given, state, f"{item_id} is {state.status}")


@command("redrive")
@click.argument("item_id", metavar="ITEM")
def redrive(item_id: str) -> None:
    """Have a failed or cancelled item run again, with all its attempts, as a new run."""
    given = settings()
    with given.open() as well:
        item = well.queue.redrive(item_id)
    told = {"item_id": item.item_id, "execution_id": item.execution_id, "status": item.status}
    tell(given, told, f"{item.item_id} is {item.status}, as run {item.execution_id}")


_name = click.argument("name", metavar="[QUEUE]", default=DEFAULT_QUEUE)


@command("put")
@click.argument("name", metavar="QUEUE")
@click.option("--concurrency", "-c", type=click.IntRange(0), help="How many of its items run at once.")
@click.option("--rate", "rate_per_second", type=click.FloatRange(0), help="How many start in a second.")
@click.option("--unlimited", multiple=True, type=click.Choice(["concurrency", "rate_per_second"]), help="Take a limit away.")
def put(name: str, unlimited: tuple[str, ...], **limits: Any) -> None:
    """Set the limits of a queue that are given, over all workspaces; the others stay."""
    given = settings()
    with given.open(creates=True) as well:
        done = well.queue.put(name, **limits_of(limits, unlimited))
    most, often = ("any number" if limit is None else f"{limit:g}" for limit in (done.concurrency, done.rate_per_second))
    tell(given, done, f"queue {name}: {most} at once, {often} a second")


@command("pause")
@_name
def pause(name: str) -> None:
    """Start nothing more from a queue; what runs goes on."""
    given = settings()
    with given.open() as well:
        done = well.queue.pause(name)
    tell(given, done, f"queue {name} is paused")


@command("resume")
@_name
def resume(name: str) -> None:
    """Start items from a queue again."""
    given = settings()
    with given.open() as well:
        done = well.queue.resume(name)
    tell(given, done, f"queue {name} goes on")


@command("drain")
@_name
@click.option("--timeout", type=SPAN, metavar="SPAN", help="Stop waiting after 30s, 5m, ...")
def drain(name: str, timeout: float | None) -> None:
    """Pause a queue, and wait until nothing of it runs any more. Exit code 124 if that takes too long."""
    given = settings()
    with given.open() as well:
        if not well.queue.drain(name, timeout):
            raise TimeoutError(f"queue {name!r} is paused, and some of its items still run; see stepwell queue list --queue {name}")
    tell(given, {"name": name, "is_drained": True}, f"queue {name} is paused, and nothing of it runs")


@command("metrics")
def metrics() -> None:
    """Print the figures of the queue in the text format of Prometheus."""
    given = settings()
    with given.open() as well:
        text = well.queue.metrics()
    if given.is_json:
        given.screen.json({"metrics": text})
    else:
        for line in text.rstrip("\n").split("\n"):  # names may hold what else ends a line
            given.screen.write(printable(line))
