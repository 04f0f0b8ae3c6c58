"""``stepwell``: the commands, by name. Their modules are imported when they are asked for, so that the help is quick."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import click

from stepwell.cli.command import CommandEntry, RootGroup
from stepwell.cli.ending import ExitCode

__all__ = ["COMMANDS", "cli", "main"]

_AT = "stepwell.cli.commands"

COMMANDS = {
    "run": CommandEntry(f"{_AT}.running:run", "Run a workflow and wait for its result."),
    "start": CommandEntry(f"{_AT}.running:start", "Start a run, for a worker to take on."),
    "list": CommandEntry(f"{_AT}.listing:list_", "List runs, newest first."),
    "show": CommandEntry(f"{_AT}.showing:show", "Show a run: state, timeline, receipts."),
    "watch": CommandEntry(f"{_AT}.running:watch", "Follow a run until it ends."),
    "signal": CommandEntry(f"{_AT}.acting:signal", "Send a signal to a run."),
    "cancel": CommandEntry(f"{_AT}.acting:cancel", "Ask a run to end."),
    "retry": CommandEntry(f"{_AT}.acting:retry", "Run a failed run again, from the step that failed."),
    "fork": CommandEntry(f"{_AT}.acting:fork", "Start a new run from the state of another."),
    "verify": CommandEntry(f"{_AT}.verifying:verify", "Check every receipt of a run."),
    "worker": CommandEntry(f"{_AT}.working:worker", "Run workflows until told to stop."),
    "enqueue": CommandEntry(f"{_AT}.queue:enqueue", "Ask for a run when there is capacity."),
    "queue": CommandEntry(f"{_AT}.queue:queue", "Look at the queue, and act on its items."),
    "schedule": CommandEntry(f"{_AT}.schedule:schedule", "Have workflows run at set times."),
    "workspace": CommandEntry(f"{_AT}.workspace:workspace", "Workspaces, and the tiers that limit them."),
    "workflow": CommandEntry(f"{_AT}.workflow:workflow", "The definitions that the store keeps."),
    "check": CommandEntry(f"{_AT}.definitions:check", "Check definitions or a run, and say every fault with its place."),
    "draw": CommandEntry(f"{_AT}.definitions:draw", "Draw a definition or a run, as SVG or Mermaid."),
    "state": CommandEntry(f"{_AT}.state:state", "Read and write scoped state."),
    "doctor": CommandEntry(f"{_AT}.doctor:doctor", "Check this installation and its store."),
    "migrate": CommandEntry(f"{_AT}.doctor:migrate", "Bring a store's schema up to this version."),
    "demo": CommandEntry(f"{_AT}.demo:demo", "See a run killed inside a step, resumed and verified."),
    "completion": CommandEntry(f"{_AT}.completion:completion", "Print the completion script of a shell."),
}


@click.group(cls=RootGroup, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stepwell", prog_name="stepwell", message="%(prog)s %(version)s")
def cli() -> None:
    """Durable workflows: every step lands in one store, in one atomic commit, and comes back with a receipt.

    Data goes to standard output, progress and errors to standard error.
    """


def main() -> None:
    """The entry point of the program."""
    signal.signal(signal.SIGTERM, _terminate)
    cli.main(prog_name="stepwell")


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    # As an exception, so that leases are given back on the way out instead of running out.
    sys.exit(ExitCode.TERMINATED)
