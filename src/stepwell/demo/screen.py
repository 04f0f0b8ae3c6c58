"""The demonstration's screen: headings, marks, a progress bar; colour only where it can be seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from stepwell.cli.output import has_colour

__all__ = ["DemoScreen"]

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}
_BAR = 28


class DemoScreen:
    """Writes the story to a stream, and counts what was not as promised."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._stream = stream
        self._is_coloured = has_colour(stream, environ)
        self._is_live = stream.isatty() and environ.get("TERM") != "dumb"
        self._yes, self._no, self._full, self._empty = _signs(stream)
        self.kept = 0
        """How many promises were seen to hold."""
        self.broken = 0
        """How many were not."""

    def paint(self, colour: str, text: str) -> str:
        """The text in a colour, if this screen has any."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._is_coloured else text

    def heading(self, number: int, text: str) -> None:
        """Begin a chapter."""
        self.say(f"\n{self.paint('cyan', f'{number}.')} {self.paint('bold', text)}")

    def say(self, text: str = "") -> None:
        """Write a line."""
        print(text, file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Write a line that explains, set back."""
        self.say(f"   {self.paint('dim', text)}")

    def promise(self, is_kept: bool, text: str) -> None:
        """Say whether something is as promised."""
        if is_kept:
            self.kept += 1
            self.say(f"   {self.paint('green', self._yes)} {text}")
        else:
            self.broken += 1
            self.say(f"   {self.paint('red', self._no)} {self.paint('red', f'NOT AS PROMISED: {text}')}")

    def finish(self, seconds: float) -> int:
        """Say how many promises held; the exit code."""
        self.say()
        if self.broken:
            self.say(self.paint("red", f"{self.broken} of {self.kept + self.broken} promises were broken."))
            return 1
        self.say(self.paint("green", f"All {self.kept} promises held, in {seconds:.1f} s."))
        return 0

    @property
    def block(self) -> str:
        """What bars are made of."""
        return self._full

    @property
    def half_block(self) -> str:
        """What bars of things that came to nothing are made of."""
        return self._empty

    def progress(self, label: str, done: int, total: int) -> None:
        """Show how far something has come; away from a terminal, only its end."""
        filled = _BAR * done // total
        line = f"   {self._full * filled}{self._empty * (_BAR - filled)} {done}/{total} {label}"
        if self._is_live:
            print(f"\r{line}", end="\n" if done == total else "", file=self._stream, flush=True)
        elif done == total:
            self.say(line)


def _signs(stream: TextIO) -> tuple[str, str, str, str]:
    """Marks and bar as this stream can write them."""
    pretty = ("✓", "✗", "█", "░")
    try:
        "".join(pretty).encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return "ok", "NO", "#", "."
    return pretty
