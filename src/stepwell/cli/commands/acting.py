"""``signal``, ``cancel``, ``retry`` and ``fork``: what can be done to a run from outside."""

from __future__ import annotations

from typing import Any

import click

from stepwell.cli.argument import VALUE
from stepwell.cli.command import command
from stepwell.cli.report import tell
from stepwell.cli.settings import settings

__all__ = ["cancel", "fork", "retry", "signal"]


@command("signal")
@click.argument("execution_id", metavar="ID")
@click.argument("name", metavar="NAME")
@click.argument("value", type=VALUE, default="null", metavar="[JSON|@FILE|-]")
def signal(execution_id: str, name: str, value: Any) -> None:
    """Send a signal to a run, with a value. It is kept until the run takes it."""
    given = settings()
    with given.open() as well:
        well.run(execution_id).signal(name, value)
    tell(given, {"execution_id": execution_id, "signal": name}, f"signal {name} is with {execution_id}")


@command("cancel")
@click.argument("execution_id", metavar="ID")
def cancel(execution_id: str) -> None:
    """Ask a run to end. Its code learns of it at its next call, and can clean up."""
    given = settings()
    with given.open() as well:
        well.run(execution_id).cancel()
    tell(given, {"execution_id": execution_id, "cancel": "asked"}, f"{execution_id} is asked to end")


@command("retry")
@click.argument("execution_id", metavar="ID")
def retry(execution_id: str) -> None:
    """Run a failed run again, from the step that failed. What was recorded before is kept. One that came from the queue waits for
    its turn there."""
    given = settings()
    with given.open() as well:
        run = well.run(execution_id)
        run.retry()
        status, item_id = str(run.status()), well.load(execution_id).identity.item_id
    told = {"execution_id": execution_id, "status": status}
    if item_id is None:
        tell(given, told, f"{execution_id} is {status}, for a worker to take on")
    else:
        tell(given, {**told, "item_id": item_id}, f"{execution_id} is {status}, and goes on when queue item {item_id} has its turn")


@command("fork")
@click.argument("execution_id", metavar="ID")
@click.argument("new_id", metavar="NEW")
@click.option("--at", type=click.IntRange(0), metavar="REVISION", help="From the state at a revision; else from now.")
def fork(execution_id: str, new_id: str, at: int | None) -> None:
    """Start a new run from the state of another. That one is left as it is."""
    given = settings()
    with given.open() as well:
        receipt = well.fork(execution_id, new_id, at=at)
    told = {"execution_id": new_id, "parent_id": execution_id, "revision": receipt.revision, "digest": receipt.digest}
    tell(given, told, f"{new_id} begins with the state of {execution_id}")
