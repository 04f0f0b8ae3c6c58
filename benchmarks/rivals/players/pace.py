"""Rates of work, and checks of its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.rivals.contest import STEPS_EACH

__all__ = ["expect_result", "rate", "step_rate"]


def rate(count: int, work: Callable[[], object]) -> list[float]:
    """Run a work of ``count`` items. Return items per second."""
    began = time.perf_counter()
    work()
    return [count / (time.perf_counter() - began)]


def step_rate(workflows: int, work: Callable[[], Sequence[object]]) -> list[float]:
    """Run workflows of ten steps and check their results. Return steps per second."""
    results: list[object] = []
    figures = rate(workflows * STEPS_EACH, lambda: results.extend(work()))
    expect_result(results, workflows)
    return figures


def expect_result(results: Sequence[object], workflows: int) -> None:
    """Check that every workflow ran all its steps."""
    if list(results) != [STEPS_EACH] * workflows:
        raise AssertionError(f"{workflows} workflows of {STEPS_EACH} steps gave {list(results)[:5]}...")
