"""The machine: drives a store and a plain model of it side by side with random rules, and compares them after each one.

Executions are written through the operations that users' calls come to, by two writers that know nothing of each other; where a
store can be shared, they have a store each. What a rule touched is then read by a reader that was just started: its state, every
receipt, the chain, the snapshot and the head; at the end of a run, everything is. The rules are in ``stepwell.testing.machine``.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.testing.conformance.fixtures import OpenStore
from stepwell.testing.machine.commits import CommitRules
from stepwell.testing.machine.executions import ExecutionRules
from stepwell.testing.machine.leases import LeaseRules
from stepwell.testing.machine.state import StateRules


class StoreMachine(ExecutionRules, CommitRules, LeaseRules, StateRules):
    """A store beside its plain model, with every rule there is."""


# A few seconds on a store in memory, some more on one behind a network.
EFFORT = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.timeout(900)  # only a failure takes that long: it is made as short as it can be
def test_store_does_what_its_plain_model_does(store: Store, open_store: OpenStore, clock: FakeClock) -> None:
    stores = [store, open_store()] if store.capabilities().is_shared else [store]

    class Machine(StoreMachine):
        """The machine on the store under test."""

        def __init__(self) -> None:
            super().__init__(stores, clock)

    run_state_machine_as_test(Machine, settings=EFFORT)
