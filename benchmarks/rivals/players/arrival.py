"""Arrivals: when jobs began, so that every queue is measured by the same clock at the same place."""

from __future__ import annotations

import threading
import time

__all__ = ["PAUSE_SECONDS", "WORKSPACES", "Arrivals"]

WORKSPACES = 50
PAUSE_SECONDS = 0.02
"""Between two items on an idle system: longer than what any of them does after a job."""
_LONGEST_SECONDS = 300.0


class Arrivals:
    """A job does nothing but say that it began. From any thread."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._wanted, self._all = 0, threading.Event()

    def expect(self, count: int) -> None:
        """Forget what was, and wait for so many."""
        self._times, self._wanted = [], count
        self._all.clear()

    def tell(self) -> None:
        """A job began."""
        self._times.append(time.perf_counter())
        if len(self._times) == self._wanted:
            self._all.set()

    def wait(self) -> float:
        """Wait for the last one; when it began."""
        if not self._all.wait(_LONGEST_SECONDS):
            raise TimeoutError(f"{len(self._times)} of {self._wanted} jobs began")
        return self._times[-1]

    def drain_rate(self) -> list[float]:
        """Jobs in a second, from when the first began until now, when all are recorded as done: a worker's start is not counted."""
        self.wait()
        return [self._wanted / (time.perf_counter() - self._times[0])]
