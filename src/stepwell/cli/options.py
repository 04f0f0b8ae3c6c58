"""Values on the command line: JSON, the name of a file with JSON behind an ``@``, or ``-`` for standard input.

What the options say that every command has, and the well that they lead to.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET

from stepwell.cli.output import Screen
from stepwell.cli.workflow_loader import read_text
from stepwell.config import choose_url
from stepwell.duration import moment_of, seconds_of
from stepwell.errors import InvalidInput, StoreUnavailable
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.value import Value, parse

if TYPE_CHECKING:
    from stepwell.app.blocking import Stepwell

__all__ = [
    "ID",
    "INPUT",
    "MOMENT",
    "SPAN",
    "VALUE",
    "WORKSPACE",
    "CliSettings",
    "limits_of",
    "settings",
    "value_of",
]


def value_of(text: str) -> Value:
    """The value that an argument stands for."""
    if text == "-":
        return parse(sys.stdin.buffer.read(), what="standard input")
    if text.startswith("@"):
        return parse(read_text(text[1:]), what=f"the file {text[1:]!r}")
    try:
        return parse(text.encode("utf-8", "surrogateescape"), what="the value")
    except InvalidInput as error:
        raise InvalidInput(f"{error.message}; it is JSON: a text has double quotes, inside of single ones for the shell") from None


def limits_of(given: Mapping[str, Any], unlimited: Sequence[str]) -> dict[str, Any]:
    """Limits as they are changed: those that were given, and None for those that are taken away. The others stay."""
    return {what: limit for what, limit in given.items() if limit is not None} | dict.fromkeys(unlimited)


class ValueType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - takes one in newer versions only
    """An argument that is a value."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002 - click's signature
        return value_of(value) if isinstance(value, str) else value


class SpanType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - takes one in newer versions only
    """An argument that is a span of time: seconds, or a text such as ``5m``."""

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
    """An argument that is a moment, with its zone."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return moment_of(value)
        except InvalidInput as error:
            self.fail(error.message, param, ctx)


MOMENT, SPAN, VALUE = MomentType(), SpanType(), ValueType()
INPUT = click.option("--input", "-i", "value", type=VALUE, default=UNSET, metavar="JSON|@FILE|-", help="The input, else none.")
ID = click.option("--id", "execution_id", metavar="ID", help="The run's id; one that is known gives that run.")
WORKSPACE = click.option("--workspace", "-w", default=DEFAULT_WORKSPACE, show_default=True, help="The workspace of the run.")


@dataclass
class CliSettings:
    """The global options. They may stand before or behind the command's name; what stands behind wins."""

    url: str | None = None
    is_json: bool = False
    is_quiet: bool = False
    is_debug: bool = False
    modules: list[str] = field(default_factory=list[str])

    @property
    def screen(self) -> Screen:
        """Where to write."""
        return Screen.standard(is_json=self.is_json, is_quiet=self.is_quiet)

    def load_modules(self) -> list[ModuleType]:
        """Import the modules that were named, so that their workflows are known."""
        from stepwell.cli.workflow_loader import import_source

        return [import_source(name) for name in self.modules]

    def check_place(self, url: str) -> None:
        """Refuse a SQLite file that is not there: to look for a run must not make an empty store where the name was mistyped."""
        if url.startswith("sqlite:"):
            from stepwell.stores.sqlite.connection import parse_url

            path = parse_url(url).path
            if not Path(path).exists():
                raise StoreUnavailable(
                    f"there is no store at {path!r} yet; correct the URL, or make it with stepwell migrate or the first run"
                )

    @contextmanager
    def open(self, *, worker: bool = False, creates: bool = False, **options: Any) -> Generator[Stepwell]:
        """The well, with the named modules imported first; it is closed at the end, whatever happens."""
        from stepwell.app.blocking import Stepwell

        if not creates:
            self.check_place(choose_url(self.url)[0])
        self.load_modules()
        with Stepwell(self.url, worker=worker, **options) as well:
            yield well


def settings() -> CliSettings:
    """The settings of the command that is running."""
    return click.get_current_context().ensure_object(CliSettings)
