"""Stepwell's targets in each contest, per rival."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.measurement import Target, at_least, at_most

__all__ = ["RATIOS", "VALUES", "target_of"]

RATIOS: dict[tuple[str, str], float] = {
    ("steps.alone.memory", "langgraph"): 5,
    ("steps.alone.postgres", "dbos"): 5,
    ("steps.alone.postgres", "langgraph"): 2,
    ("steps.alone.sqlite", "dbos"): 5,
    ("steps.alone.sqlite", "langgraph"): 2,
    ("steps.together.memory", "langgraph"): 5,
    ("steps.together.postgres", "dbos"): 20,
    ("steps.together.postgres", "langgraph"): 15,
    ("steps.together.sqlite", "dbos"): 20,
    ("steps.together.sqlite", "langgraph"): 15,
    ("queue.enqueue.postgres", "dbos"): 3,
    ("queue.enqueue.postgres", "pgqueuer"): 0.9,
    ("queue.drain.postgres", "dbos"): 10,
    ("queue.drain.postgres", "oban"): 2.5,
    ("queue.drain.postgres", "pgqueuer"): 1,
    ("queue.drain.redis", "huey"): 1,
    ("queue.drain.sqlite", "huey"): 1,
}
"""By contest and rival: the wanted ratio of our rate to the rival's."""

VALUES: dict[str, Callable[[float], Target]] = {
    "queue.latency.postgres.p50": lambda ms: at_most("ms", ms, 3),
    "queue.latency.redis.p50": lambda ms: at_most("ms", ms, 3),
    "queue.latency.sqlite.p50": lambda ms: at_most("ms", ms, 5),
    "queue.latency.postgres.p99": lambda ms: at_most("ms", ms, 15),
    "queue.latency.redis.p99": lambda ms: at_most("ms", ms, 15),
    "queue.latency.sqlite.p99": lambda ms: at_most("ms", ms, 15),
}
"""By figure: the wanted value, independent of the rivals."""

_BULK_ITEMS, _BULK_RATIO = 40_000, 0.7


def target_of(name: str, rival: str, value: float, ratio: float) -> Target | None:
    """Return the target of our figure beside a rival's, or None."""
    if (name, rival) == ("queue.bulk.postgres", "pgqueuer"):
        text = f"items/s >= {_BULK_ITEMS:,} or ratio >= {_BULK_RATIO:g}"
        return Target(text, value >= _BULK_ITEMS or ratio >= _BULK_RATIO)
    if (name, rival) in RATIOS:
        return at_least("ratio", ratio, RATIOS[name, rival])
    return VALUES[name](value) if name in VALUES else None
