"""Acquire and release locks of any kind: alone, and contended by threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from benchmarks.rounds import Work, per_second

__all__ = ["Taking", "contended", "hand_overs", "pairs"]

Taking = Callable[[], AbstractContextManager[object]]
"""Returns a lock as a context manager that blocks until the lock is acquired."""

_LONGEST_SECONDS = 60.0


def pairs(count: int, take: Taking) -> Work:
    """Return a work that acquires and releases a lock repeatedly; its figure is pairs per second."""

    def hold(_: int) -> None:
        with take():
            pass

    return per_second(count, hold)


def contended(takes: Sequence[Taking], turns: int) -> Work:
    """Return a work in which each thread acquires the same lock a number of times; its figure is acquisitions per second."""

    def work() -> float:
        gate = threading.Barrier(len(takes) + 1, timeout=_LONGEST_SECONDS)

        def compete(take: Taking) -> None:
            gate.wait()
            for _ in range(turns):
                with take():
                    pass

        with ThreadPoolExecutor(len(takes)) as threads:
            competing = [threads.submit(compete, take) for take in takes]
            gate.wait()
            began = time.perf_counter()
            for each in competing:
                each.result()
        return turns * len(takes) / (time.perf_counter() - began)

    return work


def hand_overs(takes: Sequence[Taking], turns: int) -> Work:
    """Return a work in which threads pass a lock to each other; its figure is hand-overs per second.

    A thread that had the lock asks again only after another thread got it. The figure therefore shows how soon a released lock
    reaches a waiting thread.
    """
    return lambda: Relay(takes, turns).run()


class Relay:
    """Threads that pass a lock on until it was held a number of times."""

    def __init__(self, takes: Sequence[Taking], turns: int) -> None:
        self._takes, self._turns = takes, turns
        self._gate = threading.Barrier(len(takes), self._begin, timeout=_LONGEST_SECONDS)
        self._passed = [threading.Event() for _ in takes]
        self._began = self._ended = 0.0
        self.holders: list[int] = []
        """The holder of each turn."""

    def run(self) -> float:
        """Return turns per second, from the moment when all threads are ready to the last turn."""
        with ThreadPoolExecutor(len(self._takes)) as threads:
            list(threads.map(self._run, range(len(self._takes))))
        return self._turns / (self._ended - self._began)

    def _begin(self) -> None:
        self._began = time.perf_counter()

    def _run(self, me: int) -> None:
        self._gate.wait()
        while not self._ended:
            with self._takes[me]():
                if not self._ended:
                    self._hold(me)
            if not self._passed[me].wait(_LONGEST_SECONDS):
                raise TimeoutError("nobody else took the lock")

    def _hold(self, me: int) -> None:
        """Record a turn. Only the lock's holder runs this, so it needs no other lock."""
        self._passed[me].clear()
        if self.holders:
            self._passed[self.holders[-1]].set()
        self.holders.append(me)
        if len(self.holders) == self._turns:
            self._ended = time.perf_counter()
            for each in self._passed:
                each.set()
