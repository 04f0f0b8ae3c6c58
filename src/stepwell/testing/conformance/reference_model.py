"""Model-based tests: drive a store and a plain model of it side by side with random rules, and compare them after each one.

Executions are written through the operations that users' calls use, by two writers that know nothing of each other; where a store
can be shared, each has a store of its own. A new reader then reads each execution that a rule touched: its state, every
receipt, the chain, the snapshot and the head; at the end of a run, everything is. The package
``stepwell.testing.reference_model`` has the rules.

Hypothesis' profile says how many examples are tried: ``pytest --hypothesis-profile=NAME``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.testing.conformance.fixtures import OpenStore
from stepwell.testing.conformance.samples import fresh_id
from stepwell.testing.effort import scaled
from stepwell.testing.reference_model.commit_rules import CommitRules
from stepwell.testing.reference_model.comparison import Comparison
from stepwell.testing.reference_model.execution_rules import ExecutionRules
from stepwell.testing.reference_model.lease_rules import LeaseRules
from stepwell.testing.reference_model.state_rules import StateRules
from stepwell.testing.reference_model.store import PlainExecution, PlainState


class StoreMachine(ExecutionRules, CommitRules, LeaseRules, StateRules):
    """A store beside its plain model, with every rule there is."""


class LeaseMachine(CommitRules, LeaseRules, StateRules):
    """The same with one execution, for which two writers and two holders compete."""

    @initialize()
    def create(self) -> None:
        name, by = fresh_id(self.workspace), self.writers[0]
        receipt = by.run(by.executions.create(name, self.workspace, {}))
        self.executions[name] = PlainExecution(0, [PlainState()], [receipt])


# A few seconds on a store in memory, some more on one behind a network.
EFFORT = settings(
    max_examples=scaled(20),
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def run(kind: Callable[[Sequence[Store], FakeClock], Comparison], store: Store, open_store: OpenStore, clock: FakeClock) -> None:
    """Run a machine on a store, and on a second one beside it if it can be shared."""
    stores = [store, open_store()] if store.capabilities().is_shared else [store]
    # It is called, never subclassed, though its type says that it must be a class.
    factory = cast("type[Comparison]", lambda: kind(stores, clock))
    run_state_machine_as_test(factory, settings=EFFORT)


# Only a failure takes as long as this: it is made as short as it can be before it is shown.
@pytest.mark.timeout(900)
def test_store_does_what_its_plain_model_does(store: Store, open_store: OpenStore, clock: FakeClock) -> None:
    run(StoreMachine, store, open_store, clock)


@pytest.mark.timeout(900)
def test_leases_and_locks_do_what_their_plain_model_does(store: Store, open_store: OpenStore, clock: FakeClock) -> None:
    run(LeaseMachine, store, open_store, clock)
