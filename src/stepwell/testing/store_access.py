"""Reach the store under a well: tests use it to look at rows that no public call shows, and to write what no public call writes.

The tests of applications need none of this.
"""

from __future__ import annotations

from typing import Any

from stepwell.contract.store import Store
from stepwell.model.commit import Outcome, Unit
from stepwell.pipeline.operations import write_or_raise

__all__ = ["store_under", "write_unit", "write_unit_or_raise"]


def store_under(well: Any) -> Store:
    """Return the store that a well of either kind works on."""
    return well._parts.store


def write_unit(well: Any, unit: Unit) -> Outcome:
    """Write one unit through the group commit of a blocking well, and return what became of it: also a refusal."""
    return well._parts.group.write(unit)


def write_unit_or_raise(well: Any, unit: Unit) -> Outcome:
    """Write one unit as a blocking well's own operations do. Raise what the store refuses it with."""
    return well._driver.run(write_or_raise(unit))
