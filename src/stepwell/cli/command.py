"""Commands that all take the global options, and a group that imports a command's module only when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any, NamedTuple

import click

from stepwell.cli.ending import ExitCode, code_of
from stepwell.cli.log import logging_to_screen
from stepwell.cli.plaintext import json_text, printable
from stepwell.cli.settings import CliSettings

__all__ = ["Command", "CommandEntry", "Group", "RootGroup", "command"]


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        given = context.ensure_object(CliSettings)
        if isinstance(value, tuple):
            given.modules += value
        elif value:
            setattr(given, name, value)

    return keep


def global_options() -> list[click.Parameter]:
    """Fresh copies of the options that every command has."""
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            expose_value=False,
            callback=_store("url"),
            help="The store; else STEPWELL_URL, REDIS_URL, sqlite:///.stepwell/well.db.",
        ),
        click.Option(
            ["-m", "--module"],
            multiple=True,
            metavar="MODULE",
            expose_value=False,
            callback=_store("modules"),
            help="Import a module or a .py file with workflows first.",
        ),
        click.Option(
            ["--json", "is_json"],
            is_flag=True,
            expose_value=False,
            callback=_store("is_json"),
            help="Write JSON.",
        ),
        click.Option(
            ["-q", "--quiet"], is_flag=True, expose_value=False, callback=_store("is_quiet"), help="Write no progress and no notes."
        ),
        click.Option(
            ["--debug"], is_flag=True, expose_value=False, callback=_store("is_debug"), help="Show the traceback of an error."
        ),
    ]


class Command(click.Command):
    """A command with the global options among its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params = [*self.params, *global_options()]


def command(name: str, **options: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command with the global options."""
    return click.command(name, cls=Command, **options)


class CommandEntry(NamedTuple):
    """A command that is imported when it is needed."""

    home: str
    """Its module, a colon, and its name there."""
    summary: str
    """What the list of commands says about it."""


class Group(click.Group):
    """Commands under one name, imported when they are needed; the help needs none of them."""

    def __init__(self, *arguments: Any, entries: Mapping[str, CommandEntry], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.entries = entries
        self.params = [*self.params, *global_options()]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.home.partition(":")
        return getattr(import_module(module), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])


class RootGroup(Group):
    """The command line: errors become one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **options: Any) -> Any:  # noqa: ARG002 - click's signature
        """Run a command. Whatever it raises ends in one line on standard error, and in an exit code."""
        given = CliSettings()
        try:
            with logging_to_screen(given):
                code = super().main(args, *rest, standalone_mode=False, obj=given, **options)
        except (SystemExit, click.exceptions.Exit):
            raise
        except BaseException as error:
            if given.is_debug:
                raise
            # What stands behind the argument that is refused was not read any more.
            typed = sys.argv[1:] if args is None else args
            given.is_json = given.is_json or "--json" in takewhile(lambda each: each != "--", typed)
            code = complain(given, error)
        sys.exit(int(code or 0))


def complain(given: CliSettings, error: BaseException) -> ExitCode:
    """Say what happened and what to do next, on one line; the exit code."""
    screen, code = given.screen, code_of(error)
    message = _message(error, code)
    if given.is_json:
        told = {"kind": type(error).__name__, "code": getattr(error, "code", None), "message": message, "exit_code": int(code)}
        screen.complain(json_text({"error": told}))
    else:
        screen.complain(f"{screen.paint('red', 'error:', screen.err)} {printable(message)}")
    return code


def _message(error: BaseException, code: ExitCode) -> str:
    if isinstance(error, click.ClickException):
        hint = ""
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f"; see {error.ctx.command_path} --help"
        return error.format_message().rstrip(".") + hint
    if code is ExitCode.INTERRUPTED:
        return "interrupted"
    if code is ExitCode.DEFECT:
        return f"{type(error).__name__}: {error}; this should not happen, run it again with --debug to see where"
    return str(error)
