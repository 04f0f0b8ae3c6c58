"""``dispatch``: what a store needs beside workers, without running workflows."""

from __future__ import annotations

import click

from stepwell.cli.main import command
from stepwell.cli.options import settings
from stepwell.cli.output import printable
from stepwell.config import choose_url, without_secrets

__all__ = ["dispatch"]


@command("dispatch")
@click.option(
    "--lease-seconds",
    type=click.FloatRange(1, 86_400),
    default=30,
    show_default=True,
    help="Seconds after which the items of a dead worker are handed on.",
)
def dispatch(lease_seconds: float) -> None:
    """Fire schedules, send webhooks, hand on items of dead workers and keep retention until stopped; run no workflow.

    Every worker does the same. Use it where no worker runs all the time, such as workers that scale to zero.
    """
    from stepwell.app.dispatch_service import DispatchService
    from stepwell.runtime.worker_host import serve

    given = settings()
    service = DispatchService(given.url, lease_seconds=lease_seconds)

    def say_ready() -> None:
        if given.is_json:
            given.screen.json_line({"event": "ready"})
        else:
            given.screen.note(printable(f"dispatching on {without_secrets(choose_url(given.url)[0])}"))

    serve(service, on_ready=say_ready)
    given.screen.note("dispatch has ended")
