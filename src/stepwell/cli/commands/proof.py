"""``export`` and ``import``: one run with its receipts as a file."""

from __future__ import annotations

from pathlib import Path

import click

from stepwell.cli.main import command
from stepwell.cli.options import RUN_ID, complete_file, settings
from stepwell.cli.output import printable
from stepwell.cli.report import report
from stepwell.cli.workflow_loader import read_text
from stepwell.errors import InvalidInput

__all__ = ["export", "import_"]


@command("export")
@RUN_ID
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
def export(execution_id: str, file: Path) -> None:
    """Write a run with every receipt into a new file, which verifies without the store. It has the values, secrets among them."""
    given = settings()
    with given.open() as well:
        proof = well.export(execution_id)
    try:
        with file.open("xb") as out:
            out.write(proof)
    except FileExistsError:
        raise InvalidInput(f"{str(file)!r} exists already; name a new file") from None
    except OSError as error:
        raise InvalidInput(f"{str(file)!r} cannot be written: {error.strerror}") from None
    facts = {"execution_id": execution_id, "file": str(file), "size": len(proof)}
    report(given, facts, f"{execution_id} is in {printable(str(file))}")


@command("import")
@click.argument("file", metavar="FILE", shell_complete=complete_file)
@click.option("--resume", is_flag=True, help="Let workers go on with a run that has not ended; else it is held until a signal.")
def import_(file: str, *, resume: bool) -> None:
    """Take a run in from a file of `stepwell export`, with every receipt as it was."""
    given = settings()
    proof = read_text(file)
    with given.open(creates=True) as well:
        found = well.import_(proof, resume=resume)
    told = f"{found.execution_id} is here at revision {found.revision}, {found.status}"
    report(given, found, told)
