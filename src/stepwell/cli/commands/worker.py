"""``worker``: a process that runs workflows until it is stopped."""

from __future__ import annotations

from typing import Any

import click

from stepwell.cli.main import command
from stepwell.cli.options import settings
from stepwell.cli.output import printable
from stepwell.cli.workflow_loader import definitions_of, is_document
from stepwell.config import choose_url, without_secrets
from stepwell.errors import InvalidInput
from stepwell.flow.function import registered_names, registered_step_names

__all__ = ["worker"]


@command("worker")
@click.argument("modules", nargs=-1, metavar="MODULE...")
@click.option(
    "--concurrency", "-c", type=click.IntRange(1), default=100, show_default=True, help="The maximum number of concurrent runs."
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(1, 86_400),
    default=30,
    show_default=True,
    help="Seconds after this worker's death until others take over.",
)
@click.option(
    "--grace-seconds",
    type=click.FloatRange(0),
    default=30,
    show_default=True,
    help="Seconds for running steps to finish after SIGTERM.",
)
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Dispatch items of this queue only; repeatable.")
def worker(modules: tuple[str, ...], grace_seconds: float, **options: Any) -> None:
    """Run the workflows and steps of these modules (names or .py files) until stopped.

    A file with a definition (.yaml, .json) is put into the store. At SIGTERM or Ctrl-C the worker claims no more runs, finishes
    running steps within the grace period, and hands everything else back to other workers. A second signal ends it at once.
    """
    from stepwell.runtime.host_tuning import host_tuning
    from stepwell.runtime.worker_host import serve

    given = settings()
    given.modules += [each for each in modules if not is_document(each)]
    given.load_modules()
    if not registered_names() and not registered_step_names():
        if not given.modules:
            raise click.UsageError("name the modules with workflows, as in: stepwell worker shop.py")
        raise InvalidInput("these modules have no workflow and no step")
    definitions = [each for file in modules if is_document(file) for each in definitions_of(file, steps=registered_step_names())]
    with host_tuning(), given.open(creates=True, worker=True, **options) as well:
        names = sorted({*registered_names(), *(well.definitions.put(each).name for each in definitions)})

        def say_ready() -> None:
            if given.is_json:
                given.screen.json_line({"event": "ready", "workflows": names, "steps": sorted(registered_step_names())})
            else:
                place = without_secrets(choose_url(given.url)[0])
                given.screen.note(printable(f"worker is ready on {place}: {', '.join(names) or 'for declared workflows'}"))

        def say_stopping() -> None:
            given.screen.note("stopping; running steps are finished first")

        serve(well, grace_seconds, on_ready=say_ready, on_stop=say_stopping)
    given.screen.note("worker has ended; unfinished runs are handed back")
