"""What the library logs while a command runs: warnings as notes on standard error, made safe to print."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from stepwell.cli.plaintext import printable
from stepwell.cli.settings import CliSettings

__all__ = ["logging_to_screen"]


class _ScreenHandler(logging.Handler):
    """Writes records as notes; the settings are asked each time, since options are read after this is set up."""

    def __init__(self, given: CliSettings) -> None:
        super().__init__()
        self._given = given

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= (logging.INFO if self._given.is_debug else logging.WARNING):
            screen = self._given.screen
            screen.note(f"{screen.paint('yellow', record.levelname.lower(), screen.err)}: {printable(record.getMessage())}")


@contextmanager
def logging_to_screen(given: CliSettings) -> Generator[None]:
    """Have the library's log on the screen until the end."""
    log, handler = logging.getLogger("stepwell"), _ScreenHandler(given)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
