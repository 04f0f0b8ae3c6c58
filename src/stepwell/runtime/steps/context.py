"""What code can know of the execution it runs in: ``stepwell.current()``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextvars import ContextVar
from math import inf
from typing import Protocol

from stepwell.errors import InvalidInput
from stepwell.model.draft import Planned
from stepwell.model.limits import Limits
from stepwell.model.record import Metadata
from stepwell.model.scope import Scope
from stepwell.model.value import Value
from stepwell.runtime.steps.scoped_state import StateReading, StepState
from stepwell.state.transaction_buffer import Buffer, HasScope

__all__ = ["ExecutionContext", "StepContext", "Variables", "WorkflowContext", "current", "here", "watcher"]


class VariableHolder(Protocol):
    """Keeps an execution's variables."""

    def get_variable(self, name: str) -> Value:
        """A variable; ``KeyError`` if it was never set."""
        ...

    def set_variable(self, name: str, value: Value) -> None:
        """Set a variable with the next commit."""
        ...

    def variable_names(self) -> list[str]:
        """The names of all variables."""
        ...


class Variables(MutableMapping[str, Value]):
    """An execution's variables as a mapping; what is set lands with the next commit."""

    def __init__(self, holder: VariableHolder) -> None:
        self._holder = holder

    def __getitem__(self, name: str) -> Value:
        return self._holder.get_variable(name)

    def __setitem__(self, name: str, value: Value) -> None:
        self._holder.set_variable(name, value)

    def __delitem__(self, name: str) -> None:
        raise InvalidInput(f"variable {name!r} cannot be deleted; set it to None")

    def __iter__(self) -> Iterator[str]:
        return iter(self._holder.variable_names())

    def __len__(self) -> int:
        return len(self._holder.variable_names())


class ExecutionContext:
    """What ``current()`` gives: the execution that code runs in. A workflow's code has variables, a step's has the rest; to ask for
    what is not there is ``InvalidInput``."""

    identity: Metadata

    @property
    def execution_id(self) -> str:
        """The execution's id."""
        return self.identity.execution_id

    @property
    def variables(self) -> Variables:
        """The execution's variables; in a workflow's own code."""
        raise InvalidInput("current().variables is for the workflow's own code; give a step what it needs as an argument")

    @property
    def step(self) -> str:
        """The key of the step's record; in a step."""
        raise _not_in_a_step("step")

    @property
    def attempt(self) -> int:
        """Which attempt at the step this is, from 1; in a step."""
        raise _not_in_a_step("attempt")

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this step, before and after a crash: give it to whatever has effects outside."""
        raise _not_in_a_step("idempotency_key")

    def spend(self, amount: float) -> None:  # noqa: ARG002 - named as in a step
        """Say what it costs, in any unit; ``Governance(cost=...)`` limits the sum. It counts even if the attempt fails."""
        raise _not_in_a_step("spend()")

    def state(self, scope: Scope | HasScope) -> StepState:  # noqa: ARG002 - named as in a step
        """Scoped state: read with this step's writes in it, and written in the commit that records this step's output, or not at
        all. It is that of the run's own workspace, or global; other workspaces are out of reach."""
        raise _not_in_a_step("state()")


def _not_in_a_step(what: str) -> InvalidInput:
    return InvalidInput(f"current().{what} is for the code of a step: what a workflow's own code does must come out the same again")


class WorkflowContext(ExecutionContext):
    """Inside the code of a workflow."""

    def __init__(self, identity: Metadata, holder: VariableHolder) -> None:
        self.identity = identity
        self._variables = Variables(holder)

    @property
    def variables(self) -> Variables:
        """The execution's variables: what is set lands with the next commit."""
        return self._variables


class AttemptBuffer(Buffer):
    """What an attempt comes to beside its output: writes that land with it, and what it has spent."""

    landing: Sequence[Planned] = ()
    """What a step in another process wrote."""
    spent: float = 0

    @property
    def limits(self) -> Limits:
        """The limits that hold for the step."""
        return self._limits

    def batch(self) -> list[Planned]:
        """What was collected, in order."""
        return [*self._batch, *self.landing]


class StepContext(ExecutionContext):
    """Inside a step: one attempt at it."""

    def __init__(self, identity: Metadata, key: str, attempt: int, limits: Limits, reading: StateReading | None = None) -> None:
        self.identity, self._key, self._attempt = identity, key, attempt
        self._reading = reading
        self.buffer = AttemptBuffer(limits)
        told = watcher.get()
        if told is not None:
            told(self)

    @property
    def step(self) -> str:
        """The key of the step's record."""
        return self._key

    @property
    def attempt(self) -> int:
        """Which attempt at the step this is, from 1."""
        return self._attempt

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this step, before and after a crash: give it to whatever has effects outside."""
        return f"{self.identity.execution_id}:{self._key}"

    def spend(self, amount: float) -> None:
        """Say what it costs, in any unit; ``Governance(cost=...)`` limits the sum. It counts even if the attempt fails."""
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < inf:
            raise InvalidInput(f"what is spent is a number, 0 or more, not {amount!r}")
        self.buffer.spent += amount

    def state(self, scope: Scope | HasScope) -> StepState:
        """Scoped state: read with this step's writes in it, and written in the commit that records this step's output, or not at
        all. It is that of the run's own workspace, or global; other workspaces are out of reach."""
        asked = scope if isinstance(scope, Scope) else scope.scope
        return StepState(self.buffer, asked.seen_from(self.identity.workspace_id), self.buffer.limits, self._reading)


watcher: ContextVar[Callable[[StepContext], None] | None] = ContextVar("stepwell_watcher", default=None)
"""Told of every attempt at a step before it is made; None unless a test listens."""

here: ContextVar[ExecutionContext | None] = ContextVar("stepwell_here", default=None)


def current() -> ExecutionContext:
    """The execution that this code runs in: its id and variables in a workflow, attempt and idempotency key in a step."""
    found = here.get()
    if found is None:
        raise InvalidInput("stepwell.current() is for code that runs inside of a workflow or a step")
    return found
