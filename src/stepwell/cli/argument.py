"""Values on the command line: JSON, the name of a file with JSON behind an ``@``, or ``-`` for standard input."""

from __future__ import annotations

import sys
from typing import Any

import click

from stepwell.cli.source import read_text
from stepwell.errors import InvalidInput
from stepwell.flow.duration import seconds_of
from stepwell.model.value import Value, parse

__all__ = ["SPAN", "VALUE", "value_of"]


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


SPAN = SpanType()
VALUE = ValueType()
