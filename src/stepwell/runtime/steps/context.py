"""The context of running code, ``stepwell.current()``: its execution, and in a step its attempt and scoped state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Protocol

from stepwell.errors import InvalidInput
from stepwell.flow.function import registered_workflow
from stepwell.model.draft import Planned
from stepwell.model.limits import Limits
from stepwell.model.record import Metadata, Trigger, typed_trigger
from stepwell.model.scope import Scope
from stepwell.model.value import Value
from stepwell.runtime.steps.attempt_log import AttemptLog
from stepwell.runtime.steps.scoped_state import StateReading, StepState
from stepwell.state.transaction_buffer import Buffer, HasScope, scope_of

if TYPE_CHECKING:
    from stepwell.runtime.steps.run_logging import RunLogger

__all__ = ["ExecutionContext", "NestedContext", "StepContext", "Variables", "WorkflowContext", "current", "here", "watcher"]


class VariableHolder(Protocol):
    """The store of an execution's variables."""

    def get_variable(self, name: str) -> Value:
        """Return a variable. Raise ``KeyError`` if it was never set."""
        ...

    def set_variable(self, name: str, value: Value) -> None:
        """Set a variable with the next commit."""
        ...

    def variable_names(self) -> list[str]:
        """Return the names of all variables."""
        ...

    @property
    def is_replaying(self) -> bool:
        """True while the code that asks runs again, up to where an earlier session was."""
        ...


class Variables(MutableMapping[str, Value]):
    """The variables of an execution as a mapping. Assignments land with the next commit; a variable cannot be deleted."""

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
    """The execution that code runs in, as ``current()`` returns it.

    All code has ``execution_id`` and ``trigger``; the code of a workflow has ``variables``; the code of a step has ``step``,
    ``attempt``, ``idempotency_key``, ``spend`` and ``state``. Using the others raises ``InvalidInput``.
    """

    identity: Metadata
    _started_by: bytes | None
    """The trigger as it is stored."""
    given: object = None
    """The arguments of a step whose run has secrets: their values are hidden in its log."""

    @property
    def started_by(self) -> bytes | None:
        """Return the trigger as it is stored."""
        return self._started_by

    @property
    def execution_id(self) -> str:
        """Return the id of the execution."""
        return self.identity.execution_id

    @property
    def trigger(self) -> Trigger:
        """Return what started the execution.

        It is the ``ScheduleTrigger`` of a schedule's tick, the trigger that ``well.start`` was given, a ``FunctionTrigger`` in a
        child, and else a ``ManualTrigger`` with the input.
        """
        return typed_trigger(self._started_by, is_child=self.identity.is_child)

    @property
    def is_replaying(self) -> bool:
        """Return whether workflow code runs again after a crash or a wait, up to where it was. False in a step."""
        return False

    @property
    def logger(self) -> RunLogger:
        """Return a logger whose records have the run's id, workflow, workspace, trace, step and attempt as fields.

        Workflow code that runs again up to where it was logs nothing. The loggers are ``stepwell.run.<workflow>``.

        Example:

            stepwell.current().logger.info("charged %d cents", cents)
        """
        from stepwell.runtime.steps.run_logging import RunLogger

        return RunLogger(self)

    @property
    def variables(self) -> Variables:
        """Return the variables of the execution. Raise ``InvalidInput`` in a step."""
        raise InvalidInput("current().variables is for the workflow's own code; give a step what it needs as an argument")

    @property
    def step(self) -> str:
        """Return the key of the step's record. Raise ``InvalidInput`` outside a step."""
        raise _not_in_a_step("step")

    @property
    def attempt(self) -> int:
        """Return the number of this attempt at the step, from 1. Raise ``InvalidInput`` outside a step."""
        raise _not_in_a_step("attempt")

    @property
    def idempotency_key(self) -> str:
        """Return a key that is the same for every attempt at this step, before and after a crash.

        Pass it to a service that has effects outside, so that a repeated attempt has its effect once. Raise ``InvalidInput``
        outside a step.
        """
        raise _not_in_a_step("idempotency_key")

    def spend(self, amount: float) -> None:  # noqa: ARG002 - named as in a step
        """Report the cost of this attempt, in any unit, for ``Governance(cost=...)``. It counts even if the attempt fails.

        - ``amount``: a number, 0 or more.

        Raise ``InvalidInput`` for any other, and outside a step.
        """
        raise _not_in_a_step("spend()")

    @property
    def state(self) -> StateAccess:
        """Return the scoped state that this step reaches. Raise ``InvalidInput`` outside a step.

        Example:

            stepwell.current().state.workflow.increment("orders")
            stepwell.current().state(Scope.custom("stock")).increment("lamps", -1)
        """
        raise _not_in_a_step("state()")


def _not_in_a_step(what: str) -> InvalidInput:
    return InvalidInput(f"current().{what} is for the code of a step: what a workflow's own code does must come out the same again")


class WorkflowContext(ExecutionContext):
    """The context of a workflow's code."""

    def __init__(self, identity: Metadata, holder: VariableHolder, started_by: bytes | None = None) -> None:
        self.identity, self._started_by, self._holder = identity, started_by, holder
        self._variables = Variables(holder)

    @property
    def is_replaying(self) -> bool:
        """Return whether the code runs again after a crash or a wait, up to where it was."""
        return self._holder.is_replaying

    @property
    def variables(self) -> Variables:
        """Return the variables of the execution: a mapping whose writes land with the next commit."""
        return self._variables


class AttemptBuffer(Buffer):
    """The writes and the cost of an attempt, which land with its output."""

    spent: float = 0

    @property
    def limits(self) -> Limits:
        """Return the limits of the store."""
        return self._limits

    def extend(self, mutations: Iterable[Planned]) -> None:
        """Add what was collected elsewhere: by a step in another process, or by a nested one."""
        self._batch.extend(mutations)


class StateAccess:
    """The scoped state that a step reaches: ``current().state``.

    Writes land in the commit that records the step's output, or not at all. Reads see the stored values with this attempt's own
    writes over them.
    """

    def __init__(
        self,
        identity: Metadata,
        step: str,
        buffer: AttemptBuffer,
        reading: StateReading | None,
        grants: tuple[str, ...] | None = None,
    ) -> None:
        self._identity, self._step, self._buffer, self._reading = identity, step, buffer, reading
        self._grants = grants

    def __call__(self, scope: Scope | HasScope) -> StepState:
        """Return the state of a scope.

        - ``scope``: a ``Scope`` of the execution's own workspace, which ``default`` stands for, or the global one. The scopes of
          another workflow can be read if the running workflow has a grant for it: ``grants=[...]`` of ``@workflow`` or
          ``define``.

        Raise ``InvalidInput`` for another workspace, and for another workflow without a grant.
        """
        asked, who = scope_of(scope).seen_from(self._identity.workspace_id), self._identity
        is_others = asked.kind in _OF_A_WORKFLOW and asked.names[0] != who.workflow_id
        granted = _grants_of(who.workflow_id) if self._grants is None else self._grants
        if is_others and asked.names[0] not in granted:
            where = "@workflow" if self._grants is None else "define"
            raise InvalidInput(
                f"a step of workflow {who.workflow_id!r} cannot reach the state of workflow {asked.names[0]!r}; to read it, write "
                f"{where}(grants=[{asked.names[0]!r}]) there; for state that both write, use a custom scope or the workspace's"
            )
        return StepState(self._buffer, asked, self._buffer.limits, self._reading, is_read_only=is_others)

    @property
    def workflow(self) -> StepState:
        """Return the state of the running workflow, which all its executions in the workspace share."""
        return self(Scope.of_workflow(self._identity.workflow_id, self._identity.workspace_id))

    @property
    def step(self) -> StepState:
        """Return the state of the running step, which all executions of its workflow in the workspace share."""
        return self(Scope.of_step(self._identity.workflow_id, self._step, self._identity.workspace_id))

    @property
    def workspace(self) -> StepState:
        """Return the state of the execution's workspace."""
        return self(Scope.of_workspace(self._identity.workspace_id))


_OF_A_WORKFLOW = ("workflow", "step")


def _grants_of(workflow_id: str) -> tuple[str, ...]:
    found = registered_workflow(workflow_id)
    return () if found is None else found.grants


class StepContext(ExecutionContext):
    """The context of one attempt at a step."""

    def __init__(
        self,
        identity: Metadata,
        key: str,
        attempt: int,
        limits: Limits,
        reading: StateReading | None = None,
        started_by: bytes | None = None,
        name: str | None = None,
    ) -> None:
        self.identity, self._key, self._attempt, self._started_by = identity, key, attempt, started_by
        self._name = name or key
        self._reading = reading
        self.recorded_as = key
        """The key of the step's record."""
        self.grants: tuple[str, ...] | None = None
        """The workflows whose state it may read; None: those that the function of its workflow names."""
        self.buffer = AttemptBuffer(limits)
        self.attempt_log: AttemptLog | None = None
        """What the attempt has logged, in any of its threads; None where it cannot be kept, as in another process."""
        told = watcher.get()
        if told is not None:
            told(self)

    @property
    def step(self) -> str:
        """Return the key of the step's record."""
        return self._key

    @property
    def attempt(self) -> int:
        """Return the number of this attempt at the step, from 1."""
        return self._attempt

    @property
    def idempotency_key(self) -> str:
        """Return a key that is the same for every attempt at this step, before and after a crash.

        Pass it to a service that has effects outside, so that a repeated attempt has its effect once.
        """
        return f"{self.identity.execution_id}:{self._key}"

    def spend(self, amount: float) -> None:
        """Report the cost of this attempt, in any unit, for ``Governance(cost=...)``. It counts even if the attempt fails."""
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < inf:
            raise InvalidInput(f"what is spent is a number, 0 or more, not {amount!r}")
        self.buffer.spent += amount

    @property
    def state(self) -> StateAccess:
        """Return the scoped state that this step reaches."""
        return StateAccess(self.identity, self._name, self.buffer, self._reading, self.grants)


class NestedContext(StepContext):
    """Inside a step that is called as a part of another one: it sees what the other one wrote."""

    def __init__(self, outer: StepContext, key: str) -> None:
        super().__init__(outer.identity, key, outer.attempt, outer.buffer.limits, outer._reading, outer.started_by)
        self._outer, self.given, self.grants = outer, outer.given, outer.grants
        self.attempt_log = outer.attempt_log
        begins_with = outer.buffer.batch()
        self.buffer.extend(begins_with)
        self._own_from = len(begins_with)  # the outer one may write more, or nest another step, while this one runs

    def hand_over(self) -> None:
        """Let what this step wrote and spent land with what the other one writes."""
        outer = self._outer.buffer
        outer.extend(self.buffer.batch()[self._own_from :])
        outer.spent += self.buffer.spent


watcher: ContextVar[Callable[[StepContext], None] | None] = ContextVar("stepwell_watcher", default=None)
"""Called with the context of every attempt before it runs; None unless a test listens."""

here: ContextVar[ExecutionContext | None] = ContextVar("stepwell_here", default=None)


def current() -> ExecutionContext:
    """Return the execution that this code runs in: its id and variables in a workflow, its attempt and key in a step.

    Raise ``InvalidInput`` outside workflows and steps.

    Example:

        charge(card, amount, key=stepwell.current().idempotency_key)
    """
    found = here.get()
    if found is None:
        raise InvalidInput("stepwell.current() is for code that runs inside of a workflow or a step")
    return found
