"""Option types (JSON values, durations, times), the global options, and opening the store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem
from msgspec import UNSET

from stepwell.cli.output import Terminal
from stepwell.cli.workflow_loader import read_text
from stepwell.config import choose_url
from stepwell.duration import moment_of, seconds_of
from stepwell.errors import InvalidInput, StoreUnavailable
from stepwell.flow.function import registered_names
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.value import Value, parse

if TYPE_CHECKING:
    from stepwell.app.blocking import Stepwell

__all__ = [
    "ENGINE",
    "ID",
    "INPUT",
    "MOMENT",
    "QUEUE_NAME",
    "RUN_ID",
    "RUN_NAME",
    "SPAN",
    "SUBJECT",
    "VALUE",
    "WORKFLOW_NAME",
    "WORKSPACE",
    "CliSettings",
    "complete_file",
    "complete_folder",
    "complete_startable",
    "limits_of",
    "settings",
    "value_of",
]


def value_of(text: str) -> Value:
    """Return the value of an argument: JSON, ``@FILE`` for a file with JSON, or ``-`` for standard input."""
    if text == "-":
        return parse(sys.stdin.buffer.read(), what="standard input")
    if text.startswith("@"):
        return parse(read_text(text[1:]), what=f"the file {text[1:]!r}")
    try:
        return parse(text.encode("utf-8", "surrogateescape"), what="the value")
    except InvalidInput as error:
        raise InvalidInput(
            f"{error.message}; a value is JSON: put a text in double quotes, and those in single quotes for the shell"
        ) from None


def limits_of(given: Mapping[str, Any], unlimited: Sequence[str]) -> dict[str, Any]:
    """Return changed limits: those that were given, and None for those that are removed. Other limits are unchanged."""
    return {what: limit for what, limit in given.items() if limit is not None} | dict.fromkeys(unlimited)


class ValueType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - takes one in newer versions only
    """An argument that is a JSON value."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002 - click's signature
        return value_of(value) if isinstance(value, str) else value


class SpanType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - takes one in newer versions only
    """An argument that is a duration: seconds, or a text such as ``5m``."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return seconds_of(float(value), "the span")
        except ValueError:
            pass  # a text such as 5m
        except InvalidInput as error:
            self.fail(error.message, param, ctx)
        try:
            return seconds_of(value, "the span")
        except InvalidInput as error:
            self.fail(error.message, param, ctx)


class MomentType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - takes one in newer versions only
    """An argument that is a time with its zone."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return moment_of(value)
        except InvalidInput as error:
            self.fail(error.message, param, ctx)


MOMENT, SPAN, VALUE = MomentType(), SpanType(), ValueType()
INPUT = click.option("--input", "-i", "value", type=VALUE, default=UNSET, metavar="JSON|@FILE|-", help="The input. Default: none.")
ID = click.option("--id", "execution_id", metavar="ID", help="The run's id; an existing id continues that run.")
WORKSPACE = click.option("--workspace", "-w", default=DEFAULT_WORKSPACE, show_default=True, help="The workspace of the run.")

ENGINE = click.option(
    "--engine",
    type=click.Choice(["local", "temporal"]),
    help="The engine that runs it: Stepwell's own workers or Temporal. Default: as `stepwell engine` says.",
)


SUBJECT = click.option(
    "--subject", metavar="SUBJECT", help="Whose data the run holds, such as user:42, for `stepwell find` and `stepwell erase`."
)


Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completing(find: Callable[[Stepwell], Iterable[str]]) -> Completer:
    """Return a function that completes an argument from the store; it stays silent where the store cannot be read."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with suppress(Exception), ctx.ensure_object(CliSettings).open() as well:
            return [CompletionItem(each) for each in find(well) if each.startswith(incomplete)]
        return []

    return complete


def _workflow_names(well: Stepwell) -> list[str]:
    found = {each.workflow_id for each in well.executions.list(limit=_MOST_COMPLETIONS)}
    return sorted(found | {each.name for each in well.definitions.list()} | set(registered_names()))


_MOST_COMPLETIONS = 200
_SOURCES = (".py", ".yaml", ".yml", ".json", ".lua")

RUN_NAME = _completing(lambda well: (each.execution_id for each in well.executions.list(limit=_MOST_COMPLETIONS)))
"""Completes the id of a run."""
RUN_ID = click.argument("execution_id", metavar="ID", shell_complete=RUN_NAME)
QUEUE_NAME = _completing(lambda well: sorted({each.queue for each in well.queue.stats()}))
"""Completes the name of a queue."""
WORKFLOW_NAME = _completing(_workflow_names)
"""Completes the name of a workflow."""


def complete_startable(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a workflow by its name, or the file that has it."""
    start = incomplete.rpartition("/")[2]
    folder = incomplete.removesuffix(start)
    paths: list[str] = []
    with suppress(OSError):
        paths = sorted(f"{folder}{each.name}" for each in Path(folder or ".").iterdir() if each.suffix in _SOURCES)
    # Other paths are left to the shell: bash asks for that before it takes anything else.
    return [
        *complete_file(ctx, param, incomplete),
        *WORKFLOW_NAME(ctx, param, incomplete),
        *(CompletionItem(each) for each in paths if each.startswith(incomplete)),
    ]


def complete_file(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the path of a file."""
    return [CompletionItem(incomplete, type="file")]


def complete_folder(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the path of a folder."""
    return [CompletionItem(incomplete, type="dir")]


@dataclass
class CliSettings:
    """The global options. They may stand before or after the command's name; one after it wins."""

    url: str | None = None
    is_json: bool = False
    is_quiet: bool = False
    is_debug: bool = False
    modules: list[str] = field(default_factory=list[str])
    shows_failures: bool = False
    """Whether the command shows by itself which runs fail, so that the log need not."""

    @property
    def screen(self) -> Terminal:
        """The screen to write to."""
        return Terminal.standard(is_json=self.is_json, is_quiet=self.is_quiet)

    def load_modules(self) -> list[ModuleType]:
        """Import the modules of ``--module``, which registers their workflows."""
        from stepwell.cli.workflow_loader import import_source

        return [import_source(name) for name in self.modules]

    def check_place(self, url: str) -> None:
        """Raise ``NotFound`` for a missing SQLite file, so that a mistyped name does not create an empty store."""
        if url.startswith("sqlite:"):
            from stepwell.stores.sqlite.connection import parse_url

            path = parse_url(url).path
            if not Path(path).exists():
                raise StoreUnavailable(
                    f"there is no store at {path!r} yet; correct the URL, or create it with stepwell migrate or the first run"
                )

    @contextmanager
    def open(self, *, worker: bool = False, creates: bool = False, **options: Any) -> Generator[Stepwell]:
        """Open the store after importing the modules, and close it at the end of the block."""
        from stepwell.app.blocking import Stepwell

        if not creates:
            self.check_place(choose_url(self.url)[0])
        self.load_modules()
        with Stepwell(self.url, worker=worker, **options) as well:
            yield well


def settings() -> CliSettings:
    """Return the settings of the running command."""
    return click.get_current_context().ensure_object(CliSettings)
