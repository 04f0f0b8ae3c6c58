"""``verify``: walk the receipts of a run."""

from __future__ import annotations

import sys

import click
import msgspec

from stepwell.cli.command import command
from stepwell.cli.ending import ExitCode
from stepwell.cli.plaintext import printable
from stepwell.cli.settings import settings

__all__ = ["verify"]


@command("verify")
@click.argument("execution_id", metavar="ID")
def verify(execution_id: str) -> None:
    """Check every receipt of a run: no edit, gap, swap or cut. Exit code 1 if something is found."""
    given = settings()
    screen = given.screen
    with given.open() as well:
        result = well.verify(execution_id)
    if given.is_json:
        screen.json({"execution_id": execution_id} | msgspec.to_builtins(result))
    elif result.ok:
        screen.write(f"{screen.paint('green', 'ok')}  {result.receipts} receipts, head {result.head}")
    else:
        for problem in result.problems:
            screen.write(f"{screen.paint('red', 'BROKEN')}  {printable(problem)}")
    sys.exit(ExitCode.DONE if result.ok else ExitCode.FAILED)
