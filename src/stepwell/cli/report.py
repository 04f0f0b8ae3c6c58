"""Print the result of a command: JSON for programs, a sentence or a table for people."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import msgspec

from stepwell.cli.exit_codes import ExitCode
from stepwell.cli.options import CliSettings
from stepwell.cli.output import json_text, printable

__all__ = ["counted", "end_server", "moment", "report", "report_fields", "report_rows"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 key`` or ``2 keys``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def report(given: CliSettings, facts: Any, sentence: str) -> None:
    """Print a result: the facts as JSON, or the sentence as a note."""
    if given.is_json:
        given.screen.json(msgspec.to_builtins(facts))
    else:
        given.screen.note(printable(sentence))


def report_rows(given: CliSettings, things: Sequence[Any], columns: Mapping[str, str], nothing: str = "") -> None:
    """Print several results: one JSON line each, or a table whose columns are fields."""
    screen, records = given.screen, [msgspec.to_builtins(each) for each in things]
    if given.is_json:
        for record in records:
            screen.json_line(record)
        return
    rows = [[_cell(getattr(each, name)) for name in columns.values()] for each in things]
    headings = list(columns)
    if rows:
        screen.table(headings, rows, status_column=headings.index("STATUS") if "STATUS" in headings else None)
    elif nothing:
        screen.note(nothing)


def report_fields(given: CliSettings, thing: Any, **more: Any) -> None:
    """Print one thing with its fields: one JSON value, or a line for each field that has a value."""
    record: dict[str, Any] = {name: getattr(thing, name) for name in thing.__struct_fields__} | more
    if given.is_json:
        given.screen.json(msgspec.to_builtins(record))
        return
    width = max(len(name) for name in record)
    for name, value in record.items():
        if value is not None:
            given.screen.write(f"{given.screen.paint('dim', name.ljust(width))}  {printable(_cell(value))}")


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return str(value)
        case datetime():
            return moment(value)
        case float():
            return f"{value:g}"
        case list() | tuple() if all(isinstance(each, str | datetime) for each in value):  # pyright: ignore[reportUnknownVariableType]
            return ", ".join(_cell(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return json_text(msgspec.to_builtins(value))


def end_server(given: CliSettings) -> NoReturn:
    """End the command of a server that Ctrl-C has stopped. That is no error of it."""
    if given.is_json:
        raise KeyboardInterrupt
    given.screen.note("the server has ended; unfinished runs are handed back")
    sys.exit(ExitCode.INTERRUPTED)


def moment(at: datetime) -> str:
    """Return a time as people read it."""
    return f"{at:%Y-%m-%d %H:%M:%S}"
