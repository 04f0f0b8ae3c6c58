"""Values on the command line: JSON, the name of a file with JSON behind an ``@``, or ``-`` for standard input."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from msgspec import UNSET

from stepwell.cli.source import read_text
from stepwell.duration import moment_of, seconds_of
from stepwell.errors import InvalidInput
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.value import Value, parse

__all__ = ["ID", "INPUT", "MOMENT", "SPAN", "VALUE", "WORKSPACE", "limits_of", "value_of"]


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
