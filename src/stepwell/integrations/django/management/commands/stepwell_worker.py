"""`manage.py stepwell_worker`: run the project's workflows until SIGTERM."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser  # pyright: ignore[reportMissingTypeStubs]

from stepwell.integrations.django import open_well
from stepwell.runtime.worker_host import serve

__all__ = ["Command"]


class Command(BaseCommand):
    """Run a worker in the project's environment."""

    help = "Run the workflows and steps of this project until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the options of the worker."""
        parser.add_argument("--concurrency", type=int, default=100, help="The maximum number of concurrent runs (100).")
        parser.add_argument("--grace-seconds", type=float, default=30, help="Seconds for running steps after SIGTERM (30).")
        parser.add_argument("--queue", action="append", default=[], help="Dispatch items of this queue only; repeatable.")

    def handle(self, *_: Any, **options: Any) -> None:
        """Serve until a signal; then finish running steps, and hand the rest back."""
        well = open_well(worker=True, concurrency=options["concurrency"], queues=options["queue"])
        errors: Any = self.stderr
        serve(well, options["grace_seconds"], on_ready=lambda: errors.write(f"worker is ready on {well.address}"))
