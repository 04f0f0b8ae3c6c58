"""Process settings for high throughput: the cyclic GC's threshold and the GIL switch interval.

A library does not change its host process, so ``Stepwell(...)`` does not call this. ``stepwell worker`` does, and any other program
with a worker may, too. docs/design/0018-gil-switch-interval.md and 0019-gc-threshold.md have the
measurements.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["GC_THRESHOLD", "SWITCH_INTERVAL_SECONDS", "host_tuning"]

GC_THRESHOLD = 50_000
"""Allocations between two collections of the youngest generation; Python's default is 700. The objects of two hundred running
executions are fewer, so most executions end before a collection looks at them."""

SWITCH_INTERVAL_SECONDS = 0.001
"""After each reply of the store its writer thread needs the GIL for a moment. With Python's default of 5 ms a busy event loop keeps
it waiting, and the store idle; below 1 ms thread switches cost more than they gain."""


@contextmanager
def host_tuning(*, gc_threshold: int = GC_THRESHOLD, switch_interval_seconds: float = SWITCH_INTERVAL_SECONDS) -> Generator[None]:
    """Tune this process for a busy worker, and restore its settings on leaving.

    A setting that goes further already stays: a larger GC threshold, a disabled GC, a shorter switch interval. A setting that
    other code changes meanwhile is not restored.

    Args:
        gc_threshold: allocations between two collections of the youngest generation, see ``gc.set_threshold``.
        switch_interval_seconds: the GIL switch interval, see ``sys.setswitchinterval``.
    """
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    if threshold[0]:
        gc.set_threshold(max(threshold[0], gc_threshold), *threshold[1:])
    sys.setswitchinterval(min(interval, switch_interval_seconds))
    tuned_threshold, tuned_interval = gc.get_threshold(), sys.getswitchinterval()
    try:
        yield
    finally:
        if gc.get_threshold() == tuned_threshold:
            gc.set_threshold(*threshold)
        if sys.getswitchinterval() == tuned_interval:
            sys.setswitchinterval(interval)
