"""``DataStore``, in memory alone, beside a dict under a lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from benchmarks.measurement import Measurement, Target, at_most
from benchmarks.plan import Plan
from benchmarks.rounds import in_turns
from benchmarks.workload import beside
from stepwell import DataStore, Metadata

__all__ = ["MEASURES"]

_KEYS = [f"name-{number}" for number in range(100)]
_VALUES: dict[str, object] = {"int": 12_345, "text": "a short text", "dict": {"id": 7, "tags": ["a", "b"], "ok": True}}


class LockedDict:
    """The least that threads need to share values; it returns the stored objects themselves."""

    def __init__(self) -> None:
        self._lock, self._values = threading.Lock(), dict[str, object]()

    def get(self, name: str) -> object:
        """Return the value of a name."""
        with self._lock:
            return self._values.get(name)

    def set(self, name: str, value: object) -> None:
        """Set the value of a name."""
        with self._lock:
            self._values[name] = value


def _new_store() -> DataStore:
    return DataStore(Metadata("execution", "default", "workflow", 1, datetime.now(UTC)))


def _nanoseconds(function: Callable[..., object], times: int, *arguments: object) -> Callable[[], float]:
    """Return a work that calls the function for every key a number of times; its figure is nanoseconds per call."""

    def timed() -> float:
        began = time.perf_counter_ns()
        for _ in range(times):
            for key in _KEYS:
                function(key, *arguments)
        return (time.perf_counter_ns() - began) / (times * len(_KEYS))

    return timed


def get(plan: Plan) -> Iterator[Measurement]:
    """Measure reading a variable."""
    times = plan.size(1_000, 10)
    for kind, value in _VALUES.items():
        store, plain = _new_store(), LockedDict()
        for key in _KEYS:
            store.set_variable(key, value)
            plain.set(key, value)
        figures = in_turns(plan.rounds, _nanoseconds(store.get_variable, times), _nanoseconds(plain.get, times))
        yield _judged(f"{plan.name}.{kind}", figures, None if kind == "dict" else 2)


def set_(plan: Plan) -> Iterator[Measurement]:
    """Measure writing a variable."""
    times = plan.size(1_000, 10)
    for kind, value in _VALUES.items():
        store, plain = _new_store(), LockedDict()
        figures = in_turns(plan.rounds, _nanoseconds(store.set_variable, times, value), _nanoseconds(plain.set, times, value))
        yield _judged(f"{plan.name}.{kind}", figures, None if kind == "dict" else 4)


def _judged(name: str, figures: list[list[float]], most: float | None) -> Measurement:
    """Return the measurement. It has no target for dicts, which a DataStore copies and a locked dict does not."""

    def judge(_value: float, _raw: float, ratio: float) -> Target:
        return at_most("ratio", ratio, most or 0)

    ours, raws = figures
    return beside(name, ours, raws, raw_is="ns, dict under a lock", judge=None if most is None else judge, unit="ns")


MEASURES = {"get": get, "set": set_}
