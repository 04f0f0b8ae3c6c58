"""``completion``: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from stepwell.cli.command import command
from stepwell.cli.settings import settings

__all__ = ["completion"]


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell, to be sourced: `source <(stepwell completion bash)`."""
    given, kind = settings(), get_completion_class(shell)
    root = click.get_current_context().find_root().command
    assert kind is not None, "the choice has only shells that click knows"  # noqa: S101 - for the type checker
    source = kind(root, {}, "stepwell", "_STEPWELL_COMPLETE").source()
    if given.is_json:
        given.screen.json({"shell": shell, "script": source})
    else:
        given.screen.write(source)
