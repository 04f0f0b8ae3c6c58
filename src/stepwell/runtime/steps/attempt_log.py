"""The log of an attempt at a step: its last lines, which land in the receipt of the attempt."""

from __future__ import annotations

import logging
from collections import deque

from stepwell.clock import Clock
from stepwell.model.mutation import KeepLog

__all__ = ["LONGEST_LINE", "MOST_LINES", "AttemptLog"]

MOST_LINES = 50
LONGEST_LINE = 1_000


class AttemptLog:
    """Collects the lines of one attempt. Of too many the newest stay: they tell how it ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._count = clock, 0
        self._lines: deque[tuple[int, str, str]] | None = None  # most attempts log nothing

    def add(self, level: int, text: str) -> None:
        """Add a line; a long one is cut."""
        if self._lines is None:
            self._lines = deque(maxlen=MOST_LINES)
        plain = text.encode("utf-8", "replace").decode()  # a half of a surrogate pair cannot be stored
        cut = plain if len(plain) <= LONGEST_LINE else f"{plain[: LONGEST_LINE - 1]}…"
        self._lines.append((self._clock.now_ms(), logging.getLevelName(level), cut))
        self._count += 1

    def kept(self, step: str, attempt: int) -> list[KeepLog]:
        """Return the mutation that keeps the lines; none if nothing was logged.

        - ``step``: the key of the step's record.
        - ``attempt``: the number of the attempt.
        """
        if self._lines is None:
            return []
        lines = list(self._lines.copy())  # in one call: a thread that was given up may still be logging
        return [KeepLog(step, attempt, lines, max(self._count - len(lines), 0))]
