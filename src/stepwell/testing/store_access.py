"""Reach the parts under a well: tests use it to read rows that no public call returns, and to write what no public call writes.

The tests of applications need none of this.
"""

from __future__ import annotations

from typing import Any, TypeVar

from stepwell.app.composition import Parts
from stepwell.contract.store import Store
from stepwell.model.commit import Outcome, Unit
from stepwell.pipeline.operations import Operation, write_or_raise
from stepwell.runtime.worker import Worker

__all__ = ["parts_of", "run_operation", "store_under", "worker_of", "write_unit", "write_unit_or_raise"]

T = TypeVar("T")


def parts_of(well: Any) -> Parts:
    """Return the parts that a well of either kind is wired from."""
    return well._parts


def worker_of(well: Any) -> Worker:
    """Return the worker of a well of either kind, which has begun."""
    return well._host.worker


def run_operation(well: Any, operation: Operation[T]) -> Any:
    """Run an operation as a well runs its own, and return its result; of an awaited well, a coroutine of it."""
    return well._driver.run(operation)


def store_under(well: Any) -> Store:
    """Return the store that a well of either kind works on."""
    return parts_of(well).store


def write_unit(well: Any, unit: Unit) -> Outcome:
    """Write one unit through the group commit of a blocking well, and return its outcome, which may be a refusal."""
    return parts_of(well).group.write(unit)


def write_unit_or_raise(well: Any, unit: Unit) -> Outcome:
    """Write one unit as a blocking well's own operations do. Raise a refusal."""
    return run_operation(well, write_or_raise(unit))
