"""Text from a store is not to be trusted: what could move the cursor, hide or reorder text is shown as an escape instead.

Where a command writes: data on standard output, everything else on standard error, colour only where it is seen.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

__all__ = [
    "Screen",
    "has_colour",
    "json_text",
    "printable",
    "shortened",
]


# Control characters (C0, DEL, C1), line and paragraph separators, and the marks that turn the direction of writing or take no room.
_HOSTILE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """The text on one line, with everything in it that a terminal could obey written as an escape."""
    return _HOSTILE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON that is safe to print: the same value when it is read back."""
    separators = None if indent is not None else (",", ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, allow_nan=False)
    lines = text.split("\n")  # real line ends come from the indent alone: inside of texts they are escaped
    return "\n".join(_HOSTILE.sub(_json_escape, line) for line in lines)


def _json_escape(found: re.Match[str]) -> str:
    return "\\u007f" if found[0] == "\x7f" else json.dumps(found[0])[1:-1]


def shortened(text: str, width: int) -> str:
    """The text, cut to a width with dots at its end."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}
_OF_STATUS = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "RUNNING": "cyan", "WAITING": "blue", "SKIPPED": "dim"}


def has_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether to write ANSI colours: on a terminal that shows them, unless ``NO_COLOR`` is set to anything."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class Screen:
    """Writes for people or, with ``is_json``, for programs."""

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str], *, is_json: bool, is_quiet: bool) -> None:
        self.out, self.err = out, err
        self.is_json, self.is_quiet = is_json, is_quiet
        self._colours = {stream: has_colour(stream, environ) for stream in (out, err)}
        self.is_live = err.isatty() and environ.get("TERM") != "dumb" and not is_quiet and not is_json
        """Whether a line can be written over."""
        self.is_table = out.isatty()

    @classmethod
    def standard(cls, *, is_json: bool = False, is_quiet: bool = False) -> Screen:
        """The screen of this process."""
        return cls(sys.stdout, sys.stderr, os.environ, is_json=is_json, is_quiet=is_quiet)

    @property
    def width(self) -> int:
        """How many columns there are; plenty where nobody looks."""
        return shutil.get_terminal_size((100, 24)).columns if self.is_table else 100

    @property
    def block(self) -> str:
        """What bars are made of, as standard output can write it."""
        return "█" if (self.out.encoding or "").lower().startswith("utf") else "#"

    def paint(self, colour: str, text: str, stream: TextIO | None = None) -> str:
        """The text in a colour, if the stream (standard output, if not given) has any."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if colour and self._colours[stream or self.out] else text

    def paint_status(self, status: str, stream: TextIO | None = None) -> str:
        """A status in its colour."""
        return self.paint(_OF_STATUS.get(status, ""), printable(status), stream)

    def write(self, text: str = "") -> None:
        """A line of data for people. What comes from a store must be made ``printable`` before."""
        _write(self.out, text)

    def text(self, text: str) -> None:
        """A whole text with an end of line: byte for byte for programs, and with escapes for a terminal."""
        if self.is_table:
            text = "\n".join(printable(line) for line in text.split("\n"))
        self.out.write(text if text.endswith("\n") else f"{text}\n")
        self.out.flush()  # at once, as all here: a reader that has gone is noticed while it can be dealt with

    def json(self, value: Any) -> None:
        """One JSON value: on one line, or indented if a person looks at it."""
        self.text(json_text(value, indent=2 if self.is_table else None))

    def json_line(self, value: Any) -> None:
        """One JSON value of several, on a line of its own."""
        self.text(json_text(value))

    def note(self, text: str) -> None:
        """A line about what is going on, unless nobody wants to hear it."""
        if not self.is_quiet:
            _write(self.err, text)

    def complain(self, text: str) -> None:
        """A line about what went wrong."""
        _write(self.err, text)

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]], *, status_column: int | None = None) -> None:
        """Rows of hostile text: aligned under headings on a terminal, else with tabs between and no headings."""
        cells = [[printable(cell) for cell in row] for row in rows]
        if not self.is_table:
            for row in cells:
                self.write("\t".join(row))
            return
        widths = [max(len(line[column]) for line in [headings, *cells]) for column in range(len(headings))]
        self.write(self.paint("dim", _aligned(headings, widths)))
        for row in cells:
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            if status_column is not None:
                padded[status_column] = self.paint(_OF_STATUS.get(row[status_column], ""), padded[status_column])
            self.write("  ".join(padded).rstrip())

    def brief(self, value: Any, width: int | None = None) -> str:
        """A value on part of a line."""
        return shortened(json_text(value), width or max(self.width - 24, 20))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    # A name that this stream cannot write must not end the command.
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
