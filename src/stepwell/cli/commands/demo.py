"""``demo``: the demonstration."""

from __future__ import annotations

import os
import sys

import click

from stepwell.cli.main import command
from stepwell.cli.options import settings

__all__ = ["demo"]


@command("demo")
@click.argument("story", type=click.Choice(["parcel", "bank"]), default="parcel")
@click.option(
    "--engine",
    type=click.Choice(["local", "temporal"]),
    default="local",
    show_default=True,
    help="The engine that runs the parcels.",
)
@click.option("--address", default="127.0.0.1:7233", show_default=True, help="Host and port of the Temporal server.")
def demo(story: str, engine: str, address: str) -> None:
    """Kill, resume and verify work in a folder of its own.

    parcel: a worker is killed inside a step, and another one continues. bank: a process is killed in the middle of a commit.

    With --engine temporal the parcels are sent by workflows on a Temporal server, such as `temporal server start-dev` runs.
    """
    if engine == "temporal" and story != "parcel":
        raise click.UsageError("only the story of the parcels runs on Temporal")
    from stepwell.demo.__main__ import main
    from stepwell.demo.engines import check_server
    from stepwell.demo.screen import DemoScreen

    given = settings()
    screen = DemoScreen(sys.stderr if given.is_json else sys.stdout, os.environ)
    if engine == "temporal":
        check_server(address)
    code = main(story, screen, address if engine == "temporal" else "")
    if given.is_json:
        given.screen.json({"story": story, "is_ok": code == 0, "kept": screen.passed, "broken": screen.failed})
    sys.exit(code)
