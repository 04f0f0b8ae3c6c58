"""Output of commands: data on standard output, everything else on standard error, colour only on terminals.

Text from a store is untrusted. Characters that could move the cursor, hide text or reorder it are printed as escapes.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO, cast
from weakref import WeakKeyDictionary

__all__ = [
    "Terminal",
    "has_colour",
    "json_text",
    "printable",
    "shortened",
]


# Control characters (C0, DEL, C1), line and paragraph separators, bidirectional marks and zero-width characters.
_HOSTILE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Return the text on one line, with every character that a terminal could interpret as an escape."""
    return _HOSTILE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON that is safe to print and parses to the same value."""
    separators = None if indent is not None else (",", ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, allow_nan=False)
    lines = text.split("\n")  # only the indentation creates line ends; those inside texts are escaped
    return "\n".join(_HOSTILE.sub(_json_escape, line) for line in lines)


def _json_escape(found: re.Match[str]) -> str:
    return "\\u007f" if found[0] == "\x7f" else json.dumps(found[0])[1:-1]


def shortened(text: str, width: int) -> str:
    """Return the text cut to a width, with dots at the end."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}
_OF_STATUS = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "RUNNING": "cyan", "WAITING": "blue", "SKIPPED": "dim"}


def has_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether to write ANSI colours: on a terminal that supports them, unless ``NO_COLOR`` is set."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class _StatusLine:
    """The status line at the end of a stream, which several ``Terminal`` objects may write to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_shown = False
        self.is_in_line = False
        """Whether a step has printed a text without a line end, which the status line must not overwrite."""


_LINES: WeakKeyDictionary[TextIO, _StatusLine] = WeakKeyDictionary()


class Terminal:
    """Writes output for people, or with ``is_json`` for programs."""

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str], *, is_json: bool, is_quiet: bool) -> None:
        self.out, self.err = out, err
        self.is_json, self.is_quiet = is_json, is_quiet
        self._colours = {stream: has_colour(stream, environ) for stream in (out, err)}
        self.is_live = err.isatty() and environ.get("TERM") != "dumb" and not is_quiet and not is_json
        """Whether a line can be overwritten."""
        self.is_table = out.isatty()
        self._line = _LINES.setdefault(err, _StatusLine())

    @classmethod
    def standard(cls, *, is_json: bool = False, is_quiet: bool = False) -> Terminal:
        """Return the screen of this process."""
        return cls(sys.stdout, sys.stderr, os.environ, is_json=is_json, is_quiet=is_quiet)

    @property
    def width(self) -> int:
        """The number of columns; large if the output is no terminal."""
        return shutil.get_terminal_size((100, 24)).columns if self.is_table else 100

    @property
    def block(self) -> str:
        """The character of bars in the output's encoding."""
        return "█" if (self.out.encoding or "").lower().startswith("utf") else "#"

    def paint(self, colour: str, text: str, stream: TextIO | None = None) -> str:
        """Return the text in a colour if the stream (standard output by default) shows colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if colour and self._colours[stream or self.out] else text

    def paint_status(self, status: str, stream: TextIO | None = None) -> str:
        """Return a status in its colour."""
        return self.paint(_OF_STATUS.get(status, ""), printable(status), stream)

    def write(self, text: str = "") -> None:
        """Write a line of data for people. Text from a store must be made ``printable`` first."""
        _write(self.out, text)

    def text(self, text: str) -> None:
        """Write a whole text with a line end: unchanged for programs, with escapes on a terminal."""
        if self.is_table:
            text = "\n".join(printable(line) for line in text.split("\n"))
        self.out.write(text if text.endswith("\n") else f"{text}\n")
        self.out.flush()  # flush at once, so that a closed pipe is noticed while the command can still handle it

    def json(self, value: Any) -> None:
        """Write one JSON value: on one line, or indented on a terminal."""
        self.text(json_text(value, indent=2 if self.is_table else None))

    def json_line(self, value: Any) -> None:
        """Write one of several JSON values on its own line."""
        self.text(json_text(value))

    def note(self, text: str) -> None:
        """Write a progress line, unless ``--quiet`` is set."""
        if not self.is_quiet:
            self.complain(text)

    def complain(self, text: str) -> None:
        """Write an error line."""
        with self._line.lock:
            self._erase()
            _write(self.err, text)

    # The status line below everything else on standard error.

    def show_status(self, line: str) -> None:
        """Write or replace the status line; only where ``is_live``."""
        with self._line.lock:
            if self._line.is_in_line:
                self.err.write("\n")
                self._line.is_in_line = False
            self.err.write(f"\r\x1b[K{line}")
            self.err.flush()
            self._line.is_shown = True

    def clear_status(self) -> None:
        """Erase the status line."""
        with self._line.lock:
            self._erase()

    def _erase(self) -> None:
        if self._line.is_shown:
            self.err.write("\r\x1b[K")
            self.err.flush()
            self._line.is_shown = False

    def beside(self) -> TextIO:
        """Return a stream for what steps print: it writes to standard error above the status line."""
        return cast("TextIO", _Beside(self))

    def print_beside(self, text: str) -> None:
        """Write a text of a step to standard error above the status line."""
        with self._line.lock:
            self._erase()
            self.err.write(text)
            self.err.flush()
            self._line.is_in_line = self.is_live and not text.endswith("\n")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]], *, status_column: int | None = None) -> None:
        """Write rows of untrusted text: aligned with headings on a terminal, else tab-separated without headings."""
        cells = [[printable(cell) for cell in row] for row in rows]
        if not self.is_table:
            for row in cells:
                self.write("\t".join(row))
            return
        widths = [max(len(line[column]) for line in [headings, *cells]) for column in range(len(headings))]
        widths = _fitted(widths, headings, self.width)
        headings, status_column = headings[: len(widths)], status_column if status_column in range(len(widths)) else None
        cells = [[shortened(cell, width) for cell, width in zip(row, widths, strict=False)] for row in cells]
        self.write(self.paint("dim", _aligned(headings, widths)))
        for row in cells:
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            if status_column is not None:
                padded[status_column] = self.paint(_OF_STATUS.get(row[status_column], ""), padded[status_column])
            self.write("  ".join(padded).rstrip())

    def brief(self, value: Any, width: int | None = None) -> str:
        """Return a value as part of a line."""
        return shortened(json_text(value), width or max(self.width - 24, 20))


_LEAST_WIDTH = 8


def _fitted(widths: Sequence[int], headings: Sequence[str], room: int) -> list[int]:
    """Return the widths of the columns that fit into a terminal's width: ids stay whole, others are shortened, the last are left
    out."""
    fitted = list(widths)

    def excess() -> int:
        return sum(fitted) + 2 * (len(fitted) - 1) - room

    while excess() > 0:
        flexible = [at for at, name in enumerate(headings[: len(fitted)]) if "ID" not in name.split() and fitted[at] > _LEAST_WIDTH]
        if flexible:
            widest = max(flexible, key=lambda at: fitted[at])
            fitted[widest] = max(fitted[widest] - excess(), _LEAST_WIDTH)
        elif len(fitted) > 1:
            fitted.pop()
        else:
            break
    return fitted


class _Beside(io.TextIOBase):
    """Standard output of steps while a status line is shown."""

    def __init__(self, screen: Terminal) -> None:
        self._screen = screen

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - an attribute there
        return self._screen.err.encoding or "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._screen.print_beside(text)
        return len(text)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    # A character that the stream cannot encode must not end the command.
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
