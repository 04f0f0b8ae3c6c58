"""The demonstration's screen: headings, check marks and a progress bar; colour only on terminals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from stepwell.cli.output import has_colour

__all__ = ["DemoScreen"]

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}
_BAR = 28


class DemoScreen:
    """Writes the demonstration to a stream and counts failed checks."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._stream = stream
        self._is_coloured = has_colour(stream, environ)
        self._is_live = stream.isatty() and environ.get("TERM") != "dumb"
        self._yes, self._no, self._full, self._empty = _signs(stream)
        self.passed = 0
        """The number of checks that passed."""
        self.failed = 0
        """The number of checks that failed."""

    def paint(self, colour: str, text: str) -> str:
        """Return the text in a colour if the screen shows colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._is_coloured else text

    def heading(self, number: int, text: str) -> None:
        """Write a heading."""
        self.say(f"\n{self.paint('cyan', f'{number}.')} {self.paint('bold', text)}")

    def say(self, text: str = "") -> None:
        """Write a line."""
        print(text, file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Write an indented explanation."""
        self.say(f"   {self.paint('dim', text)}")

    def check(self, is_passed: bool, text: str) -> None:
        """Write whether a check passed."""
        if is_passed:
            self.passed += 1
            self.say(f"   {self.paint('green', self._yes)} {text}")
        else:
            self.failed += 1
            self.say(f"   {self.paint('red', self._no)} {self.paint('red', f'FAILED: {text}')}")

    def finish(self, seconds: float) -> int:
        """Write how many checks passed. Return the exit code."""
        self.say()
        if self.failed:
            self.say(self.paint("red", f"{self.failed} of {self.passed + self.failed} checks failed."))
            return 1
        self.say(self.paint("green", f"All {self.passed} checks passed in {seconds:.1f} s."))
        return 0

    @property
    def block(self) -> str:
        """The character of bars."""
        return self._full

    @property
    def half_block(self) -> str:
        """The character of bars of failed work."""
        return self._empty

    def progress(self, label: str, done: int, total: int) -> None:
        """Show progress; without a terminal, only the end."""
        filled = _BAR * done // total
        line = f"   {self._full * filled}{self._empty * (_BAR - filled)} {done}/{total} {label}"
        if self._is_live:
            print(f"\r{line}", end="\n" if done == total else "", file=self._stream, flush=True)
        elif done == total:
            self.say(line)


def _signs(stream: TextIO) -> tuple[str, str, str, str]:
    """Return check marks and bar characters that the stream can encode."""
    pretty = ("✓", "✗", "█", "░")
    try:
        "".join(pretty).encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return "ok", "NO", "#", "."
    return pretty
