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
def demo(story: str) -> None:
    """Kill, resume and verify work in a folder of its own.

    parcel: a worker is killed inside a step, and another one continues. bank: a process is killed in the middle of a commit.
    """
    from stepwell.demo.__main__ import main
    from stepwell.demo.screen import DemoScreen

    given = settings()
    screen = DemoScreen(sys.stderr if given.is_json else sys.stdout, os.environ)
    code = main(story, screen)
    if given.is_json:
        given.screen.json({"story": story, "is_ok": code == 0, "kept": screen.passed, "broken": screen.failed})
    sys.exit(code)
