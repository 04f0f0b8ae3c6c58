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
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
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
        """Whether a step has written a text without a line end, which the status line must not overwrite."""
        self.begun: dict[int, str] = {}
        """The unfinished line that each thread has printed."""


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
        """Return the screen of this process, also while what steps print goes beside it."""
        out, err = sys.stdout, sys.stderr
        out = out.screen.out if isinstance(out, _Beside) else out
        err = err.screen.err if isinstance(err, _Beside) else err
        return cls(out, err, os.environ, is_json=is_json, is_quiet=is_quiet)

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
            self._end_line()
            _write(self.err, text)

    # The status line below everything else on standard error.

    def show_status(self, line: str) -> None:
        """Write or replace the status line; only where ``is_live``."""
        with self._line.lock:
            self._end_line()
            self.err.write(f"\r\x1b[K{line}")
            self.err.flush()
            self._line.is_shown = True

    def clear_status(self) -> None:
        """Erase the status line, and write the lines that steps have begun and not ended."""
        with self._line.lock:
            self._erase()
            self._end_line()
        for thread in list(self._line.begun):
            self.print_beside(f"{self._line.begun.pop(thread, '')}\n")

    def _end_line(self) -> None:
        if self._line.is_in_line:
            self.err.write("\n")
            self.err.flush()
            self._line.is_in_line = False

    def _erase(self) -> None:
        if self._line.is_shown:
            self.err.write("\r\x1b[K")
            self.err.flush()
            self._line.is_shown = False

    @contextmanager
    def prints_beside(self) -> Generator[None]:
        """Send what steps print to standard error inside the block: whole lines, above the status line."""
        stream = cast("TextIO", _Beside(self, self._line.begun))
        try:
            with redirect_stdout(stream), redirect_stderr(stream):
                yield
        finally:
            self.clear_status()

    def print_beside(self, text: str) -> None:
        """Write a text of a step to standard error above the status line."""
        with self._line.lock:
            self._erase()
            self.err.write(text)
            self.err.flush()
            self._line.is_in_line = not text.endswith("\n")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]], *, status_column: int | None = None) -> None:
        """Write rows of untrusted text: aligned with headings on a terminal, else tab-separated without headings."""
        cells = [[printable(cell) for cell in row] for row in rows]
        if not self.is_table:
            for row in cells:
                self.write("\t".join(row))
            return
        columns = _fitted(headings, cells, self.width)
        status_name = None if status_column is None else headings[status_column]
        self.write(self.paint("dim", "  ".join(headings[at].ljust(width) for at, width in columns).rstrip()))
        for row in cells:
            padded = [shortened(row[at], width).ljust(width) for at, width in columns]
            colours = [_OF_STATUS.get(row[at], "") if headings[at] == status_name else "" for at, _ in columns]
            self.write("  ".join(map(self.paint, colours, padded)).rstrip())

    def brief(self, value: Any, width: int | None = None) -> str:
        """Return a value as part of a line."""
        return shortened(json_text(value), width or max(self.width - 24, 20))


_LEAST_WIDTH = 8
_WHOLE = ("ID", "ITEM", "RUN", "STATUS")
"""Columns that are never shortened: a part of an id is of no use to copy."""


def _fitted(headings: Sequence[str], cells: Sequence[Sequence[str]], room: int) -> list[tuple[int, int]]:
    """Return the columns that fit into a terminal's width, each with its own width.

    The first column, ids, numbers and times stay whole. Other texts are shortened, and columns that still do not fit are left out.
    """
    widths = [max(len(line[at]) for line in [headings, *cells]) for at in range(len(headings))]
    texts = [at for at, name in enumerate(headings) if at > 0 and name not in _WHOLE and _has_letters(row[at] for row in cells)]
    least = [min(width, max(len(headings[at]), _LEAST_WIDTH)) if at in texts else width for at, width in enumerate(widths)]
    kept: list[int] = []
    for at in range(len(headings)):
        if not kept or sum(least[each] + 2 for each in kept) + least[at] <= room:
            kept.append(at)
    while (excess := sum(widths[at] + 2 for at in kept) - 2 - room) > 0:
        longer = [at for at in kept if widths[at] > least[at]]
        if not longer:
            break
        widest = max(longer, key=lambda at: widths[at])
        widths[widest] = max(widths[widest] - excess, least[widest])
    return [(at, widths[at]) for at in kept]


def _has_letters(cells: Iterable[str]) -> bool:
    return any(each.isalpha() for cell in cells for each in cell)


class _Beside(io.TextIOBase):
    """Standard output of steps while a status line is shown.

    It is buffered by line, as on a terminal, and for each thread, so that the lines of steps that run side by side stay whole.
    """

    def __init__(self, screen: Terminal, begun: dict[int, str]) -> None:
        self.screen, self._begun = screen, begun

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - an attribute there
        return self.screen.err.encoding or "utf-8"

    def writable(self) -> bool:
        return True

    @property
    def buffer(self) -> Any:
        return self.screen.err.buffer  # for steps that write bytes

    def fileno(self) -> int:
        return self.screen.err.fileno()  # for processes that steps start

    def write(self, text: str, /) -> int:
        thread = threading.get_ident()
        whole, end, begun = (self._begun.pop(thread, "") + text).rpartition("\n")
        if begun:
            self._begun[thread] = begun
        if end:
            self.screen.print_beside(whole + end)
        return len(text)

    def flush(self) -> None:
        begun = self._begun.pop(threading.get_ident(), "")
        if begun:
            self.screen.print_beside(begun)


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    # A character that the stream cannot encode must not end the command.
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
