"""Start times of jobs, measured with the same clock for every queue."""

from __future__ import annotations

import threading
import time

__all__ = ["PAUSE_SECONDS", "WORKSPACES", "Arrivals"]

WORKSPACES = 50
PAUSE_SECONDS = 0.02
"""The pause between two items on an idle system: longer than any product's work after a job."""
_LONGEST_SECONDS = 300.0


class Arrivals:
    """Counts jobs that report their start. Thread-safe."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._wanted, self._all = 0, threading.Event()

    def expect(self, count: int) -> None:
        """Reset, and expect this many jobs."""
        self._times, self._wanted = [], count
        self._all.clear()

    def record(self) -> None:
        """Record the start of a job."""
        self._times.append(time.perf_counter())
        if len(self._times) == self._wanted:
            self._all.set()

    def wait(self) -> float:
        """Wait for the last job. Return its start time."""
        if not self._all.wait(_LONGEST_SECONDS):
            raise TimeoutError(f"{len(self._times)} of {self._wanted} jobs began")
        return self._times[-1]

    def drain_rate(self) -> list[float]:
        """Return jobs per second from the first start until now, when all jobs are recorded as done. Worker start-up is
        excluded.
        """
        self.wait()
        return [self._wanted / (time.perf_counter() - self._times[0])]
