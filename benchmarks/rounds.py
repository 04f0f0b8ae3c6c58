"""Rounds: works that alternate, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

__all__ = ["in_turns", "median_ratio", "per_second", "seconds_each"]

Work = Callable[[], float]
"""Does a piece of work and returns its figure: a rate or a time."""


def in_turns(rounds: int, *works: Work) -> list[list[float]]:
    """Return the figures of each work over these rounds, alternating, after a warm-up round."""
    figures: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for work, collected in zip(works, figures, strict=True):
            gc.collect()
            figure = work()
            if number:
                collected.append(figure)
    return figures


def median_ratio(values: list[float], raws: list[float]) -> float:
    """Return the median over the rounds of value to raw."""
    return median(value / raw for value, raw in zip(values, raws, strict=True))


def per_second(count: int, work: Callable[[int], object]) -> Work:
    """Return a work that calls ``work(0) ... work(count - 1)``; its figure is calls per second."""

    def timed() -> float:
        began = time.perf_counter()
        for number in range(count):
            work(number)
        return count / (time.perf_counter() - began)

    return timed


def seconds_each(count: int, work: Callable[[int], object]) -> Work:
    """Return a work that calls ``work(0) ... work(count - 1)``; its figure is seconds per call."""
    rate = per_second(count, work)
    return lambda: 1 / rate()
