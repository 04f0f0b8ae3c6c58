"""``worker``: a process that runs workflows until it is told to stop."""

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
@click.option("--concurrency", "-c", type=click.IntRange(1), default=100, show_default=True, help="How many runs at once.")
@click.option("--lease-seconds", type=click.FloatRange(1, 86_400), default=30, show_default=True, help="How soon others take over.")
@click.option("--grace-seconds", type=click.FloatRange(0), default=30, show_default=True, help="How long steps may take to end.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Take items only from this queue; may be given again.")
def worker(modules: tuple[str, ...], grace_seconds: float, **options: Any) -> None:
    """Run the workflows and steps of these modules (names or .py files) until told to stop.

    A file with a definition (.yaml, .json) is put into the store. SIGTERM or Ctrl-C: no new runs are taken, steps under way are
    finished, and what is left is given back for other workers. A second one ends at once.
    """
    from stepwell.runtime.host_tuning import host_tuning
    from stepwell.runtime.worker_host import serve

    given = settings()
    given.modules += [each for each in modules if not is_document(each)]
    given.load_modules()
    if not registered_names() and not registered_step_names():
        if not given.modules:
            raise click.UsageError("name the modules to work for, as in: stepwell worker shop.py")
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
            given.screen.note("stopping; steps under way are finished first")

        serve(well, grace_seconds, on_ready=say_ready, on_stop=say_stopping)
    given.screen.note("worker has ended; what it had not finished is given back")
