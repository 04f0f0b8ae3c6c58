"""The ``stepwell`` command line: global options, command groups, error messages and the list of commands.

A command's module is imported only when that command runs, so that ``--help`` and completion are fast. While a command runs, the
library's log goes to standard error as notes.
"""

from __future__ import annotations

import difflib
import logging
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from types import FrameType
from typing import Any, NamedTuple

import click

from stepwell.cli.exit_codes import ExitCode, code_of
from stepwell.cli.options import CliSettings, complete_file
from stepwell.cli.output import json_text, printable

__all__ = [
    "COMMANDS",
    "CliCommand",
    "CommandEntry",
    "Group",
    "RootGroup",
    "cli",
    "command",
    "logging_to_screen",
    "main",
]


_SCRIPTS = "stepwell.script"
"""The logger of what scripts print, which is always shown."""


class _ScreenHandler(logging.Handler):
    """A log handler that writes records as notes. It reads the settings per record, because options are parsed after its setup."""

    def __init__(self, given: CliSettings) -> None:
        super().__init__()
        self._given = given

    def emit(self, record: logging.LogRecord) -> None:
        if self._given.shows_failures and not self._given.is_debug and hasattr(record, "execution_id"):
            return
        if record.name == _SCRIPTS or record.levelno >= (logging.INFO if self._given.is_debug else logging.WARNING):
            screen = self._given.screen
            screen.note(f"{screen.paint('yellow', record.levelname.lower(), screen.err)}: {printable(record.getMessage())}")
            if self._given.is_debug and record.exc_info:
                for line in logging.Formatter().formatException(record.exc_info).splitlines():
                    screen.note(printable(line))


@contextmanager
def logging_to_screen(given: CliSettings) -> Generator[None]:
    """Write the library's log to the screen inside the block."""
    log, handler, scripts = logging.getLogger("stepwell"), _ScreenHandler(given), logging.getLogger(_SCRIPTS)
    before = scripts.level
    log.addHandler(handler)
    scripts.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        scripts.setLevel(before)


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        given = context.ensure_object(CliSettings)
        if isinstance(value, tuple):
            given.modules += value
        elif value:
            setattr(given, name, value)

    return keep


def global_options() -> list[click.Parameter]:
    """Return new instances of the options that every command has."""
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            expose_value=False,
            callback=_store("url"),
            help="The store. Default: STEPWELL_URL, else REDIS_URL, else sqlite:///.stepwell/well.db.",
        ),
        click.Option(
            ["-m", "--module"],
            multiple=True,
            metavar="MODULE",
            expose_value=False,
            callback=_store("modules"),
            shell_complete=complete_file,
            help="Import a module or .py file with workflows first; repeatable.",
        ),
        click.Option(
            ["--json", "is_json"],
            is_flag=True,
            expose_value=False,
            callback=_store("is_json"),
            help="Print JSON.",
        ),
        click.Option(
            ["-q", "--quiet"], is_flag=True, expose_value=False, callback=_store("is_quiet"), help="Print no progress and no notes."
        ),
        click.Option(
            ["--debug"], is_flag=True, expose_value=False, callback=_store("is_debug"), help="Print the traceback of an error."
        ),
    ]


def _format_options(params: Sequence[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the command's own options first, and the options that every command has in a section of their own."""
    global_names = {each.name for each in global_options()}
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for param in params:
        record = param.get_help_record(ctx)
        if record is not None and record[1]:  # an argument has no help of its own: the command's text describes it
            (shared if param.name in global_names else own).append(record)
    for title, records in (("Options", own), ("Global options", shared)):
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


class CliCommand(click.Command):
    """A command that also accepts the global options."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params = [*self.params, *global_options()]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _format_options(self.get_params(ctx), ctx, formatter)


def command(name: str, **options: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Turn a function into a command that also accepts the global options."""
    return click.command(name, cls=CliCommand, **options)


class CommandEntry(NamedTuple):
    """A command that is imported when it is used."""

    home: str
    """Its module, a colon, and its name in the module."""
    summary: str
    """Its line in the list of commands."""


class Group(click.Group):
    """A group of commands that are imported when they are used; its help imports none of them."""

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

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with; suggest a similar name if there is none."""
        if args[0] not in self.entries:
            near = difflib.get_close_matches(args[0], self.entries, n=1)
            raise click.UsageError(f"No such command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _format_options(self.get_params(ctx), ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])


class RootGroup(Group):
    """The command line. It turns errors into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **options: Any) -> Any:  # noqa: ARG002 - click's signature
        """Run a command. Any error becomes one line on standard error and an exit code."""
        given = CliSettings()
        try:
            with logging_to_screen(given):
                code = super().main(args, *rest, standalone_mode=False, obj=given, **options)
        except (SystemExit, click.exceptions.Exit):
            raise
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = ExitCode.USAGE
        except BaseException as error:
            if given.is_debug:
                raise
            # Click stops at a refused argument, so a later --json was not parsed.
            typed = sys.argv[1:] if args is None else args
            given.is_json = given.is_json or "--json" in takewhile(lambda each: each != "--", typed)
            code = complain(given, error)
        sys.exit(int(code or 0))


def complain(given: CliSettings, error: BaseException) -> ExitCode:
    """Write what happened and what to do next on one line. Return the exit code."""
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
        message = _of_option(error) if isinstance(error, click.NoSuchOption) else error.format_message().rstrip(".")
        message = " ".join(message.split())  # click lists choices below each other
        if not isinstance(error, click.UsageError) or error.ctx is None:
            return message
        usage = f"{error.ctx.command_path} --help"
        return f"{message} See {usage}" if message.endswith("?") else f"{message}; see {usage}"
    if code is ExitCode.INTERRUPTED:
        return "interrupted"
    if code is ExitCode.DEFECT:
        return f"{type(error).__name__}: {error}; this is a bug; run the command again with --debug for the traceback"
    return str(error)


def _of_option(error: click.NoSuchOption) -> str:
    near = error.possibilities[:1] if error.possibilities else []
    return f"No such option {error.option_name!r}" + "".join(f"; did you mean {each!r}?" for each in near)


_AT = "stepwell.cli.commands"

COMMANDS = {
    "run": CommandEntry(f"{_AT}.runs:run", "Run a workflow and wait for its result."),
    "start": CommandEntry(f"{_AT}.runs:start", "Start a run for a worker, and print its id."),
    "list": CommandEntry(f"{_AT}.runs:list_", "List runs, newest first."),
    "show": CommandEntry(f"{_AT}.show:show", "Show a run: state, steps, errors, timeline."),
    "watch": CommandEntry(f"{_AT}.runs:watch", "Follow a run until it ends, and print its result."),
    "signal": CommandEntry(f"{_AT}.runs:signal", "Send a signal to a run."),
    "cancel": CommandEntry(f"{_AT}.runs:cancel", "Cancel a run, or a part of it."),
    "pause": CommandEntry(f"{_AT}.runs:pause", "Pause a run: nothing new begins until it is resumed."),
    "resume": CommandEntry(f"{_AT}.runs:resume", "Resume a paused run."),
    "retry": CommandEntry(f"{_AT}.runs:retry", "Resume a failed run at the step that failed."),
    "errors": CommandEntry(f"{_AT}.errors:errors", "Look at failed runs in groups."),
    "fork": CommandEntry(f"{_AT}.runs:fork", "Start a new run from the state of another."),
    "verify": CommandEntry(f"{_AT}.runs:verify", "Verify every receipt of a run."),
    "export": CommandEntry(f"{_AT}.proof:export", "Write a run with its receipts into a file."),
    "import": CommandEntry(f"{_AT}.proof:import_", "Take a run in from such a file."),
    "worker": CommandEntry(f"{_AT}.worker:worker", "Run workflows until stopped."),
    "dispatch": CommandEntry(f"{_AT}.dispatch:dispatch", "Fire schedules and send webhooks, without running workflows."),
    "serve": CommandEntry(f"{_AT}.serve:serve", "Serve the dashboard and the HTTP API, and run workflows."),
    "dev": CommandEntry(f"{_AT}.dev:dev", "Serve the workflows of a folder, and reload them when they change."),
    "token": CommandEntry(f"{_AT}.token:token", "Manage the access tokens of the HTTP server."),
    "enqueue": CommandEntry(f"{_AT}.queue:enqueue", "Request a run when its workspace has capacity."),
    "queue": CommandEntry(f"{_AT}.queue:queue", "Inspect the queue and manage its items."),
    "schedule": CommandEntry(f"{_AT}.schedule:schedule", "Run workflows at set times."),
    "workspace": CommandEntry(f"{_AT}.workspace:workspace", "Manage workspaces and their tiers."),
    "engine": CommandEntry(f"{_AT}.engine:engine", "Choose the engine of a workspace, a queue or a workflow."),
    "retention": CommandEntry(
        f"{_AT}.retention:retention", "Manage how long runs and items are kept, and see what will be removed."
    ),
    "usage": CommandEntry(f"{_AT}.usage:usage", "Show the usage of limits, and what is left."),
    "workflow": CommandEntry(f"{_AT}.definitions:workflow", "Manage the definitions in the store."),
    "check": CommandEntry(f"{_AT}.definitions:check", "Check definitions or a run, and print every fault with its position."),
    "draw": CommandEntry(f"{_AT}.definitions:draw", "Draw a definition or a run as SVG or Mermaid."),
    "state": CommandEntry(f"{_AT}.state:state", "Read and write scoped state."),
    "backup": CommandEntry(f"{_AT}.backup:backup", "Back a store up, and restore it."),
    "find": CommandEntry(f"{_AT}.subjects:find", "List what is stored about a subject."),
    "erase": CommandEntry(f"{_AT}.subjects:erase", "Erase the data of a subject."),
    "encryption": CommandEntry(f"{_AT}.encryption:encryption", "Manage the keys that values are encrypted with."),
    "doctor": CommandEntry(f"{_AT}.doctor:doctor", "Check this installation and its store."),
    "migrate": CommandEntry(f"{_AT}.migrate:migrate", "Migrate a store to the schema of this version, or stored values."),
    "bench": CommandEntry(f"{_AT}.bench:bench", "Measure how fast this store is from this machine."),
    "demo": CommandEntry(f"{_AT}.demo:demo", "Kill a run inside a step, resume it and verify it."),
    "docs": CommandEntry(f"{_AT}.docs:docs", "Print a page of the documentation, or find one by words."),
    "completion": CommandEntry(f"{_AT}.doctor:completion", "Print the completion script of a shell."),
}


@click.group(cls=RootGroup, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stepwell", prog_name="stepwell", message="%(prog)s %(version)s")
def cli() -> None:
    """Durable workflows: every step lands in one store, in one atomic commit, and comes back with a receipt.

    Data goes to standard output, progress and errors to standard error.
    """


def main() -> None:
    """Run the program."""
    signal.signal(signal.SIGTERM, _terminate)
    cli.main(prog_name="stepwell")


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    # Raise an exception, so that leases are released on the way out and need not expire.
    sys.exit(ExitCode.TERMINATED)
