"""The budget of an execution: what its governance allows, and what its steps have spent."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from stepwell.errors import GovernanceViolated
from stepwell.flow.function import Step
from stepwell.flow.governance import Governance
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY, State
from stepwell.model.mutation import SetVariable
from stepwell.model.record import Metadata
from stepwell.model.value import canonical, decode

__all__ = ["SPENT", "Budget", "governance_of"]

SPENT = "$spent"
"""The variable with the amount that the steps of an execution have spent."""


def governance_of(identity: Metadata) -> Governance | None:
    """Return an execution's governance, if it has one."""
    return None if identity.governance is None else msgspec.convert(identity.governance, Governance)


_UNLIMITED = Governance()


class HasState(Protocol):
    """An object with an execution's state."""

    @property
    def state(self) -> State:
        """The execution's state, up to the last commit."""
        ...


class Budget:
    """Decides which steps may still run."""

    def __init__(self, identity: Metadata, execution: HasState) -> None:
        self._governance, self._execution = governance_of(identity) or _UNLIMITED, execution
        self._under_way = 0
        spent = execution.state.sections["variables"].get(SPENT)
        self._spent: float = 0 if spent is None else decode(spent)

    def begin(self, step: Step[..., Any], key: str, *, is_free: bool = False) -> None:
        """Count a step against the budget before it runs. Raise ``GovernanceViolated`` if it is not allowed; a free step
        always is."""
        if self._governance is not _UNLIMITED and not is_free:
            self._check(self._governance, step, key)
        self._under_way += 1

    def _check(self, allowed: Governance, step: Step[..., Any], key: str) -> None:
        count = decode(self._execution.state.sections["step_count"].get(ONLY, b"0")) + self._under_way
        if allowed.effects is not None and step.effect is not None and step.effect not in allowed.effects:
            raise GovernanceViolated(
                f"step {step.name!r} has effects of kind {step.effect!r}, and this execution may have only "
                f"{', '.join(allowed.effects) or 'none'}",
                key=key,
            )
        if allowed.steps is not None and count >= allowed.steps:
            raise GovernanceViolated(f"the execution has run {count} steps and may run {allowed.steps}", key=key)
        self._check_cost(allowed, key)

    def again(self, key: str, *, is_free: bool = False) -> None:
        """Check the budget before another attempt. Raise ``GovernanceViolated`` if the attempts so far have spent it."""
        if not is_free:
            self._check_cost(self._governance, key)

    def _check_cost(self, allowed: Governance, key: str) -> None:
        if allowed.cost is not None and self._spent >= allowed.cost and self._spent:
            raise GovernanceViolated(f"the execution has spent {self._spent:g} and may spend {allowed.cost:g}", key=key)

    def end(self) -> None:
        """Note that the step is recorded, or did not run."""
        self._under_way -= 1

    def spending(self, amount: float) -> list[Planned]:
        """Return the mutation that records the cost of an attempt."""
        if not amount:
            return []
        self._spent += amount
        return [SetVariable(SPENT, msgspec.Raw(canonical(self._spent)))]
