"""Combinations: units of every kind, alone and in groups, have the same outcome on a store as one after the other in memory.

Stores have short ways for what is written most: a plain commit alone, commits of one kind, items alone. Here fields and kinds of
units meet at random, so that no way forgets a field that another one honours.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.model.commit import Outcome, Unit
from stepwell.testing.reference_model.side_by_side import Twins
from stepwell.testing.reference_model.unit_generators import Units

GROUPS = 100


def write_group(units: Units, given: Iterable[Unit]) -> None:
    """Write units to the store as one group, as the right store has written them one by one."""
    group: list[Unit] = []
    outcomes: list[Outcome] = []
    for unit in given:
        group.append(unit)
        outcomes.append(units.write(unit))
    units.twins.write(group, outcomes)


@pytest.mark.parametrize("seed", range(4))
def test_units_of_a_group_come_to_what_each_comes_to_alone(store: Store, clock: FakeClock, seed: int) -> None:
    units = Units(Twins(store, clock), clock, seed)
    write_group(units, units.set_up())
    for _ in range(GROUPS):
        write_group(units, units.drawn(units.pick(1, 1, 1, 2, 3, 5)))
        units.twins.compare(units.executions[-8:], units.workspaces, units.scopes)
        units.advance(units.pick(0, 0, 0, 1, 2))
    units.twins.compare(units.executions, units.workspaces, units.scopes)
