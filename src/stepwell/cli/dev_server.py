"""The child process of `stepwell dev`: loads the workflows of some files, serves the well, and runs them.

A file with a fault is reported and left out, so that the dashboard and the other workflows go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable

import msgspec

from stepwell import AsyncStepwell
from stepwell.cli.exit_codes import code_of
from stepwell.cli.main import complain, logging_to_screen
from stepwell.cli.options import CliSettings
from stepwell.cli.workflow_loader import definitions_of, import_source, is_document
from stepwell.errors import NotFound, StepwellError
from stepwell.flow.definition.node import Definition

__all__ = ["main"]

_BACKUPS = ".stepwell/backups"
_LEASE_SECONDS = 5
"""How soon the next process takes over the runs of one that had to be killed."""


def main() -> None:
    """Serve until the parent process ends this one, or is gone itself."""
    from stepwell.web.uvicorn_server import serve

    options, given = json.loads(sys.stdin.readline()), CliSettings()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Python knows old bytecode by the second and the size of its source, and a quick edit may leave both as they were.
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, too, which ends this process in good order
    with logging_to_screen(given):
        try:
            definitions = _loaded(options["files"], given)

            async def prepare(well: AsyncStepwell) -> None:
                for each in definitions:
                    try:
                        await well.definitions.put(await _renumbered(well, each))
                    except StepwellError as error:
                        complain(given, error)

            def say_ready(address: str) -> None:
                print(json.dumps({"stepwell_dev": address}), flush=True)  # noqa: T201 - the parent reads it

            well = AsyncStepwell(options["url"], lease_seconds=_LEASE_SECONDS)
            serve(
                well,
                port=options["port"],
                grace_seconds=options["grace_seconds"],
                backups=_BACKUPS,
                prepare=prepare,
                on_ready=say_ready,
            )
        except SystemExit as error:
            if error.code == 1:
                complain(given, StepwellError(f"the server could not listen on port {options['port']}; choose another with --port"))
            raise
        except StepwellError as error:
            complain(given, error)
            sys.exit(code_of(error))


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _loaded(files: Iterable[str], given: CliSettings) -> list[Definition]:
    """Import the modules, and return the definitions of the other files."""
    definitions: list[Definition] = []
    for file in files:
        try:
            if is_document(file):
                definitions += definitions_of(file, steps=None)
            else:
                import_source(file)
        except StepwellError as error:
            complain(given, error)
    return definitions


async def _renumbered(well: AsyncStepwell, definition: Definition) -> Definition:
    """Return a definition with the version under which it can be stored: that of its file, or the next one if it was changed."""
    try:
        newest = await well.definitions.get(definition.name)
    except NotFound:
        return definition
    if msgspec.structs.replace(newest, version=definition.version) == definition:
        return newest
    return definition if definition.version > newest.version else msgspec.structs.replace(definition, version=newest.version + 1)


if __name__ == "__main__":
    main()
